"""Engines: what isolates and freezes."""

from __future__ import annotations

from typing import Annotated, Any

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
    elif not builds:
        screen.note("no engine build is installed; `torpor engine install gvisor` gets one")
    else:
        columns = [name for name, value in builds[0].items() if not isinstance(value, dict | list)]
        screen.table([name.upper() for name in columns], [[str(build[name]) for name in columns] for build in builds])


@app.command(epilog=examples("torpor engine install gvisor"))
def install(context: typer.Context, engine: Engine = "gvisor", *, as_json: AsJson = False) -> None:
    """Find or get a build, test that it can checkpoint and restore here, and keep it in the home."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    _known(engine)
    build = local.install_engine(configured(context), quiet=as_json)
    if as_json:
        screen.emit(build)
        return
    _lines(build)


@app.command("test", epilog=examples("torpor engine test", "torpor engine test gvisor --json"))
def self_test(context: typer.Context, engine: Engine = "gvisor", *, as_json: AsJson = False) -> int:
    """Run, checkpoint, restore twice and compare, with each build of the home. Exit code 1 if one fails."""
    from torpor.apps.cli import local  # noqa: PLC0415 - the engine's imports stay out of client commands

    _known(engine)
    results = local.test_engine(configured(context), quiet=as_json)
    if as_json:
        screen.emit(results)
    else:
        for result in results:
            _lines(result)
    return exits.OK if all(result["passed"] for result in results) else exits.FAILED


def _known(engine: str) -> None:
    if engine not in ENGINES:
        raise NotFound(
            f"cannot find engine {engine!r}; `torpor engine install gvisor` is the one there is", engine=engine
        )


def _lines(values: dict[str, Any]) -> None:
    for name, value in values.items():
        screen.say(f"{name:<16} {value}")
