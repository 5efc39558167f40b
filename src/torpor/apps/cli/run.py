"""One command in a session of its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torpor.apps.cli import exits, screen
from torpor.apps.cli.bursts import Display, piped_stdin
from torpor.apps.cli.options import AsJson, Timeout, connected, examples, limit_s, pairs


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(
        epilog=examples(
            "torpor run data -- python3 -c 'print(6 * 7)'",
            "torpor run data -- wc -l < flights.csv",
            "torpor run data --keep --env STAGE=2 -- make report",
        )
    )(run)


def run(
    context: typer.Context,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help="What to make it of.", show_default=False)],
    argv: Annotated[list[str], typer.Argument(metavar="CMD", help="The command.", show_default=False)],
    *,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable; may be repeated.", show_default=False)
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the session afterwards; its id is told on stderr.")
    ] = False,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Do not read a piped stdin.")] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> int:
    """Run a command in a new session, which is deleted afterwards. The exit code is the command's."""
    options: dict[str, Any] = {
        "timeout_s": limit_s(timeout),
        "stdin": b"" if no_stdin else piped_stdin(),
    }
    with connected(context) as client:
        with screen.waiting(f"creating a session of {template}", quiet=as_json):
            ref = client.create(template=template, env=pairs(env, option="--env"))["id"]
        try:
            display = Display(ref, as_json=as_json)
            with display.open():
                outcome = client.execute(ref, argv, on_piece=display.piece, **options)
            display.finish(outcome)
        finally:
            if keep:
                screen.note(f"session {ref} is kept")
            else:
                client.delete(ref)
    return exits.TIMED_OUT if outcome["timed_out"] else exits.of_command(outcome["exit_code"])
