"""The one form of every bench's results: samples in, percentiles and a verdict out. Pure but for reading /proc."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One measured quantity. ``ratio``: p50 over the raw engine's p50, where there is one.

    ``bound``: what p50 must not exceed, in the same unit, with ``rule`` saying where it comes from.
    """

    name: str
    n: int
    unit: str
    p50: float
    p95: float
    p99: float
    raw_p50: float | None
    ratio: float | None
    bound: float | None
    holds: bool
    rule: str
    image_bytes: int = 0


def result(
    name: str,
    samples: Sequence[float],
    *,
    unit: str,
    rule: str,
    bound: float | None = None,
    raw: Sequence[float] = (),
    image_bytes: int = 0,
) -> Result:
    """Percentiles by nearest rank. ``samples`` must not be empty."""
    p50 = percentile(samples, 50)
    raw_p50 = percentile(raw, 50) if raw else None
    return Result(
        name=name,
        n=len(samples),
        unit=unit,
        p50=round(p50, 3),
        p95=round(percentile(samples, 95), 3),
        p99=round(percentile(samples, 99), 3),
        raw_p50=None if raw_p50 is None else round(raw_p50, 3),
        ratio=None if not raw_p50 else round(p50 / raw_p50, 3),
        bound=None if bound is None else round(bound, 3),
        holds=bound is None or p50 <= bound,
        rule=rule,
        image_bytes=image_bytes,
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    assert samples, "no samples"
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def machine(engine: str) -> dict[str, Any]:
    """What the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "engine": engine,
    }


def as_report(results: Sequence[Result], engine: str) -> dict[str, Any]:
    """``{"results": […], "machine": {…}}``."""
    return {"results": [asdict(each) for each in results], "machine": machine(engine)}
