"""What a guest answers, checked, as the port's values. A guest is hostile: nothing is taken at its word's type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torpor.domain.errors import (
    Conflict,
    GuestError,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    StorageFull,
    TorporError,
    Unsupported,
)
from torpor.ports.guest import BurstResult, CodeError, GuestHello, Notice, QuiesceReport, ReadyReport
from torpor_wire import (
    BadMessage,
    flag,
    integer,
    mapping,
    number,
    optional_text,
    text,
    texts,
)

_ERRORS: Mapping[str, type[TorporError]] = {
    kind.code: kind for kind in (Conflict, InvalidArgument, NotFound, QuotaExceeded, StorageFull, Unsupported)
}


def error_from(fields: Mapping[str, Any]) -> TorporError:
    """The error in an ERROR message; GuestError for a code that a guest has no business to use."""
    kind = _ERRORS.get(text(fields, "code"), GuestError)
    details = {key: value for key, value in (mapping(fields, "details") or {}).items() if key != "message"}
    return kind(text(fields, "message"), **details)


def hello_from(fields: Mapping[str, Any]) -> GuestHello:
    """WELCOME, or the answer to ``status``."""
    return GuestHello(
        agent_version=text(fields, "agent_version"),
        protocol=integer(fields, "protocol"),
        pid=integer(fields, "pid"),
        python=text(fields, "python"),
        contexts=texts(fields, "contexts"),
        generation=integer(fields, "generation"),
    )


def burst_from(fields: Mapping[str, Any]) -> BurstResult:
    """RESULT of code, shell and execute."""
    error = mapping(fields, "error")
    return BurstResult(
        exit_code=_optional_integer(fields, "exit_code"),
        result=mapping(fields, "result"),
        error=None if error is None else CodeError(text(error, "name"), text(error, "value"), text(error, "traceback")),
        dropped_bytes=integer(fields, "dropped_bytes"),
        timed_out=flag(fields, "timed_out"),
        execution_count=_optional_integer(fields, "execution_count"),
        cwd=optional_text(fields, "cwd"),
    )


def quiesced_from(fields: Mapping[str, Any]) -> QuiesceReport:
    """QUIESCED."""
    return QuiesceReport(
        took_ms=number(fields, "took_ms"),
        stopped_count=integer(fields, "stopped_count"),
        unparked=_integers(fields, "unparked"),
    )


def ready_from(fields: Mapping[str, Any]) -> ReadyReport:
    """READY."""
    steps = mapping(fields, "steps_ms") or {}
    return ReadyReport(
        generation=integer(fields, "generation"),
        steps_ms={name: number(steps, name) for name in steps},
        reseeded=texts(fields, "reseeded"),
        dropped=texts(fields, "dropped"),
        clock_skew_ms=number(fields, "clock_skew_ms"),
    )


def notice_fields(notice: Notice) -> dict[str, Any]:
    """The RESUMED payload."""
    return {
        "session": notice.session,
        "generation": notice.generation,
        "cause": notice.cause.value,
        "clone": notice.clone,
        "wall_time_s": notice.wall_time_s,
        "gap_s": notice.gap_s,
        "paused_at_s": notice.paused_at_s,
        "entropy": notice.entropy.hex(),
        "hostname": notice.hostname,
        "machine_id": notice.machine_id,
        "env": dict(notice.env),
    }


def _optional_integer(fields: Mapping[str, Any], name: str) -> int | None:
    return None if fields.get(name) is None else integer(fields, name)


def _integers(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise BadMessage(f"field {name!r} is not an array of integers")
    return tuple(values)
