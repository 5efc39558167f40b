"""A look inside: logs, and ports of a session on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Annotated, Any

import typer

from torpor.apps.cli import screen, streams
from torpor.apps.cli.options import AsJson, Ref, connected, examples
from torpor.domain.errors import InvalidArgument, TorporError

PIECE_BYTES = 64 * 1024


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(epilog=examples("torpor logs analysis", "torpor logs analysis -f", "torpor logs analysis --source 42"))(
        logs
    )
    app.command(epilog=examples("torpor port analysis 8000", "torpor port analysis 8000 --local 9000"))(port)


def logs(
    context: typer.Context,
    ref: Ref,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it comes, until Ctrl-C.")] = False,
    source: Annotated[
        str | None,
        typer.Option(metavar="PID", help="Of one process only, or `agent`. Default: all.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the guest agent and started processes wrote. Wakes the session; it survives pauses, and is bounded."""
    from torpor.apps.sdk import answers, calls  # noqa: PLC0415 - not needed for --help

    with connected(context) as client:
        for name, entry in client.events(calls.logs(ref, source=source, follow=follow)):
            if name != "entry":
                continue
            if as_json:
                screen.emit(entry)
                continue
            if entry["lost_bytes"]:
                screen.note(f"{screen.size(entry['lost_bytes'])} of {entry['source']} are not kept any more")
            for line in answers.data_of(entry).decode(errors="replace").splitlines():
                screen.say(f"{entry['at']} {entry['source']:>6} {line}")
            streams.finish()


def port(
    context: typer.Context,
    ref: Ref,
    number: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="Inside.", show_default=False)],
    *,
    local: Annotated[
        int | None,
        typer.Option(
            "--local",
            min=0,
            max=65535,
            metavar="PORT",
            help="Here; 0 takes any. Default: the same.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Offer a TCP port of a session on 127.0.0.1 of this machine, until Ctrl-C. The session needs no network for it.

    Wakes a paused session now, and again whenever somebody connects.
    """
    with connected(context) as client:
        with screen.waiting(f"resuming {ref}", quiet=as_json):
            session = client.resume(ref)
        if not as_json:
            screen.woken(screen.label(session), session["resumed"])
        with _listening(number if local is None else local) as listener:
            here = listener.getsockname()[1]
            told = {"host": "127.0.0.1", "port": here, "session": session["id"], "inside": number}
            said = f"127.0.0.1:{here} is port {number} of {screen.label(session)}"
            screen.emit(told) if as_json else screen.say(said)
            streams.finish()
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_serve, args=(client, session["id"], number, connection), daemon=True).start()


@contextlib.contextmanager
def _listening(number: int) -> Any:  # noqa: ANN401 - a context manager of a socket
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it a small piece waits up to 40 ms for the acknowledgement of the one before.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind(("127.0.0.1", number))
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on 127.0.0.1:{number}: {error.strerror}; choose another with --local", field="local"
            ) from error
        # Every connection has it from here: else small answers wait 40 ms for each other.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.listen()
        yield listener


def _serve(client: Any, ref: str, number: int, connection: socket.socket) -> None:  # noqa: ANN401 - Client
    from torpor.apps.sdk.sockets import Socket  # noqa: PLC0415 - not needed for --help

    with connection:
        try:
            with Socket.open(client.access, f"{ref}/ports/{number}") as far:
                feeding = threading.Thread(target=_feed, args=(connection, far), daemon=True)
                feeding.start()
                for message in far:
                    if isinstance(message, bytes) and message:
                        connection.sendall(message)
                    else:
                        connection.shutdown(socket.SHUT_WR)
        except TorporError as error:
            screen.note(error.message)
        except OSError:
            return  # the near side went away
        finally:
            # Closing alone tells the near side nothing while the other thread waits for what it may still say.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _feed(connection: socket.socket, far: Any) -> None:  # noqa: ANN401 - Socket
    with contextlib.suppress(OSError, TorporError):
        while data := connection.recv(PIECE_BYTES):
            far.send(data)
        far.send(b"")
