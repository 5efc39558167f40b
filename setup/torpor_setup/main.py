"""Says what it will change, does what is not done, and says how it went."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torpor_setup import machine, undo
from torpor_setup.perform import StepFailed, say
from torpor_setup.places import Places
from torpor_setup.steps import GOALS, Step, link_for_tests, steps_for

INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """Exit status: 0 done, 1 a step failed, 2 a wrong call, 130 interrupted."""
    places = Places(Path(__file__).resolve().parents[2])
    goal = arguments[0] if arguments else ""
    # Asked to end in whatever way, it ends the command it is running first: that one has a session of its own.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        if goal == "undo":
            with _alone(places):
                return undo.undo(places, with_packages=os.environ.get("PACKAGES") == "1")
        if goal in GOALS:
            return _set_up(goal, places)
    except StepFailed as failure:
        _explain(failure)
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing is half-done: run the same command to go on")
        return INTERRUPTED
    say(f"cannot set up {goal!r}: say one of {', '.join((*GOALS, 'undo'))}")
    return 2


def _set_up(goal: str, places: Places) -> int:
    if not _pending(goal, places):
        return 0
    with _alone(places):
        pending = _pending(goal, places)  # another run may have done it while this one waited
        if not pending:
            return 0
        _require(goal, places)
        _announce(pending)
        for number, step in enumerate(pending, start=1):
            _perform(step, places, f"[{number}/{len(pending)}]")
        if goal == "engine":
            link_for_tests(places)
    say("set-up done")
    return 0


def _pending(goal: str, places: Places) -> list[Step]:
    return [
        step
        for step in steps_for(goal, places)
        if (not step.is_there() if step.name == "packages" else not step.is_done(places.stamps))
    ]


def _require(goal: str, places: Places) -> None:
    if goal == "check":
        return
    if not machine.is_root():
        raise StepFailed(
            "the engine and its tests need root (namespaces, cgroups, mounts)",
            remedy="repeat as root; make check needs none",
        )
    free = machine.free_bytes(places.cache)
    if free < machine.DISK_BYTES_MIN:
        raise StepFailed(
            f"only {free >> 20} MiB of disk are free under {places.checkout}",
            remedy=f"free {machine.DISK_BYTES_MIN >> 30} GiB and repeat",
        )


def _announce(pending: list[Step]) -> None:
    total_s = sum(step.about_s for step in pending)
    say("torpor's set-up will make, once:")
    for step in pending:
        say(f"  - {step.changes}  (about {step.about_s} s)")
    say(f"about {max(1, round(total_s / 60))} min in all; 'make undo' takes it back.")


def _perform(step: Step, places: Places, number: str) -> None:
    say(f"{number} {step.name}")
    started_s = time.monotonic()
    (places.logs / f"{step.name}.log").unlink(missing_ok=True)
    (places.stamps / step.name).unlink(missing_ok=True)
    try:
        step.perform()
    except StepFailed as failure:
        failure.args = (f"{step.name}: {failure.what}; its log is .cache/logs/{step.name}.log",)
        raise
    if step.name != "packages":
        if not step.is_there():
            raise StepFailed(
                f"{step.name}: the step ended well, but its result is not there",
                remedy=f"see .cache/logs/{step.name}.log, then run make undo and repeat",
            )
        step.stamp(places.stamps)
    say(f"      done in {time.monotonic() - started_s:.0f} s")


def _explain(failure: StepFailed) -> None:
    if failure.tail:
        print(failure.tail, file=sys.stderr)
    print(f"cannot set up: {failure}\nremedy: {failure.remedy}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _alone(places: Places) -> Iterator[None]:
    """One set-up of a checkout at a time; the lock dies with its holder."""
    places.cache.mkdir(parents=True, exist_ok=True)
    handle = os.open(places.checkout / ".cache/setup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
