"""Arguments and options that commands share, and how a command gets its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.apps.cli.amounts import duration_s
from torpor.apps.config import Config
from torpor.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from torpor.apps.client import Client

Ref = Annotated[str, typer.Argument(metavar="ID", help="The session's id or name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; errors are JSON on stderr.")]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="End it after so long, as 30s or 10m. Default: no limit."),
]


def examples(*lines: str) -> str:
    """The end of a command's help. The control character keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def configured(context: typer.Context) -> Config:
    """The configuration: what the root command was given, over the environment, over defaults."""
    given: dict[str, str | None] = context.obj or {}
    return Config.read(os.environ, home=given.get("home"), api_url=given.get("api_url"))


def said_by_flags(context: typer.Context) -> dict[str, str | None]:
    """What was given before the command."""
    return dict(context.obj or {})


@contextmanager
def connected(context: typer.Context) -> Iterator[Client]:
    """A client of the configured server."""
    # httpx tries its own command line and goes on without: rich, click and pygments for nothing, 80 ms of 130.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from torpor.apps.client import Client  # noqa: PLC0415 - not needed for --help and the commands on the home

    with Client.of(configured(context)) as client:
        yield client


def name_of(text: str, *, field: str) -> str:
    """A name for a command that works on the home itself. Raises: InvalidArgument for what is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"cannot use {text!r} as {field}: it is not UTF-8", field=field) from error
    return text


def limit_s(timeout: str | None) -> float | None:
    """What ``--timeout`` says. Raises: InvalidArgument."""
    return None if timeout is None else duration_s(timeout, field="timeout")


def pairs(entries: Sequence[str] | None, *, option: str) -> dict[str, str]:
    """``k=v`` entries as a dict. Raises: InvalidArgument."""
    found: dict[str, str] = {}
    for entry in entries or ():
        name, sign, value = entry.partition("=")
        if not sign or not name:
            raise InvalidArgument(f"cannot read {option} {entry!r}: write NAME=VALUE", field=option.lstrip("-"))
        found[name] = value
    return found
