"""Takes the set-up back: what this checkout made, and nothing else.

What runs is found by what it runs (an engine build or the command of this checkout) and by this home's own names under
``/run/torpor`` and in the cgroups; other homes on the machine are left alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from torpor_setup.perform import say
from torpor_setup.places import MACHINE_CACHE, MACHINE_RECORD, RUNTIME_ROOT, Places

_ENDING_S = 10.0
# What the checks keep beside the sources.
_TOOL_CACHES = (".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache")


def undo(places: Places, *, with_packages: bool) -> int:
    """Stop and remove all of it. Idempotent. The exit status: 1 if something would not go away."""
    folders = [places.venv, places.cache, MACHINE_CACHE, *(places.checkout / name for name in _TOOL_CACHES)]
    runtime = RUNTIME_ROOT / places.home_id
    say("taking the set-up back; this removes:")
    for path in (*folders, runtime):
        if path.exists():
            say(f"  - {path}")
    say("  - what still runs from this checkout's engine builds, with its cgroups and mounts")
    _stop_server(places)
    _end(places)
    for point in mounts_below([places.cache, runtime, MACHINE_CACHE]):
        subprocess.run(["umount", "--lazy", point], check=False)
    left = mounts_below([places.cache, runtime, MACHINE_CACHE])
    if left:
        say(f"cannot go on: still mounted: {', '.join(left)}; unmount and repeat")
        return 1
    for cgroup in cgroups_of(places.home_id):
        _remove_cgroup(cgroup)
    for folder in (*folders, runtime):
        if folder.is_dir():
            shutil.rmtree(folder)
    for shared in (RUNTIME_ROOT, *(cgroup.parent for cgroup in cgroups_of("*"))):
        _remove_if_empty(shared)
    _packages(remove=with_packages)
    say("done")
    return 0


def processes_of(places: Places) -> list[int]:
    """Processes that run an engine build of this checkout, or its ``torpor`` command. Not this one."""
    return sorted(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and _is_ours(entry, places)
    )


def _is_ours(entry: Path, places: Places) -> bool:
    try:
        program = os.readlink(entry / "exe")
        words = (entry / "cmdline").read_bytes().split(b"\0")[:2]
    except OSError:
        return False
    runs_engine = program.startswith(f"{(places.home / 'engines').resolve()}/")
    return runs_engine or os.fsencode(places.torpor) in words


def mounts_below(folders: list[Path]) -> list[str]:
    """Mount points below ``folders``, innermost first."""
    tops = tuple(str(folder.resolve()) for folder in folders)
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if any(point == top or point.startswith(f"{top}/") for top in tops):
            points.append(point)
    return sorted(points, reverse=True)


def cgroups_of(home_id: str, *, mount: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """This home's cgroups: one in version 2, one per controller in version 1."""
    return sorted({*mount.glob(f"torpor/{home_id}"), *mount.glob(f"*/torpor/{home_id}")})


def _stop_server(places: Places) -> None:
    if not places.torpor.exists() or not (places.home / "server.json").exists():
        return
    environment = dict(os.environ) | {"TORPOR_HOME": str(places.home)}
    try:
        subprocess.run([places.torpor, "down"], check=False, capture_output=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        say("      the server did not stop when asked; it is ended")


def _end(places: Places) -> None:
    """Ask them to end, and end those that do not; again until none is left, since some start others while they end."""
    deadline_s = time.monotonic() + _ENDING_S
    number = signal.SIGTERM
    while pids := processes_of(places):
        for pid in pids:
            _signal(pid, number, places)
        time.sleep(0.2)  # noqa: TID251 - no clock to hand in before anything is installed
        if time.monotonic() > deadline_s:
            number = signal.SIGKILL
        if time.monotonic() > 2 * _ENDING_S + deadline_s:
            say(f"      still running: {pids}")
            return


def _signal(pid: int, number: int, places: Places) -> None:
    # SAFETY: a pid may belong to another program by now. The descriptor names one process for good, so that the
    # process that is looked at is the one that gets the signal.
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _is_ours(Path(f"/proc/{pid}"), places):
            signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _remove_cgroup(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        _remove_if_empty(Path(folder))


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return


def _packages(*, remove: bool) -> None:
    if not MACHINE_RECORD.is_file():
        return
    names = json.loads(MACHINE_RECORD.read_text())["packages"]
    if not names:
        return
    if not remove:
        say(f"kept: {len(names)} system packages that set-up installed: {', '.join(names)}")
        say("      'make undo PACKAGES=1' removes them too")
        return
    planned = subprocess.run(
        ["apt-get", "--simulate", "remove", *names], check=False, capture_output=True, text=True, env=_apt_environment()
    ).stdout
    removed = {line.split()[1] for line in planned.splitlines() if line.startswith("Remv ")}
    others = sorted(removed - {name.partition(":")[0] for name in names})
    if others:
        say(f"kept the system packages: set-up did not install {', '.join(others)}, which would go with them")
        return
    subprocess.run(["apt-get", "remove", "--yes", *names], check=True, env=_apt_environment())
    MACHINE_RECORD.unlink()
    _remove_if_empty(MACHINE_RECORD.parent)


def _apt_environment() -> dict[str, str]:
    return dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
