"""Where this installation lives and whom it talks to: flag over environment over default, read once.

Also the layout of the home folder, so that one page says which file is where. Nothing here starts or connects.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torpor.apps.settings import Settings, Source, Value
from torpor.domain.errors import InvalidArgument, StorageFull, TorporError, Unauthenticated

DEFAULT_HOME = "~/.torpor"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7780
DEFAULT_CACHE_BYTES = 4 * 1024**3
DEFAULT_CLONE_BYTES = 256 * 1024**2
KEY_CHARACTERS_MIN = 20
RUNTIME_ROOT = Path("/run/torpor")


@dataclass(frozen=True, slots=True)
class Config:
    """One home, the server's address and the key to use there, and where objects and keys of the store lie.

    ``api_key`` is None unless it was given by flag or environment; then the home's ``api.key`` counts.
    ``store_url`` and ``keys`` are None for the home's own folders. The URL is parsed where the store is opened (clients
    need none). ``cache_bytes`` bounds this node's copies of a remote store's objects; 0 for none. ``warm_bytes``:
    memory in which paused instances may stay frozen; 0 gives all of it back at once. ``clone_bytes``: memory in which
    restored clones of templates wait for a create; 0 keeps none. ``url_is_projects``: the address is that of a
    torpor.toml in the current folder, which somebody else may have written.
    """

    home: Path
    api_url: str
    api_key: str | None = None
    store_url: str | None = None
    keys: Path | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES
    warm_bytes: int = 0
    clone_bytes: int = DEFAULT_CLONE_BYTES
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    url_is_projects: bool = False

    @classmethod
    def read(
        cls,
        environment: Mapping[str, str],
        *,
        home: str | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
    ) -> Config:
        """Flag, else environment, else torpor.toml, else default (``settings``). An unset URL is the running server's.

        Raises: InvalidArgument naming the setting, and the file if one said it.
        """
        settings = cls.settings(environment, {"home": home, "api_url": api_url, "api_key": api_key})
        folder = _home(settings)
        said = settings["api_url"]
        url = said.text or str(
            read_server_file(folder / "server.json").get("url") or f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
        )
        key = settings.text("api_key")
        if key is not None:
            _check_key(key, source="TORPOR_API_KEY")
        keys = settings.text("keys_dir")
        return cls(
            home=folder,
            api_url=_checked_url(url),
            api_key=key,
            store_url=settings.text("store_url"),
            keys=_checked_folder(keys, setting="TORPOR_KEYS_DIR") if keys else None,
            cache_bytes=_checked_number(settings["cache_bytes"], default=DEFAULT_CACHE_BYTES),
            warm_bytes=_checked_number(settings["warm_bytes"], default=0),
            clone_bytes=_checked_number(settings["clone_bytes"], default=DEFAULT_CLONE_BYTES),
            host=settings.text("host") or DEFAULT_HOST,
            port=_checked_number(settings["port"], default=DEFAULT_PORT, most=65535),
            url_is_projects=said.source is Source.PROJECT,
        )

    @classmethod
    def settings(cls, environment: Mapping[str, str], flags: Mapping[str, str | None]) -> Settings:
        """What was said of each setting, and where. Raises: InvalidArgument for a file that cannot be used."""
        settings = Settings(flags, environment, Path.cwd())
        settings.add_home(_home(settings))
        return settings

    @property
    def key_file(self) -> Path:
        """The API key, mode 0600."""
        return self.home / "api.key"

    @property
    def catalog_file(self) -> Path:
        """The SQLite catalog."""
        return self.home / "catalog.sqlite3"

    @property
    def answers_file(self) -> Path:
        """Answers to requests with an idempotency key, for a day. Not worth a backup."""
        return self.home / "answers.sqlite3"

    @property
    def store_dir(self) -> Path:
        """The snapshot store's objects, unless TORPOR_STORE_URL says otherwise."""
        return self.home / "store"

    @property
    def cache_dir(self) -> Path:
        """Copies of a remote store's objects, sealed as they are there. May be removed while no server runs."""
        return self.home / "cache"

    @property
    def keys_dir(self) -> Path:
        """KEKs and per-session secrets. Back it up apart from the store: together they are the plaintext."""
        return self.keys or self.home / "keys"

    @property
    def engines_dir(self) -> Path:
        """Engine builds, side by side."""
        return self.home / "engines"

    @property
    def templates_dir(self) -> Path:
        """Root filesystems of templates."""
        return self.home / "templates"

    @property
    def server_file(self) -> Path:
        """What the running server says of itself: pid, url, started_at. Left behind by a server that was killed."""
        return self.home / "server.json"

    @property
    def lock_file(self) -> Path:
        """Locked (flock) for as long as a process owns this home."""
        return self.home / "server.lock"

    @property
    def log_file(self) -> Path:
        """Where a detached server writes."""
        return self.home / "server.log"

    @property
    def runtime_dir(self) -> Path:
        """Instances, sockets and memory-backed files of this home; emptied by a reboot. Short, for socket paths."""
        digest = hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()
        return RUNTIME_ROOT / f"h{digest[:8]}"


def client_key(config: Config) -> str:
    """The key to send to ``config.api_url``.

    The home's key is sent only to this machine or to the server this home started, so that a mistyped URL does not
    learn it. Raises: Unauthenticated with the remedy.
    """
    if config.api_key is not None:
        if config.url_is_projects and not is_loopback(urlsplit(config.api_url).hostname or ""):
            raise Unauthenticated(
                f"cannot use TORPOR_API_KEY at {config.api_url}: a torpor.toml in this folder names that server, not "
                "you; if you trust it, set TORPOR_API_URL to it",
                url=config.api_url,
            )
        return config.api_key
    own = read_server_file(config.server_file).get("url") == config.api_url
    if not own and not is_loopback(urlsplit(config.api_url).hostname or ""):
        raise Unauthenticated(
            f"cannot use the key of {config.home} at {config.api_url}: it is sent to this machine only; "
            "set TORPOR_API_KEY to that server's key",
            url=config.api_url,
        )
    try:
        return config.key_file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise Unauthenticated(
            f"cannot find a key: {config.key_file} does not exist; start the server with `torpor up --detach`, "
            "point TORPOR_HOME at its home, or set TORPOR_API_KEY",
            key_file=str(config.key_file),
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unauthenticated(f"cannot read {config.key_file}: {error}", key_file=str(config.key_file)) from error


def server_key(config: Config, *, fresh: bytes) -> tuple[str, bool]:
    """The key the server accepts, and whether somebody chose or could know it before this start.

    Made of ``fresh`` (32 random bytes) and written with mode 0600 if there is none yet.
    Raises: InvalidArgument if the key file is readable by others, or does not hold a key.
    """
    if config.api_key is not None:
        return config.api_key, True
    path = config.key_file
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _existing_key(path), True
    key = f"torpor_{fresh.hex()}"
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{key}\n")
        file.flush()
        os.fsync(file.fileno())
    return key, False


def check_bind(host: str, *, key_was_known: bool) -> None:
    """Refuse an address that others can reach unless the key was chosen before this start.

    That is: TORPOR_API_KEY is set, or ``api.key`` (mode 0600) existed already. A key that this very start makes is
    known to nobody, so exposing it is a slip rather than a decision. Raises: InvalidArgument.
    """
    if not is_loopback(host) and not key_was_known:
        raise InvalidArgument(
            f"cannot listen on {host}: other machines could reach it, and no key was set before this start; "
            "set TORPOR_API_KEY, or start once on 127.0.0.1 so that api.key is made, then repeat",
            field="host",
        )


def make_home(config: Config) -> None:
    """The home folder, with mode 0700 if it is new. Raises: as ``home_failure``."""
    try:
        config.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise home_failure(config, error) from error


def home_failure(config: Config, error: OSError) -> TorporError:
    """What it means that the home, or a file directly in it, cannot be written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(f"cannot use {config.home} as home: no room left there; free some space")
    return InvalidArgument(
        f"cannot use {config.home} as home: {error.strerror}; set TORPOR_HOME to a folder that may be written",
        field="home",
    )


def is_loopback(host: str) -> bool:
    """True if only this machine reaches ``host``. Names other than ``localhost`` are taken for reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_server_file(path: Path) -> Mapping[str, Any]:
    """What ``server.json`` says; empty if there is none or it is torn."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _existing_key(path: Path) -> str:
    status = path.stat()
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidArgument(
            f"cannot use {path}: other users may read it (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run `chmod 600 {path}`, or remove it so that a new key is made",
            field="api_key",
        )
    key = path.read_text(encoding="ascii", errors="replace").strip()
    _check_key(key, source=str(path))
    return key


def _check_key(key: str, *, source: str) -> None:
    if len(key) < KEY_CHARACTERS_MIN or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidArgument(
            f"cannot use the key in {source}: use at least {KEY_CHARACTERS_MIN} printable ASCII characters "
            "without spaces, for instance from `openssl rand -hex 32`",
            field="api_key",
        )


def _checked_folder(path: str, *, setting: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_absolute():
        raise InvalidArgument(f"cannot use {path!r} as {setting}: write an absolute path", field="keys_dir")
    return folder


def _checked_number(said: Value, *, default: int, most: int | None = None) -> int:
    if said.text is None:
        return default
    number = int(said.text) if said.text.isascii() and said.text.isdigit() else None
    if number is None or (most is not None and number > most):
        range_ = "a whole number, 0 or more" if most is None else f"a whole number from 0 to {most}"
        raise InvalidArgument(
            f"cannot use {said.text!r} as {said.setting.name} (from {said.place}): write {range_}, "
            f"for instance {default}",
            field=said.setting.name,
            place=said.place,
        )
    return number


def _home(settings: Settings) -> Path:
    # Without links: runsc refuses a root filesystem whose path leads through one.
    return Path(settings.text("home") or DEFAULT_HOME).expanduser().resolve()


def _checked_url(url: str) -> str:
    if not _is_url(url):
        raise InvalidArgument(
            f"cannot use {url!r} as TORPOR_API_URL: write http://HOST:PORT, for instance "
            f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
            field="api_url",
        )
    return url.rstrip("/")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # a port above 65535, half a bracket
        return False
    plain = text.isascii() and text.isprintable() and " " not in text
    return plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0
