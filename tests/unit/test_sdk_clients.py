"""torpor.Client and torpor.AsyncClient, against a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys

import pytest

import torpor
from torpor.apps import sdk
from torpor.apps.sdk import calls
from torpor.apps.sdk.frames import FrameDecoder, Kind, encode
from torpor.domain.errors import Conflict, Corrupt, InvalidArgument, NotFound, TorporError, Unauthenticated, Unavailable

KEY = "a-key-of-more-than-20-characters"
SERVER_PACKAGES = [
    *("alembic", "blake3", "cryptography", "fastapi", "httptools", "joserfc", "numpy", "obstore"),
    *("pyroute2", "rich", "sqlalchemy", "starlette", "structlog", "uvicorn", "zstandard"),
]


@pytest.fixture
def client(served):
    with torpor.Client(served.url, KEY) as one:
        yield one


def test_a_session_is_made_once_and_reattached_by_name(client, served):
    first = client.session("analysis", template="data", metadata={"user": "ann"})
    assert first.code("x = 41").ok
    again = client.session("analysis")
    assert (again.id, again.info.metadata) == (first.id, {"user": "ann"})
    assert again.code("x + 1").text == "42"
    assert [info.name for info in client.sessions()] == ["analysis"]
    assert client.attach(first.id).info.name == "analysis"
    assert len(served.backend.sessions) == 1


def test_a_with_block_keeps_its_session_unless_it_is_ephemeral(client):
    with client.session("kept"):
        pass
    with client.session("gone", ephemeral=True) as session:
        assert session.sh("echo hi").stdout == "hi\n"
    assert [info.name for info in client.sessions()] == ["kept"]


def test_code_that_fails_is_a_value(client):
    result = client.session("one").code("1 / 0")
    assert (result.ok, result.error.name, result.text) == (False, "ZeroDivisionError", None)
    assert "ZeroDivisionError" in str(result)
    assert client.session("one").exec(["sh", "-c", "echo no >&2; exit 7"]).exit_code == 7


def test_transport_that_fails_raises_from_one_tree(client, served):
    with pytest.raises(NotFound):
        client.attach("nobody")
    with pytest.raises(Conflict) as raised:
        client.attach("raise-conflict")
    assert raised.value.details["why"] == "asked for"
    with torpor.Client(served.url, KEY + "x") as stranger, pytest.raises(Unauthenticated):
        stranger.templates()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = torpor.Client(f"http://127.0.0.1:{free.getsockname()[1]}", KEY)
        with nowhere, pytest.raises(Unavailable, match="torpor up --detach"):
            nowhere.health()
    assert issubclass(Unavailable, torpor.TorporError)


def test_a_failure_in_mid_stream_raises_after_its_output(client):
    heard = []
    with pytest.raises(Unavailable):
        client.session("one").code("emit [('stdout', b'a'), 'unavailable']", on_stdout=heard.append)
    assert heard == ["a"]


def test_output_is_told_while_it_comes_and_kept(client):
    heard: list[tuple[str, object]] = []
    result = client.session("one").code(
        r"emit [('stdout', b'caf\xc3'), ('stdout', b'\xa9'), ('stderr', b'\xff'), {'text/plain': 'fig'}]",
        on_stdout=lambda text: heard.append(("out", text)),
        on_stderr=lambda text: heard.append(("err", text)),
        on_display=lambda bundle: heard.append(("display", dict(bundle))),
    )
    assert "".join(text for kind, text in heard if kind == "out") == "café"
    assert [one for one in heard if one[0] != "out"] == [("err", "\ufffd"), ("display", {"text/plain": "fig"})]
    assert (result.stdout, result.stderr_bytes, result.displays) == ("café", b"\xff", ({"text/plain": "fig"},))


def test_a_session_that_was_paused_says_how_it_came_back(client):
    session = client.session("one")
    assert session.pause().status == "paused"
    resumed = session.code("1").resumed
    assert (resumed.cause, resumed.gap_s, resumed.tier, resumed.generation) == ("resumed", 3600.0, "local", 2)
    assert resumed.dropped == ("one open connection",)
    session.pause()
    assert session.resume().status == "running"
    assert session.refresh().generation == 3
    session.delete()
    with pytest.raises(NotFound):
        session.refresh()


def test_files_go_both_ways_in_every_form(client):
    files = client.session("one").files
    data = bytes(range(256)) * 5000
    assert files.write("/data/x", data) == len(data)
    assert files.read("/data/x") == data
    assert files.write("/data/x", (data[:1000], data[1000:]), mode=0o600) == len(data)
    with files.stream("/data/x") as pieces:
        assert b"".join(pieces) == data
    files.write("/data/text", "héllo")
    assert files.read_text("/data/text") == "héllo"
    assert files.write("/empty", b"") == 0
    assert files.read("/empty") == b""
    with pytest.raises(NotFound):
        files.read("/nothing")


def test_a_token_of_a_session_is_a_key_for_it(client, served):
    token = client.session("one").token(ttl_s=60)
    assert token.token not in repr(token)
    with torpor.Client(served.url, token.token) as guest:
        assert guest.attach("one").code("2 + 2").text == "4"
        with pytest.raises(TorporError) as refused:
            list(guest.sessions())
    assert refused.value.code == "permission_denied"


def test_what_cannot_be_sent_is_refused_here(client):
    with pytest.raises(InvalidArgument):
        client.session("one").code("x" * (65 << 20))
    with pytest.raises(InvalidArgument):
        client.session("one", metadata={"x": object()})
    for ref in ("", ".", "..", "a/b"):
        with pytest.raises(NotFound):
            client.attach(ref)


async def test_the_awaited_client_does_the_same(served):
    heard: list[str] = []

    async def hear(text: str) -> None:
        await asyncio.sleep(0)
        heard.append(text)

    async with torpor.AsyncClient(served.url, KEY) as client, await client.session("one", ephemeral=True) as session:
        assert (await session.code("print('hi'); 40 + 2", on_stdout=hear)).text == "42"
        assert heard == ["hi\n"]
        assert (await session.sh("exit 3")).exit_code == 3
        assert (await session.exec(["cat"], stdin=b"in", on_stdout=heard.append)).stdout == "in"
        assert await session.files.write("/x", (piece async for piece in _pieces())) == 4
        assert await session.files.read_text("/x") == "abcd"
        assert (await session.pause()).status == "paused"
        assert (await session.code("1")).resumed.cause == "resumed"
        assert [info.name async for info in client.sessions()] == ["one"]
        assert (await session.token()).session == session.id
        results = await asyncio.gather(*(session.code(f"{n} * 2") for n in range(5)))
        assert [result.text for result in results] == ["0", "2", "4", "6", "8"]
        with pytest.raises(NotFound):
            await client.attach("nobody")
    assert served.backend.sessions == {}


async def _pieces():
    yield b"ab"
    yield b"cd"


def test_both_clients_offer_the_same():
    for one, other in (
        (sdk.Client, sdk.AsyncClient),
        (sdk.Session, sdk.AsyncSession),
        (sdk.Files, sdk.AsyncFiles),
        (sdk.Process, sdk.AsyncProcess),
        (sdk.Port, sdk.AsyncPort),
    ):
        assert {name for name in dir(one) if name[0] != "_"} == {name for name in dir(other) if name[0] != "_"}


def test_everything_that_is_offered_is_there_and_nothing_else_is_said_to_be():
    for name in sdk.__all__:
        assert getattr(sdk, name).__name__ == name
    with pytest.raises(AttributeError, match="Nobody"):
        sdk.Nobody  # noqa: B018


# ---- what a notebook shows ------------------------------------------------------------------------------------------


def test_a_lone_value_is_shown_as_a_notebook_shows_it(client):
    result = client.session("one").code("42")
    assert result._repr_mimebundle_() == {"text/plain": "42"}
    bundle = "{'text/html': '<b>1</b>', 'text/plain': '1'}"
    assert client.session("one").code(f"emit [{bundle}]")._repr_mimebundle_()["text/html"] == "<b>1</b>"


def test_everything_else_is_shown_one_below_the_other(client):
    source = "emit [('stdout', b'<out>'), {'image/png': 'iVBO\\nRw0='}, {'text/plain': 'p<q'}]"
    shown = client.session("one").code(source)._repr_mimebundle_()
    assert shown["text/html"].splitlines() == [
        "<pre>&lt;out&gt;</pre>",
        '<img src="data:image/png;base64,iVBORw0=">',
        "<pre>p&lt;q</pre>",
    ]
    assert shown["text/plain"] == "<out>\np<q"
    failed = client.session("one").code("raise ArithmeticError('<x>')")
    assert "&lt;x&gt;" in failed._repr_html_()


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_frames_come_out_the_same_however_they_are_cut_and_output_at_once():
    sent = [(Kind.STDOUT, b"abc"), (Kind.KEEP_ALIVE, b""), (Kind.STDERR, b"\x00" * 300), (Kind.RESULT, b"{}")]
    data = b"".join(encode(kind, payload) for kind, payload in sent)
    for size in (1, 2, 7, 64, len(data)):
        decoder = FrameDecoder()
        fed, came, found = 0, 0, []
        for piece in (data[at : at + size] for at in range(0, len(data), size)):
            fed += len(piece)
            for frame in decoder.feed(piece):
                if found and found[-1][0] is frame.kind:
                    found[-1] = (frame.kind, found[-1][1] + frame.payload)
                else:
                    found.append((frame.kind, frame.payload))
                came += len(frame.payload)
            assert (came == 3) is (8 <= fed < 19), "output waits for nothing that follows it"
        assert found == sent, size


@pytest.mark.parametrize("data", [b"\x09\x00\x00\x00\x00", b"\x01\xff\xff\xff\xff"])
def test_what_is_no_frame_is_corrupt(data):
    with pytest.raises(Corrupt):
        FrameDecoder().feed(data)


def test_what_is_left_out_is_the_servers_to_choose():
    assert calls.create({"template": "base", "idle_s": None}).body == {"template": "base", "idle_s": None}
    assert json.loads(calls.execute("one", ["ls"], timeout_s=None).content()) == {"argv": ["ls"]}


def test_the_client_needs_nothing_of_the_server(tmp_path):
    script = f"""
import sys
for name in {SERVER_PACKAGES!r}:
    sys.modules[name] = None
sys.modules["pydantic"] = sys.modules["typer"] = None
import torpor, torpor.apps.client
assert not {{"asyncio", "httpx", "websockets"}} & set(sys.modules), "a command does not wait for what it does not use"
torpor.Client("http://127.0.0.1:1", {KEY!r}).close()
assert not {{"asyncio", "httpx"}} & set(sys.modules), "nor does who waits"
torpor.AsyncClient
del sys.modules["pydantic"], sys.modules["typer"]  # the command line needs typer, and that brings pydantic
from torpor.apps.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
assert main(["ls"]) == 6, "no key is found: the client says so"
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={"TORPOR_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
