"""The command line's own streams: closed, full, nobody at the other end, or not of UTF-8. As processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TORPOR = (sys.executable, "-m", "torpor.apps.cli")


@pytest.fixture
def session(torpor):
    torpor("create", "--name", "one")


@pytest.fixture
def shell(environment):
    """Run a line of sh in which ``torpor`` is the command; its exit code, stdout and stderr."""

    def run(line: str, **changes: str) -> tuple[int, bytes, bytes]:
        script = f'torpor() {{ {TORPOR[0]} -m torpor.apps.cli "$@"; }}; {line}'
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, **environment, **changes},
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.usefixtures("session")
def test_a_closed_stdin_is_told_where_it_is_wanted_and_ignored_elsewhere(shell, torpor):
    torpor("cp", "-", "one:/kept", stdin=b"kept")
    for command in ("code one -", "cp - one:/kept"):
        said = b"torpor: cannot read stdin: it is closed; pipe something in, or name a file\n"
        assert shell(f"torpor {command} <&-") == (2, b"", said)
    assert shell("torpor cp one:/kept - <&-")[:2] == (0, b"kept")
    assert shell("torpor exec one -- echo said <&-")[:2] == (0, b"said\n")


@pytest.mark.usefixtures("session")
def test_without_stdout_or_stderr_the_exit_code_is_the_same(shell):
    assert shell("torpor code one 'x = 41; x' >&-") == (0, b"", b"")
    assert shell("torpor inspect nobody 2>&-") == (3, b"", b"")
    assert shell("torpor inspect nobody 2>/dev/full") == (3, b"", b"")
    assert shell("torpor code one 'print(x + 1)' <&- >&- 2>&-") == (0, b"", b"")
    assert shell("torpor code one 'x + 1'") == (0, b"42\n", b"")


@pytest.mark.usefixtures("session")
def test_a_full_stdout_is_told_and_what_was_done_holds(shell):
    code, _, said = shell("torpor code one 'x = 41; x' > /dev/full")
    assert (code, said.startswith(b"torpor: cannot write to stdout: No space left on device")) == (6, True)
    assert shell("torpor code one x")[1] == b"41\n"
    code, _, said = shell("torpor ls --json > /dev/full")
    assert (code, b'"code": "storage_full"' in said) == (6, True)


@pytest.mark.usefixtures("session")
def test_a_reader_that_goes_away_ends_it_quietly(shell):
    for command in ("sh one 'yes | head -c 3000000'", "code one 'print(\"y\\n\" * 3000000)'"):
        code, out, said = shell(f"torpor {command} | head -1; exit ${{PIPESTATUS[0]}}")
        assert (code, out, said) == (141, b"y\n", b"")


@pytest.mark.usefixtures("session")
def test_text_is_utf8_whatever_the_locale_says(shell):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    assert shell("torpor code one 'chr(0xe4)'", **plain) == (0, "'ä'\n".encode(), b"")
    code, _, said = shell("torpor cp $'no\\xff' one:/x", **plain)
    assert (code, b"no\\udcff" in said) == (3, True)
    code, _, said = shell("printf '\\xff' | torpor code one -")
    assert (code, b"not UTF-8 at byte 0" in said) == (2, True)
