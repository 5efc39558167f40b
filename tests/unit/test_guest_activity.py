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
    assert meter.sample() == {"cpu_s": after["cpu_s"], "busiest": []}


def test_who_is_busy_is_named_once_with_the_time_since_the_last_sample():
    meter = Meter(descendants_of=os.getpid())
    child = subprocess.Popen([sys.executable, "-c", BURN + "\nprint(1, flush=True); input()"], stdin=-1, stdout=-1)
    child.stdout.read(1)
    (busy,) = meter.sample()["busiest"]
    assert (busy["pid"], busy["name"][:6]) == (child.pid, "python")
    assert busy["cpu_s"] >= 0.09
    assert meter.sample()["busiest"] == []
    child.communicate(b"\n")
