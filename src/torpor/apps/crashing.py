"""A server that kills itself at a crash point, for tests: ``TORPOR_CRASH_AT=NUMBER`` or ``NUMBER:NTH``.

An exception would run clean-ups that a power cut does not: the process sends itself SIGKILL. Not for production, so it
is no setting, and no command line knows it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

import structlog

from torpor.domain.errors import InvalidArgument
from torpor.ports.crash_points import CrashPoint, arm

VARIABLE = "TORPOR_CRASH_AT"

log = structlog.get_logger()


def arm_crash(environment: Mapping[str, str]) -> None:
    """Die at the point that ``environment`` names, the NTH time that it is reached (the first, if none is given).

    Does nothing if it names none. Raises: InvalidArgument.
    """
    given = environment.get(VARIABLE)
    if not given:
        return
    point, left = parse_crash(given)
    log.warning("armed to die", point=point.name, times=left)

    def die(reached: CrashPoint) -> None:
        nonlocal left
        if reached is not point:
            return
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(die)


def parse_crash(given: str) -> tuple[CrashPoint, int]:
    """The point, and at which reach of it. Raises: InvalidArgument."""
    number, _, nth = given.partition(":")
    with contextlib.suppress(ValueError):
        if (times := int(nth or 1)) > 0:
            return CrashPoint(int(number)), times
    points = ", ".join(f"{point.value} {point.name}" for point in CrashPoint)
    raise InvalidArgument(
        f"cannot use {VARIABLE}={given}: give NUMBER or NUMBER:NTH, with NTH from 1 and NUMBER one of {points}",
        field=VARIABLE,
    )
