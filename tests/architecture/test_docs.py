"""What is written about the project agrees with the project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from torpor.domain import errors

CHECKOUT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", pattern],
        check=True,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    ).stdout
    return [CHECKOUT / name for name in listed.split("\0") if name]


def table_rows(text: str) -> list[list[str]]:
    """Cells of every table row of a Markdown text, without headings and rules."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    rules = {number for number, row in enumerate(cells) if all(set(cell) <= set("-: ") for cell in row)}
    return [row for number, row in enumerate(cells) if number not in rules and number + 1 not in rules]


def test_every_dependency_has_its_reason_and_nothing_else_is_listed():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {match[0].lower() for one in wanted if (match := REQUIREMENT_NAME.match(one))}
    rows = table_rows((CHECKOUT / "docs/dependencies.md").read_text())
    listed = {row[0].strip("`").lower(): row[1] for row in rows if len(row) == 2}
    assert listed.keys() == names
    assert [name for name, reason in listed.items() if len(reason) < 10] == []


def test_the_documents_of_a_project_are_there():
    names = ("LICENSE", "README.md", "GLOSSARY.md", "SECURITY.md", "CONTRIBUTING.md", "AGENTS.md")
    assert [name for name in names if not (CHECKOUT / name).is_file()] == []


def test_the_page_for_agents_is_short():
    assert len((CHECKOUT / "AGENTS.md").read_text().splitlines()) <= 20


def test_links_between_documents_lead_somewhere():
    broken = [
        f"{path.relative_to(CHECKOUT)}: {target}"
        for path in tracked("*.md")
        for target in LINK.findall(path.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists()
    ]
    assert broken == [], "\n".join(broken)


def test_every_make_target_that_is_written_about_exists():
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        (str(path.relative_to(CHECKOUT)), target)
        for path in tracked("*.md")
        for target in re.findall(r"`make ([a-z-]+)", path.read_text(encoding="utf-8"))
    }
    assert sorted(where for where in named if where[1] not in targets) == []


def test_every_target_for_people_says_what_it_does():
    makefile = (CHECKOUT / "Makefile").read_text()
    described = set(re.findall(r"^([a-z-]+):[^#\n]*## \S", makefile, flags=re.MULTILINE))
    assert {"demo", "test", "check", "setup", "undo", "regen", "bench", "lock"} <= described


def test_the_page_of_errors_draws_every_class_once():
    drawn = re.findall(r"(?:├──|└──) (\w+)", errors.__doc__ or "")
    classes = {error.__name__: error for error in errors.TorporError.__subclasses__()}
    assert sorted(drawn) == sorted(classes)
    codes = [error.code for error in classes.values()]
    assert len(set(codes)) == len(codes)
