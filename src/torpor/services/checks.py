"""What callers may ask for: refused before anything is made, naming the field and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torpor.domain.errors import Conflict, InvalidArgument, Unsupported
from torpor.domain.ids import parse_name
from torpor.domain.session import CPUS_MIN, MEMORY_BYTES_MIN, Limits, OnResume, Policy
from torpor.ports.catalog import TemplateRecord
from torpor.services.requests import METADATA_ENTRIES_MAX, CreateRequest, ForkRequest

VALUE_CHARACTERS_MAX = 4096
FORKS_MAX = 100  # of one call


def check_create(request: CreateRequest) -> None:
    """Raises: InvalidArgument, Unsupported."""
    if request.name is not None:
        parse_name(request.name, field="name")
    _check_text("template", request.template)
    check_policy(request.policy, request.ttl_s)
    for field, entries in (("metadata", request.metadata), ("env", request.env)):
        check_entries(field, entries)


def limits_of(request: CreateRequest, template: TemplateRecord) -> Limits:
    """The caps of a new session of ``template``. Raises: InvalidArgument, Unsupported."""
    frozen = Limits(**template.shape)
    if request.disk_bytes not in {None, frozen.disk_bytes}:
        raise Unsupported(
            f"cannot create with disk_bytes {request.disk_bytes}: a session's disk is that of its template, and "
            f"{template.name} was captured with {frozen.disk_bytes}; leave it out, or build a template whose [limits] "
            "say what you need (docs/templates.md)",
            field="disk_bytes",
            offered=frozen.disk_bytes,
        )
    least = {"cpus": CPUS_MIN, "memory_bytes": max(MEMORY_BYTES_MIN, template.image_bytes)}
    for field, value in (("cpus", request.cpus), ("memory_bytes", request.memory_bytes)):
        if value is not None and not least[field] <= value < float("inf"):
            raise InvalidArgument(
                f"cannot create with {field} {value:.15g}: {template.name} needs at least {least[field]:.15g}",
                field=field,
                least=least[field],
            )
    return replace(
        frozen,
        cpus=frozen.cpus if request.cpus is None else request.cpus,
        memory_bytes=frozen.memory_bytes if request.memory_bytes is None else request.memory_bytes,
    )


def check_fork(request: ForkRequest) -> None:
    """Raises: InvalidArgument."""
    if not 1 <= request.count <= FORKS_MAX:
        raise InvalidArgument(f"cannot make {request.count} forks: ask for 1 to {FORKS_MAX}", field="count")
    for name in request.names:
        parse_name(name, field="names")
    if twice := sorted({name for name in request.names if request.names.count(name) > 1}):
        raise InvalidArgument(f"cannot name two forks {twice[0]!r}: give each another name", field="names")
    if request.names and len(request.names) != request.count:
        raise InvalidArgument(
            f"cannot name {request.count} forks with {len(request.names)} names: give none, or one for each",
            field="names",
        )
    check_entries("metadata", request.metadata)


def check_policy(policy: Policy, ttl_s: float | None) -> None:
    """Raises: InvalidArgument for a length that is none; Unsupported for what is not offered yet."""
    lengths = {
        "idle_s": policy.idle_s,
        "timeout_s": policy.timeout_s,
        "retention_s": policy.retention_s,
        "ttl_s": ttl_s,
    }
    for field, length_s in lengths.items():
        if length_s is not None and not 0 < length_s < float("inf"):
            raise InvalidArgument(
                f"cannot set {field} to {length_s}: give a positive number of seconds, or none at all", field=field
            )
    if policy.on_resume is OnResume.REBUILD:
        raise Unsupported(
            "cannot set on_resume to rebuild: a rebuild from the session's log is not offered yet; use resume",
            field="on_resume",
        )


def check_entries(field: str, entries: Mapping[str, str]) -> None:
    """Raises: InvalidArgument."""
    if len(entries) > METADATA_ENTRIES_MAX:
        raise InvalidArgument(
            f"cannot take {len(entries)} {field} entries: at most {METADATA_ENTRIES_MAX}", field=field
        )
    for key, value in entries.items():
        if not key or "=" in key or "\0" in key + value or len(key) + len(value) > VALUE_CHARACTERS_MAX:
            raise InvalidArgument(
                f"cannot take {field} entry {key[:60]!r}: keys are not empty and hold no '=', no NUL anywhere, "
                f"at most {VALUE_CHARACTERS_MAX} characters together",
                field=field,
            )
        _check_text(field, key + value)


def _check_text(field: str, text: str) -> None:
    """Raises: InvalidArgument for half a character, which JSON can say and neither catalog nor answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"cannot take {field} {text[:60]!r}: it is not UTF-8", field=field) from error


def name_taken(name: str) -> Conflict:
    """The refusal of a name that a living session has."""
    return Conflict(
        f"a session named {name!r} exists: use it, remove it with `torpor rm {name}`, or choose another name",
        reason="name_taken",
        field="name",
    )
