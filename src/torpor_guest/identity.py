"""What a clone must not share with its siblings, and what user code may read about its last resume."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor_guest.settings import Settings
from torpor_wire import BadMessage, flag, integer, number, optional_number, text, text_mapping

CONTRACT = "1"
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_READING = os.O_RDONLY | os.O_CLOEXEC
_OWN_ADDRESS = "127.0.1.1"
_HOSTS_BYTES_MAX = 64 * 1024
_CAUSES = frozenset({"created", "resumed", "forked", "rebuilt", "aborted"})


@dataclass(frozen=True, slots=True)
class Notice:
    """The RESUMED message, checked."""

    session: str
    generation: int
    cause: str
    clone: bool
    wall_time_s: float
    gap_s: float
    paused_at_s: float | None
    entropy: bytes
    hostname: str
    machine_id: str
    env: dict[str, str]

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Notice:
        """Raises: BadMessage."""
        notice = cls(
            text(fields, "session"),
            integer(fields, "generation"),
            text(fields, "cause"),
            flag(fields, "clone"),
            number(fields, "wall_time_s"),
            number(fields, "gap_s"),
            optional_number(fields, "paused_at_s"),
            _entropy(text(fields, "entropy")),
            text(fields, "hostname"),
            text(fields, "machine_id"),
            text_mapping(fields, "env"),
        )
        if notice.cause not in _CAUSES:
            raise BadMessage(f"cause {notice.cause!r} is not one of {', '.join(sorted(_CAUSES))}")
        if not _HOSTNAME.fullmatch(notice.hostname):
            raise BadMessage(f"hostname {notice.hostname!r} is not 1 to 64 of letters, digits, '.', '-'")
        if not _MACHINE_ID.fullmatch(notice.machine_id):
            raise BadMessage(f"machine_id {notice.machine_id!r} is not 32 lower-case hexadecimal digits")
        return notice


def _entropy(digits: str) -> bytes:
    try:
        entropy = bytes.fromhex(digits)
    except ValueError as error:
        raise BadMessage(f"entropy is not hexadecimal: {error}") from error
    if len(entropy) != 32:
        raise BadMessage(f"entropy has {len(entropy)} bytes, not 32")
    return entropy


def replace_file(path: Path, content: str) -> None:
    """Write a whole file atomically: a reader finds the old or the new text. Raises: OSError."""
    part = f"{path.parent}/.{path.name}.part"
    try:
        fd = os.open(part, _WRITING, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(part, _WRITING, 0o644)
    try:
        rest = memoryview(content.encode("utf-8", "surrogateescape"))
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, 0o644)
    finally:
        os.close(fd)
    os.replace(part, path)


def _begins_with(path: Path, content: bytes) -> bool:
    """Whether a file is there and does, in three system calls."""
    try:
        fd = os.open(path, _READING)
    except FileNotFoundError:
        return False
    try:
        return os.read(fd, len(content)) == content
    finally:
        os.close(fd)


def take_identity(settings: Settings, notice: Notice) -> None:
    """Hostname and machine-id of the session. Raises: OSError."""
    if not settings.contained:
        _set_hostname(notice.hostname)
    replace_file(settings.root / "etc/hostname", notice.hostname + "\n")
    replace_file(settings.root / "etc/machine-id", notice.machine_id + "\n")
    _name_in_hosts(settings.root / "etc/hosts", notice.hostname)


def _name_in_hosts(path: Path, hostname: str) -> None:
    """So that the own name resolves without a network, as sudo wants. A file without the line is left alone."""
    if not path.is_file() or path.stat().st_size > _HOSTS_BYTES_MAX:
        return
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    named = [f"{_OWN_ADDRESS} {hostname}" if line.startswith(f"{_OWN_ADDRESS} ") else line for line in lines]
    if named != lines:
        replace_file(path, "\n".join(named) + "\n")


def _set_hostname(hostname: str) -> None:
    # SAFETY: PID 1 in a UTS namespace of its own; `contained` agents, which share the machine's, never come here.
    socket.sethostname(hostname)
    assert socket.gethostname() == hostname


def tell_generation(settings: Settings, notice: Notice, resumed_at_s: float) -> None:
    """/run/torpor, the guest-visible surface of the contract; ``generation`` last, since programs watch it."""
    folder = settings.root / "run/torpor"
    story = {
        "session": notice.session,
        "generation": notice.generation,
        "cause": notice.cause,
        "clone": notice.clone,
        "paused_at": notice.paused_at_s,
        "resumed_at": resumed_at_s,
        "gap_s": notice.gap_s,
    }
    if not _begins_with(folder / "contract", f"{CONTRACT}\n".encode()):
        replace_file(folder / "contract", CONTRACT + "\n")
    replace_file(folder / "restore.json", json.dumps(story) + "\n")
    replace_file(folder / "generation", f"{notice.generation}\n")
