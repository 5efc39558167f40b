"""Measurements: each prints one report whose form is the same for all."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from torpor.apps.cli.options import AsJson, configured, examples

app = typer.Typer(
    no_args_is_help=True,
    help="Measure this machine: ours beside the raw engine, in the same run.",
    epilog=examples("torpor bench resume --quick", "torpor bench all --json > bench.json"),
)

Quick = Annotated[bool, typer.Option("--quick", help="Few repetitions, for a first look.")]


class BenchTier(StrEnum):
    """Where a resume comes from."""

    WARM = "warm"
    LOCAL = "local"
    COLD = "cold"


Tiers = Annotated[BenchTier, typer.Option("--tier", help="Where the session comes back from.")]


@app.command(epilog=examples("torpor bench resume --quick", "torpor bench resume --tier warm --json > warm.json"))
def resume(
    context: typer.Context, *, tier: Tiers = BenchTier.LOCAL, quick: Quick = False, as_json: AsJson = False
) -> int:
    """Request to first output of a paused session, beside the raw engine."""
    return _run(context, f"resume-{tier}", quick=quick, as_json=as_json)


@app.command(epilog=examples("torpor bench pause --quick", "torpor bench pause --json > pause.json"))
def pause(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """Stop time of a pause beside a raw checkpoint, and what a second pause writes."""
    return _run(context, "pause", quick=quick, as_json=as_json)


@app.command(epilog=examples("torpor bench density --quick"))
def density(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """200 paused sessions: bytes stored, what the server grew by, and how long a listing takes."""
    return _run(context, "density", quick=quick, as_json=as_json)


@app.command(epilog=examples("torpor bench fork --quick"))
def fork(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """A fork into ten, beside ten raw restores at once."""
    return _run(context, "fork", quick=quick, as_json=as_json)


@app.command("exec", epilog=examples("torpor bench exec --quick"))
def execute(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """Bursts, output, files and creation over HTTP, beside a no-op route and a cold start of the raw engine."""
    return _run(context, "exec", quick=quick, as_json=as_json)


@app.command(epilog=examples("torpor bench memory"))
def memory(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """Peak memory of storing and reading an image of 2 GiB."""
    return _run(context, "memory", quick=quick, as_json=as_json)


@app.command("all", epilog=examples("torpor bench all --json > bench.json"))
def everything(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """Every bench, one after the other, as one report."""
    return _run(context, "all", quick=quick, as_json=as_json)


def _run(context: typer.Context, name: str, *, quick: bool, as_json: bool) -> int:
    from torpor.apps.bench.cli import run_bench  # noqa: PLC0415 - pulls the whole server in

    return run_bench(configured(context), name, quick=quick, as_json=as_json)
