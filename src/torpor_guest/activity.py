"""How much work there is: running totals from which the host tells idle from busy.

The agent itself is never counted, so taking a sample keeps no session awake.
"""

from __future__ import annotations

import os
from typing import Any

from torpor_guest.procfs import processes

BUSIEST_MAX = 3


class Meter:
    """Processor time of everything here but the agent. Calls come from any thread; samples from one at a time."""

    def __init__(self, *, descendants_of: int | None) -> None:
        self._descendants_of = descendants_of
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._seen: dict[int, int] = {}
        self._highest_s = 0.0

    def cpu_s(self) -> float:
        """Living processes with their reaped children, and what the agent has reaped. Never less than before."""
        return self._total_s(sum(row.cpu_ticks for row in processes(descendants_of=self._descendants_of)))

    def sample(self) -> dict[str, Any]:
        """``cpu_s``, and ``busiest`` since the last sample."""
        rows = processes(descendants_of=self._descendants_of)
        before, self._seen = self._seen, {row.pid: row.cpu_ticks for row in rows}
        # A pid that was given to another process starts below what was seen of the first.
        spent = [(row.cpu_ticks - min(before.get(row.pid, 0), row.cpu_ticks), row) for row in rows]
        busiest = sorted((pair for pair in spent if pair[0] > 0), key=lambda pair: -pair[0])[:BUSIEST_MAX]
        return {
            "cpu_s": self._total_s(sum(self._seen.values())),
            "busiest": [
                {"pid": row.pid, "name": row.name, "cpu_s": ticks / self._ticks_per_s} for ticks, row in busiest
            ],
        }

    def _total_s(self, ticks: int) -> float:
        own = os.times()
        # A process that ends while it is looked at is missed once and found again among the reaped.
        self._highest_s = max(self._highest_s, ticks / self._ticks_per_s + own.children_user + own.children_system)
        return self._highest_s
