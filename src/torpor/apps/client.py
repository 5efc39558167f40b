"""The command line's client: the API's answers as they are, in JSON. People use ``torpor.Client``, of the same parts.

A burst whose code failed is an answer; only a failing request raises. Imports nothing of the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from torpor.apps.config import Config, client_key
from torpor.apps.sdk import calls
from torpor.apps.sdk.access import Access
from torpor.apps.sdk.answers import JSON, OnPiece, error_of
from torpor.apps.sdk.calls import BODY_BYTES_MAX
from torpor.apps.sdk.transport import Transport

__all__ = ["BODY_BYTES_MAX", "JSON", "Client", "OnPiece", "error_of"]


class Client:
    """One server, one key. Sessions are named by id or name. Use as a context manager, or ``close`` it."""

    def __init__(self, url: str, key: str, *, home: str = "") -> None:
        self.access = Access(url, key, home)
        self._transport = Transport(self.access)
        self.send = self._transport.json
        self.events = self._transport.events
        self.read = self._transport.read

    @classmethod
    def of(cls, config: Config) -> Client:
        """The client of a home. Raises: Unauthenticated if no key is found."""
        return cls(config.api_url, client_key(config), home=str(config.home))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._transport.close()

    def health(self) -> JSON:
        """What the server says of itself."""
        return self.send(calls.health())

    def engine(self) -> JSON:
        """The engine the server uses."""
        return self.send(calls.engine())

    def collect_garbage(self, *, dry_run: bool, grace_s: float | None = None, keep: int | None = None) -> JSON:
        """Remove from the store what nothing uses, or only say what would go."""
        return self.send(calls.collect_garbage(dry_run=dry_run, grace_s=grace_s, keep=keep))

    def rebuild_catalog(self) -> JSON:
        """Insert what the store has and the catalog lacks."""
        return self.send(calls.rebuild_catalog())

    def snapshot(self, ref: str) -> JSON:
        """Store what a session is now."""
        return self.send(calls.snapshot(ref))

    def fork(self, ref: str, **request: Any) -> list[JSON]:  # noqa: ANN401 - the fields of ForkBody
        """Copies of a session, running."""
        found: list[JSON] = self.send(calls.fork(ref, request))["sessions"]
        return found

    def set_clocks(self, ref: str, **clocks: Any) -> JSON:  # noqa: ANN401 - the fields of ClocksBody
        """Set clocks anew."""
        return self.send(calls.set_clocks(ref, clocks))

    def create(self, **request: Any) -> JSON:  # noqa: ANN401 - the fields of CreateBody
        """A new session, running; ``request`` holds template, name, persistence, metadata, env."""
        return self.send(calls.create(request))

    def sessions(self) -> Iterator[JSON]:
        """All sessions, newest first."""
        cursor: str | None = None
        while True:
            page = self.send(calls.sessions(cursor))
            yield from page["sessions"]
            cursor = page["cursor"]
            if cursor is None:
                return

    def get(self, ref: str) -> JSON:
        """One session."""
        return self.send(calls.get(ref))

    def delete(self, ref: str) -> JSON:
        """Delete a session and destroy its key."""
        return self.send(calls.delete(ref))

    def pause(self, ref: str, *, wait: str | None = "disk") -> JSON:
        """Pause a session and wait until it is that durable."""
        return self.send(calls.pause(ref, wait=wait))

    def resume(self, ref: str, *, allow_older: bool = False) -> JSON:
        """Resume a session."""
        return self.send(calls.resume(ref, allow_older=allow_older))

    def code(self, ref: str, source: str, *, on_piece: OnPiece, **options: Any) -> JSON:  # noqa: ANN401 - of CodeBody
        """Run Python; how it ended. Output goes to ``on_piece`` while it comes."""
        return self._transport.burst(calls.code(ref, source, **options), on_piece)

    def shell(self, ref: str, command: str, *, on_piece: OnPiece, **options: Any) -> JSON:  # noqa: ANN401 - of ShellBody
        """Run a command in a persistent shell; how it ended."""
        return self._transport.burst(calls.shell(ref, command, **options), on_piece)

    def execute(self, ref: str, argv: Iterable[str], *, on_piece: OnPiece, stdin: bytes = b"", **options: Any) -> JSON:  # noqa: ANN401 - of ExecBody
        """Run a process; how it ended."""
        return self._transport.burst(calls.execute(ref, argv, stdin=stdin, **options), on_piece)

    def interrupt(self, ref: str, *, context: str = "default") -> None:
        """KeyboardInterrupt in a context's running burst."""
        self.send(calls.interrupt(ref, context=context))

    def reading(self, ref: str, path: str) -> AbstractContextManager[tuple[Iterator[bytes], bool]]:
        """A file's bytes, streamed, and whether the session had to be woken for them."""
        return self.read(calls.read_file(ref, path))

    def write_file(self, ref: str, path: str, data: Iterable[bytes], *, mode: int = 0o644) -> JSON:
        """Write a whole file, streamed."""
        return self.send(calls.write_file(ref, path, mode=mode), data)

    def templates(self) -> list[JSON]:
        """All templates."""
        found: list[JSON] = self.send(calls.templates())["templates"]
        return found

    def store_check(self) -> JSON:
        """Read and authenticate the whole store."""
        return self.send(calls.store_check())
