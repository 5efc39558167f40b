"""docs/tutorial.md, played from its first block to its last on the real engine: what it shows is what is said."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from e2e_home import CHECKOUT, home_at
from tutorial_blocks import Python, Shell, agrees, blocks_of, steps_of

pytestmark = pytest.mark.engine

PAGE = CHECKOUT / "docs/tutorial.md"
# Read by a person before the tutorial, and played by others: the set-up that this test runs under has done it.
BEFORE = "sh"
KINDS = {BEFORE, "console", "python", "text", "toml"}


class Player:
    """A reader: one shell, one Python, and a folder that looks like the checkout."""

    def __init__(self, checkout: Path, environment: dict[str, str]) -> None:
        self.shell = Shell(environment, checkout)
        self.python: Python | None = None
        self.printed: list[str] = []

    def play(self, block) -> None:
        """Do what one block says. What Python printed is compared with the block that follows it."""
        if block.kind != "text":
            assert self.printed == [], f"line {block.line}: the page does not show {self.printed}"
        if block.kind == "console":
            for step in steps_of(block.text):
                said, _ = self.shell.run(step.command, step.typed)
                assert agrees(step.shown, said) or agrees(step.shown, without_asides(said)), _difference(
                    block.line, step.command, step.shown, said
                )
        elif block.kind == "toml":
            folder = Path(self.shell.ask("pwd"))
            (folder / block.argument).write_text(block.text)
        elif block.kind == "python":
            self.printed = self._python(fresh=block.argument == "fresh").run(block.text)[0]
        elif block.kind == "text":
            shown, said, self.printed = block.text.splitlines(), self.printed, []
            assert agrees(shown, said), _difference(block.line, "the Python above", shown, said)

    def close(self) -> None:
        """End both."""
        if self.python is not None:
            self.python.close()
        self.shell.close()

    def _python(self, *, fresh: bool) -> Python:
        if self.python is not None and fresh:
            self.python.close()
            self.python = None
        if self.python is None:
            pairs = [line.partition("=") for line in self.shell.ask("env").splitlines()]
            self.python = Python({name: value for name, _, value in pairs}, Path(self.shell.ask("pwd")))
        return self.python


def without_asides(said: list[str]) -> list[str]:
    """Without what comes when it likes: a session that paused itself because this reader was slow, and ended jobs."""
    return [line for line in said if not re.match(r"torpor: \S+ was paused for |\[\d+\]\+ +Terminated ", line)]


def _difference(line, command, shown, said):
    return f"docs/tutorial.md, block at line {line}, {command!r}\n shows: {shown}\n said:  {said}"


def checkout_at(folder: Path) -> Path:
    """A folder in which everything of the checkout is found, but whose .cache is its own."""
    folder.mkdir()
    for entry in CHECKOUT.iterdir():
        if entry.name not in {".cache", ".git"}:
            (folder / entry.name).symlink_to(entry)
    (folder / ".cache").mkdir()
    return folder


def test_the_tutorial_is_true(tmp_path):
    checkout = checkout_at(tmp_path / "torpor")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORPOR_", "MAKE", "MFLAGS"))}
    environment = {**kept, "HOME": str(tmp_path), "TORPOR_PORT": "0", "PAGER": "cat"}
    with home_at(checkout / ".cache/home"):
        player = Player(checkout, environment)
        try:
            for block in blocks_of(PAGE.read_text(encoding="utf-8")):
                assert block.kind in KINDS, f"line {block.line}: a block of kind {block.kind!r} would not be played"
                player.play(block)
            assert player.printed == [], f"the page does not show {player.printed}"
            assert "no server runs" in player.shell.ask("torpor down"), "the tutorial leaves a server behind"
        finally:
            player.shell.ask("torpor down")
            player.close()


def test_what_the_page_shows_is_compared_line_by_line():
    assert agrees(["a", "…", "c … e"], ["a", "b1", "b2", "c d e"])
    assert agrees(["a", "…"], ["a"])
    assert not agrees(["a"], ["a", "b"])
    assert not agrees(["a …"], ["b c"])
    [first, second] = steps_of("$ one \\\n  two\nsaid\n$ three\nroot@x:~# four\nfive\n")
    assert (first.command, first.shown, second.typed) == ("one \\\n  two", ["said"], ["four"])
