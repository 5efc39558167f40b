"""docs/cases.md names tests; each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
CASES = CHECKOUT / "docs/cases.md"
NODE = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")
WANTED = "C01 C03 C05 C07 C10 C12 C13 C15 C17 C19 C21 C22 C24 C25 C29 C36 C37 C38 C39 C42 C43 C45 C47"
CONTRACTS = CHECKOUT / "src/torpor/testing/contracts"


@cache
def names(path: Path) -> frozenset[str]:
    """Tests of a module, and those of its classes as ``Class::test``."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in functions(node.body)}
        found |= functions([node])
    return frozenset(found)


def functions(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def exists(path: Path, name: str) -> bool:
    """Also if a class of the module has it from a contract that is shipped."""
    if name in names(path):
        return True
    owner, _, test = name.rpartition("::")
    inherits = bool(owner) and f"class {owner}(" in path.read_text(encoding="utf-8")
    return inherits and any(f"def {test}(" in one.read_text(encoding="utf-8") for one in CONTRACTS.glob("*.py"))


def test_every_case_names_tests_that_exist():
    rows = {row.split("|")[1].strip(): row for row in CASES.read_text().splitlines() if row.startswith("| C")}
    rows.pop("Case", None)
    assert list(rows) == WANTED.split()
    assert [case for case, row in rows.items() if not NODE.search(row)] == []


def test_every_named_test_exists():
    named = NODE.findall(CASES.read_text())
    missing = [
        f"{file}{parts}"
        for file, parts in named
        if not (CHECKOUT / file).is_file() or not exists(CHECKOUT / file, parts.removeprefix("::"))
    ]
    assert missing == []
