"""What ``torpor bench …`` prints: a table for people, or one JSON report. Exit code 1 if a bound does not hold."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from torpor.apps.bench.cycles import Samples, measure, pause_results, resume_results
from torpor.apps.bench.report import Result, as_report
from torpor.apps.config import Config


def bench_resume(config: Config, *, quick: bool, as_json: bool) -> int:
    """Local resumes: request to first output."""
    return _bench(config, resume_results, quick=quick, as_json=as_json)


def bench_pause(config: Config, *, quick: bool, as_json: bool) -> int:
    """Pauses: stop time and bytes written."""
    return _bench(config, pause_results, quick=quick, as_json=as_json)


def _bench(config: Config, of: Callable[[list[Samples]], list[Result]], *, quick: bool, as_json: bool) -> int:
    measured, engine = asyncio.run(measure(config, quick=quick, progress=_progress))
    results = of(measured)
    if as_json:
        sys.stdout.write(json.dumps(as_report(results, engine), indent=2) + "\n")
    else:
        _print(results)
    return 0 if all(each.holds for each in results) else 1


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _print(results: list[Result]) -> None:
    table = Table()
    for column in ("name", "n", "p50", "p95", "p99", "raw p50", "ratio", "bound", "holds"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for each in results:
        figures = (each.p50, each.p95, each.p99, each.raw_p50, each.ratio, each.bound)
        shown = ("" if figure is None else f"{figure:.4g}" for figure in figures)
        verdict = "" if each.bound is None else ("yes" if each.holds else "NO")
        table.add_row(f"{each.name} [{each.unit}]", str(each.n), *shown, verdict)
    Console().print(table)
