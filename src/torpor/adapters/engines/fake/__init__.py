"""An engine in this process: the whole contract without a sandbox, deterministic under a virtual clock.

An instance runs a FakeProgram chosen by ``argv[0]``. State lives in a FakeHost, so that a second engine over the same
host finds what a dead server left. Faults are injected by operation name; latency comes from the handed-in Clock alone.
"""

from torpor.adapters.engines.fake.engine import OPERATIONS, FakeEngine
from torpor.adapters.engines.fake.host import Delta, FakeChannel, FakeHost, FakeProgram

__all__ = ["OPERATIONS", "Delta", "FakeChannel", "FakeEngine", "FakeHost", "FakeProgram"]
