"""The gVisor engine: strong isolation without KVM, whole memory and filesystem captured at one instant by runsc.

Nothing outside this folder knows a word of runsc's. What is pure and what acts:

- ``config``, ``layout``, ``commands``, ``parse``, ``images`` are pure: values, argv, the OCI spec, comparisons.
- ``process``, ``control``, ``network``, ``cgroup``, ``channel``, ``record`` each do one kind of I/O.
- ``engine`` puts them in order, ``capture`` holds the order of a checkpoint, ``probe`` asks a build what it can
  do, ``selftest`` proves it, ``install`` gets builds and keeps several side by side.

Builds: from mid 2025 with both parts (docs/engines.md); the one that is measured is ``install.PINNED_MODULE_VERSION``.
Sources: design notes 002 (two parts, one instant) and 003 (frozen spec v1).
"""

from torpor.adapters.engines.gvisor.config import GVisorConfig
from torpor.adapters.engines.gvisor.engine import GVisorEngine
from torpor.adapters.engines.gvisor.install import InstalledBuild, install, list_builds
from torpor.adapters.engines.gvisor.selftest import SelfTest, self_test

__all__ = ["GVisorConfig", "GVisorEngine", "InstalledBuild", "SelfTest", "install", "list_builds", "self_test"]
