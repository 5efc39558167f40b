"""Where objects of a snapshot lie: names to object keys and back. Source: docs/formats/manifest-v0.md §1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from torpor.domain.ids import SnapshotId, TenantId
from torpor.domain.snapshot import Lender, ManifestHeader, PackRef, SnapshotRef

ROOT = "v0/"
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_KEY = re.compile(
    rf"v0/(?P<tenant>{_NAME})/(?P<subject>{_NAME})/"
    rf"(?:(?P<head>head)|packs/(?P<pack>{_NAME})|manifests/(?P<sequence>\d{{8}})-(?P<snapshot>{_NAME}))"
)


class Kind(StrEnum):
    """What an object is."""

    HEAD = "head"
    MANIFEST = "manifest"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class Placed:
    """What an object key says. ``name`` is the pack's or the snapshot's id, empty for a head."""

    kind: Kind
    tenant: TenantId
    subject: str
    name: str = ""
    sequence: int = 0

    @property
    def owner(self) -> Lender:
        """The subject it belongs to."""
        return Lender(self.tenant, self.subject)

    @property
    def key(self) -> str:
        """The object key: the inverse of ``parse_key``."""
        prefix = subject_prefix(self.tenant, self.subject)
        match self.kind:
            case Kind.HEAD:
                return f"{prefix}head"
            case Kind.PACK:
                return f"{prefix}packs/{self.name}"
            case Kind.MANIFEST:
                return f"{prefix}manifests/{self.sequence:08d}-{self.name}"


def tenant_prefix(tenant: TenantId) -> str:
    """What every object key of a tenant starts with."""
    return f"{ROOT}{tenant}/"


def subject_prefix(tenant: TenantId, subject: str) -> str:
    """What every object key of a subject starts with."""
    return f"{ROOT}{tenant}/{subject}/"


def head_key(tenant: TenantId, subject: str) -> str:
    """Of the pointer."""
    return Placed(Kind.HEAD, tenant, subject).key


def manifest_key(ref: SnapshotRef | ManifestHeader) -> str:
    """Of a snapshot's manifest."""
    return Placed(Kind.MANIFEST, ref.tenant, ref.subject, ref.snapshot, ref.sequence).key


def pack_key(pack: PackRef) -> str:
    """Of a pack."""
    return Placed(Kind.PACK, pack.tenant, pack.subject, pack.pack).key


def parse_key(key: str) -> Placed | None:
    """What ``key`` names; None if it is no key of this library."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    tenant, subject = TenantId(match["tenant"]), match["subject"]
    if match["head"]:
        return Placed(Kind.HEAD, tenant, subject)
    if match["pack"]:
        return Placed(Kind.PACK, tenant, subject, match["pack"])
    return Placed(Kind.MANIFEST, tenant, subject, SnapshotId(match["snapshot"]), int(match["sequence"]))
