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
    epilog=examples("torpor engine install gvisor", "torpor engine test"),
)

Engine = Annotated[str, typer.Argument(metavar="ENGINE", help="gvisor.")]


@app.command("list", epilog=examples("torpor engine list", "torpor engine list --json"))
def list_builds(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the engine builds of the home."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    builds = local.engine_builds(configured(context))
    if as_json:
        screen.emit(builds)
        return
    if not builds:
        screen.note("no engine build is installed; `torpor engine install gvisor` gets one")
    rows = [[b["build"], b["version"], b["route"], "yes" if b["preferred"] else "-"] for b in builds]
    screen.table(["BUILD", "VERSION", "ROUTE", "PREFERRED"], rows)


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


def _known(engine: str) -> None:
    if engine not in ENGINES:
        raise NotFound(
            f"cannot find engine {engine!r}; `torpor engine install gvisor` is the one there is", engine=engine
        )
