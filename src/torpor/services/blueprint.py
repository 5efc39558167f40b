"""What a session of a template is made from."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.ports.catalog import TemplateRecord
from torpor.ports.engine import InstanceShape
from torpor.store.snapshots import SnapshotRef


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A template's record, its golden snapshot, and the shape of every instance of it."""

    template: TemplateRecord
    golden: SnapshotRef
    shape: InstanceShape
