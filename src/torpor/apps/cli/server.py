"""The server on this machine: up, down."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from torpor.apps.cli import screen, streams
from torpor.apps.cli.options import AsJson, configured, examples
from torpor.apps.config import Config, home_failure, make_home
from torpor.domain.errors import TorporError, Unavailable

START_TIMEOUT_S = 300.0  # a start after a crash reconciles every session that was not at rest
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_TAIL_BYTES = 4096


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(epilog=examples("torpor up", "torpor up --detach", "TORPOR_HOME=/srv/torpor torpor up --port 9000"))(up)
    app.command(epilog=examples("torpor down"))(down)


def up(
    context: typer.Context,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Where to listen; 0 takes any free port. Default: $TORPOR_PORT, else 7780.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Where to listen. Other than loopback only if a key was set before (TORPOR_API_KEY, api.key). "
            "Default: $TORPOR_HOST, else 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it answers; it logs to server.log.")
    ] = False,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Start the server on this machine, as root. The home and its key are made on the first start.

    One server owns a home. Ctrl-C, SIGTERM and `torpor down` stop it gracefully.
    """
    config = configured(context)
    at, number = host or config.host, config.port if port is None else port
    if detach:
        _tell(_launch(config, at, number, quiet=as_json), as_json=as_json)
        return
    try:
        _serve(config, at, number, ready_fd=ready_fd, as_json=as_json)
    except TorporError as error:
        _tell_parent(ready_fd, {"code": error.code, "message": error.message, "details": error.details})
        raise


def down(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Stop the home's server and wait until it has stopped. Paused sessions stay as they are."""
    from torpor.apps.api.ownership import Stopped, stop  # noqa: PLC0415 - only here

    config = configured(context)
    with screen.waiting("stopping the server", quiet=as_json):
        found, pid = stop(config)
    if as_json:
        screen.emit({"status": found.value, "pid": pid})
        return
    said = {
        Stopped.STOPPED: f"the server (pid {pid}) has stopped",
        Stopped.DEAD: f"the server (pid {pid}) had died already; its record was removed",
        Stopped.ABSENT: f"no server runs on {config.home}",
    }
    screen.say(said[found])


def _serve(config: Config, host: str, port: int, *, ready_fd: int | None, as_json: bool) -> None:
    import asyncio  # noqa: PLC0415 - the server's imports stay out of client commands

    from torpor.adapters.clock.system import SystemClock  # noqa: PLC0415
    from torpor.apps.api.serve import serve  # noqa: PLC0415
    from torpor.apps.cli.logs import configure_logs  # noqa: PLC0415
    from torpor.apps.node import open_node  # noqa: PLC0415

    configure_logs()
    if ready_fd is not None:
        os.set_inheritable(ready_fd, False)

    def ready(url: str) -> None:
        said = {"url": url, "pid": os.getpid(), "home": str(config.home)}
        if ready_fd is None:
            _tell(said, as_json=as_json)
            streams.finish()
        else:
            _tell_parent(ready_fd, said)

    asyncio.run(serve(config, open_node, host=host, port=port, clock=SystemClock(), on_ready=ready))


def _launch(config: Config, host: str, port: int, *, quiet: bool) -> dict[str, Any]:
    """Start ourselves in a session of our own; what the server says of itself once it answers requests."""
    make_home(config)
    try:
        _rotate(config.log_file)
        log = config.log_file.open("ab")
    except OSError as error:
        raise home_failure(config, error) from error
    listening, telling = os.pipe()
    argv = [sys.executable, "-P", "-m", "torpor.apps.cli", "--home", str(config.home)]
    argv += ["up", "--host", host, "--port", str(port), "--ready-fd", str(telling)]
    with log, screen.waiting("starting the server", quiet=quiet):
        from_bytes = log.tell()
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[telling], start_new_session=True, cwd="/"
        )
        os.close(telling)
        said = _hear(listening, START_TIMEOUT_S)
    if said is None:
        state = "ended" if child.poll() is not None else f"does not answer after {START_TIMEOUT_S:.0f} s"
        raise Unavailable(
            f"cannot start the server: it {state}; look at {config.log_file}",
            log_tail=_tail(config.log_file, from_bytes),
        )
    if "code" in said:
        from torpor.apps.client import error_of  # noqa: PLC0415 - only after a failure

        raise error_of(said)
    child.returncode = 0  # it lives on: Popen must not warn of a child that was not waited for
    return said


def _hear(listening: int, timeout_s: float) -> dict[str, Any] | None:
    """What the child says before it closes its end; None if it dies or dawdles."""
    with os.fdopen(listening, "rb") as pipe:
        if not select.select([pipe], [], [], timeout_s)[0]:
            return None
        said: dict[str, Any] | None = json.loads(pipe.read() or b"null")
        return said


def _tell_parent(ready_fd: int | None, said: dict[str, Any]) -> None:
    if ready_fd is None:
        return
    try:
        with os.fdopen(ready_fd, "w") as pipe:
            json.dump(said, pipe, default=str)
    except OSError:
        return  # it has told already, or nobody listens any more


def _tell(said: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        screen.emit(said)
    else:
        screen.say(f"torpor listens on {said['url']} (pid {said['pid']}, home {said['home']})")


def _rotate(log_file: Path) -> None:
    if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
        log_file.replace(log_file.with_suffix(".log.1"))


def _tail(log_file: Path, from_bytes: int) -> str:
    with log_file.open("rb") as log:
        size_bytes = log.seek(0, os.SEEK_END)
        log.seek(max(from_bytes, size_bytes - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace").strip()
