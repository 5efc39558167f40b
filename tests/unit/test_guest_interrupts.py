"""Interrupts of a Python context, however fast they come: the burst ends, and its variables stay."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("interrupted_context.py")


@pytest.mark.parametrize(("scenario", "count"), [("as_fast_as_they_can", 25), ("one_each", 3)])
def test_an_interrupt_ends_its_burst_and_costs_no_variables(tmp_path, scenario, count):
    ended = subprocess.run(
        (sys.executable, PROGRAM, scenario, tmp_path), check=True, capture_output=True, text=True, timeout=120
    )
    seen = json.loads(ended.stdout)
    assert seen["ends"] == [[None, False], *[["KeyboardInterrupt", False]] * count, [None, False]]
    assert seen["kept"] == "42"
