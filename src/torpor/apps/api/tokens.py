"""Keys that may use one session only: signed, with an expiry, and stored nowhere.

A token (a JWT, HS256) names a tenant and a session's id. It ends at its expiry, with its session, and with the server's
key, which the signing key is derived from.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from torpor.domain.errors import InvalidArgument, PermissionDenied, Unauthenticated
from torpor.domain.ids import SessionId, TenantId
from torpor.ports.clock import Clock

TTL_S = 3600.0
TTL_S_MAX = 30 * 24 * 3600.0

_ALGORITHMS = ["HS256"]
_KIND = "torpor-session+jwt"
_PURPOSE = b"torpor session tokens v1"

# What a token may ask for below its session's path. Not: deleting, forking, exporting, its clocks, more tokens.
USES = frozenset(
    {"", "bursts", "code", "exec", "files", "interrupt", "logs", "pause", "ports", "processes", "resume", "shell"}
    | {"terminal"}
)


@dataclass(frozen=True, slots=True)
class Grant:
    """Who may do what: all sessions of a tenant, or one of them."""

    tenant: TenantId
    session: SessionId | None = None


class SessionTokens:
    """Makes and reads the tokens of one server's key."""

    def __init__(self, key: str, clock: Clock) -> None:
        self._key = OctKey.import_key(hmac.digest(key.encode(), _PURPOSE, hashlib.sha256))
        self._clock = clock

    def make(self, grant: Grant, *, ttl_s: float) -> tuple[str, float]:
        """A token, and the wall time at which it expires. Raises: InvalidArgument."""
        if not 0 < ttl_s <= TTL_S_MAX:
            raise InvalidArgument(
                f"cannot make a token that lives {ttl_s} s: use more than 0 and at most {TTL_S_MAX:.0f}", field="ttl_s"
            )
        now_s = self._clock.wall_s()
        claims = {"tenant": grant.tenant, "sub": grant.session, "iat": now_s, "exp": now_s + ttl_s}
        return jwt.encode({"alg": "HS256", "typ": _KIND}, claims, self._key, _ALGORITHMS), now_s + ttl_s

    def read(self, token: str) -> Grant:
        """Raises: Unauthenticated for what is not ours, was altered or has expired."""
        try:
            read = jwt.decode(token, self._key, _ALGORITHMS)
        except (JoseError, ValueError) as error:
            raise Unauthenticated("cannot answer: the token is not of this server's key; ask for a new one") from error
        claims = read.claims
        if read.header.get("typ") != _KIND or not isinstance(claims.get("exp"), float | int):
            raise Unauthenticated("cannot answer: this is not a session's token; ask for one")
        if claims["exp"] <= self._clock.wall_s():
            raise Unauthenticated("cannot answer: the token has expired; ask for a new one", reason="expired")
        return Grant(TenantId(claims["tenant"]), SessionId(claims["sub"]))


def looks_like_token(credentials: str) -> bool:
    """True for the form of a JWT, which no key of ours has."""
    return credentials.count(".") == 2


def check_use(method: str, use: str, session: SessionId) -> None:
    """Raises: PermissionDenied for what a session's token may not do. ``use``: the path below the session's."""
    first = use.partition("/")[0]
    if first not in USES or (method == "DELETE" and not first):
        raise PermissionDenied(
            f"cannot {method} {use or 'the session'}: this token may use session {session} only, not delete, fork or "
            "export it; use the server's key",
            session=session,
        )
