"""A tutorial's blocks, and playing them: what a reader types goes to a real shell on a real terminal.

``console``: lines after ``$ `` are typed into bash; lines after a prompt that ends in ``# `` are typed into the program
that the command started. ``python``: run in one process; ``python fresh`` in a new one. ``text``: what the Python block
above it printed. ``toml NAME``: a file of that name in the shell's folder. In what is shown, ``…`` stands for anything
within its line, and a line that is only ``…`` for any lines.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 120
END = "\x1e"  # written by the shell and by Python after each step; nothing of the tutorial writes it
FENCE = re.compile(r"^```(?P<kind>[a-z]*) ?(?P<argument>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^(?P<prompt>\S+# )(?P<typed>.*)$")
# A waiting line, which the terminal wipes again; then colours, cursor moves and modes.
WIPED = re.compile(r"\r\x1b\[2Ktorpor: [^\r]*(?=\r\x1b\[2K|$)")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")

DRIVER = f"""
import json, sys, traceback
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<tutorial>", "exec"), names)
        ended = "0"
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        ended = "1"
    print({END!r} + ended + {END!r}, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """One fenced block and the line it begins at."""

    kind: str
    argument: str
    text: str
    line: int


@dataclass
class Step:
    """A command, what is typed into the program that it starts, and what the page shows of both."""

    command: str
    typed: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)


def blocks_of(page: str) -> Iterator[Block]:
    """All fenced blocks in order."""
    for found in FENCE.finditer(page):
        yield Block(found["kind"], found["argument"], found["text"], page.count("\n", 0, found.start()) + 1)


def steps_of(text: str) -> list[Step]:
    """The commands of a console block. A command goes on in the next line after a backslash."""
    steps: list[Step] = []
    for line in text.splitlines():
        if steps and steps[-1].command.endswith("\\"):
            steps[-1].command += f"\n{line}"
        elif line.startswith("$ "):
            steps.append(Step(line.removeprefix("$ ")))
        else:
            if prompted := PROMPT.match(line):
                steps[-1].typed.append(prompted["typed"])
            steps[-1].shown.append(line)
    return steps


def agrees(shown: list[str], said: list[str]) -> bool:
    """Whether what was said is what the page shows."""
    if not shown:
        return not said
    if shown[0].strip() == "…":
        return any(agrees(shown[1:], said[skipped:]) for skipped in range(len(said) + 1))
    pattern = ".*".join(re.escape(part) for part in shown[0].rstrip().split("…"))
    return bool(said) and re.fullmatch(pattern, said[0].rstrip()) is not None and agrees(shown[1:], said[1:])


class Shell:
    """bash on a terminal of its own, as wide as the page's lines want it."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        ours, theirs = pty.openpty()
        self._terminal = ours
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**environment, "TERM": "xterm", "PS1": "", "PS2": "", "PROMPT_COMMAND": f"printf '{END}%d{END}' $?"},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads of ours run here
        )
        os.close(theirs)
        self._read_end()
        os.write(ours, b"export -n PROMPT_COMMAND PS1 PS2; stty -echo cols 200 rows 50\n")
        self._read_end()

    def run(self, command: str, typed: list[str] = []) -> tuple[list[str], int]:  # noqa: B006 - never changed
        """Lines that the terminal showed, and the exit code."""
        os.write(self._terminal, f"{command}\n".encode())
        seen = ""
        for line in typed:
            seen += self._read(lambda text: ESCAPES.sub("", text).endswith("# "))
            os.write(self._terminal, f"{line}\r".encode())
        said, code = self._read_end(seen)
        return ESCAPES.sub("", WIPED.sub("", said)).splitlines(), code

    def ask(self, command: str) -> str:
        """What a command prints, for the test's own use."""
        return "\n".join(self.run(command)[0])

    def close(self) -> None:
        """End bash, and what it started in the foreground."""
        os.close(self._terminal)
        self._bash.terminate()
        self._bash.wait(PATIENCE_S)

    def _read_end(self, seen: str = "") -> tuple[str, int]:
        said = seen + self._read(lambda text: text.count(END) == 2)
        text, code, _ = said.split(END)
        return text, int(code)

    def _read(self, complete) -> str:
        data = b""
        while not complete(data.decode(errors="replace")):
            assert select.select([self._terminal], [], [], PATIENCE_S)[0], f"the terminal is silent after {data!r}"
            data += os.read(self._terminal, 65536)
        return data.decode(errors="replace")


class Python:
    """A Python process into which blocks are put one after the other."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )

    def run(self, source: str) -> tuple[list[str], int]:
        """Lines that it printed, and 0 if it raised nothing."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(source) + "\n")
        stdin.flush()
        said = ""
        while said.count(END) < 2:
            line = stdout.readline()
            assert line, f"Python ended after {said!r}"
            said += line
        text, code, _ = said.split(END)
        return text.splitlines(), int(code)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


def _take_terminal() -> None:
    import fcntl  # noqa: PLC0415 - runs in the child
    import termios  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
