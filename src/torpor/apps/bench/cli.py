"""What ``torpor bench …`` prints: a table for people, or one JSON report. Exit code 1 if a bound does not hold."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from torpor.apps.bench.homes import engine_build
from torpor.apps.bench.report import Result, as_report
from torpor.apps.bench.suite import Measure, chosen
from torpor.apps.cli import screen
from torpor.apps.config import Config


def run_bench(config: Config, name: str, *, quick: bool, as_json: bool) -> int:
    """Run a bench of ``suite.BENCHES``, or all of them one after the other; their results as one report."""
    measures, promised = chosen(name)
    results, build = asyncio.run(_measured(config, measures, quick=quick))
    bounded = {each.name for each in results if each.bound is not None}
    assert promised <= bounded, f"SPECIFICATION.md promises what was not measured: {sorted(promised - bounded)}"
    if as_json:
        sys.stdout.write(json.dumps(as_report(results, build), indent=2) + "\n")
    else:
        _print(results)
    return 0 if all(each.holds for each in results) else 1


async def _measured(config: Config, measures: Sequence[Measure], *, quick: bool) -> tuple[list[Result], str]:
    build = await engine_build(config)
    results: list[Result] = []
    for measure in measures:
        results += await measure(config, quick=quick, progress=_progress)
    return results, build


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _print(results: list[Result]) -> None:
    headings = ("NAME", "UNIT", "N", "P50", "P95", "P99", "RAW P50", "RATIO", "BOUND", "HOLDS")
    screen.table(headings, [_row(each) for each in results])


def _row(each: Result) -> list[str]:
    figures = (each.p50, each.p95, each.p99, each.raw_p50)
    shown = ("" if figure is None else _figure(figure, each.unit) for figure in figures)
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    verdict = "" if each.bound is None else ("yes" if each.holds else "NO")
    return [each.name, each.unit, str(each.n), *shown, ratio, _bound(each), verdict]


def _bound(each: Result) -> str:
    if each.bound is None:
        return ""
    sign = ">=" if each.at_least else "<="
    return f"{'' if each.bound_on == 'p50' else each.bound_on + ' '}{sign} {_figure(each.bound, each.unit)}"


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "bytes" else f"{value:.4g}"
