"""The shape of the code: sizes, names and what may be written where. Each failure names the place and the rule."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
PARAMETERS_MAX = 7
MODULES_BANNED = {"utils", "helpers", "common", "base", "core", "manager", "misc"}
DOCUMENTED_ROOMS = ("src/torpor/domain/", "src/torpor/ports/", "src/torpor/store/", "src/torpor/services/")
# The app's outermost loop and the task supervisor: nowhere else may every error be caught and survived.
BROAD_EXCEPT_FILES = ("src/torpor/apps/cli/main.py", "src/torpor/services/supervisor.py")
# Programs of tests that run inside a sandbox answer whatever happens to them.
GUEST_PROGRAMS = "src/torpor/testing/programs/"

# sha256 (16 digits) of package registries' host names, so that they are not named here either. Machines reach their
# registries by their own configuration; a name in the code would pass it by.
REGISTRY_HOST_DIGESTS = {
    "00a7dc5a0cc38858",
    "0dc11026ac75c015",
    "1ba4e37997a2e986",
    "2e97613f5a81eaa4",
    "317d2d52829b7812",
    "3d01f3609be82d98",
    "43c04ed1dabe979b",
    "62f256676f138898",
    "70bb4000cd2fab03",
    "71741fe2460a6150",
    "789e46d79514e280",
    "9495278a74715c7e",
    "9da5f32d96412512",
    "a0f007d863a0ed19",
    "a4aa2ac280bb8d1a",
    "c2b35955576ffa71",
    "c899567ee9068517",
    "d6d7019ca9fcbf07",
    "e514b0d3b0562f54",
    "e680c440a2e92079",
    "eb7e11c7f9ecbcf4",
}
HOST = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+")
UNFINISHED = re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b")  # written so that it does not find itself
OUTSIDE = re.compile(r"\.\./[s]hared|/work/[s]hared")


@cache
def files(*suffixes: str) -> tuple[Path, ...]:
    """What git tracks or would track, with one of the suffixes (all files if none is given)."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        check=True,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    ).stdout
    paths = [CHECKOUT / name for name in sorted(listed.split("\0")) if name]
    return tuple(path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def sources() -> Iterator[Path]:
    """Python that is not a test."""
    return (path for path in files(".py") if not name(path).startswith("tests/"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_functions_are_short():
    long = [
        f"{name(path)}:{node.lineno} {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
        for path in files(".py")
        for node in functions(path)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == [], "\n".join(long)


def test_files_are_short():
    long = [
        f"{name(path)} has {lines} lines, at most {FILE_LINES_MAX}"
        for path in files(".py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert long == [], "\n".join(long)


def test_functions_take_few_parameters():
    many = []
    for path in sources():
        for node in functions(path):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len(given) - bool(given and given[0].arg in {"self", "cls"})
            if count > PARAMETERS_MAX and not _declares_options(node):
                many.append(
                    f"{name(path)}:{node.lineno} {node.name} takes {count}, at most {PARAMETERS_MAX}: make a value"
                )
    assert many == [], "\n".join(many)


def _declares_options(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command of the command line: its parameters are the options that people see, and there is no value to make."""
    first = (node.args.posonlyargs + node.args.args)[:1]
    return any(
        argument.annotation is not None and ast.unparse(argument.annotation) == "typer.Context" for argument in first
    )


def test_modules_are_named_after_what_they_are_about():
    vague = [name(path) for path in files(".py") if {path.stem, path.parent.name} & MODULES_BANNED]
    assert vague == [], "\n".join(vague)


def test_nothing_is_marked_unfinished():
    marked = [
        f"{name(path)}:{number}"
        for path in files(".py", ".md", ".toml", ".txt", "")
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert marked == [], "\n".join(marked)


def test_every_module_says_what_it_is_for():
    mute = [name(path) for path in sources() if ast.get_docstring(tree(path)) is None]
    assert mute == [], "\n".join(mute)


def test_public_names_of_the_inner_rooms_state_their_contract():
    mute = []
    for path in sources():
        if not name(path).startswith(DOCUMENTED_ROOMS):
            continue
        for scope in (tree(path), *(node for node in tree(path).body if _is_public_class(node))):
            mute += [
                f"{name(path)}:{node.lineno} {node.name}"
                for node in scope.body
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and not node.name.startswith("_")
                and not _inherits_its_contract(scope, node)
                and ast.get_docstring(node) is None
            ]
    assert mute == [], "\n".join(mute)


def _is_public_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and not node.name.startswith("_")


def _inherits_its_contract(scope: ast.AST, node: ast.AST) -> bool:
    """A method that implements a port says nothing, and so inherits the port's docstring."""
    return isinstance(scope, ast.ClassDef) and bool(scope.bases) and not isinstance(node, ast.ClassDef)


def test_everything_is_caught_in_two_places_only():
    caught = [
        f"{name(path)}:{node.lineno} catches everything: name the errors, or raise again"
        for path in sources()
        if name(path).startswith("src/")
        and name(path) not in BROAD_EXCEPT_FILES
        and not name(path).startswith(GUEST_PROGRAMS)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and node.lineno not in _noted_lines(path)
    ]
    assert caught == [], "\n".join(caught)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
    if handler.type is None or "Exception" in names:
        return True
    raises_again = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return "BaseException" in names and not raises_again


@cache
def _noted_lines(path: Path) -> set[int]:
    """Lines that hand an error of any kind over to somebody else, and say so."""
    with tokenize.open(path) as file:
        comments = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
    return {token.start[0] for token in comments if re.search(r"noqa: BLE001 - \S", token.string)}


def test_names_of_test_files_are_unique():
    counts = Counter(
        path.name for path in files(".py") if name(path).startswith("tests/") and path.name.startswith("test_")
    )
    assert [file for file, count in counts.items() if count > 1] == []


def test_no_package_registry_is_named():
    named = [
        f"{name(path)}: a registry's host"
        for path in files()
        for host in set(HOST.findall(text_of(path)))
        if hashlib.sha256(host.encode()).hexdigest()[:16] in REGISTRY_HOST_DIGESTS
    ]
    assert named == [], "\n".join(named)


def test_nothing_but_the_golden_formats_is_binary():
    """A program or an archive that a tool left in the checkout is not the project's, whoever adds all files."""
    binary = {name(path) for path in files() if b"\0" in path.read_bytes()}
    assert [path for path in sorted(binary) if not path.startswith("tests/golden/formats/")] == []


def test_nothing_outside_the_checkout_is_needed():
    outside = [
        f"{name(path)}:{number}"
        for path in files()
        if path.suffix != ".md"
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if OUTSIDE.search(line)
    ]
    assert outside == [], "\n".join(outside)


@pytest.mark.parametrize(
    ("source", "is_broad"),
    [
        ("try: pass\nexcept Exception: pass", True),
        ("try: pass\nexcept: pass", True),
        ("try: pass\nexcept (ValueError, Exception): raise", True),
        ("try: pass\nexcept BaseException: pass", True),
        ("try: pass\nexcept BaseException:\n    x = 1\n    raise", False),
        ("try: pass\nexcept ValueError: pass", False),
    ],
)
def test_a_broad_except_is_told_from_one_that_raises_again(source, is_broad):
    (handler,) = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ExceptHandler))
    assert _is_broad(handler) is is_broad
