"""Tiny programs that run as PID 1 of an instance in tests, each with its twin for the fake engine.

``ledger`` is the guest's source: it imports nothing of torpor, and is handed to the guest's python as text.
"""

from importlib import resources

LEDGER_SOURCE = resources.files(__name__).joinpath("ledger.py").read_text()
LEDGER_ARGV = ("/usr/bin/python3", "-u", "-c", LEDGER_SOURCE)

__all__ = ["LEDGER_ARGV", "LEDGER_SOURCE"]
