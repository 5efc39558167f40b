"""Totals of work: monotonic, without the one who samples, with names of who was busy."""

import os
import subprocess
import sys

from torpor_guest.activity import Meter

BURN = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"


def burn():
    subprocess.run([sys.executable, "-c", BURN], check=True)


def test_the_time_of_ended_processes_stays_counted_and_sampling_adds_nothing():
    meter = Meter(descendants_of=os.getpid())
    before = meter.cpu_s()
    burn()
    after = meter.sample()
    assert after["cpu_s"] - before >= 0.09
    assert after["cpu_s"] <= meter.sample()["cpu_s"] < after["cpu_s"] + 0.05


def test_who_is_busy_is_named_once_with_the_time_since_the_last_sample():
    meter = Meter(descendants_of=os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", BURN + "\nprint(1, flush=True); input()"], stdin=-1, stdout=-1
    ) as child:
        child.stdout.read(1)
        (busy,) = of(child, meter)
        assert busy["name"][:6] == "python"
        assert busy["cpu_s"] >= 0.09
        assert of(child, meter) == []
        child.communicate(b"\n")


def of(child, meter):
    """What the meter says of the child; servers that other tests of this process share are its descendants too."""
    return [busy for busy in meter.sample()["busiest"] if busy["pid"] == child.pid]
