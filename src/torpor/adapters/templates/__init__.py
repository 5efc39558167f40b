"""Root filesystems for templates, made of the host's own Debian or Ubuntu packages.

Knows apt and files; knows nothing of sessions, engines, snapshots or keys. The golden snapshot of a template is taken
elsewhere, from the root filesystem that is built here.

Invariants: a folder ``<digest>/`` is complete or absent, and its digest is that of the tree in it. No proxy, mirror
password or key of the host is left in a tree.
"""

from torpor.adapters.templates.declaration import parse_declaration, read_declaration
from torpor.adapters.templates.grounds import Ground
from torpor.adapters.templates.layers import Place
from torpor.adapters.templates.oci import lay_tar, oci_ground
from torpor.adapters.templates.rootfs import LAYERS_FOLDER, RootfsBuild, build_rootfs, built_rootfs
from torpor.adapters.templates.spec import (
    BASE,
    DATA,
    DEBIAN,
    TEMPLATES,
    FileSpec,
    ReadyCheck,
    TemplateSpec,
    template_named,
)
from torpor.adapters.templates.workplace import remove_tree

__all__ = [
    "BASE",
    "DATA",
    "DEBIAN",
    "LAYERS_FOLDER",
    "TEMPLATES",
    "FileSpec",
    "Ground",
    "Place",
    "ReadyCheck",
    "RootfsBuild",
    "TemplateSpec",
    "build_rootfs",
    "built_rootfs",
    "lay_tar",
    "oci_ground",
    "parse_declaration",
    "read_declaration",
    "remove_tree",
    "template_named",
]
