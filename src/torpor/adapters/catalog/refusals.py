"""What catalogs refuse, in the same words whatever keeps the records. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torpor.domain.errors import Conflict, NotFound, StaleRevision
from torpor.domain.session import Session

KNOWN_NAMES_MAX = 20


def no_such_session(session: str) -> NotFound:
    """For an id that this tenant does not have."""
    return NotFound(f"cannot find session {session!r}: no session of this tenant has that id", session=session)


def no_such_template(name: str, known: Sequence[str]) -> NotFound:
    """For a name or digest that no template of this tenant has."""
    listed = ", ".join(known[:KNOWN_NAMES_MAX]) or "none yet: build one with torpor template build"
    return NotFound(f"cannot find template {name!r}: known are {listed}", template=name, known=list(known))


def id_is_taken(session: Session) -> Conflict:
    """For a second record of one id."""
    return Conflict(f"cannot add session {session.id}: that id is taken", reason="id_is_taken", session=session.id)


def name_is_taken(session: Session) -> Conflict:
    """For a second live session of one name."""
    return Conflict(
        f"cannot name a session {session.name!r}: another has that name; choose one, or remove that session",
        reason="name_is_taken",
        field="name",
    )


def was_changed(session: Session, revision: int) -> StaleRevision:
    """For a lost compare-and-swap."""
    return StaleRevision(
        f"cannot change session {session.id}: it is at revision {revision}, not {session.revision}; re-read it",
        session=session.id,
        revision=revision,
    )
