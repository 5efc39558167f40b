"""Fixtures of the real engine, and the rules of a session: every skip is listed, and engine tests really ran."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CHECKOUT = TESTS.parent
# The set-up is a script beside its package, not an installed one; its tests import the package.
sys.path.insert(0, str(CHECKOUT / "setup"))

COUNTED = ("checkpoint", "restore")

EngineCounter = Callable[[str], None]


@pytest.fixture(scope="session")
def runsc_path() -> Path:
    """A runsc that passed the self-test: TORPOR_TEST_RUNSC, else the newest that set-up installed."""
    return _found("TORPOR_TEST_RUNSC", ".cache/engines/*/runsc", "make setup installs an engine")


@pytest.fixture(scope="session")
def rootfs_path() -> Path:
    """The data template's root filesystem, read-only to tests: TORPOR_TEST_ROOTFS, else the newest of set-up."""
    return _found("TORPOR_TEST_ROOTFS", ".cache/templates/*/rootfs", "make setup builds a template")


@pytest.fixture(scope="session")
def engine_counter() -> EngineCounter:
    """Called with each engine event (GVisorConfig.on_event); notes real checkpoints and restores for the floor."""

    def note(event: str) -> None:
        file = os.environ.get("TORPOR_ENGINE_COUNTER")
        if file and event in COUNTED:
            with open(file, "a", encoding="ascii") as notes:
                notes.write(f"{event}\n")

    return note


def _found(variable: str, pattern: str, remedy: str) -> Path:
    given = os.environ.get(variable)
    if given:
        return Path(given).resolve()
    candidates = sorted(CHECKOUT.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not candidates:
        pytest.skip(f"nothing at {pattern}: {remedy}, or set {variable}")
    # runsc refuses a root filesystem whose path leads through a link.
    return candidates[-1].resolve()


# ---- the rules ------------------------------------------------------------------------------------------------------


class SessionRules:
    """Sees every report; at the end fails the session over a skip that is not listed, or too few engine events."""

    def __init__(
        self, listed: list[tuple[str, str]], *, engine_required: bool, floor: int, events: Path | None
    ) -> None:
        self.listed = listed
        self.engine_required = engine_required
        self.floor = floor
        self.events = events
        self.skips: list[tuple[str, str, bool]] = []
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skips.append((report.nodeid, _reason(report), "engine" in report.keywords))

    def pytest_collectreport(self, report):
        if report.skipped:
            self.skips.append((report.nodeid, _reason(report), False))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        self.failures = [*self._skip_failures(), *self._floor_failures()]
        if self.failures and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        for nodeid, reason, _ in self.skips:
            terminalreporter.write_line(f"skipped: {nodeid}: {reason}")
        if self.engine_required:
            checkpoints, restores = self.counts()
            terminalreporter.write_line(
                f"real checkpoints: {checkpoints}, real restores: {restores} (floor {self.floor})"
            )
        for failure in self.failures:
            terminalreporter.write_line(f"FAILED session rule: {failure}", red=True)

    def counts(self) -> tuple[int, int]:
        """Real checkpoints and restores noted so far."""
        if self.events is None or not self.events.is_file():
            return 0, 0
        noted = self.events.read_text(encoding="ascii").split()
        return noted.count("checkpoint"), noted.count("restore")

    def _skip_failures(self) -> list[str]:
        failures = []
        for nodeid, reason, is_engine in self.skips:
            if self.engine_required and is_engine:
                failures.append(f"the engine test {nodeid} was skipped: {reason}")
            elif not any(_matches(pattern, nodeid) and part in reason for pattern, part in self.listed):
                failures.append(f"{nodeid} was skipped ({reason}), which tests/skips.txt does not list")
        return failures

    def _floor_failures(self) -> list[str]:
        if not self.engine_required:
            return []
        checkpoints, restores = self.counts()
        return [
            f"{count} real {name}s are fewer than the floor of {self.floor} (tests/engine-floor.txt)"
            for name, count in (("checkpoint", checkpoints), ("restore", restores))
            if count < self.floor
        ]


def pytest_configure(config):
    events = os.environ.get("TORPOR_ENGINE_COUNTER")
    rules = SessionRules(
        _read_listed(TESTS / "skips.txt"),
        engine_required=os.environ.get("TORPOR_ENGINE_REQUIRED") == "1",
        floor=int((TESTS / "engine-floor.txt").read_text()),
        events=Path(events) if events else None,
    )
    config.pluginmanager.register(rules, "torpor-session-rules")


def _read_listed(path: Path) -> list[tuple[str, str]]:
    listed = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition(" | ")
            listed.append((pattern.strip(), reason.strip()))
    return listed


def _matches(pattern: str, nodeid: str) -> bool:
    return nodeid.startswith(pattern[:-1]) if pattern.endswith("*") else nodeid == pattern


def _reason(report) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
