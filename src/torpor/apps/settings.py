"""Every setting, on one page: its names, its default, and where a value came from.

Flag over environment over ``torpor.toml`` in the current folder over ``torpor.toml`` in the home over default. The key
is in no such file: it would be copied along with it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torpor.domain.errors import InvalidArgument

FILE = "torpor.toml"


class Source(StrEnum):
    """Where a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    PROJECT = "project"  # ./torpor.toml
    HOME = "home"  # torpor.toml in the home
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """``flag`` None: none. ``places``: the files that may hold it."""

    name: str
    variable: str
    flag: str | None
    default: str
    what: str
    places: frozenset[Source] = frozenset({Source.PROJECT, Source.HOME})


SETTINGS = (
    Setting("home", "TORPOR_HOME", "--home", "~/.torpor", "the data folder", frozenset({Source.PROJECT})),
    Setting(
        "api_url", "TORPOR_API_URL", "--api-url", "the home's running server, else http://127.0.0.1:7780", "the server"
    ),
    Setting("api_key", "TORPOR_API_KEY", None, "api.key in the home", "the key, at least 20 characters", frozenset()),
    Setting("host", "TORPOR_HOST", "up --host", "127.0.0.1", "where the server listens"),
    Setting("port", "TORPOR_PORT", "up --port", "7780", "where the server listens; 0 takes any free port"),
    Setting("store_url", "TORPOR_STORE_URL", None, "store in the home", "where snapshots are stored"),
    Setting("keys_dir", "TORPOR_KEYS_DIR", None, "keys in the home", "the folder of KEKs and session secrets"),
    Setting("cache_bytes", "TORPOR_CACHE_BYTES", None, "4294967296", "bound of this node's copies of a remote store"),
    Setting("warm_bytes", "TORPOR_WARM_BYTES", None, "0", "memory in which paused instances may stay frozen"),
    Setting("clone_bytes", "TORPOR_CLONE_BYTES", None, "268435456", "memory in which clones wait for a create"),
)
BY_NAME = {one.name: one for one in SETTINGS}


@dataclass(frozen=True, slots=True)
class Value:
    """``text`` None: nobody said, the default counts. ``place``: the variable, flag or file that said it."""

    setting: Setting
    text: str | None
    source: Source
    place: str = ""


class Settings:
    """What was said of each setting, and where. Iterates over all, in order of ``SETTINGS``."""

    def __init__(self, flags: Mapping[str, str | None], environment: Mapping[str, str], project: Path) -> None:
        self._flags = flags
        self._environment = environment
        self._files: list[tuple[Source, Path, Mapping[str, str]]] = []
        self._add(Source.PROJECT, project / FILE)

    def __getitem__(self, name: str) -> Value:
        setting = BY_NAME[name]
        if flag := self._flags.get(name):
            return Value(setting, flag, Source.FLAG, setting.flag or name)
        if said := self._environment.get(setting.variable):
            return Value(setting, said, Source.ENVIRONMENT, setting.variable)
        for source, path, values in self._files:
            if name in values:
                return Value(setting, values[name], source, str(path))
        return Value(setting, None, Source.DEFAULT)

    def __iter__(self) -> Iterator[Value]:
        return (self[one.name] for one in SETTINGS)

    def text(self, name: str) -> str | None:
        """The value, None for the default."""
        return self[name].text

    def add_home(self, home: Path) -> None:
        """The home is known now: its file counts too, below the others."""
        self._add(Source.HOME, home / FILE)

    def _add(self, source: Source, path: Path) -> None:
        if all(path != known for _, known, _ in self._files):
            self._files.append((source, path, _read(source, path)))


def _read(source: Source, path: Path) -> Mapping[str, str]:
    try:
        with path.open("rb") as file:
            said = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}", field="torpor.toml", file=str(path)) from error
    return {name: _text(name, value, source, path) for name, value in said.items()}


def _text(name: str, value: object, source: Source, path: Path) -> str:
    setting = BY_NAME.get(name)
    if setting is None:
        known = ", ".join(one.name for one in SETTINGS if source in one.places)
        raise InvalidArgument(
            f"cannot use {name!r} in {path}: it is no setting; known: {known}", field=name, file=str(path)
        )
    if source not in setting.places:
        raise InvalidArgument(
            f"cannot use {name!r} in {path}: set {setting.variable} in the environment instead",
            field=name,
            file=str(path),
        )
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InvalidArgument(
            f"cannot use {value!r} as {name} in {path}: write a text or a whole number", field=name, file=str(path)
        )
    return str(value)
