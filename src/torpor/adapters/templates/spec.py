"""What a template is made of, as a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torpor.domain.errors import InvalidArgument, NotFound

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+~:-]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PACKAGES_MAX = 500

GUEST_LIB = "/opt/torpor/lib"
WARMUP_FILE = "/opt/torpor/warmup.py"
WORKSPACE = "/workspace"

_BASE_ENV = MappingProxyType(
    {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": GUEST_LIB,
    }
)


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """A root filesystem's inputs.

    ``packages``: names of the distribution's packages, each optionally ``name=version``; what they depend on comes
    along, what they recommend does not. ``warmup``: Python source that is run once, before the golden snapshot.
    ``env``: the environment of PID 1 and so of all that it starts.

    Raises: InvalidArgument naming the field.
    """

    name: str
    packages: tuple[str, ...]
    warmup: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: _BASE_ENV)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(
                f"cannot use {self.name!r} as a template's name: use a-z, 0-9 and -, 40 characters at most",
                field="name",
            )
        if len(self.packages) > _PACKAGES_MAX:
            raise InvalidArgument(
                f"cannot install {len(self.packages)} packages: name at most {_PACKAGES_MAX}", field="packages"
            )
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                raise InvalidArgument(
                    f"cannot install {package!r}: write it as apt does, name or name=version", field="packages"
                )
        for variable, text in self.env.items():
            if not _VARIABLE.fullmatch(variable) or "\0" in text:
                raise InvalidArgument(f"cannot set the variable {variable!r}: not a shell variable", field="env")

    def as_json(self) -> dict[str, Any]:
        """Plain values, in a fixed order: what a digest of the inputs is taken over."""
        return {
            "name": self.name,
            "packages": sorted(self.packages),
            "warmup": self.warmup,
            "env": dict(sorted(self.env.items())),
        }


_BASE_PACKAGES = ("bash", "ca-certificates", "procps", "python3", "python3-ipython")

BASE = TemplateSpec(
    name="base",
    packages=_BASE_PACKAGES,
    warmup="import IPython.core.interactiveshell\n",
)

DATA = TemplateSpec(
    name="data",
    packages=(*_BASE_PACKAGES, "python3-numpy", "python3-pandas"),
    warmup="import IPython.core.interactiveshell\nimport numpy\nimport pandas\n",
)

TEMPLATES: Mapping[str, TemplateSpec] = MappingProxyType({spec.name: spec for spec in (BASE, DATA)})


def template_named(name: str) -> TemplateSpec:
    """The built-in template of that name. Raises: NotFound naming those there are."""
    spec = TEMPLATES.get(name)
    if spec is None:
        known = ", ".join(sorted(TEMPLATES))
        raise NotFound(
            f"cannot find the template {name!r}: known are {known}", field="template", known=sorted(TEMPLATES)
        )
    return spec
