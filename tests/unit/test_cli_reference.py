"""Documents that are written from the command line, the API and the errors; and what a first start costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from torpor.apps.api.middleware import BODY_BYTES_MAX
from torpor.apps.cli import exits, screen
from torpor.apps.cli.copying import Place, place
from torpor.apps.cli.main import app
from torpor.apps.cli.reference import REGENERATE, documents
from torpor.apps.client import BODY_BYTES_MAX as CLIENT_BODY_BYTES_MAX
from torpor.domain.errors import InvalidArgument, TorporError

CHECKOUT = Path(__file__).resolve().parents[2]
# typer itself takes pydantic for the values of options
HEAVY = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "numpy", "cryptography", "obstore", "structlog"}


@pytest.mark.parametrize("name", ["cli.md", "errors.md", "api.md"])
def test_a_generated_document_is_what_the_code_says(name):
    path = CHECKOUT / "docs" / name
    assert path.read_text() == documents(CHECKOUT)[path], f"run {REGENERATE}"


def commands(command=None, path=("torpor",)):
    command = command or typer.main.get_command(app)
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_every_command_shows_an_example_and_prints_json_if_asked():
    for path, command in commands():
        assert f"  {' '.join(path)}" in (command.epilog or ""), path
        if not hasattr(command, "commands") and path[-1] != "shell":  # a terminal shows what it shows
            assert "--json" in {option for parameter in command.params for option in parameter.opts}, path


def test_every_command_of_the_specification_is_there():
    wanted = (
        "up down create code sh exec cp pause resume rm ls inspect store-check engine-list engine-install engine-test "
        "template-build template-list bench-resume bench-pause run shell port logs snapshot fork set config-show"
    )
    assert set(wanted.split()) <= {
        "-".join(path[1:]) for path, command in commands() if not hasattr(command, "commands")
    }


@pytest.mark.parametrize(
    "program",
    [
        "from torpor.apps.cli.main import main; main(['--help'])",
        "from torpor.apps.cli.main import main; main(['ls', '--json'])",
    ],
)
def test_client_commands_import_nothing_of_the_server(program, tmp_path):
    looking = f"import sys\n{program}\nprint(','.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", looking],
        capture_output=True,
        text=True,
        check=True,
        env={"TORPOR_HOME": str(tmp_path), "TORPOR_API_URL": "http://127.0.0.1:9", "TORPOR_API_KEY": "x" * 20},
    )
    loaded = set(done.stdout.splitlines()[-1].split(","))
    assert loaded & HEAVY == set()
    assert ("httpx" in loaded) is ("ls" in program)


def test_every_error_has_an_exit_code_that_is_documented():
    codes = {exits.exit_code(kind("")) for kind in (TorporError, *TorporError.__subclasses__())}
    assert codes <= exits.MEANINGS.keys()
    assert exits.OK not in codes


@pytest.mark.parametrize(("given", "ours"), [(None, 0), (0, 0), (7, 7), (-9, 137), (-15, 143)])
def test_a_command_killed_by_a_signal_exits_as_in_a_shell(given, ours):
    assert exits.of_command(given) == ours


def test_client_and_server_agree_on_the_largest_body():
    assert CLIENT_BODY_BYTES_MAX == BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one:/data/x", Place("one", "/data/x")),
        ("one:x:y", Place("one", "x:y")),
        ("./one:x", Place(None, "./one:x")),
        ("/one:x", Place(None, "/one:x")),
        ("a/b:c", Place(None, "a/b:c")),
        ("file", Place(None, "file")),
        ("-", Place(None, "-")),
        (":x", Place(None, ":x")),
    ],
)
def test_a_colon_before_any_slash_names_a_session(text, expected):
    assert place(text) == expected


def test_a_session_without_a_path_is_refused():
    with pytest.raises(InvalidArgument, match="a path follows the colon"):
        place("one:")


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_940, "99.9 kB"), (100_000, "100 kB"), (268_435_456, "268 MB"),
     (2_500_000_000, "2.5 GB"), (5e12, "5.0 TB")],
)  # fmt: skip
def test_sizes_have_three_digits(count_bytes, text):
    assert screen.size(count_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.1204, "120 ms"), (1.5, "1.5 s"), (42.4, "42 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
     (11_520, "3 h 12 min"), (439_200, "5 d 2 h")],
)  # fmt: skip
def test_spans_name_their_two_largest_parts(duration_s, text):
    assert screen.span(duration_s) == text
