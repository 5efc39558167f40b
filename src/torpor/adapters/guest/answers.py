"""What a guest answers, checked, as the port's values. A guest is hostile: nothing is taken at its word's type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

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
from torpor.ports.guest import (
    Activity,
    BurstResult,
    BusyProcess,
    CodeError,
    FileChange,
    FileEvent,
    FileInfo,
    FileKind,
    FilePage,
    GuestHello,
    LogEntry,
    Notice,
    ProcessInfo,
    QuiesceReport,
    ReadyReport,
    StreamKind,
)
from torpor_wire import (
    BadMessage,
    Message,
    flag,
    integer,
    mapping,
    number,
    optional_text,
    text,
    texts,
    unpack,
)

Kind = TypeVar("Kind", bound=StrEnum)
_HOSTS_DETAILS = frozenset({"retry_after_s"})  # becomes a header of ours: no guest has a say in it
_ERRORS: Mapping[str, type[TorporError]] = {
    kind.code: kind for kind in (Conflict, InvalidArgument, NotFound, QuotaExceeded, StorageFull, Unsupported)
}


def error_from(fields: Mapping[str, Any]) -> TorporError:
    """The error in an ERROR message; GuestError for a code that a guest has no business to use."""
    kind = _ERRORS.get(text(fields, "code"), GuestError)
    details = {key: value for key, value in (mapping(fields, "details") or {}).items() if key not in _HOSTS_DETAILS}
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
        operations=texts(fields, "operations") if "operations" in fields else (),
    )


def event_from(message: Message) -> dict[str, Any]:
    """An event among the DATA of a call. Raises: GuestError."""
    try:
        return unpack(message.payload)
    except BadMessage as bad:
        raise GuestError(f"cannot understand the guest: {bad}") from bad


def activity_from(fields: Mapping[str, Any]) -> Activity:
    """RESULT of activity."""
    return Activity(
        cpu_s=number(fields, "cpu_s"),
        stream_in_bytes=integer(fields, "stream_in_bytes"),
        stream_out_bytes=integer(fields, "stream_out_bytes"),
        bursts_count=integer(fields, "bursts_count"),
        busiest=tuple(
            BusyProcess(integer(row, "pid"), text(row, "name"), number(row, "cpu_s"))
            for row in _objects(fields, "busiest")
        ),
    )


def process_from(fields: Mapping[str, Any]) -> ProcessInfo:
    """RESULT of start, and each of ``processes``."""
    return ProcessInfo(
        pid=integer(fields, "pid"),
        argv=texts(fields, "argv"),
        user=text(fields, "user"),
        terminal=flag(fields, "terminal"),
        running=fields.get("exit_code") is None,
        exit_code=_optional_integer(fields, "exit_code"),
        started_at_s=number(fields, "started_at_s"),
        sequence=integer(fields, "sequence"),
        oldest_sequence=integer(fields, "oldest_sequence"),
    )


def processes_from(fields: Mapping[str, Any]) -> tuple[ProcessInfo, ...]:
    """RESULT of processes."""
    return tuple(process_from(row) for row in _objects(fields, "processes"))


def log_entry_from(fields: Mapping[str, Any], stream: StreamKind, data: bytes) -> LogEntry:
    """The head of a log entry, with its data."""
    return LogEntry(
        source=text(fields, "source"),
        at_s=number(fields, "at_s"),
        sequence=integer(fields, "sequence"),
        stream=stream,
        data=data,
        lost_bytes=integer(fields, "lost_bytes"),
    )


def file_from(fields: Mapping[str, Any]) -> FileInfo:
    """RESULT of stat, and each of a page."""
    return FileInfo(
        path=text(fields, "path"),
        kind=_member(FileKind, fields, "kind"),
        size_bytes=integer(fields, "size_bytes"),
        mode=integer(fields, "mode"),
        owner=text(fields, "owner"),
        group=text(fields, "group"),
        modified_at_s=number(fields, "modified_at_s"),
        target=optional_text(fields, "target"),
    )


def page_from(fields: Mapping[str, Any]) -> FilePage:
    """RESULT of list."""
    return FilePage(tuple(file_from(row) for row in _objects(fields, "entries")), optional_text(fields, "next_after"))


def file_event_from(fields: Mapping[str, Any]) -> FileEvent:
    """An event of watch."""
    dropped_count = integer(fields, "dropped_count")
    return FileEvent(_member(FileChange, fields, "change"), text(fields, "path"), dropped_count)


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


def _objects(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadMessage(f"field {name!r} is not an array of objects")
    return values


def _member(kind: type[Kind], fields: Mapping[str, Any], name: str) -> Kind:
    value = text(fields, name)
    try:
        return kind(value)
    except ValueError as error:
        raise BadMessage(f"field {name!r} is {value!r}, none of {', '.join(kind)}") from error
