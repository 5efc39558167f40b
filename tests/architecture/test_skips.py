"""The rules of a test session hold, tried on small sessions of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SKIPPING = """
import pytest

@pytest.mark.engine
def test_engine(): pytest.skip("no engine here")

def test_other(): pytest.skip("no disk here")

def test_fine(): pass
"""


@pytest.fixture
def session(tmp_path: Path):
    """Runs the given tests under this project's rules; the exit status and what was printed."""

    def run(source: str, *, skips: str = "", events: str | None = None) -> tuple[int, str]:
        shutil.copy(TESTS / "conftest.py", tmp_path / "conftest.py")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = engine: real\n")
        (tmp_path / "skips.txt").write_text(skips)
        (tmp_path / "engine-floor.txt").write_text("2\n")
        (tmp_path / "test_it.py").write_text(source)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TORPOR_", "PYTEST"))}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if events is not None:
            (tmp_path / "events").write_text(events)
            environment |= {"TORPOR_ENGINE_REQUIRED": "1", "TORPOR_ENGINE_COUNTER": str(tmp_path / "events")}
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
        return ended.returncode, ended.stdout

    return run


def test_a_skip_that_is_not_listed_fails_the_session(session):
    status, output = session(SKIPPING, skips="test_it.py::test_other | no disk\n")
    assert status == 1
    assert "test_it.py::test_engine was skipped (no engine here), which tests/skips.txt does not list" in output
    assert "test_other was skipped" not in output


def test_listed_skips_pass_and_are_reported_by_name(session):
    status, output = session(SKIPPING, skips="test_it.py::* | no\n")
    assert status == 0
    assert "skipped: test_it.py::test_engine: no engine here" in output
    assert output.splitlines()[-1].strip("= ").startswith("1 passed, 2 skipped")


def test_a_skip_for_another_reason_than_the_listed_one_fails(session):
    status, _ = session(SKIPPING, skips="test_it.py::* | no engine\n")
    assert status == 1


def test_where_the_engine_is_required_no_engine_test_may_be_skipped(session):
    status, output = session(SKIPPING, skips="test_it.py::* | no\n", events="checkpoint\nrestore\n" * 2)
    assert status == 1
    assert "the engine test test_it.py::test_engine was skipped" in output


def test_too_few_real_restores_fail_and_the_counts_are_printed(session):
    status, output = session("def test_fine(): pass\n", events="checkpoint\ncheckpoint\nrestore\n")
    assert status == 1
    assert "real checkpoints: 2, real restores: 1 (floor 2)" in output
    assert "1 real restores are fewer than the floor of 2" in output


def test_enough_of_both_pass(session):
    status, output = session("def test_fine(): pass\n", events="checkpoint\nrestore\n" * 2)
    assert status == 0
    assert "real checkpoints: 2, real restores: 2 (floor 2)" in output


def test_a_module_that_skips_itself_is_seen(session):
    status, output = session("import pytest\npytest.skip('not today', allow_module_level=True)\n")
    assert status != 0
    assert "not today" in output
