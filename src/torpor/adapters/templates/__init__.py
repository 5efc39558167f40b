"""Root filesystems for templates, made of the host's own Debian or Ubuntu packages.

Knows apt and files; knows nothing of sessions, engines, snapshots or keys. The golden snapshot of a template is taken
elsewhere, from the root filesystem that is built here.

Invariants: a folder ``<digest>/`` is complete or absent, and its digest is that of the tree in it. No proxy, mirror
password or key of the host is left in a tree.
"""

from torpor.adapters.templates.rootfs import LAYERS_FOLDER, RootfsBuild, build_rootfs, built_rootfs
from torpor.adapters.templates.spec import BASE, DATA, TEMPLATES, TemplateSpec, template_named

__all__ = [
    "BASE",
    "DATA",
    "LAYERS_FOLDER",
    "TEMPLATES",
    "RootfsBuild",
    "TemplateSpec",
    "build_rootfs",
    "built_rootfs",
    "template_named",
]
