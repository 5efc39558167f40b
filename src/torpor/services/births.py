"""How a session's record comes to be: with a key of its own, or not at all."""

from __future__ import annotations

import base64
import contextlib
from dataclasses import replace

from torpor.domain.errors import Conflict, TorporError, Unavailable
from torpor.domain.session import Session
from torpor.ports.catalog import Catalog
from torpor.ports.crash_points import CrashPoint, reach
from torpor.ports.keys import KeyStore
from torpor.services.checks import name_taken


async def bear(catalog: Catalog, keys: KeyStore, session: Session) -> Session:
    """Make the new session's key and store its record.

    Raises: Conflict (the name), StorageFull and others: the key is destroyed again, unless the record may be stored.
    """
    key = await keys.create(session.tenant, session.id)
    reach(CrashPoint.CREATE_KEY_MADE)
    try:
        return await catalog.insert(replace(session, wrapped_key=base64.b64encode(key.wrapped).decode()))
    except Unavailable:  # it may be stored or not
        raise
    except TorporError as error:
        with contextlib.suppress(TorporError):  # what could not be stored is what has to be told
            await keys.destroy(session.tenant, session.id)
        raise name_taken(str(session.name)) if isinstance(error, Conflict) else error from error
