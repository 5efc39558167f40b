"""What a soak did and found, as Markdown and as JSON."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Report:
    """``rss_bytes``: memory of each server process, without what it shares, each time all was quiet.

    ``labelled``: how often a session came back with less than its memory, and its result said so.
    """

    seed: int
    asked_s: float
    engine: str
    began_s: float = field(default_factory=time.monotonic)
    operations: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    rss_bytes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    looks: int = 0
    labelled: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def noted(self, operation: str, how: str) -> None:
        """An operation has ended."""
        with self.lock:
            self.operations[operation][how] += 1

    def sample_rss(self, pid: int) -> int:
        """The server's own memory now."""
        status = Path(f"/proc/{pid}/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
        self.rss_bytes[pid].append(kib << 10)
        self.looks += 1
        return kib << 10

    def tell(self) -> None:
        """How far it is."""
        done = sum(sum(one.values()) for one in self.operations.values())
        print(
            f"{time.monotonic() - self.began_s:.0f} s: {done} operations, {self.faults.total()} faults, "
            f"{len(self.violations)} violations",
            flush=True,
        )

    def json(self) -> dict[str, object]:
        """Everything."""
        samples = [one for several in self.rss_bytes.values() for one in several]
        return {
            "machine": {"cpus": os.cpu_count(), "architecture": platform.machine(), "memory_bytes": _memory_bytes()},
            "kernel": platform.release(),
            "engine_build": self.engine,
            "seed": self.seed,
            "asked_s": self.asked_s,
            "seconds": round(time.monotonic() - self.began_s, 1),
            "operations": {name: dict(self.operations[name]) for name in sorted(self.operations)},
            "faults": dict(self.faults),
            "looks": self.looks,
            "labelled_steps_down": self.labelled,
            "violations": self.violations,
            "rss_bytes_max": max(samples, default=0),
            "rss_growth_bytes_max": max((several[-1] - several[0] for several in self.rss_bytes.values()), default=0),
        }

    def write(self, folder: Path, log_tail: str) -> None:
        """soak.md and soak.json."""
        folder.mkdir(exist_ok=True)
        said = self.json()
        (folder / "soak.json").write_text(json.dumps(said, indent=2) + "\n")
        (folder / "soak.md").write_text(self._markdown(said))
        if self.violations:
            print(log_tail)

    def _markdown(self, said: dict[str, object]) -> str:
        rows = [
            f"| {name} | {sum(ends.values())} | {ends.get('ok', 0)} | "
            f"{', '.join(f'{how} {count}' for how, count in sorted(ends.items()) if how != 'ok') or '-'} |"
            for name, ends in sorted(self.operations.items())
        ]
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())) or "none"
        found = "\n".join(f"- {one}" for one in self.violations) or "None."
        return "\n".join(
            [
                "# Soak",
                "",
                (
                    f"`make soak` ran for **{said['seconds']} s** ({self.asked_s:.0f} s asked for), seed {self.seed}, "
                    f"on {os.cpu_count()} CPUs with {_memory_bytes() >> 30} GiB, Linux {platform.release()}, engine "
                    f"{self.engine}. Raw figures: [soak.json](soak.json)."
                ),
                "",
                "| Operation | Times | Done | Typed refusals and failures |",
                "|---|---|---|---|",
                *rows,
                "",
                (
                    f"Faults: {faults}. The world was looked at when quiet {self.looks} times. "
                    f"Sessions came back with less than their memory, and said so, {self.labelled} times."
                ),
                "",
                (
                    f"Memory of the server when quiet: at most {_mib(said['rss_bytes_max'])} MiB; growth within one "
                    f"process at most {_mib(said['rss_growth_bytes_max'])} MiB."
                ),
                "",
                "## Violations",
                "",
                found,
                "",
            ]
        )


def _mib(count: object) -> int:
    assert isinstance(count, int)
    return round(count / (1 << 20))


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
