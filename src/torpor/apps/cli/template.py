"""Templates: what sessions are made of."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torpor.apps.cli import screen
from torpor.apps.cli.options import AsJson, Ref, configured, connected, examples, name_of

app = typer.Typer(
    no_args_is_help=True,
    help="Templates: what sessions are made of.",
    epilog=examples("torpor template build data", "torpor template build ./geo.toml", "torpor template list"),
)

Template = Annotated[str, typer.Argument(metavar="NAME", help="The template's name or digest.", show_default=False)]


@app.command(
    epilog=examples(
        "torpor template build data", "torpor template build ./geo.toml", "torpor template build ./geo.toml --fresh"
    )
)
def build(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE.toml", help="base, data, or a file that declares a template.")
    ] = "data",
    *,
    name: Annotated[str | None, typer.Option("--name", help="Name it so. Default: the file's name key.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do every step anew. Default: use kept steps.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build a template's root filesystem and its golden snapshot. Steps are told on stderr, and kept for next time.

    Works on the home itself, as root; a server may run beside it. A file's commands run as root: build only what you
    trust. docs/templates.md says what a file may hold.
    """
    from torpor.apps.cli import local  # noqa: PLC0415 - the node's imports stay out of client commands

    _tell_built(local.build_template(configured(context), what, quiet=as_json, fresh=fresh, name=name), as_json=as_json)


@app.command("from", epilog=examples("torpor template from analysis --name analysis-ready"))
def from_session(
    context: typer.Context,
    ref: Ref,
    *,
    name: Annotated[str, typer.Option("--name", help="The template's name.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Make a template of a session's files. A running session is snapshotted first and goes on.

    Its processes, variables and environment are not in it; identity files are cleared. Whoever may create sessions of
    the template can read its files.
    """
    from torpor.apps.cli import local  # noqa: PLC0415 - the node's imports stay out of client commands

    with connected(context) as client, screen.waiting("taking a snapshot", quiet=as_json):
        session = client.snapshot(ref)
    _tell_built(
        local.template_from(configured(context), session["id"], name, quiet=as_json),
        as_json=as_json,
    )


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


@app.command(epilog=examples("torpor template inspect data"))
def inspect(context: typer.Context, name: Template, *, as_json: AsJson = False) -> None:
    """Show everything about a template. Works on the home itself, as root."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the node's imports stay out of client commands

    found = local.shelved_template(configured(context), name_of(name, field="NAME"))
    if as_json:
        screen.emit(found)
        return
    for key, value in found.items():
        screen.say(f"{key:16} {screen.size(value) if key.endswith('_bytes') else value}")


@app.command("rm", epilog=examples("torpor template rm geo"))
def remove(context: typer.Context, name: Template, *, as_json: AsJson = False) -> None:
    """Remove a template, with its golden snapshot and root filesystem. Refused while a session was made of it."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the node's imports stay out of client commands

    removed = local.remove_template(configured(context), name_of(name, field="NAME"))
    if as_json:
        screen.emit(removed)
    else:
        screen.say(f"removed the template {removed['name']} ({removed['digest'][:12]})")


@app.command(epilog=examples("torpor template prune --dry-run", "torpor template prune"))
def prune(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed. Default: remove it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove templates whose name means a newer one by now, and earlier captures, that no session was made of."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the node's imports stay out of client commands

    pruned = local.prune_templates(configured(context), dry_run=dry_run)
    if as_json:
        screen.emit(pruned)
        return
    for found in pruned:
        done = "would remove" if dry_run else "removed"
        freed = screen.size(found["rootfs_bytes"] + found["image_bytes"])
        what = f"an earlier capture of {found['name']}" if found["superseded"] else found["name"]
        screen.say(f"{done} {what} ({found['digest'][:12]}), {freed}")
    if not pruned:
        screen.say("nothing to remove")


def _tell_built(built: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        screen.emit(built)
    else:
        screen.say(f"template {built['name']} is {built['digest'][:12]}, {screen.size(built['image_bytes'])} of memory")
