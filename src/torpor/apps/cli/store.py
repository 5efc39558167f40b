"""The snapshot store."""

from __future__ import annotations

import typer

from torpor.apps.cli import exits, screen
from torpor.apps.cli.options import AsJson, connected, examples

app = typer.Typer(no_args_is_help=True, help="The snapshot store.", epilog=examples("torpor store check"))


@app.callback()
def root() -> None:
    """The snapshot store."""


@app.command(epilog=examples("torpor store check", "torpor store check --json"))
def check(context: typer.Context, *, as_json: AsJson = False) -> int:
    """Read and authenticate everything in the store. Exit code 1 if anything is not sound."""
    with connected(context) as client, screen.waiting("checking the store", quiet=as_json):
        report = client.store_check()
    if as_json:
        screen.emit(report)
    else:
        for name, value in report.items():
            screen.say(f"{name:<20} {value}")
    return exits.OK if report["clean"] else exits.FAILED
