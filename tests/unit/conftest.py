"""The API over a backend in memory: in-process for its tests, on a real socket for those of the command line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from structlog.testing import capture_logs

from torpor.testing.node import FakeMachine, open_fake

sys.path.insert(0, str(Path(__file__).resolve().parent))

from memory_backend import MemoryBackend, StillClock
from server_thread import in_a_thread

from torpor.apps.api.app import create_app
from torpor.apps.cli.main import main

KEY = "a-key-of-more-than-20-characters"


@dataclass
class Api:
    """The application without a socket."""

    client: httpx.AsyncClient
    backend: MemoryBackend
    app: FastAPI


@cache
def the_app(_use: str) -> FastAPI:
    """Making routes takes longer than most tests, so the application is made once and given a new backend each time."""
    return create_app(MemoryBackend(), KEY, clock=StillClock())


def given_backend(app: FastAPI) -> MemoryBackend:
    backend = MemoryBackend()
    app.state.context = replace(app.state.context, backend=backend)
    return backend


@pytest.fixture
async def api():
    app = the_app("in-process")
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://torpor", headers=headers) as client,
    ):
        yield Api(client, given_backend(app), app)


@dataclass
class Served:
    """The application on a socket of this machine, in a thread."""

    url: str
    backend: MemoryBackend
    logs: list[dict]


@pytest.fixture(scope="module")
def listening():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = the_app("on a socket")
        settings = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(settings)
        with in_a_thread(lambda: server.serve(sockets=[listener]), [server]):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def served(listening):
    with capture_logs() as logs:
        yield Served(listening, given_backend(the_app("on a socket")), logs)


Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def environment(served, tmp_path) -> dict[str, str]:
    """What a shell would set to talk to ``served``."""
    return {"TORPOR_HOME": str(tmp_path / "home"), "TORPOR_API_URL": served.url, "TORPOR_API_KEY": KEY}


@pytest.fixture
def torpor(environment, tmp_path, monkeypatch, capfdbinary) -> Run:
    """Run a command line in this process: a Python of its own costs a second, and ``process`` shows that it is same."""

    def run(*arguments: str, stdin: bytes | None = None, **changes: str) -> subprocess.CompletedProcess:
        given = tmp_path.with_suffix(".stdin")
        given.write_bytes(stdin or b"")
        capfdbinary.readouterr()
        with monkeypatch.context() as patch, open(os.devnull if stdin is None else given) as source:
            for name, value in {**environment, **changes}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", source)
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        captured = capfdbinary.readouterr()
        return subprocess.CompletedProcess(arguments, code, captured.out, captured.err)

    return run


@pytest.fixture
def process(environment) -> Run:
    """Run a command line in a process of its own."""

    def run(*arguments: str, stdin: bytes | None = None, **changes: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "torpor.apps.cli", *arguments],
            env={**os.environ, **environment, **changes},
            capture_output=True,
            timeout=60,
            check=False,
            **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
        )

    return run


@pytest.fixture
def machine():
    """What of a fake node outlives its process. A module may have one of its own."""
    return FakeMachine()


@pytest.fixture
async def node(machine):
    """A fake node on ``machine``, whose store must be clean in the end."""
    async with open_fake(machine) as opened:
        yield opened
        assert (await opened.store.check()).clean
