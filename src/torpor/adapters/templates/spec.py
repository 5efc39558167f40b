"""What a template is made of, as a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from torpor.domain.errors import InvalidArgument, NotFound
from torpor.domain.session import Limits

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+~:-]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWNER = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PACKAGES_MAX = 500
_STEPS_MAX = 40  # each command is a layer, and the kernel takes a page of text to name them all

DEBIAN = "debian"
GUEST_LIB = "/opt/torpor/lib"
WARMUP_FILE = "/opt/torpor/warmup.py"
SETTINGS_FILE = "/opt/torpor/template.json"
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
class FileSpec:
    """A file to put into the tree. Exactly one of ``content`` and ``source`` (a file of this host) is set.

    ``path``: absolute, in the tree. ``owner``: ``UID:GID``.
    """

    path: str
    content: str | None = None
    source: Path | None = None
    mode: int = 0o644
    owner: str = "0:0"

    def __post_init__(self) -> None:
        pure = PurePosixPath(self.path)
        if not pure.is_absolute() or ".." in pure.parts or len(pure.parts) < 2 or "\0" in self.path:
            raise InvalidArgument(
                f"cannot put a file at {self.path!r}: give an absolute path without ..", field="files.path"
            )
        if (self.content is None) == (self.source is None):
            raise InvalidArgument(
                f"cannot put the file {self.path}: give either content or source", field="files.content"
            )
        if not 0 <= self.mode <= 0o7777:
            raise InvalidArgument(f"cannot use mode {self.mode:o} for {self.path}", field="files.mode")
        if not _OWNER.fullmatch(self.owner):
            raise InvalidArgument(
                f"cannot give {self.path} to {self.owner!r}: write UID:GID in numbers, as 1000:1000",
                field="files.owner",
            )


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """What must succeed in the started template before it is captured: ``command`` (argv) or ``code`` (Python).

    It is repeated until it succeeds or ``timeout_s`` have passed.
    """

    command: tuple[str, ...] = ()
    code: str = ""
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.code):
            raise InvalidArgument("cannot check readiness: give either command or code", field="ready")
        if not 0 < self.timeout_s <= 3600:
            raise InvalidArgument(
                f"cannot wait {self.timeout_s} s for readiness: use up to 3600", field="ready.timeout_s"
            )


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """A root filesystem's inputs.

    ``base``: ``debian``, a template's name or digest, ``oci:FILE`` or ``session:ID``. ``packages``: names of the
    distribution's packages, each optionally ``name=version``; what they depend on comes along, what they recommend
    does not. ``python``: requirements as pip takes them, from the configured index or the folder ``wheels`` alone.
    ``commands``: argv each, run in the tree in order. ``env``, ``user``, ``workdir``: of what sessions run.
    ``warmup``: Python source that is run once, before the golden snapshot, after that of the base.

    Raises: InvalidArgument naming the field.
    """

    name: str
    packages: tuple[str, ...] = ()
    warmup: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: _BASE_ENV)
    base: str = DEBIAN
    python: tuple[str, ...] = ()
    wheels: Path | None = None
    files: tuple[FileSpec, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    user: str = "root"
    workdir: str = ""
    ready: ReadyCheck | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(
                f"cannot use {self.name!r} as a template's name: use a-z, 0-9 and -, 40 characters at most",
                field="name",
            )
        _check_packages(self.packages)
        for requirement in self.python:
            if not requirement.strip() or requirement.startswith("-") or "\n" in requirement:
                raise InvalidArgument(
                    f"cannot install {requirement!r}: write it as pip does, without options", field="python"
                )
        if len(self.commands) > _STEPS_MAX:
            raise InvalidArgument(
                f"cannot run {len(self.commands)} commands: give at most {_STEPS_MAX}, joined in scripts",
                field="commands",
            )
        if not all(argv and all(argv[:1]) and not any("\0" in word for word in argv) for argv in self.commands):
            raise InvalidArgument("cannot run an empty command", field="commands")
        for variable, text in self.env.items():
            if not _VARIABLE.fullmatch(variable) or "\0" in text:
                raise InvalidArgument(f"cannot set the variable {variable!r}: not a shell variable", field="env")
        if not _USER.fullmatch(self.user):
            raise InvalidArgument(f"cannot run as {self.user!r}: give a user's name", field="user")
        if self.workdir and not PurePosixPath(self.workdir).is_absolute():
            raise InvalidArgument(f"cannot work in {self.workdir!r}: give an absolute path", field="workdir")

    def as_json(self) -> dict[str, Any]:
        """Plain values, in a fixed order: what a digest of the inputs is taken over."""
        return {
            "name": self.name,
            "base": self.base,
            "packages": sorted(self.packages),
            "python": list(self.python),
            "commands": [list(argv) for argv in self.commands],
            "files": [file.path for file in self.files],
            "warmup": self.warmup,
            "env": dict(sorted(self.env.items())),
            "user": self.user,
            "workdir": self.workdir,
            "limits": asdict(self.limits),
        }


def base_env() -> Mapping[str, str]:
    """The variables that every template starts from."""
    return _BASE_ENV


def _check_packages(packages: tuple[str, ...]) -> None:
    if len(packages) > _PACKAGES_MAX:
        raise InvalidArgument(
            f"cannot install {len(packages)} packages: name at most {_PACKAGES_MAX}", field="packages"
        )
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise InvalidArgument(
                f"cannot install {package!r}: write it as apt does, name or name=version", field="packages"
            )


BASE = TemplateSpec(
    name="base",
    packages=("bash", "ca-certificates", "curl", "git", "procps", "python3", "python3-ipython", "sudo"),
    warmup="import IPython.core.interactiveshell\n",
)

# matplotlib is installed and not imported: the golden snapshot stays small, and who plots pays for the import once.
# It comes from the index, since Debian's brings a compiler along (scipy, pythran; 1 GB); in versions that take numpy as
# the distribution has it, so that there is one numpy.
DATA = TemplateSpec(
    name="data",
    base="base",
    packages=("nodejs", "python3-numpy", "python3-pandas"),
    python=(
        'matplotlib<3.11; python_version < "3.12"',
        'contourpy<1.3; python_version < "3.12"',
        'matplotlib; python_version >= "3.12"',
    ),
    warmup="import numpy\nimport pandas\n",
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
