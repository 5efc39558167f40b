"""A session as a file: export and import, sealed under a passphrase that is never on the command line."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from torpor.apps.cli import screen
from torpor.apps.cli.copying import local_pieces, write_local, write_stdout
from torpor.apps.cli.options import AsJson, Ref, connected, examples
from torpor.domain.errors import InvalidArgument, NotFound

VARIABLE = "TORPOR_PASSPHRASE"

PassphraseFile = Annotated[
    str | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help=f"Its first line is the passphrase. Default: ${VARIABLE}, else it is asked for.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(
        "export",
        epilog=examples(
            "torpor export analysis analysis.torpor", "torpor export analysis - --passphrase-file pass | ssh there …"
        ),
    )(export)
    app.command(
        "import",
        epilog=examples(
            "torpor import analysis.torpor --name analysis", "torpor import - --passphrase-file pass < a.torpor"
        ),
    )(import_)


def export(
    context: typer.Context,
    ref: Ref,
    target: Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for stdout.", show_default=False)],
    *,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a session's newest snapshot to one file, sealed under a passphrase of at least 8 characters.

    What runs is not looked at: pause or snapshot it first. An existing file is replaced at once or not at all.
    """
    from torpor.apps.sdk import calls  # noqa: PLC0415 - not needed for --help

    into = Path(target)
    if target != "-" and into.is_dir():
        into /= f"{ref}.torpor"
    passphrase = given_passphrase(passphrase_file, confirm=True)
    with (
        connected(context) as client,
        screen.counting(f"exporting {ref}", quiet=as_json) as counted,
        client.read(calls.export(ref, passphrase)) as (pieces, _),
    ):
        size_bytes = write_stdout(counted(pieces)) if target == "-" else write_local(into, counted(pieces))
    if target == "-":
        return
    if as_json:
        screen.emit({"path": str(into), "size_bytes": size_bytes})
    else:
        screen.say(f"{into}  {screen.size(size_bytes)}; whoever has the passphrase can read it")


def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for stdin.", show_default=False)],
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="The new session's. Default: none.", show_default=False)
    ] = None,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new session, paused, out of an exported file; its id is printed. Nothing is left of a failure.

    The template it was made of must be here, under the same digest.
    """
    from torpor.apps.sdk import calls  # noqa: PLC0415 - not needed for --help

    pieces, _ = local_pieces(
        source, absent="`torpor export` makes one", folder="name the file that `torpor export` made"
    )
    passphrase = given_passphrase(passphrase_file, confirm=False)
    with connected(context) as client, screen.counting(f"importing {source}", quiet=as_json) as counted:
        session = client.send(calls.import_session(passphrase, name=name), counted(pieces))
    screen.emit(session) if as_json else screen.say(session["id"])


def given_passphrase(file: str | None, *, confirm: bool) -> str:
    """From the file, else the environment, else asked for without echo. Raises: InvalidArgument, NotFound."""
    if file is not None:
        return _first_line(file)
    if VARIABLE in os.environ:
        return _checked(os.environ[VARIABLE], f"${VARIABLE}")
    if not sys.stdin.isatty():
        raise InvalidArgument(
            f"cannot ask for the passphrase: stdin is no terminal; set {VARIABLE} or give --passphrase-file",
            field="passphrase",
        )
    said = getpass.getpass("Passphrase: ")
    if confirm and getpass.getpass("Again: ") != said:
        raise InvalidArgument("cannot use the passphrase: the two differ; repeat", field="passphrase")
    return _checked(said, "what was typed")


def _first_line(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"cannot read the passphrase: there is no file {file}; write it there, mode 0600") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read the passphrase from {file}: {error}", field="passphrase_file") from error
    return _checked(text.partition("\n")[0].rstrip("\r"), file)


def _checked(said: str, where: str) -> str:
    if not said:
        raise InvalidArgument(f"cannot use the passphrase: {where} is empty", field="passphrase")
    return said
