"""Measurements: each prints one report whose form is the same for all."""

from __future__ import annotations

from typing import Annotated

import typer

from torpor.apps.cli.options import AsJson, configured, examples

app = typer.Typer(
    no_args_is_help=True,
    help="Measure this machine: ours beside the raw engine, in the same run.",
    epilog=examples("torpor bench resume --quick"),
)

Quick = Annotated[bool, typer.Option("--quick", help="Few repetitions, for a first look.")]


@app.command(epilog=examples("torpor bench resume --quick", "torpor bench resume --json > resume.json"))
def resume(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """Request to first output of a paused session, beside a raw restore."""
    from torpor.apps.bench.cli import bench_resume  # noqa: PLC0415 - pulls the whole server in

    return int(bench_resume(configured(context), quick=quick, as_json=as_json) or 0)


@app.command(epilog=examples("torpor bench pause --quick", "torpor bench pause --json > pause.json"))
def pause(context: typer.Context, *, quick: Quick = False, as_json: AsJson = False) -> int:
    """Stop time of a pause beside a raw checkpoint, and what a second pause writes."""
    from torpor.apps.bench.cli import bench_pause  # noqa: PLC0415 - pulls the whole server in

    return int(bench_pause(configured(context), quick=quick, as_json=as_json) or 0)
