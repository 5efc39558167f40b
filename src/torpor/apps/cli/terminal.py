"""An interactive shell in a session. It outlives this program, and pauses: it is attached to again by its pid."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.apps.cli import exits, screen, streams
from torpor.apps.cli.options import Ref, connected, examples
from torpor.domain.errors import InvalidArgument, TorporError

if TYPE_CHECKING:
    from torpor.apps.sdk.access import Access
    from torpor.apps.sdk.sockets import Socket

DETACH = b"\x1d"  # Ctrl-]
PIECE_BYTES = 4096


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command("shell", epilog=examples("torpor shell analysis", "torpor shell analysis --pid 42"))(interactive)


def interactive(
    context: typer.Context,
    ref: Ref,
    *,
    user: Annotated[str, typer.Option(metavar="NAME", help="As whom.")] = "root",
    pid: Annotated[
        int | None,
        typer.Option(metavar="PID", help="Attach to this one again. Default: a new shell.", show_default=False),
    ] = None,
) -> int:
    """Open a terminal in a session. Ctrl-] leaves it running, and says how to attach again.

    If the session is paused meanwhile, the next key wakes it, and the terminal goes on where it was. The exit code is
    the shell's.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument(
            "cannot open a terminal: stdin and stdout are none; use `torpor sh` or `torpor exec`", field="stdin"
        )
    with connected(context) as client:
        client.get(ref)
        terminal = _Terminal(client.access, ref, user, pid)
        with _raw():
            code = terminal.run()
    if terminal.left:
        screen.note(f"left running; `torpor shell {ref} --pid {terminal.pid}` attaches again")
    return exits.of_command(code)


class _Terminal:
    """One terminal over as many connections as pauses want. ``left``: the user went away from it."""

    def __init__(self, access: Access, ref: str, user: str, pid: int | None) -> None:
        self._access = access
        self._ref = ref
        self._user = user
        self.pid = pid
        self.left = False
        self._sequence = 0
        self._typed_ahead = b""

    def run(self) -> int | None:
        """Until the shell ends or is left; its exit code."""
        from torpor.apps.sdk.sockets import Socket  # noqa: PLC0415 - not needed for --help

        while True:
            try:
                with Socket.open(self._access, f"{self._ref}/terminal", self._query()) as far:
                    return self._talk(far)
            except TorporError as error:
                if error.details.get("reason") != "paused_during_burst":
                    raise
                streams.tell("\r\ntorpor: paused; type to wake it\r\n")
                self._typed_ahead = os.read(sys.stdin.fileno(), PIECE_BYTES)

    def _query(self) -> dict[str, Any]:
        columns, rows = shutil.get_terminal_size()
        query: dict[str, Any] = {"columns": columns, "rows": rows, "user": self._user}
        query["term"] = os.environ.get("TERM", "xterm-256color")
        return query if self.pid is None else {**query, "pid": self.pid, "from_sequence": self._sequence}

    def _talk(self, far: Socket) -> int | None:
        over, leaving = os.pipe()
        typing = threading.Thread(target=self._type, args=(far, over), daemon=True)
        try:
            with _resizing(far):
                typing.start()
                return self._show(far)
        finally:
            os.close(leaving)  # ends the thread that types
            typing.join()
            os.close(over)

    def _show(self, far: Socket) -> int | None:
        for message in far:
            if isinstance(message, bytes):
                self._sequence += len(message)
                streams.put(message, at_once=True)
            elif "process" in message:
                self.pid = message["process"]["pid"]
                screen.woken(self._ref, message["resumed"])
            elif "lost_bytes" in message:
                self._sequence += message["lost_bytes"]
            elif "exit_code" in message:
                code: int = message["exit_code"]
                return code
            if self.left:
                return None
        return None

    def _type(self, far: Socket, over: int) -> None:
        data, self._typed_ahead = self._typed_ahead, b""
        with contextlib.suppress(TorporError):
            while True:
                if data:
                    far.send(data)
                ready, _, _ = select.select([sys.stdin, over], [], [])
                if over in ready:
                    return
                data = os.read(sys.stdin.fileno(), PIECE_BYTES)
                if DETACH in data or not data:
                    self.left = True
                    far.close()
                    return


@contextlib.contextmanager
def _resizing(far: Socket) -> Iterator[None]:
    def tell(*_: object) -> None:
        columns, rows = shutil.get_terminal_size()
        with contextlib.suppress(TorporError):
            far.send({"columns": columns, "rows": rows})

    before = signal.signal(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    settings = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
