"""Setting a session's clocks: the options that ``create`` and ``set`` share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from torpor.apps.cli import screen
from torpor.apps.cli.amounts import duration_or_never_s
from torpor.apps.cli.options import AsJson, Ref, connected, examples
from torpor.domain.errors import InvalidArgument


class TimeoutAction(StrEnum):
    """What the end of the run time does."""

    PAUSE = "pause"
    KILL = "kill"


class OnResume(StrEnum):
    """How a paused session comes back."""

    RESUME = "resume"
    REBUILD = "rebuild"


def _duration(flag: str, what: str) -> Any:  # noqa: ANN401 - typer's option
    return typer.Option(flag, metavar="DURATION", help=what, show_default=False)


Idle = Annotated[str | None, _duration("--idle", "Pause after so long without work, or never. Default: 30s.")]
RunTime = Annotated[
    str | None,
    _duration("--timeout", "How long it may run, or never; stands still while paused. Default: never."),
]
Action = Annotated[
    TimeoutAction | None,
    typer.Option("--timeout-action", help="What the end of --timeout does. Default: pause.", show_default=False),
]
Ttl = Annotated[
    str | None, _duration("--ttl", "Delete it so long from now, whatever it does, or never. Default: never.")
]
Retention = Annotated[
    str | None, _duration("--retention", "Delete it when paused for so long, or never. Default: 30d.")
]
Return = Annotated[
    OnResume | None, typer.Option("--on-resume", help="How it comes back. Default: resume.", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(
        "set",
        epilog=examples("torpor set analysis --idle 10m", "torpor set analysis --ttl 7d --retention never"),
    )(set_clocks)


def set_clocks(
    context: typer.Context,
    ref: Ref,
    *,
    idle: Idle = None,
    timeout: RunTime = None,
    timeout_action: Action = None,
    ttl: Ttl = None,
    retention: Retention = None,
    on_resume: Return = None,
    as_json: AsJson = False,
) -> None:
    """Set those clocks of a session that are given; the others stay. A paused session stays paused."""
    clocks = given(
        {"idle": idle, "timeout": timeout, "ttl": ttl, "retention": retention}, action=timeout_action, back=on_resume
    )
    if not clocks:
        raise InvalidArgument("cannot set nothing: give at least one option, for instance --idle 10m", field="options")
    with connected(context) as client, screen.waiting(f"setting the clocks of {ref}", quiet=as_json):
        session = client.set_clocks(ref, **clocks)
    screen.emit(session) if as_json else screen.say(f"{screen.label(session)}: {summary(session)}")


def given(durations: dict[str, str | None], *, action: TimeoutAction | None, back: OnResume | None) -> dict[str, Any]:
    """The API's fields for what was given. Raises: InvalidArgument naming the option."""
    fields: dict[str, Any] = {
        f"{name}_s": duration_or_never_s(text, field=name) for name, text in durations.items() if text is not None
    }
    if action is not None:
        fields["timeout_action"] = action.value
    if back is not None:
        fields["on_resume"] = back.value
    return fields


def summary(session: screen.JSON) -> str:
    """The clocks in a line."""
    clocks = session["clocks"]
    idle_s, kept_s = clocks["idle_s"], clocks["retention_s"]
    parts = [
        "never pauses by itself" if idle_s is None else f"pauses after {screen.span(idle_s)} without work",
        "is kept for ever when paused" if kept_s is None else f"is kept {screen.span(kept_s)} when paused",
    ]
    if clocks["timeout_s"] is not None:
        parts.append(f"runs {screen.span(clocks['timeout_s'])}, then {clocks['timeout_action']}")
    if session["hard_deadline_at"]:
        parts.append(f"is deleted at {session['hard_deadline_at']}")
    return ", ".join(parts)
