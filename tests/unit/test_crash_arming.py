"""``TORPOR_CRASH_AT``: what it takes, and what it refuses."""

from __future__ import annotations

import pytest

from torpor.apps.crashing import VARIABLE, arm_crash, parse_crash
from torpor.domain.errors import InvalidArgument
from torpor.ports.crash_points import CrashPoint, reach


def test_a_point_is_named_by_its_number_and_the_time_that_it_is_reached():
    assert parse_crash("7") == (CrashPoint.COMMIT_HEAD, 1)
    assert parse_crash("24:3") == (CrashPoint.GC_OBJECT, 3)


@pytest.mark.parametrize("given", ["0", "99", "7:0", "7:-1", "seven", "7:x", ":"])
def test_anything_else_is_refused_with_the_list_of_points(given):
    with pytest.raises(InvalidArgument, match="7 COMMIT_HEAD") as refused:
        arm_crash({VARIABLE: given})
    assert refused.value.details["field"] == VARIABLE


def test_points_are_passed_over_where_nothing_is_armed():
    arm_crash({})
    for point in CrashPoint:
        reach(point)


def test_numbers_are_stable_and_without_gap():
    assert [point.value for point in CrashPoint] == list(range(1, len(CrashPoint) + 1))
