"""Bursts over the API: text, bytes, streams, and clients that go away."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from torpor.apps.api.bursts import Bursts
from torpor.apps.api.output import COLLECTED_BYTES_MAX, WAITING_BYTES_MAX, Collector, Outlet, joined
from torpor.domain.errors import NotFound, TorporError, Unavailable
from torpor.ports.guest import Output, StreamKind


def events_of(text: str) -> list[tuple[str, dict]]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [
        (block.split("\n")[0].removeprefix("event: "), json.loads(block.split("\n")[1].removeprefix("data: ")))
        for block in blocks
    ]


pytestmark = pytest.mark.usefixtures("session")


@pytest.fixture
async def session(api):
    return (await api.client.post("/v1/sessions", json={"name": "one"})).json()["id"]


async def test_code_keeps_variables_and_gives_the_last_value(api, session):
    await api.client.post("/v1/sessions/one/code", json={"source": "x = 41"})
    said = (await api.client.post("/v1/sessions/one/code", json={"source": "print('hi')\nx + 1"})).json()
    assert (said["stdout"], said["stdout_base64"], said["stderr"]) == ("hi\n", None, "")
    assert said["result"] == {"text/plain": "42"}
    assert (said["error"], said["exit_code"], said["timed_out"], said["resumed"]) == (None, None, False, None)
    assert said["session"] == {"id": session, "name": "one", "generation": 1}
    assert said["timings_ms"].keys() == {"total"}


async def test_code_that_raises_is_an_answer(api):
    answer = await api.client.post("/v1/sessions/one/code", json={"source": "1 / 0"})
    said = answer.json()
    assert answer.status_code == 200
    assert (said["error"]["name"], said["error"]["value"]) == ("ZeroDivisionError", "division by zero")
    assert "Traceback" in said["error"]["traceback"]


async def test_a_burst_wakes_a_paused_session_and_tells_the_gap(api):
    await api.client.post("/v1/sessions/one/pause")
    said = (await api.client.post("/v1/sessions/one/code", json={"source": "1"})).json()
    assert (said["resumed"]["cause"], said["resumed"]["gap_s"], said["resumed"]["tier"]) == ("resumed", 3600.0, "local")
    assert said["session"]["generation"] == 2


async def test_ten_megabytes_of_code_run(api):
    source = f"x = {'1' * 10_000_000!r}\nlen(x)"
    said = (await api.client.post("/v1/sessions/one/code", json={"source": source})).json()
    assert said["result"] == {"text/plain": "10000000"}


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
async def test_a_body_above_the_limit_is_refused_with_the_remedy(api, declared):
    async def pieces():
        yield b'{"source": "'
        for _ in range(65):
            yield b"x" * (1 << 20)
        yield b'"}'

    content = b'{"source": "' + b"x" * (65 << 20) + b'"}' if declared else pieces()
    headers = {"content-type": "application/json"}
    answer = await api.client.post("/v1/sessions/one/code", content=content, headers=headers)
    said = answer.json()
    assert (answer.status_code, said["code"], said["details"]["limit_bytes"]) == (413, "invalid_argument", 64 << 20)
    assert "torpor cp" in said["message"]


async def test_bytes_that_are_not_text_come_as_base64_beside_something_readable(api):
    said = (await api.client.post("/v1/sessions/one/code", json={"source": r"emit [('stdout', b'a\xff\x00')]"})).json()
    assert said["stdout"] == "a�\x00"
    assert base64.b64decode(said["stdout_base64"]) == b"a\xff\x00"
    assert (said["stderr"], said["stderr_base64"]) == ("", None)


async def test_displays_are_given_in_order(api):
    source = "emit [{'text/html': '<b>1</b>'}, ('stdout', b'x'), {'text/plain': '2'}]"
    said = (await api.client.post("/v1/sessions/one/code", json={"source": source})).json()
    assert said["display"] == [{"text/html": "<b>1</b>"}, {"text/plain": "2"}]


async def test_a_process_gets_its_stdin_and_gives_its_exit_code(api):
    body = {"argv": ["sh", "-c", "cat; echo no >&2; exit 7"], "stdin_base64": base64.b64encode(b"\x00\xff").decode()}
    said = (await api.client.post("/v1/sessions/one/exec", json=body)).json()
    assert said["exit_code"] == 7
    assert base64.b64decode(said["stdout_base64"]) == b"\x00\xff"
    assert said["stderr"] == "no\n"


async def test_a_shell_command_says_where_it_ended(api):
    said = (await api.client.post("/v1/sessions/one/shell", json={"command": "echo out"})).json()
    assert (said["stdout"], said["exit_code"], said["cwd"]) == ("out\n", 0, "/default")


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("exec", {"argv": []}, "argv"),
        ("exec", {"argv": ["cat"], "stdin_base64": "not base64!"}, "stdin_base64"),
        ("code", {"source": "1", "timeout_s": 0}, "timeout_s"),
        ("code", {"source": "1", "context": "../x"}, "context"),
        ("code", {}, "source"),
        ("shell", {"command": None}, "command"),
    ],
)
async def test_a_wrong_field_of_a_burst_is_named(api, route, body, field):
    answer = await api.client.post(f"/v1/sessions/one/{route}", json=body)
    assert (answer.status_code, answer.json()["details"]["field"]) == (422, field)


async def test_a_stream_gives_output_then_the_result(api, session):
    source = r"emit [('stdout', b'a'), ('stdout', b'b'), ('stderr', b'\xff'), {'text/plain': '1'}]"
    answer = await api.client.post("/v1/sessions/one/code?stream=true", json={"source": source})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *output, (last, outcome) = events_of(answer.text)
    assert [event for _, event in output] == [
        {"stream": "stdout", "text": "ab"},
        {"stream": "stderr", "base64": "/w=="},
        {"stream": "display", "data": {"text/plain": "1"}},
    ]
    assert (last, outcome["dropped_bytes"], outcome["session"]["id"]) == ("result", 0, session)


@pytest.mark.parametrize(("source", "code"), [("unavailable", "unavailable"), ("bug", "internal")])
async def test_a_failure_after_the_first_output_is_an_error_event(api, source, code):
    source = f"emit [('stdout', b'a'), {source!r}]"
    answer = await api.client.post("/v1/sessions/one/code?stream=true", json={"source": source})
    assert answer.status_code == 200
    (first, _), (last, said) = events_of(answer.text)
    assert (first, last, said["code"]) == ("output", "error", code)
    assert "secret" not in answer.text


async def test_a_failure_before_the_first_output_has_its_status(api):
    answer = await api.client.post("/v1/sessions/nobody/code?stream=true", json={"source": "1"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_bug_in_a_burst_is_internal_and_the_server_goes_on(api):
    answer = await api.client.post("/v1/sessions/one/code", json={"source": "emit ['bug']"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert (await api.client.post("/v1/sessions/one/code", json={"source": "1"})).status_code == 200


async def test_an_interrupt_ends_a_burst_of_its_context(api):
    async with asyncio.TaskGroup() as group:
        burst = group.create_task(api.client.post("/v1/sessions/one/code", json={"source": "hang"}))
        await api.backend.hangs.wait()
        await api.client.post("/v1/sessions/one/interrupt", json={"context": "default"})
    assert burst.result().json()["error"]["name"] == "KeyboardInterrupt"


async def test_a_request_that_is_given_up_leaves_its_burst_running(api):
    async with asyncio.TaskGroup() as group:
        request = group.create_task(api.client.post("/v1/sessions/one/code", json={"source": "hang"}))
        await api.backend.hangs.wait()
        request.cancel()
    await api.client.post("/v1/sessions/one/interrupt")
    await api.backend.done.wait()
    assert api.backend.finished == ["hang"]


async def test_files_come_back_as_they_went(api, session):
    data = bytes(range(256)) * 4096
    query = {"path": "/data/x y.bin", "mode": "600"}
    written = await api.client.put("/v1/sessions/one/files", params=query, content=data)
    assert written.json() == {"path": "/data/x y.bin", "size_bytes": len(data), "woken": False}
    assert api.backend.files[session]["/data/x y.bin"] == (data, 0o600)
    await api.client.post("/v1/sessions/one/pause")
    read = await api.client.get("/v1/sessions/one/files", params={"path": "/data/x y.bin"})
    assert read.content == data
    assert read.headers["torpor-woken"] == "true"
    read = await api.client.get("/v1/sessions/one/files", params={"path": "/data/x y.bin"})
    assert "torpor-woken" not in read.headers


async def test_an_empty_file_is_a_file(api):
    await api.client.put("/v1/sessions/one/files", params={"path": "/empty"}, content=b"")
    read = await api.client.get("/v1/sessions/one/files", params={"path": "/empty"})
    assert (read.status_code, read.content) == (200, b"")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"path": "/nothing"}, 404, "not_found"),
        ({"path": "/data/"}, 422, "invalid_argument"),
        ({"path": ""}, 422, "invalid_argument"),
        ({}, 422, "invalid_argument"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_before_the_first_byte(api, query, status, code):
    answer = await api.client.get("/v1/sessions/one/files", params=query)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_mode_that_is_not_octal_is_refused(api):
    answer = await api.client.put("/v1/sessions/one/files", params={"path": "/x", "mode": "999"}, content=b"")
    assert (answer.status_code, answer.json()["details"]["field"]) == (422, "mode")


# ---- the parts ------------------------------------------------------------------------------------------------------


async def test_a_collector_keeps_what_fits_and_counts_the_rest():
    collector = Collector()
    await collector(Output(StreamKind.STDOUT, b"x" * (COLLECTED_BYTES_MAX - 1)))
    await collector(Output(StreamKind.STDERR, b"yz"))
    await collector(Output(StreamKind.DISPLAY, b"{}"))
    assert (len(collector.stdout), collector.stderr, collector.display) == (COLLECTED_BYTES_MAX - 1, b"y", [])
    assert collector.dropped_bytes == 3


def test_neighbours_of_one_stream_are_joined_in_order():
    pieces = [
        ("stdout", b"a"),
        ("stdout", b"b"),
        ("stderr", b"c"),
        ("stdout", b"d"),
        ("display", b"1"),
        ("display", b"2"),
    ]
    given = tuple(Output(StreamKind(stream), data) for stream, data in pieces)
    assert [(piece.stream.value, piece.data) for piece in joined(given)] == [
        ("stdout", b"ab"), ("stderr", b"c"), ("stdout", b"d"), ("display", b"1"), ("display", b"2"),
    ]  # fmt: skip


async def test_a_slow_reader_makes_the_burst_wait_and_one_that_left_does_not():
    outlet = Outlet()
    piece = Output(StreamKind.STDOUT, b"x" * WAITING_BYTES_MAX)
    await outlet(piece)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(outlet(piece))
        await asyncio.sleep(0)
        assert not second.done()
        assert sum(len(read.data) for read in await outlet.read()) == WAITING_BYTES_MAX
    third = asyncio.ensure_future(outlet(piece))
    await asyncio.sleep(0)
    assert not third.done()
    outlet.leave()
    await third
    for _ in range(10):
        await outlet(piece)
    outlet.end()
    assert await outlet.read() == ()


async def test_stopping_answers_those_who_wait_and_takes_no_more():
    ended = []

    async def forever():
        await asyncio.Event().wait()

    async def refused():
        raise NotFound("cannot find it")

    async with Bursts() as bursts:
        started = bursts.start(forever, ended=lambda: ended.append("started"))
        failed = bursts.start(refused, ended=lambda: ended.append("failed"))
        with pytest.raises(NotFound):
            await asyncio.shield(failed)
        unstarted = bursts.start(forever, ended=lambda: ended.append("unstarted"))
        bursts.stop()
        for outcome in (started, unstarted):
            with pytest.raises(Unavailable):
                await outcome
        with pytest.raises(TorporError, match="the server is stopping"):
            bursts.start(forever, ended=lambda: None)
    assert ended[0] == "failed"
    assert sorted(ended[1:]) == ["started", "unstarted"]
