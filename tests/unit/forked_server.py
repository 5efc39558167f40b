"""The real server over the backend in memory, as a process of its own: forked from one that has imported all of it.

To import a server costs a second of processor time, many times what a test of it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from unittest import mock

from memory_backend import MemoryBackend

from torpor.adapters.clock.system import SystemClock
from torpor.apps.api import serve
from torpor.apps.cli.logs import configure_logs
from torpor.apps.config import Config
from torpor.domain.errors import TorporError

END_S = 60
GRACE_S = 0.2  # of bursts that never end


@cache
def forking() -> ForkServerContext:
    """Its process has imported this module before the first fork. It is told where from as any Python is."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with mock.patch.dict(os.environ, PYTHONPATH=str(Path(__file__).parent)):
        ensure_running()
    return context


class ServerProcess:
    """``said``: the first line of the server, how its start went: its URL, or its error."""

    def __init__(self, home: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        said, saying = forking().Pipe(duplex=False)
        self._process = forking().Process(target=_live, args=(saying, str(home), host, port))
        self._process.start()
        saying.close()
        with said:
            self._output = os.fdopen(os.dup(said.fileno()), "rb")
        self.pid = self._process.pid
        line = self._output.readline()
        if not line.startswith(b"{"):
            self.kill()
            raise AssertionError(f"the server said {line + self.end()!r}")
        self.said = json.loads(line)

    @property
    def exit_code(self) -> int | None:
        """None while it runs, negative after a signal."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> bytes:
        """Its last words, once it has ended."""
        rest = b"" if self._output.closed else self._output.read()
        self._output.close()
        self._process.join(END_S)
        return rest


def _live(saying: Connection, home: str, host: str, port: int) -> None:
    os.dup2(saying.fileno(), 1)
    saying.close()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    configure_logs()
    config = Config.read({}, home=home)

    def started(url: str) -> None:
        print(json.dumps({"url": url}), flush=True)

    serve.STOP_GRACE_S = GRACE_S
    try:
        asyncio.run(serve.serve(config, _open_memory, host=host, port=port, clock=SystemClock(), on_ready=started))
    except TorporError as error:
        print(json.dumps({"code": error.code, "message": error.message, "details": error.details}), flush=True)


@contextlib.asynccontextmanager
async def _open_memory(_config: Config):
    yield MemoryBackend()
    print("closed", flush=True)
