"""The server's life: own the home, listen, open the node, serve, and stop in that order backwards."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import structlog
import uvicorn

from torpor.apps.api.app import create_app, make_ready
from torpor.apps.api.backend import Backend
from torpor.apps.api.ownership import ServerRecord, owned, remove_record, start_ticks, write_record
from torpor.apps.api.wire import instant
from torpor.apps.config import Config, check_bind, server_key
from torpor.apps.crashing import arm_crash
from torpor.domain.errors import Conflict, InvalidArgument
from torpor.ports.clock import Clock
from torpor_guest.heap import keep_freed_memory

STOP_GRACE_S = 5.0  # bursts in flight may end; then their clients are told that the server stops
STOP_TIMEOUT_S = 10.0  # connections that are open even then are cut
KEEP_ALIVE_S = 75  # above the idle time after which clients' pools drop a connection

OpenBackend = Callable[[Config], AbstractAsyncContextManager[Backend]]

log = structlog.get_logger()


class Server(uvicorn.Server):
    """uvicorn with our signals: the first stops gracefully, the second at once; none is raised again at the end."""

    def __init__(
        self, config: uvicorn.Config, *, on_listening: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then tell."""
        await super().startup(sockets)
        self._on_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end ``serve``. uvicorn's own would kill us before we have cleaned up."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
            return
        self.should_exit = True
        asyncio.get_running_loop().call_later(STOP_GRACE_S, self._on_stop)


async def serve(
    config: Config, open_backend: OpenBackend, *, host: str, port: int, clock: Clock, on_ready: Callable[[str], None]
) -> None:
    """Serve until a signal says stop. ``on_ready`` is told the URL once requests are answered.

    Raises: Conflict (home or port in use), InvalidArgument (key, address), and what ``open_backend`` raises.
    """
    arm_crash(os.environ)
    keep_freed_memory(one_arena=False)
    with owned(config):
        key, key_was_known = server_key(config, fresh=os.urandom(32))
        check_bind(host, key_was_known=key_was_known)
        with _bound(host, port) as listener:
            async with open_backend(config) as backend:
                app = create_app(backend, key, clock=clock, answers_file=config.answers_file)
                await make_ready(app)
                url = _url(host, listener.getsockname()[1])

                def listening() -> None:
                    write_record(config, _record(url, clock))
                    log.info("listening", url=url, home=str(config.home), pid=os.getpid())
                    on_ready(url)

                def stop_bursts() -> None:
                    app.state.context.bursts.stop()  # set when the application's life begins

                settings = uvicorn.Config(
                    app,
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    lifespan="on",
                    timeout_keep_alive=KEEP_ALIVE_S,
                    timeout_graceful_shutdown=int(STOP_TIMEOUT_S),
                )
                server = Server(settings, on_listening=listening, on_stop=stop_bursts)
                await server.serve(sockets=[listener])
                log.info("stopping", pid=os.getpid())
        remove_record(config)
        log.info("stopped", pid=os.getpid())


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet. Port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen on {host}: {error.strerror}; use --host 127.0.0.1", field="host"
        ) from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # start again right after a kill
        try:
            listener.bind(address)
        except OSError as error:
            raise _unbindable(host, port, error) from error
        yield listener


def _unbindable(host: str, port: int, error: OSError) -> Conflict | InvalidArgument:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"cannot listen on {host}:{port}: another program does; choose another with --port, or 0 for any free one",
            reason="port_in_use",
            port=port,
        )
    return InvalidArgument(
        f"cannot listen on {host}:{port}: {error.strerror}; use --host 127.0.0.1, or an address of this machine",
        field="host",
    )


def _url(host: str, port: int) -> str:
    """Where this machine's clients find a server that listens on ``host``."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound to
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _record(url: str, clock: Clock) -> ServerRecord:
    pid = os.getpid()
    ticks = start_ticks(pid)
    assert ticks is not None
    return ServerRecord(pid=pid, start_ticks=ticks, url=url, started_at=instant(clock.wall_s()))
