"""Runs the commands of a step: output to a log, signs of life to the person, a remedy on failure."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SIGN_OF_LIFE_S = 10.0
TAIL_LINES = 30


class StepFailed(Exception):
    """A step could not be done. ``remedy``: what the person can do about it. ``tail``: the end of its output."""

    def __init__(self, what: str, *, remedy: str, tail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.tail = tail


def say(text: str) -> None:
    """One line to the person, at once."""
    print(text, flush=True)


def run(argv: Sequence[str | Path], *, log: Path, remedy: str, env: Mapping[str, str] | None = None) -> None:
    """Run to the end, appending its output to ``log``. The whole process group ends with us.

    Raises: StepFailed if it cannot be started or ends with another status than 0.
    """
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(f"$ {' '.join(words)}\n".encode())
        file.flush()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                start_new_session=True,
            )
        except OSError as error:
            raise StepFailed(f"cannot start {words[0]}: {error.strerror}", remedy=remedy) from error
        assert process.stdout is not None
        try:
            tail = _follow(process, file)
        except BaseException:
            _end_group(process)
            raise
        finally:
            process.stdout.close()
    if process.returncode:
        raise StepFailed(f"{Path(words[0]).name} ended with {process.returncode}", remedy=remedy, tail=tail)


def _follow(process: subprocess.Popen[bytes], file) -> str:  # noqa: ANN001 - a binary file
    output = process.stdout.fileno()
    started_s = told_s = time.monotonic()
    kept = b""
    while True:
        readable, _, _ = select.select([output], [], [], 1.0)
        if readable:
            block = os.read(output, 1 << 16)
            if not block:
                break
            file.write(block)
            file.flush()
            kept = (kept + block)[-(1 << 14) :]
        now_s = time.monotonic()
        if now_s - told_s >= SIGN_OF_LIFE_S:
            told_s = now_s
            lines = kept.decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "working")
            say(f"      {now_s - started_s:4.0f} s  {last[:100]}")
    process.wait()
    return "\n".join(kept.decode(errors="replace").splitlines()[-TAIL_LINES:])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # It has a session of its own, so that an interrupt reaches it once, from here, with time to clean up.
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=15)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
