"""Ours: one session over HTTP, paused and woken again and again, each time checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torpor.adapters.clock.system import SystemClock
from torpor.apps.client import Client
from torpor.domain.errors import Corrupt

CHECK = "import zlib; print('awake', flush=True); zlib.crc32(ballast)"


@dataclass(frozen=True, slots=True)
class Waking:
    """One wake by a burst."""

    first_output_ms: float
    resumed: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pause and one wake. ``snapshot`` is as the API tells it; ``first_output_ms`` is the client's own clock."""

    snapshot: Mapping[str, Any]
    first_output_ms: float
    resumed: Mapping[str, Any]


class BenchSession:
    """A session whose default context holds ``ballast``."""

    def __init__(self, client: Client, ref: str, content: str | None, checksum: str = "") -> None:
        self._client = client
        self.ref = self._ref = ref
        self._clock = SystemClock()
        if content is not None:
            self._run(content)
        self._checksum = checksum or self._run(CHECK)[0]["result"]["text/plain"]

    def through(self, client: Client) -> BenchSession:
        """The same session at another server."""
        return BenchSession(client, self.ref, None, self._checksum)

    def at(self, ref: str) -> BenchSession:
        """A copy of the session."""
        return BenchSession(self._client, ref, None, self._checksum)

    def cycle(self) -> Cycle:
        """Pause, then wake by a burst. Raises: Corrupt if the ballast is not what it was."""
        snapshot = self._client.pause(self._ref)["snapshot"]
        waking = self.wake()
        return Cycle(snapshot, waking.first_output_ms, waking.resumed)

    def wake(self) -> Waking:
        """Wake it by a burst. Raises: Corrupt if the ballast is not what it was."""
        said, first_output_ms = self.check()
        return Waking(first_output_ms, said["resumed"])

    def check(self) -> tuple[dict[str, Any], float]:
        """A burst that looks at the ballast; its answer, and when its first output came. Raises: as ``wake``."""
        said, first_output_ms = self._run(CHECK)
        if said["result"]["text/plain"] != self._checksum:
            raise Corrupt("cannot trust this run: the session's memory is not what it was")
        return said, first_output_ms

    def change(self, size_bytes: int) -> None:
        """Have it hold so many new random bytes, in place of those of the last change."""
        self._run(f"changed = os.urandom({size_bytes})")

    def idle_share(self) -> float:
        """Resume without a burst, and pause again: what that wrote, as a share of the image. Leaves it paused."""
        self._client.resume(self._ref)
        snapshot = self._client.pause(self._ref)["snapshot"]
        return float(snapshot["new_bytes"] / snapshot["image_bytes"])

    def _run(self, source: str) -> tuple[dict[str, Any], float]:
        first_ms: list[float] = []
        began_s = self._clock.monotonic_s()

        def piece(_stream: str, _data: object) -> None:
            if not first_ms:
                first_ms.append((self._clock.monotonic_s() - began_s) * 1000)

        said = self._client.code(self._ref, source, on_piece=piece)
        if said["error"]:
            raise Corrupt(f"cannot measure: the burst failed: {said['error']}")
        return said, first_ms[0] if first_ms else 0.0


@contextmanager
def bench_session(client: Client, template: str, content: str) -> Iterator[BenchSession]:
    """A session for the run, deleted afterwards."""
    ref = client.create(template=template)["id"]
    try:
        yield BenchSession(client, ref, content)
    finally:
        client.delete(ref)
