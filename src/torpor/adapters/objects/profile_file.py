"""Credentials from a profile file, the one link of the usual chain that obstore lacks."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torpor.domain.errors import InvalidArgument
from torpor.ports.clock import Clock

REREAD_AFTER_S = 300.0  # a file whose keys are renewed is noticed


@dataclass(frozen=True, slots=True)
class ProfileCredentials:
    """Reads one profile, anew when obstore asks again."""

    file: Path
    profile: str
    clock: Clock

    def __call__(self) -> Mapping[str, Any]:
        """The credentials as obstore takes them. Raises: InvalidArgument."""
        found = _read(self.file).get(self.profile, {})
        if not found.get("aws_access_key_id") or not found.get("aws_secret_access_key"):
            raise InvalidArgument(
                f"cannot take credentials from {self.file}: profile {self.profile!r} there has no aws_access_key_id "
                "with aws_secret_access_key; add them, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                field="store_url",
            )
        return {
            "access_key_id": found["aws_access_key_id"],
            "secret_access_key": found["aws_secret_access_key"],
            "token": found.get("aws_session_token"),
            "expires_at": datetime.fromtimestamp(self.clock.wall_s() + REREAD_AFTER_S, UTC),
        }


def profile_credentials(environment: Mapping[str, str], clock: Clock) -> ProfileCredentials | None:
    """What the environment's profile gives; None if variables give keys themselves, or no file has the profile.

    Raises: InvalidArgument if AWS_PROFILE names a profile that has none.
    """
    if environment.get("AWS_ACCESS_KEY_ID"):
        return None
    home = Path(environment.get("HOME") or "~").expanduser()
    file = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    asked = environment.get("AWS_PROFILE")
    profile = asked or "default"
    credentials = ProfileCredentials(file, profile, clock)
    if asked or _read(file).get(profile, {}).get("aws_access_key_id"):
        credentials()
        return credentials
    return None


def _read(file: Path) -> Mapping[str, Mapping[str, str]]:
    """Profiles by name; none if the file is absent. Raises: InvalidArgument."""
    parser = configparser.RawConfigParser(default_section="", interpolation=None)
    try:
        with file.open(encoding="utf-8") as lines:
            parser.read_file(lines)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise InvalidArgument(f"cannot read {file}: {type(error).__name__}", field="store_url") from error
    return {name: dict(parser.items(name)) for name in parser.sections()}
