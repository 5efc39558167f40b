"""What keeps a session awake: verdicts over samples, one for each kind of work that is and is not."""

from __future__ import annotations

import pytest

from torpor.domain.activity import Activity, Sample, verdict

WINDOW_S = 30.0


def watched(cpu_s_per_s: float = 0.0, bytes_per_s: float = 0.0, *, for_s: int = 60) -> Activity:
    """A session without bursts, sampled every five seconds; the totals grow at these rates."""
    activity = Activity()
    activity.restart(0.0)
    for at_s in range(0, for_s + 1, 5):
        sample = Sample(float(at_s), at_s * cpu_s_per_s, int(at_s * bytes_per_s), ("python3 (7)",))
        activity.note(sample, window_s=WINDOW_S)
    return activity


@pytest.mark.parametrize(
    ("what", "cpu_s_per_s", "bytes_per_s", "idle"),
    [
        ("a busy detached process", 1.0, 0, False),
        ("exactly the share of a core that counts as work", 0.05, 0, False),
        ("a ticker of one percent", 0.01, 0, True),
        ("ten sleepers that wake every 100 ms", 10 * 0.0002 / 0.1, 0, True),
        ("an open, silent terminal", 0.0, 0, True),
        ("a download in progress", 0.0, 1_000_000, False),
        ("a trickle of bytes", 0.0, 1, False),
    ],
)
def test_work_keeps_awake_and_attachment_does_not(what, cpu_s_per_s, bytes_per_s, idle):
    assert verdict(watched(cpu_s_per_s, bytes_per_s), 60.0, window_s=WINDOW_S).idle is idle, what


def test_the_verdict_names_what_keeps_it_awake():
    assert verdict(watched(0.5), 60.0, window_s=WINDOW_S).reasons == ("processes use 50% of a core: python3 (7)",)
    activity = watched()
    activity.begin(60.0)
    activity.begin(60.0)
    assert verdict(activity, 600.0, window_s=WINDOW_S).reasons[0] == "2 bursts in flight"
    activity.end(61.0)
    activity.end(62.0)
    assert verdict(activity, 70.0, window_s=WINDOW_S).reasons[0] == "a burst 8.0 s ago"


def test_silence_must_have_been_seen_for_the_whole_window():
    assert verdict(watched(for_s=25), 25.0, window_s=WINDOW_S).reasons[-1] == "not watched for a whole idle window yet"
    assert verdict(watched(for_s=30), 30.0, window_s=WINDOW_S).idle


def test_old_work_is_forgotten_once_the_window_has_passed():
    activity = Activity()
    activity.restart(0.0)
    for at_s, cpu_s in ((0.0, 0.0), (10.0, 10.0), (20.0, 10.0), (30.0, 10.0), (40.0, 10.0)):
        activity.note(Sample(at_s, cpu_s, 0), window_s=WINDOW_S)
    assert verdict(activity, 40.0, window_s=WINDOW_S).idle
    assert [sample.at_s for sample in activity.samples] == [10.0, 20.0, 30.0, 40.0]


def test_samples_are_few_and_none_is_taken_while_a_burst_runs():
    activity = Activity()
    assert activity.sample_due(0.0, window_s=WINDOW_S)
    activity.note(Sample(0.0, 0.0, 0), window_s=WINDOW_S)
    assert not activity.sample_due(4.9, window_s=WINDOW_S)
    assert activity.sample_due(5.0, window_s=WINDOW_S)
    activity.begin(5.0)
    assert not activity.sample_due(50.0, window_s=WINDOW_S)


def test_a_new_instance_starts_with_no_past():
    activity = watched(1.0)
    activity.restart(100.0)
    assert not activity.samples
    assert verdict(activity, 101.0, window_s=WINDOW_S).reasons[0] == "a burst 1.0 s ago"
