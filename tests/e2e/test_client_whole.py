"""torpor.Client over a real server: what it shows in the README, and what it carries in and out."""

from __future__ import annotations

import hashlib
import random

import pytest
from e2e_home import eventually

import torpor
from torpor.apps.sdk import ProcessExited
from torpor.domain.errors import PermissionDenied, TorporError

pytestmark = pytest.mark.engine

FILE_BYTES = 64 * 1024 * 1024
PASSPHRASE = "five random words are better"
REQUEST = b"GET /x HTTP/1.0\r\n\r\n"


@pytest.fixture
def client(server):
    server.start()
    with torpor.Client(home=str(server.home), url=server.clients[-1].access.url) as one:
        yield one


def fetched(session, port_number):
    """One request to the web server inside."""
    with session.port(port_number) as port:
        port.send(REQUEST)
        said = b""
        while data := port.receive():
            said += data
    return said


def served(session):
    try:
        return fetched(session, 8000)
    except TorporError:
        return b""


def test_a_session_is_found_again_and_everything_is_carried_both_ways(client):
    session = client.session("analysis")
    session.files.write("/workspace/a.csv", "x\n1\n2\n")
    assert session.code("import pandas as pd; df = pd.read_csv('/workspace/a.csv')").ok
    data = random.Random(7).randbytes(FILE_BYTES)
    assert session.files.write("/workspace/big", data) == FILE_BYTES
    assert hashlib.sha256(session.files.read("/workspace/big")).digest() == hashlib.sha256(data).digest()
    session.files.write("/workspace/x", "served")
    web = session.start(["python3", "-m", "http.server", "8000"], cwd="/workspace")
    eventually(lambda: served(session).endswith(b"served"), "the web server answers")
    with session.terminal(argv=["sh", "-c", "read line; echo got $line; exit 7"]) as terminal:
        pid, sequence = terminal.state.process.pid, terminal.state.sequence
    with session.port(8000) as port:
        assert session.pause().status == "paused"
        with pytest.raises(TorporError):
            port.receive()

    session = client.session("analysis")
    result = session.code("int(df.x.sum())")
    assert (result.text, result.resumed.outcome) == ("3", "resumed")
    assert fetched(session, 8000).endswith(b"served")
    assert web.pid in [one.pid for one in session.processes() if one.info.running]
    with session.terminal(pid=pid, from_sequence=sequence) as terminal:
        terminal.type("this\n")
        assert b"got this" in b"".join(terminal)
        assert terminal.state.exit_code == 7
    web.signal(15)
    assert isinstance(list(web.attach())[-1], ProcessExited)

    session.files.remove("/workspace/big")
    [fork] = session.fork(names=["copy"])
    assert fork.code("int(df.x.sum())").text == "3"
    with torpor.Client(client._transport.access.url, session.token().token) as guest:
        assert guest.attach("analysis").code("1 + 1").text == "2"
        with pytest.raises(PermissionDenied):
            guest.attach("copy")
    session.pause()
    with client.export_session("analysis", PASSPHRASE) as pieces:
        imported = client.import_session(pieces, PASSPHRASE, name="moved")
    assert imported.code("int(df.x.sum())").text == "3"
