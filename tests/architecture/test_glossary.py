"""One word means one thing: the glossary is a table, and words that it rules out do not name anything in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCE = CHECKOUT / "src/torpor"
# An engine's or a client's own vocabulary stays at the edge, and has to be spoken there.
INNER_ROOMS = ("domain", "ports", "store", "services")
CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
WORDS_NEEDED = (
    *(
        "session",
        "instance",
        "engine",
        "freeze",
        "thaw",
        "checkpoint",
        "restore",
        "pause",
        "resume",
        "snapshot",
        "chunk",
    ),
    *(
        "pack",
        "manifest",
        "digest",
        "id",
        "lease",
        "generation",
        "operation",
        "order",
        "report",
        "revision",
        "tombstone",
    ),
    *("burst", "tenant", "template", "lineage", "persistence", "durability", "rebuilt"),
)


def rows() -> list[list[str]]:
    lines = (CHECKOUT / "GLOSSARY.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return [row for row in cells[2:] if len(row) == 3 and not set(row[0]) <= set("- ")]


def banned_words() -> set[tuple[str, ...]]:
    """The words in bold in the last column, each as its parts in lower case."""
    return {tuple(word.lower().split()) for row in rows() for word in re.findall(r"\*\*([^*]+)\*\*", row[2])}


def parts(identifier: str) -> tuple[str, ...]:
    return tuple(word.lower() for piece in identifier.split("_") for word in CAMEL.findall(piece))


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """What a module names: itself, its classes, functions, parameters, and what it assigns to."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def names_it(word: tuple[str, ...], identifier: str) -> bool:
    """True if the word's parts stand in a row in the identifier, in the singular or the plural."""
    have = parts(identifier)
    wanted = [word, (*word[:-1], word[-1] + "s")]
    return any(have[start : start + len(word)] in wanted for start in range(len(have) - len(word) + 1))


def test_every_word_of_the_design_has_its_row():
    words = {word.strip() for row in rows() for word in re.split("[,/]", row[0])}
    assert [word for word in WORDS_NEEDED if word not in words] == []


def test_every_row_says_what_the_word_means():
    assert [row[0] for row in rows() if len(row[1]) < 10] == []


def test_words_that_are_ruled_out_name_nothing_in_the_inner_rooms():
    banned = banned_words()
    assert banned
    used = [
        f"{path.relative_to(CHECKOUT)}:{line} {identifier}: see {' '.join(word)!r} in GLOSSARY.md"
        for room in INNER_ROOMS
        for path in sorted((SOURCE / room).rglob("*.py"))
        for line, identifier in identifiers(path)
        for word in banned
        if names_it(word, identifier)
    ]
    assert used == [], "\n".join(used)


@pytest.mark.parametrize(
    ("word", "identifier", "is_named"),
    [
        ("master key", "MasterKeyStore", True),
        ("master key", "load_master_keys", True),
        ("dump", "dump_state", True),
        ("dump", "dumpling", False),
        ("epoch", "EPOCH_S", True),
    ],
)
def test_a_word_is_found_in_names_of_every_case(word, identifier, is_named):
    assert names_it(tuple(word.split()), identifier) is is_named
