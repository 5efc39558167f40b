"""Which server, and what to show it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Self

from torpor.apps.config import Config, client_key

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Access:
    """``home``: for the remedy in messages."""

    url: str
    key: str = field(repr=False)
    home: str = ""

    @classmethod
    def find(cls, url: str | None = None, key: str | None = None, *, home: str | None = None) -> Self:
        """What is given, else what the environment, torpor.toml and the home say. Raises: Unauthenticated."""
        config = Config.read(os.environ, home=home, api_url=url, api_key=key)
        return cls(config.api_url, client_key(config), str(config.home))

    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {"authorization": f"Bearer {self.key}"}

    def trusted(self) -> ssl.SSLContext | bool:
        """Whose certificates are: without TLS nobody's, since to read all of them takes longer than most calls."""
        return True if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
