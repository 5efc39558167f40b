"""The client that waits. ``aio`` is the same with ``await``; what both say and hear is in ``calls`` and ``answers``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

from torpor.apps.sdk import calls
from torpor.apps.sdk.access import Access
from torpor.apps.sdk.inside import FileChange
from torpor.apps.sdk.options import Clocks, CodeOptions, CreateOptions, ExecOptions, ShellOptions, split
from torpor.apps.sdk.processes import Inside
from torpor.apps.sdk.results import FileInfo, Gathering, Result, SessionInfo, Token
from torpor.apps.sdk.transport import Transport, gathered, pieces_of

JSON = dict[str, Any]


class Client:
    """One server. With nothing given, the one that ``torpor`` on this machine would talk to, with its key.

    Raises: Unauthenticated if no key is found; InvalidArgument for an address that is none.
    """

    def __init__(self, url: str | None = None, key: str | None = None, *, home: str | None = None) -> None:
        self._transport = Transport(Access.find(url, key, home=home))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; sessions stay as they are. Idempotent."""
        self._transport.close()

    def session(self, name: str | None = None, *, ephemeral: bool = False, **options: Unpack[CreateOptions]) -> Session:
        """The session of that name, made if there is none; a new one without a name.

        As a context manager it is kept, unless ``ephemeral``: then it is deleted at the end of the block.
        Raises: Conflict if it exists and is of another template than the one given.
        """
        request = {"name": name, "get_or_create": name is not None, **options}
        said = self._transport.json(calls.create(request, idempotency_key=secrets.token_hex(16)))
        return Session(self._transport, said, ephemeral=ephemeral)

    def attach(self, ref: str) -> Session:
        """The session of that id or name. Raises: NotFound."""
        return Session(self._transport, self._transport.json(calls.get(ref)))

    def sessions(self) -> Iterator[SessionInfo]:
        """All sessions, newest first."""
        cursor: str | None = None
        while True:
            page = self._transport.json(calls.sessions(cursor))
            yield from map(SessionInfo.of, page["sessions"])
            cursor = page["cursor"]
            if cursor is None:
                return

    def export_session(self, ref: str, passphrase: str) -> AbstractContextManager[Iterator[bytes]]:
        """A session's newest snapshot as the pieces of one file, sealed under the passphrase: pause it first."""
        return self._exporting(ref, passphrase)

    def import_session(self, data: bytes | Iterable[bytes], passphrase: str, *, name: str | None = None) -> Session:
        """A new session, paused, out of an exported file. Raises: InvalidArgument (passphrase, damage), Conflict."""
        call = calls.import_session(passphrase, name=name)
        return Session(self._transport, self._transport.json(call, pieces_of(data)))

    def template(self, name: str) -> JSON:
        """One template, by name or digest."""
        return self._transport.json(calls.template(name))

    def remove_template(self, name: str) -> JSON:
        """Remove one that no session was made of."""
        return self._transport.json(calls.remove_template(name))

    def templates(self) -> list[JSON]:
        """What sessions can be made of."""
        found: list[JSON] = self._transport.json(calls.templates())["templates"]
        return found

    def health(self) -> JSON:
        """What the server says of itself."""
        return self._transport.json(calls.health())

    @contextmanager
    def _exporting(self, ref: str, passphrase: str) -> Iterator[Iterator[bytes]]:
        with self._transport.read(calls.export(ref, passphrase)) as (pieces, _):
            yield pieces


class Session(Inside):
    """A session of a server. Every burst wakes it if it is paused; ``Result.resumed`` then says so."""

    def __init__(self, transport: Transport, said: JSON, *, ephemeral: bool = False) -> None:
        self._transport = transport
        self._ephemeral = ephemeral
        self.info = SessionInfo.of(said)
        self.id = self.info.id
        self.files = Files(transport, self.id)

    def __repr__(self) -> str:
        return f"<torpor session {self.info.name or self.id}: {self.info.status}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ephemeral:
            self.delete()

    def code(self, source: str, **options: Unpack[CodeOptions]) -> Result:
        """Run Python in a context that keeps its variables. What it raises is ``Result.error``."""
        return self._burst(calls.code, source, options)

    def sh(self, command: str, **options: Unpack[ShellOptions]) -> Result:
        """Run a command in a shell that keeps its directory and variables."""
        return self._burst(calls.shell, command, options)

    def exec(self, argv: Sequence[str], **options: Unpack[ExecOptions]) -> Result:
        """Run a process to its end, or start it with ``detach``."""
        return self._burst(calls.execute, argv, options)

    def interrupt(self, *, context: str = "default") -> None:
        """KeyboardInterrupt in a context's running burst; nothing if it runs none."""
        self._transport.json(calls.interrupt(self.id, context=context))

    def pause(self, *, wait: str | None = "disk") -> SessionInfo:
        """Put it away; returns once its snapshot is as safe as ``wait`` says, at once for None."""
        return self._seen(calls.pause(self.id, wait=wait))

    def resume(self, *, allow_older: bool = False) -> SessionInfo:
        """Bring it back now; bursts and files do so on their own."""
        return self._seen(calls.resume(self.id, allow_older=allow_older))

    def snapshot(self) -> SessionInfo:
        """Store what it is now, and let it go on."""
        return self._seen(calls.snapshot(self.id))

    def fork(
        self, count: int = 1, *, names: Sequence[str] = (), metadata: Mapping[str, str] | None = None
    ) -> list[Session]:
        """Copies of it as it is now, running, each with an identity of its own; all of them, or none."""
        request = {"count": count, "names": list(names), "metadata": dict(metadata or {})}
        said = self._transport.json(calls.fork(self.id, request, idempotency_key=secrets.token_hex(16)))
        return [Session(self._transport, one) for one in said["sessions"]]

    def set_clocks(self, **clocks: Unpack[Clocks]) -> SessionInfo:
        """Set those clocks that are given anew; None: never."""
        return self._seen(calls.set_clocks(self.id, clocks))

    def refresh(self) -> SessionInfo:
        """Ask what holds now; also kept as ``info``."""
        return self._seen(calls.get(self.id))

    def delete(self) -> None:
        """Delete it and destroy its key: no byte of it can be read again."""
        self._seen(calls.delete(self.id))

    def token(self, *, ttl_s: float | None = None) -> Token:
        """A key for somebody who may use this session only."""
        return Token.of(self._transport.json(calls.token(self.id, ttl_s=ttl_s)))

    def _seen(self, call: calls.Call) -> SessionInfo:
        self.info = SessionInfo.of(self._transport.json(call))
        return self.info

    def _burst(self, make: Callable[..., calls.Call], what: object, options: Any) -> Result:  # noqa: ANN401 - checked by the callers
        listeners, sent = split(options)
        gathering = Gathering(listeners)
        return gathering.result(self._transport.burst(make(self.id, what, **sent), gathering.take))


class Files:
    """A session's files."""

    def __init__(self, transport: Transport, ref: str) -> None:
        self._transport = transport
        self._ref = ref

    def read(self, path: str) -> bytes:
        """A file's bytes. Raises: NotFound, InvalidArgument (a directory)."""
        with self.stream(path) as pieces:
            return gathered(pieces)

    def read_text(self, path: str) -> str:
        """A file's text, UTF-8."""
        return self.read(path).decode()

    def stream(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """A file's bytes, of any size, piece by piece."""
        return self._streaming(path)

    def list(self, path: str) -> Iterator[FileInfo]:
        """A directory's entries, in order of names."""
        cursor: str | None = None
        while True:
            page = self._transport.json(calls.list_files(self._ref, path, cursor))
            for said in page["entries"]:
                yield FileInfo.of(said)
            cursor = page["cursor"]
            if cursor is None:
                return

    def stat(self, path: str) -> FileInfo:
        """What a path names; links are not followed. Raises: NotFound."""
        return FileInfo.of(self._transport.json(calls.stat_file(self._ref, path)))

    def make_directory(self, path: str, *, mode: int = 0o755, user: str | None = None) -> bool:
        """Make a directory with its parents; False if it was there."""
        said = self._transport.json(calls.make_directory(self._ref, path, mode=mode, user=user))
        return bool(said["made"])

    def move(self, path: str, to: str) -> None:
        """Rename, over a file that is there."""
        self._transport.json(calls.move_file(self._ref, path, to))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory, with what is in it if ``recursive``."""
        self._transport.json(calls.remove_file(self._ref, path, recursive=recursive))

    def watch(self, path: str, *, recursive: bool = False) -> Iterator[FileChange]:
        """Changes in a directory, as they come. A pause ends it with Conflict or GuestError: watch again."""
        for name, said in self._transport.events(calls.watch_files(self._ref, path, recursive=recursive)):
            if name == "change":
                yield FileChange(**said)

    def write(self, path: str, data: bytes | str | Iterable[bytes], *, mode: int = 0o644) -> int:
        """Write a whole file; parents are made, an old file is replaced at once or not at all. Its size in bytes."""
        said = self._transport.json(calls.write_file(self._ref, path, mode=mode), pieces_of(data))
        size_bytes: int = said["size_bytes"]
        return size_bytes

    @contextmanager
    def _streaming(self, path: str) -> Iterator[Iterator[bytes]]:
        with self._transport.read(calls.read_file(self._ref, path)) as (pieces, _):
            yield pieces
