"""The checkpoint directory: which files, and what a restore depends on without saying so. Pure but for sizes.

A runsc image restores only under the build that wrote it, in a sandbox of the same overlay, network kind and frozen
spec, on a host with every CPU flag of the saving one. All of that is written down at the checkpoint and compared
*before* anything starts, because runsc itself finds out late, and then the sandbox is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.adapters.engines.gvisor.commands import NETWORK_KIND, OVERLAY_MODE, frozen_spec
from torpor.domain.errors import EngineError, Unsupported
from torpor.ports.engine import EngineCapabilities, InstanceShape

STATE_FILE = "checkpoint.img"
MEMORY_FILES = (STATE_FILE, "pages_meta.img", "pages.img")  # in the order in which the control socket takes them
FILESYSTEM_FILE = "filesystem.tar"
IMAGE_FORMAT = "runsc-split-1"  # uncompressed, state and pages apart


@dataclass(frozen=True, slots=True)
class Parts:
    """What one checkpoint is to write."""

    memory_files: tuple[str, ...]
    filesystem_file: str | None

    @classmethod
    def of(cls, *, memory: bool, filesystem: bool) -> Parts:
        """``filesystem``: whether the build has that part. Raises: Unsupported if nothing is left to write."""
        if not memory and not filesystem:
            raise Unsupported(
                "cannot capture the filesystem alone: this build has no such part", lacks="filesystem_part"
            )
        return cls(MEMORY_FILES if memory else (), FILESYSTEM_FILE if filesystem else None)

    @property
    def files(self) -> tuple[str, ...]:
        """All names."""
        return self.memory_files if self.filesystem_file is None else (*self.memory_files, self.filesystem_file)


def requirements_of(capabilities: EngineCapabilities, shape: InstanceShape, spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a restore of an image taken now must find: JSON."""
    return {
        "engine": capabilities.engine,
        "build": capabilities.build,
        "version": capabilities.version,
        "image_format": IMAGE_FORMAT,
        "overlay": OVERLAY_MODE,
        "disk_bytes": shape.disk_bytes,
        "network": NETWORK_KIND,
        "cpu_flags": list(capabilities.cpu_flags),
        "spec_version": shape.spec_version,
        "spec": frozen_spec(spec),
    }


def check_requirements(required: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Raise Unsupported unless an image with ``required`` restores where ``present`` holds.

    ``details["differs"]`` maps each name that differs to what is required and what is present.
    """
    differs: dict[str, Any] = {}
    for name, value in present.items():
        if name in {"cpu_flags", "spec", "version"}:
            continue
        if required.get(name) != value:
            differs[name] = {"required": required.get(name), "present": value}
    missing = sorted(set(required.get("cpu_flags", ())) - set(present["cpu_flags"]))
    if missing:
        differs["cpu_flags"] = {"required": missing, "present": []}
    for name in _spec_differences(required.get("spec") or {}, present["spec"]):
        differs[f"spec.{name}"] = {
            "required": (required.get("spec") or {}).get(name),
            "present": present["spec"].get(name),
        }
    if differs:
        raise Unsupported(
            f"cannot restore here: {', '.join(sorted(differs))} {_differ(len(differs))}; "
            "use the build, host and shape that the image needs, or restore its filesystem part",
            differs=differs,
        )


def _differ(count: int) -> str:
    return "differs" if count == 1 else "differ"


def _spec_differences(required: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*required, *present}) if required.get(name) != present.get(name)]


def check_files(directory: Path, names: tuple[str, ...]) -> None:
    """Raise EngineError unless every file of ``names`` is in ``directory`` with content."""
    for name in names:
        file = directory / name
        if not file.is_file() or file.stat().st_size == 0:
            raise EngineError(f"cannot use the checkpoint in {directory}: {name} is missing or empty")
