"""Engines: what isolates and freezes."""

from __future__ import annotations

from typing import Annotated

import typer

from torpor.apps.cli import exits, screen
from torpor.apps.cli.options import AsJson, configured, examples
from torpor.domain.errors import NotFound

ENGINES = ("gvisor",)

app = typer.Typer(
    no_args_is_help=True,
    help="Engines: what isolates and freezes. Several builds live side by side.",
    epilog=examples("torpor engine install gvisor", "torpor engine list", "torpor engine test"),
)

Engine = Annotated[str, typer.Argument(metavar="ENGINE", help="gvisor.")]


@app.command("list", epilog=examples("torpor engine list", "torpor engine list --json"))
def list_builds(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the engine builds of the home, and who needs each."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    builds = local.engine_builds(configured(context))
    if as_json:
        screen.emit(builds)
        return
    if not builds:
        screen.note("no engine build is installed; `torpor engine install gvisor` gets one")
    rows = [
        [
            b["build"],
            b["version"],
            b["route"],
            "yes" if b["preferred"] else "-",
            str(b["awake_count"]),
            str(b["sessions_count"]),
            ", ".join(b["templates"]) or "-",
        ]
        for b in builds
    ]
    screen.table(["BUILD", "VERSION", "ROUTE", "PREFERRED", "AWAKE", "PAUSED", "TEMPLATES"], rows)


@app.command(epilog=examples("torpor engine install gvisor"))
def install(context: typer.Context, engine: Engine = "gvisor", *, as_json: AsJson = False) -> None:
    """Find or get a build, test that it can checkpoint and restore here, and keep it in the home."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    _known(engine)
    build = local.install_engine(configured(context), quiet=as_json)
    screen.emit(build) if as_json else screen.say(f"{build['build']} ({build['route']})")


@app.command("test", epilog=examples("torpor engine test", "torpor engine test gvisor --json"))
def self_test(context: typer.Context, engine: Engine = "gvisor", *, as_json: AsJson = False) -> int:
    """Run, checkpoint, restore twice and compare, with each build of the home. Exit code 1 if one fails."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    _known(engine)
    results = local.test_engine(configured(context), quiet=as_json)
    if as_json:
        screen.emit(results)
    else:
        for tested in results:
            steps = ", ".join(f"{step} {took_ms:.0f} ms" for step, took_ms in tested["steps_ms"].items())
            screen.say(f"{tested['build']}: {'passed' if tested['passed'] else tested['failure']} ({steps})")
    return exits.OK if all(tested["passed"] for tested in results) else exits.FAILED


@app.command(epilog=examples("torpor engine retire gvisor-20260817.0-1f2e3d4c5b6a --yes"))
def retire(
    context: typer.Context,
    build: Annotated[str, typer.Argument(metavar="BUILD", help="As `torpor engine list` names it.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Step down what needs it. Default: refuse, and count it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove an engine build. Sessions paused under it come back with their disk, and their processes started anew.

    Refused while a server runs on the home, while sessions run on the build, if it is the only one, and if a paused
    session has no filesystem part to come back with.
    """
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    retired = local.retire_engine(configured(context), build, agreed=yes)
    if as_json:
        screen.emit(retired)
        return
    screen.say(
        f"retired {retired['build']}; {retired['sessions_count']} paused sessions come back with their disk alone"
    )
    for template in retired["templates"]:
        screen.note(f"build the template {template} again before you create sessions of it")


def _known(engine: str) -> None:
    if engine not in ENGINES:
        raise NotFound(
            f"cannot find engine {engine!r}; `torpor engine install gvisor` is the one there is", engine=engine
        )
