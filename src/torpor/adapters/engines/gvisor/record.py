"""What we know of one instance, kept in its bundle so that a restarted server knows it too.

``phase`` is what was done to it; ``pause`` is whether the sandbox's tasks are stopped from outside. Pausing twice, or
resuming what is not paused, must never happen (gVisor counts pauses, and a sandbox whose count falls below zero
panics), hence the two transient values: who finds one knows that the server died within that call.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from torpor.ports.engine import InstanceShape

RECORD_FILE = "record.json"


class Phase(StrEnum):
    """What was done to the instance."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"


class Pause(StrEnum):
    """Whether the sandbox's tasks are stopped by the engine."""

    NO = "no"
    PAUSING = "pausing"
    YES = "yes"
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True)
class Record:
    """One instance.

    ``processes``: pids on this host with their start times, which together name a process; the sandbox's is the first.
    ``loading``: pages of a background restore may still be read.
    """

    shape: InstanceShape
    phase: Phase = Phase.CREATING
    pause: Pause = Pause.NO
    processes: tuple[tuple[int, int], ...] = ()
    loading: bool = False

    def to_json(self) -> dict[str, Any]:
        """As written to disk."""
        return {**asdict(self), "shape": {**asdict(self.shape), "rootfs": str(self.shape.rootfs)}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        shape = data["shape"]
        return cls(
            shape=InstanceShape(
                **{**shape, "rootfs": Path(shape["rootfs"]), "argv": tuple(shape["argv"]), "env": tuple(shape["env"])}
            ),
            phase=Phase(data["phase"]),
            pause=Pause(data["pause"]),
            processes=tuple((pid, started) for pid, started in data["processes"]),
            loading=data["loading"],
        )


def write_record(bundle: Path, record: Record) -> Record:
    """Replace the bundle's record atomically; gives ``record`` back. It need not outlive the machine: no fsync."""
    draft = bundle / f"{RECORD_FILE}.new"
    draft.write_text(json.dumps(record.to_json()))
    os.replace(draft, bundle / RECORD_FILE)
    return record


def read_record(bundle: Path) -> Record | None:
    """The bundle's record; None if there is no bundle or it was cut short while being made."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return Record.from_json(json.loads((bundle / RECORD_FILE).read_text()))
    return None


def with_pause(record: Record, pause: Pause) -> Record:
    """The same instance with another pause."""
    return replace(record, pause=pause)
