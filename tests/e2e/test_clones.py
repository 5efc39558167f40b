"""Clones held ready on real sandboxes: one serves a create, is nobody's twin, and leaves nothing."""

from __future__ import annotations

import pytest
from e2e_home import eventually, run, traces

pytestmark = pytest.mark.engine

IDENTITY = """
import os, random, socket, uuid
(os.urandom(16), random.random(), socket.gethostname(), open("/etc/machine-id").read().strip(), uuid.uuid4().hex)
"""


def created(client, name):
    """A new session, and whether it came from a clone."""
    session = client.create(template="data", name=name)
    return session, "restore" not in session["resumed"]["timings_ms"]


def test_a_create_from_a_clone_is_no_twin_of_another(server, home):
    client = server.start()
    first, _ = created(client, "first")
    second = eventually(lambda: _from_clone(client), "a create is served by a clone")
    ones, others = (eval(run(client, session["id"], IDENTITY)) for session in (first, second))
    assert all(one != other for one, other in zip(ones, others, strict=True))
    assert others[2] != "torpor"
    client.pause(second["id"])
    assert run(client, second["id"], "1 + 1") == "2"
    server.stop()
    assert not any(traces(home).values())


def _from_clone(client):
    """A session that came from a clone, or nothing: the one in the making may not be ready yet."""
    session, is_cloned = created(client, "second")
    if is_cloned:
        return session
    client.delete(session["id"])
    return None
