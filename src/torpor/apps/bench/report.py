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

    ``bound``: what the percentile ``bound_on`` must not exceed, in the same unit, or not fall below if ``at_least``;
    ``rule`` says where it comes from. ``n``: samples. A failed check of correctness gives no result but an error.
    """

    name: str
    n: int
    unit: str
    p50: float
    p95: float
    p99: float
    max: float
    raw_p50: float | None
    ratio: float | None
    bound: float | None
    holds: bool
    rule: str
    bound_on: str = "p50"
    at_least: bool = False
    image_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """What one percentile of the samples must keep to."""

    value: float
    percent: int = 50
    at_least: bool = False

    def holds(self, samples: Sequence[float]) -> bool:
        """Whether it is kept."""
        measured = percentile(samples, self.percent)
        return measured >= self.value if self.at_least else measured <= self.value


def median(samples: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(samples, 50)


def result(
    name: str,
    samples: Sequence[float],
    *,
    unit: str,
    rule: str,
    bound: Bound | None = None,
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
        max=round(max(samples), 3),
        raw_p50=None if raw_p50 is None else round(raw_p50, 3),
        ratio=None if not raw_p50 else round(p50 / raw_p50, 3),
        bound=None if bound is None else round(bound.value, 3),
        holds=bound is None or bound.holds(samples),
        rule=rule,
        bound_on=_named((bound or Bound(0)).percent),
        at_least=bound is not None and bound.at_least,
        image_bytes=image_bytes,
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    assert samples, "no samples"
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def _named(percent: int) -> str:
    return "max" if percent == 100 else f"p{percent}"


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
