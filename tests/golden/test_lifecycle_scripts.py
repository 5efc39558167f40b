"""Lifecycle scripts: command, ----, result. TORPOR_REGENERATE=1 writes the results that hold now."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.domain import lifecycle
from torpor.domain.ids import InstanceId
from torpor.domain.lifecycle import Accepted, Denied, Event, Ignored, decide
from torpor.domain.session import Durability, Session, SnapshotRecord
from torpor.testing.contracts.catalog import session

SCRIPTS = sorted((Path(__file__).parent / "lifecycle").glob("*.txt"))
RULE = "----"


class Play:
    """A session and a clock, driven by one line at a time."""

    def __init__(self) -> None:
        self.session: Session = session()
        self.now_s = 0.0

    def answer(self, line: str) -> str:
        words = line.split("#", maxsplit=1)[0].split()
        if words[0] == "at":
            self.now_s = float(words[1])
            return "ok"
        decision = decide(self.session, self.event(*words), now_s=self.now_s)
        match decision:
            case Accepted(changed, effects):
                self.session = changed
                return shown(changed) + (f"    effects: {', '.join(effects)}" if effects else "")
            case Ignored(reason):
                return f"ignored: {reason}"
            case Denied(reason):
                return f"denied: {reason}"

    def event(self, word: str, *rest: str) -> Event:
        if word == "resume":
            return lifecycle.Resume(allow_older=rest == ("allow-older",))
        if word in {"create", "pause", "snapshot", "wake", "delete"}:
            return getattr(lifecycle, word.capitalize())()
        generation, operation = (int(text.lstrip("gop")) for text in rest[:2])
        match word:
            case "started":
                return lifecycle.Started(generation, operation, InstanceId("i" * 20))
            case "stored":
                snapshot = SnapshotRecord({}, int(rest[2].removeprefix("seq")), self.now_s, image_bytes=0, new_bytes=0)
                return lifecycle.SnapshotStored(generation, operation, snapshot, Durability(rest[3]))
            case "failed":
                return lifecycle.OperationFailed(generation, operation, "engine failed")
            case "lost":
                return lifecycle.InstanceLost(generation, operation, "instance died")
            case "deleted":
                return lifecycle.Deleted(generation, operation)
        raise AssertionError(f"no such event: {word}")


def shown(record: Session) -> str:
    facts = [record.status.value, f"g{record.generation}", f"op{record.operation}"]
    if record.snapshot is not None:
        facts.append(f"seq{record.snapshot.sequence} {record.durability}")
    if record.running_since_s is not None:
        facts.append(f"running since {record.running_since_s:g}")
    if record.paused_at_s is not None:
        facts.append(f"paused at {record.paused_at_s:g}")
    if record.compute_s:
        facts.append(f"computed {record.compute_s:g}")
    return " ".join(facts)


def answers(lines: Iterator[str]) -> Iterator[str]:
    """The script with every result as it is now."""
    play = Play()
    for line in lines:
        yield line
        if line and not line.startswith("#"):
            assert next(lines) == RULE, f"{RULE} must follow {line!r}"
            yield RULE
            yield play.answer(line)
            next(lines, None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_is_answered_as_written(script: Path) -> None:
    written = script.read_text()
    now = "\n".join(answers(iter(written.splitlines()))) + "\n"
    if os.environ.get("TORPOR_REGENERATE"):
        script.write_text(now)
    assert now == script.read_text(), f"TORPOR_REGENERATE=1 .venv/bin/pytest {Path(__file__).name} rewrites {script}"


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 7
