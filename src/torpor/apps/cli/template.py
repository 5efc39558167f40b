"""Templates: what sessions are made of."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torpor.apps.cli import screen
from torpor.apps.cli.options import AsJson, configured, connected, examples

app = typer.Typer(
    no_args_is_help=True,
    help="Templates: what sessions are made of.",
    epilog=examples("torpor template build data", "torpor template list"),
)


@app.command(epilog=examples("torpor template build data"))
def build(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which of the known templates.")] = "data",
    *,
    as_json: AsJson = False,
) -> None:
    """Build a template's root filesystem and its golden snapshot. Takes minutes; steps are told on stderr.

    Works on the home itself, as root; a server may run beside it.
    """
    from torpor.apps.cli import local  # noqa: PLC0415 - the node's imports stay out of client commands

    built = local.build_template(configured(context), name, quiet=as_json)
    if as_json:
        screen.emit(built)
    else:
        screen.say(f"template {built['name']} is {built['digest'][:12]}, {screen.size(built['image_bytes'])} of memory")


@app.command("list", epilog=examples("torpor template list", "torpor template list --json"))
def list_templates(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the templates that sessions can be made of."""
    with connected(context) as client, screen.waiting("listing templates", quiet=as_json):
        found = client.templates()
    if as_json:
        screen.emit(found)
        return
    rows: list[list[Any]] = [
        [
            template["name"],
            template["digest"][:12],
            screen.size(template["image_bytes"]),
            template["engine_build"],
            screen.age(template["created_at"]),
        ]
        for template in found
    ]
    screen.table(["NAME", "DIGEST", "MEMORY", "ENGINE BUILD", "CREATED"], rows)
