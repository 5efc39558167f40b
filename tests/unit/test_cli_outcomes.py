"""The command line says on stderr when less than the whole session came back, and why."""

from __future__ import annotations

import pytest

from torpor.apps.cli import screen
from torpor.services.requests import Outcome


def resumed(outcome, *why):
    return {
        "cause": "resumed",
        "gap_s": 60.0,
        "tier": "local",
        "timings_ms": {},
        "dropped": [],
        "outcome": outcome.value,
        "stepped_down": list(why),
    }


@pytest.mark.parametrize("outcome", [Outcome.RESTORED_OLDER, Outcome.RESTORED_FILESYSTEM, Outcome.STATE_LOST])
def test_each_way_of_losing_something_is_said_with_its_reason(capsys, outcome):
    screen.woken("day", resumed(outcome, "a pack is missing"))
    said = capsys.readouterr().err
    assert screen.LOST_BY[outcome] in said
    assert "because: a pack is missing" in said


def test_nothing_is_said_of_a_whole_resume(capsys):
    screen.woken("day", resumed(Outcome.RESUMED))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_outcome_but_the_whole_ones_has_its_words():
    assert set(screen.LOST_BY) == {outcome.value for outcome in Outcome} - {"created", "resumed"}
