"""Running something in a session: code, sh, exec. Output is passed on as it comes, byte for byte."""

from __future__ import annotations

import base64
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any

import typer

from torpor.apps.cli import exits, screen, streams
from torpor.apps.cli.options import AsJson, Ref, Timeout, connected, examples, limit_s, pairs
from torpor.domain.errors import InvalidArgument, TorporError

STDIN_BYTES_MAX = 46 * 1024 * 1024  # base64 in a request of at most 64 MiB


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(
        epilog=examples(
            "torpor code analysis 'import pandas as pd; df = pd.read_csv(\"flights.csv\")'",
            "torpor code analysis 'df.shape'",
            "torpor code analysis - < step.py",
        )
    )(code)
    app.command(
        "sh",
        epilog=examples("torpor sh analysis 'cd /data && export STAGE=2'", "torpor sh analysis 'pwd; echo $STAGE'"),
    )(shell)
    app.command(
        "exec",
        epilog=examples(
            "torpor exec analysis -- ls -l /data",
            "torpor exec analysis -- tar cz /data > data.tgz",
            "torpor exec analysis -- wc -l < flights.csv",
            "torpor exec analysis --detach -- python3 -m http.server",
        ),
    )(execute)


def code(
    context: typer.Context,
    ref: Ref,
    source: Annotated[
        str, typer.Argument(metavar="CODE", help="Python, or - to read it from stdin.", show_default=False)
    ],
    *,
    in_context: Annotated[str, typer.Option("--context", metavar="NAME", help="Whose variables.")] = "default",
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> int:
    """Run Python in a session. Variables stay for the next call; the last expression's value is printed.

    Exit code 1 and the traceback on stderr if it raised. Ctrl-C interrupts the code, a second one leaves it running.
    """
    text = _piped_source() if source == "-" else source
    with connected(context) as client:
        output = Display(ref, as_json=as_json)
        with _interrupting(lambda: client.interrupt(ref, context=in_context)) as interrupted, output.open():
            outcome = client.code(ref, text, context=in_context, timeout_s=limit_s(timeout), on_piece=output.piece)
    output.finish(outcome)
    if interrupted.is_set():
        return exits.INTERRUPTED
    if outcome["timed_out"]:
        return exits.TIMED_OUT
    return exits.FAILED if outcome["error"] else exits.OK


def shell(
    context: typer.Context,
    ref: Ref,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="For bash.", show_default=False)],
    *,
    in_shell: Annotated[
        str, typer.Option("--shell", metavar="NAME", help="Whose directory and variables.")
    ] = "default",
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> int:
    """Run a command in a session's shell. Its directory and variables stay for the next call.

    The exit code is the command's.
    """
    with connected(context) as client:
        output = Display(ref, as_json=as_json)
        with output.open():
            outcome = client.shell(ref, command, shell=in_shell, timeout_s=limit_s(timeout), on_piece=output.piece)
    output.finish(outcome)
    return exits.TIMED_OUT if outcome["timed_out"] else exits.of_command(outcome["exit_code"])


def execute(
    context: typer.Context,
    ref: Ref,
    argv: Annotated[list[str], typer.Argument(metavar="CMD", help="The command.", show_default=False)],
    *,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable; may be repeated.", show_default=False)
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where. Default: /.", show_default=False)] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="As whom.")] = "root",
    detach: Annotated[bool, typer.Option("--detach", help="Start it and return; it lives on across pauses.")] = False,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Do not read a piped stdin.")] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> int:
    """Run a process in a session. The exit code is its own; a piped stdin is read to its end and passed on."""
    options: dict[str, Any] = {
        "env": pairs(env, option="--env"),
        "cwd": cwd,
        "user": user,
        "detach": detach,
        "timeout_s": limit_s(timeout),
        "stdin": b"" if no_stdin or detach else piped_stdin(),
    }
    with connected(context) as client:
        output = Display(ref, as_json=as_json)
        with output.open():
            outcome = client.execute(ref, argv, on_piece=output.piece, **options)
    output.finish(outcome)
    return exits.TIMED_OUT if outcome["timed_out"] else exits.of_command(outcome["exit_code"])


class Display:
    """Where a burst's output goes: on at once, or kept for the JSON at the end."""

    def __init__(self, ref: str, *, as_json: bool) -> None:
        self._ref = ref
        self._as_json = as_json
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._displays: list[Any] = []
        self._wait = screen.Waiting(f"waiting for {ref}", quiet=as_json or not sys.stderr.isatty())

    @contextmanager
    def open(self) -> Iterator[None]:
        """While the burst runs: tells that it is waited for until its first output."""
        self._wait.start()
        try:
            yield
        finally:
            self._wait.end()

    def piece(self, stream: str, data: bytes | dict[str, Any]) -> None:
        """One piece of output."""
        self._wait.end()
        if isinstance(data, dict):
            self._display(data)
        elif self._as_json:
            self._kept[stream] += data
        else:
            streams.put(data, at_once=True) if stream == "stdout" else streams.tell(data)

    def finish(self, outcome: dict[str, Any]) -> None:
        """What is told once the burst has ended."""
        if self._as_json:
            screen.emit({**self._kept_json(), "display": self._displays, **outcome})
            return
        screen.woken(outcome["session"]["name"] or self._ref, outcome["resumed"])
        if outcome["result"] is not None:
            screen.say(str(outcome["result"].get("text/plain", "")))
        if outcome["error"] is not None:
            streams.finish()
            streams.tell(outcome["error"]["traceback"].rstrip("\n") + "\n")
        if outcome["dropped_bytes"]:
            screen.note(f"{screen.size(outcome['dropped_bytes'])} of output were dropped: the buffer was full")
        if outcome["timed_out"]:
            screen.note("the time given ran out")

    def _display(self, bundle: dict[str, Any]) -> None:
        if self._as_json:
            self._displays.append(bundle)
        elif "text/plain" in bundle:
            streams.put(f"{bundle['text/plain']}\n", at_once=True)

    def _kept_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, data in self._kept.items():
            try:
                found |= {name: data.decode(), f"{name}_base64": None}
            except UnicodeDecodeError:
                readable = data.decode(errors="replace")
                found |= {name: readable, f"{name}_base64": base64.b64encode(data).decode()}
        return found


@contextmanager
def _interrupting(interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """The first Ctrl-C runs ``interrupt`` beside the waiting request; the second one ends the waiting."""
    interrupted = threading.Event()

    def ask() -> None:
        try:
            interrupt()
        except TorporError as error:
            screen.note(f"cannot interrupt: {error.message}")

    def handle(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        threading.Thread(target=ask, daemon=True).start()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _piped_source() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except OSError as error:
        raise streams.stdin_failure(error) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"cannot run what came from stdin: it is not UTF-8 at byte {error.start}", field="CODE"
        ) from error


def piped_stdin() -> bytes:
    """All of stdin if it is a pipe, file or socket. Raises: InvalidArgument above ``STDIN_BYTES_MAX``."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):
        return b""
    if not stat.S_ISREG(kind) and not select.select([sys.stdin], [], [], screen.PATIENCE_S)[0]:
        screen.note("waiting for stdin to end; use --no-stdin if nothing is meant to come")
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise InvalidArgument(
            f"cannot pass on more than {STDIN_BYTES_MAX >> 20} MiB of stdin; copy it with `torpor cp - ID:path` "
            "and read it from there",
            field="stdin",
        )
    return data
