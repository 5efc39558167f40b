"""What keeps a session awake: work, not attachment. Pure verdicts over samples.

Work is a burst in flight, bytes moving on a stream, or processor time of at least ``BUSY_SHARE`` of a core on average
over the idle window. A sleeping daemon, a silent terminal or an idle watch is not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

BUSY_SHARE = 0.05  # of one core
SAMPLES_PER_WINDOW = 6


@dataclass(frozen=True, slots=True)
class Sample:
    """Running totals of a session at a monotonic instant, since its instance was placed."""

    at_s: float
    cpu_s: float
    stream_bytes: int
    busiest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons``: what keeps it awake, a phrase each; none: it is idle."""

    reasons: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        """True if nothing keeps it awake."""
        return not self.reasons


@dataclass(slots=True)
class Activity:
    """What is known of one placed session's work. ``touched_at_s``: start or end of the latest burst."""

    touched_at_s: float = 0.0
    bursts_count: int = 0
    samples: deque[Sample] = field(default_factory=deque)

    def restart(self, now_s: float) -> None:
        """A new instance: its totals start at nothing."""
        self.samples.clear()
        self.touched_at_s = now_s

    def begin(self, now_s: float) -> None:
        """A burst starts."""
        self.bursts_count += 1
        self.touched_at_s = max(self.touched_at_s, now_s)

    def end(self, now_s: float) -> None:
        """A burst ended."""
        self.bursts_count -= 1
        self.touched_at_s = max(self.touched_at_s, now_s)

    def note(self, sample: Sample, *, window_s: float) -> None:
        """Add a sample; those that the window no longer needs are dropped, but the one it begins with."""
        self.samples.append(sample)
        while len(self.samples) > 1 and self.samples[1].at_s <= sample.at_s - window_s:
            self.samples.popleft()

    def sample_due(self, now_s: float, *, window_s: float) -> bool:
        """True if a new sample is worth its cost: several in each window, none while a burst runs anyway."""
        if self.bursts_count:
            return False
        return not self.samples or now_s - self.samples[-1].at_s >= window_s / SAMPLES_PER_WINDOW


def verdict(activity: Activity, now_s: float, *, window_s: float) -> Verdict:
    """What kept the session awake in the window of ``window_s`` up to ``now_s``."""
    reasons: list[str] = []
    if activity.bursts_count:
        reasons.append(f"{activity.bursts_count} burst{'s' * (activity.bursts_count > 1)} in flight")
    elif now_s - activity.touched_at_s < window_s:
        reasons.append(f"a burst {now_s - activity.touched_at_s:.1f} s ago")
    reasons += _measured(activity.samples, now_s, window_s)
    return Verdict(tuple(reasons))


def _measured(samples: deque[Sample], now_s: float, window_s: float) -> list[str]:
    """What the samples show. Too few to cover the window count as work: silence must have been seen."""
    if len(samples) < 2 or samples[0].at_s > now_s - window_s:
        return ["not watched for a whole idle window yet"]
    oldest, newest = samples[0], samples[-1]
    spent_s = newest.at_s - oldest.at_s
    reasons = []
    if newest.stream_bytes > oldest.stream_bytes:
        reasons.append(f"{newest.stream_bytes - oldest.stream_bytes} bytes moved on streams")
    share = (newest.cpu_s - oldest.cpu_s) / spent_s if spent_s > 0 else 0.0
    if share >= BUSY_SHARE:
        who = f": {', '.join(newest.busiest)}" if newest.busiest else ""
        reasons.append(f"processes use {share:.0%} of a core{who}")
    return reasons
