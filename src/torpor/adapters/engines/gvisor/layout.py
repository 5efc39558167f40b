"""Where everything of an instance lies under the runtime directory. Pure.

::

    runtime_dir/
    ├── root/                  runsc --root: its state files and one control socket per sandbox
    ├── n/ID                   the pinned network namespace (a bind mount)
    └── i/ID/                  the bundle, mode 0700
        ├── config.json        the OCI spec
        ├── record.json        what we know of the instance (record.py)
        ├── in, out            the channel's FIFOs: into the guest, out of it
        ├── filesystem.tar     the delta laid over the root filesystem before a start; empty if there is none
        ├── resolv.conf, ca-bundle.pem    the sources of the spec's read-only files
        └── runsc.log, panic.log          for error messages only
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torpor.adapters.engines.gvisor.config import SOCKET_PATH_LENGTH_MAX
from torpor.domain.errors import InvalidArgument
from torpor.domain.ids import InstanceId, is_id

FILESYSTEM_TAR = "filesystem.tar"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one runtime directory."""

    runtime_dir: Path

    @property
    def root(self) -> Path:
        """What runsc gets as --root."""
        return self.runtime_dir / "root"

    @property
    def instances(self) -> Path:
        """The folder of all bundles."""
        return self.runtime_dir / "i"

    @property
    def namespaces(self) -> Path:
        """The folder of all pinned network namespaces."""
        return self.runtime_dir / "n"

    def bundle(self, instance: InstanceId) -> Path:
        """The bundle of one instance. Raises: InvalidArgument if ``instance`` is not an id (runsc matches prefixes)."""
        if not is_id(instance):
            raise InvalidArgument(
                f"cannot use {instance!r} as an instance id: it needs 20 of a-z, 0-9", field="instance"
            )
        return self.instances / instance

    def netns(self, instance: InstanceId) -> Path:
        """The file that pins the instance's network namespace."""
        return self.namespaces / instance

    def socket(self, instance: InstanceId) -> Path:
        """The control socket that runsc makes for the sandbox."""
        return self.root / f"runsc-{instance}.sock"

    def check(self) -> None:
        """Raise InvalidArgument if a control socket's path would be too long."""
        length = len(bytes(self.socket(InstanceId("x" * 20))))
        if length > SOCKET_PATH_LENGTH_MAX:
            raise InvalidArgument(
                f"cannot use {self.runtime_dir} as the runtime directory: control socket paths would have {length} "
                f"bytes, at most {SOCKET_PATH_LENGTH_MAX} are possible; choose a shorter one",
                field="runtime_dir",
            )
