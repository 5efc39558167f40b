"""Random operations and faults on real sessions of a real server; the simulator's invariants, checked again and again.

Run by ``make soak`` (DURATION seconds, SEED). It writes docs/reports/soak.md and soak.json and exits with 1 if an
invariant did not hold. The server's home is a temporary one, its store a small disk of its own that is filled at times.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e_home import Server, share_template, traces
from soak_faults import Faults, is_frozen_instance, sandboxes
from soak_report import Report

from torpor.apps.client import Client
from torpor.domain.errors import Conflict, TorporError, Unavailable

WORKERS = 4
SESSIONS_MAX = 6
ROUND_S = 45.0
POOL_MAX = 4
CLONES_MAX = 1  # all sessions are of one template and shape
RSS_BYTES_MAX = 512 << 20  # of the server, without what it shares
STORE_BYTES = 2 << 30
COLLECTIONS = 3  # packs that were lent to forks: the first marks them, the next removes them
EXPECTED = {"conflict", "guest_error", "storage_full", "unavailable", "engine_error", "not_found", "deadline_exceeded"}
TRANSIENT = {"creating", "snapshotting", "pausing", "resuming", "deleting"}
COUNT = "n = globals().get('n', 0) + 1\nn"


@dataclass(slots=True)
class Promise:
    """What the clients of a session were told. ``kept``: what its last acknowledged snapshot holds at least.

    ``attempts``: how many bursts may have counted. ``epoch``: how often it was knowingly taken back.
    """

    acknowledged: int = 0
    kept: int = 0
    attempts: int = 0
    epoch: int = 0
    file: int = 0
    writing: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class World:
    """The server, and what was promised. ``gate``: workers hold it shared, a look at the quiet world alone."""

    server: Server
    random: random.Random
    report: Report
    promises: dict[str, Promise] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    calm: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def client(self) -> Client:
        """Of the server that runs now."""
        return self.server.clients[-1]

    def violation(self, complaint: str) -> None:
        """An invariant does not hold."""
        self.report.violations.append(complaint)
        print("VIOLATION:", complaint, flush=True)

    def pick(self, chance: random.Random) -> str | None:
        """Any session."""
        with self.lock:
            return chance.choice(sorted(self.promises)) if self.promises else None


class Worker:
    """Does one thing after another."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.idle = threading.Event()

    def run(self) -> None:
        """Until the end; stands still while the world is looked at."""
        deeds = (self.create, self.count, self.write, self.pause, self.resume, self.fork, self.snapshot, self.delete)
        weights = (2, 12, 3, 5, 3, 1, 2, 1)
        while not self.world.over.is_set():
            if self.world.calm.is_set():
                self.idle.set()
                time.sleep(0.1)
                continue
            self.idle.clear()
            deed = self.random.choices(deeds, weights)[0]
            self.attempt(deed)

    def attempt(self, deed: Any) -> None:
        """One operation; a typed failure that a fault explains is an answer."""
        report, ref = self.world.report, self.world.pick(self.random)
        if ref is None:
            deed = self.create
        try:
            deed(ref)
        except Unavailable:
            report.noted(deed.__name__, "unavailable")
            time.sleep(0.3)
        except TorporError as error:
            report.noted(deed.__name__, error.code)
            if error.code not in EXPECTED:
                self.world.violation(f"{deed.__name__} of {ref}: {error.code}: {error.message}")
            if isinstance(error, Conflict) and error.details.get("status") == "lost" and ref is not None:
                self.go_back(ref)
        else:
            report.noted(deed.__name__, "ok")

    def create(self, _ref: str | None) -> None:
        """A new session, if there is room."""
        with self.world.lock:
            if len(self.world.promises) >= SESSIONS_MAX:
                return
        said = self.world.client.create(idle_s=self.random.choice((2, 5, None)), persistence="memory")
        with self.world.lock:
            self.world.promises[said["id"]] = Promise()

    def count(self, ref: str) -> None:
        """A burst that counts: never older than what was acknowledged, never twice."""
        with self.world.lock:
            promise = self.world.promises.get(ref)
            if promise is None:
                return
            promise.attempts += 1
            floor, epoch = promise.acknowledged, promise.epoch
        said = self.world.client.code(ref, COUNT, on_piece=lambda *_: None)
        if said["error"] is not None:
            if said["error"]["name"] != "ContextLost":
                self.world.violation(f"{ref}: {said['error']['name']}: {said['error']['value']}")
            return
        value, resumed = int(said["result"]["text/plain"]), said["resumed"] or {}
        with self.world.lock:
            if resumed.get("outcome") not in {None, "resumed", "created"}:
                promise.epoch += 1
                promise.acknowledged = promise.kept = value
                self.world.report.labelled += 1
            elif promise.epoch == epoch:
                self._judge(ref, promise, value, floor)

    def _judge(self, ref: str, promise: Promise, value: int, floor: int) -> None:
        log = (self.world.server.home / "server.log").read_text(errors="replace")
        if value <= floor and not any("step down" in line and ref in line for line in log.splitlines()):
            self.world.violation(f"{ref} shows {value} after {floor} was acknowledged")
        if value > promise.attempts:
            self.world.violation(f"{ref} shows {value} after {promise.attempts} attempts")
        promise.acknowledged = max(promise.acknowledged, value)

    def write(self, ref: str) -> None:
        """A file, and what an earlier one says. One writer at a time: of two nobody knows who was the last."""
        promise = self.world.promises.get(ref)
        if promise is None or not promise.writing.acquire(blocking=False):
            return
        try:
            self._write(ref, promise)
        finally:
            promise.writing.release()

    def _write(self, ref: str, promise: Promise) -> None:
        epoch, floor = promise.epoch, promise.file
        if floor:
            with self.world.client.reading(ref, "/workspace/number") as (pieces, _):
                found = int(b"".join(pieces))
            if promise.epoch == epoch and found < floor:
                self.world.violation(f"{ref}: its file says {found} after {floor} was acknowledged")
        number = int((time.monotonic() - self.world.report.began_s) * 1e6)
        self.world.client.write_file(ref, "/workspace/number", [str(number).encode()])
        with self.world.lock:
            if promise.epoch == epoch:
                promise.file = number

    def pause(self, ref: str) -> None:
        """What was acknowledged before it is kept from now on."""
        self._kept_by(ref, lambda: self.world.client.pause(ref))

    def snapshot(self, ref: str) -> None:
        """As ``pause``."""
        self._kept_by(ref, lambda: self.world.client.snapshot(ref))

    def _kept_by(self, ref: str, act: Any) -> None:
        promise = self.world.promises.get(ref)
        if promise is None:
            return
        held, epoch = promise.acknowledged, promise.epoch
        act()
        with self.world.lock:
            if promise.epoch == epoch:
                promise.kept = max(promise.kept, held)

    def resume(self, ref: str) -> None:
        """Bring it back."""
        self.world.client.resume(ref)

    def fork(self, ref: str) -> None:
        """A copy has at least what was acknowledged before the call."""
        with self.world.lock:
            source = self.world.promises.get(ref)
            if source is None or len(self.world.promises) >= SESSIONS_MAX:
                return
            held, epoch = source.acknowledged, source.epoch
        (said,) = self.world.client.fork(ref)
        with self.world.lock:
            same = source.epoch == epoch
            held = held if same else 0
            attempts = source.attempts if same else 1 << 30
            self.world.promises[said["id"]] = Promise(acknowledged=held, kept=held, attempts=attempts)

    def delete(self, ref: str) -> None:
        """Remove it, and see that nothing is left in the store."""
        with self.world.lock:
            if len(self.world.promises) < 3 or self.world.promises.pop(ref, None) is None:
                return
        self.world.client.delete(ref)

    def go_back(self, ref: str) -> None:
        """Its instance died: its last snapshot, knowingly."""
        with self.world.lock:
            promise = self.world.promises.get(ref)
            if promise is None:
                return
            promise.epoch += 1
            promise.acknowledged, promise.file = promise.kept, 0
        with contextlib.suppress(TorporError):
            if self.world.client.get(ref)["snapshot"] is None:
                self.world.client.delete(ref)
                self.world.promises.pop(ref, None)
            else:
                self.world.client.resume(ref, allow_older=True)


def look(world: World, workers: list[Worker]) -> None:
    """Stop the workers, let everything come to rest, and check what must hold then."""
    world.calm.set()
    for worker in workers:
        worker.idle.wait(120)
    try:
        sessions = _rested(world)
        _check_instances(world)
        checked = world.client.store_check()
        if not checked["clean"]:
            world.violation(f"the store is not clean: {checked['problems']}")
        assert world.server.process is not None
        rss_bytes = world.report.sample_rss(world.server.process.pid)
        if rss_bytes > RSS_BYTES_MAX:
            world.violation(f"the server holds {rss_bytes >> 20} MiB")
        for one in sessions:
            if one["id"] not in world.promises:  # made by a call whose answer a dead server took along
                world.client.delete(one["id"])
    finally:
        world.calm.clear()


def _check_instances(world: World) -> None:
    """Those of the pool run for a moment while they are made, and sessions are paused for being idle: look again."""
    for patience in range(20, -1, -1):
        held = {one["instance"] for one in world.client.sessions()}
        loose = {path.name for path in world.server.config.runtime_dir.glob("s/e*/i/*")} - held
        running = [one for one in loose if sandboxes(world.server, one) and not is_frozen_instance(world.server, one)]
        if len(loose) <= POOL_MAX + CLONES_MAX and (not running or _is_the_clone(world, running)):
            return
        if patience:
            time.sleep(1.0)
    world.violation(f"{len(loose)} instances are held by no session, of which {running} are running")


def _is_the_clone(world: World, running: list[str]) -> bool:
    """One may run without a session: the clone that the next create is given."""
    if len(running) > CLONES_MAX:
        return False
    created = world.client.create()
    world.client.delete(created["id"])
    return running == [created["instance"]]


def _rested(world: World) -> list[dict[str, Any]]:
    for _ in range(600):
        sessions = list(world.client.sessions())
        if not [one for one in sessions if one["status_detail"] in TRANSIENT]:
            time.sleep(1.0)  # pools are filled and images let go
            return list(world.client.sessions())
        time.sleep(0.1)
    world.violation(f"sessions are stuck: {[(one['id'], one['status_detail']) for one in sessions]}")
    return sessions


def soak(world: World, duration_s: float) -> None:
    """Workers and faults, round by round."""
    workers = [Worker(world, world.random.getrandbits(32)) for _ in range(WORKERS)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    faults, ends_s = Faults(world.server, world.random, world.report), time.monotonic() + duration_s
    try:
        while time.monotonic() < ends_s:
            round_ends_s = min(time.monotonic() + ROUND_S, ends_s)
            while time.monotonic() < round_ends_s:
                time.sleep(world.random.uniform(2.0, 12.0))
                faults.strike(world.promises)
            look(world, workers)
            world.report.tell()
    finally:
        world.over.set()
        for thread in threads:
            thread.join()


def end(world: World, home: Path) -> None:
    """Remove every session; nothing may be left, in the store or on the machine."""
    for one in list(world.client.sessions()):
        world.client.delete(one["id"])
    checked = world.client.store_check()
    if not checked["clean"]:
        world.violation(f"the store is not clean in the end: {checked['problems']}")
    for _ in range(COLLECTIONS):
        world.client.collect_garbage(dry_run=False, grace_s=0.0)
    left = [str(path) for path in (home / "store/objects/v0/default").rglob("*") if path.is_file()]
    if left:
        world.violation(f"the store still has {left}")
    world.server.stop()
    if any(traces(home).values()):
        world.violation(f"left on the machine: {traces(home)}")


def main() -> int:
    """The whole soak."""
    duration_s = float(os.environ.get("DURATION") or 3600)
    seed = int(os.environ.get("SEED") or random.SystemRandom().getrandbits(32))
    with tempfile.TemporaryDirectory(prefix="torpor-soak-") as folder:
        home = Path(folder) / "home"
        share_template(home)
        with small_store(home):
            server = Server(home)
            server.start()
            report = Report(seed=seed, asked_s=duration_s, engine=server.clients[-1].engine()["build"])
            world = World(server, random.Random(seed), report)
            threading.excepthook = lambda told: world.violation(f"a worker failed: {told.exc_value!r}")
            try:
                soak(world, duration_s)
                end(world, home)
            finally:
                server.stop()
                report.write(Path(__file__).parents[1] / "docs/reports", (home / "server.log").read_text()[-2000:])
    return 1 if report.violations else 0


@contextlib.contextmanager
def small_store(home: Path) -> Any:
    """The store on a disk of its own, which can be filled."""
    store, kept = home / "store", home / "kept"
    store.rename(kept)
    store.mkdir(mode=0o700)
    options = f"size={STORE_BYTES},mode=0700"
    subprocess.run(("mount", "-t", "tmpfs", "-o", options, "torpor-soak", str(store)), check=True)
    try:
        subprocess.run(("cp", "-a", f"{kept}/.", str(store)), check=True)
        yield
    finally:
        subprocess.run(("umount", "-l", str(store)), check=True)


if __name__ == "__main__":
    sys.exit(main())
