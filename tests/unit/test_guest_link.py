"""The host believes nothing that a guest sends, and writes nothing while the guest is parked."""

import asyncio

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.guest import FramedDialer
from torpor.domain.errors import Conflict, DeadlineExceeded, GuestError
from torpor.domain.ids import InstanceId
from torpor.ports.guest import Cause
from torpor.testing.contracts.guest import Collected, notice
from torpor_wire import WINDOW_BYTES, Connection, DataChannel, Frame, FrameType, pack, unpack

WELCOME = {
    "agent_version": "x", "protocol": 0, "pid": 1, "python": "3", "contexts": [], "generation": 0, "id_floor": 100,
}  # fmt: skip


class Scripted:
    """A channel to a guest that answers each request by a script: a function of (frame, send)."""

    def __init__(self, script, *, greets=True):
        self.script, self.greets = script, greets
        self.host, self.guest = Connection(), Connection()
        self.unread = asyncio.Queue()
        self.seen = []

    def send(self, frame_type, frame_id, fields=None, **more):
        payload = more.pop("payload", pack(fields or {}))
        self.unread.put_nowait(self.guest.send(Frame(frame_type, frame_id, payload, **more)))

    async def read(self, _count_max):
        return await self.unread.get()

    async def write(self, data):
        for frame in self.host.receive_data(data):
            self.seen.append(frame)
            if frame.type is FrameType.HELLO and self.greets:
                self.send(FrameType.WELCOME, 0, {**WELCOME, "nonce": unpack(frame.payload)["nonce"]})
            else:
                self.script(frame, self)

    async def close(self):
        self.unread.put_nowait(b"")


def connect(script, **more):
    channel = Scripted(script, **more)
    return FramedDialer(SystemClock()).connect(InstanceId("0" * 20), channel), channel


def on_end(answer):
    """A script that answers at the end of a request's body."""

    def script(frame, channel):
        if frame.type is FrameType.END:
            answer(frame.id, channel)

    return script


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"cpu_s": "much"},
        {"cpu_s": True},
        {"cpu_s": None},
    ],
)
async def test_an_answer_of_the_wrong_shape_is_a_guest_error(answer):
    guest, _ = connect(on_end(lambda frame_id, channel: channel.send(FrameType.RESULT, frame_id, answer)))
    with pytest.raises(GuestError, match="cannot understand the guest"):
        await guest.cpu_s()
    await guest.close()


@pytest.mark.parametrize("payload", [b"not json", b"[]", b'{"code":1,"message":"x"}', b"\xff\xfe\xfd"])
async def test_an_error_that_does_not_parse_is_a_guest_error(payload):
    guest, _ = connect(on_end(lambda frame_id, channel: channel.send(FrameType.ERROR, frame_id, payload=payload)))
    with pytest.raises(GuestError):
        await guest.cpu_s()
    await guest.close()


async def test_an_error_code_that_guests_do_not_own_is_a_guest_error():
    fields = {"code": "key_destroyed", "message": "believe me", "details": {"message": "x"}}
    guest, _ = connect(on_end(lambda frame_id, channel: channel.send(FrameType.ERROR, frame_id, fields)))
    with pytest.raises(GuestError, match="believe me"):
        await guest.cpu_s()
    await guest.close()


@pytest.mark.parametrize("details", [{"self": 1}, {"message": "?"}, {"code": 2}, {"retry_after_s": "never"}])
async def test_no_detail_of_a_guests_error_is_taken_for_ours(details):
    error = {"code": "conflict", "message": "no", "details": {"path": "/x", **details}}
    guest, _ = connect(on_end(lambda frame_id, channel: channel.send(FrameType.ERROR, frame_id, error)))
    with pytest.raises(Conflict) as failure:
        await guest.code("1")
    assert (failure.value.message, failure.value.details["path"]) == ("no", "/x")
    assert "retry_after_s" not in failure.value.details
    await guest.close()


@pytest.mark.parametrize("said", [b"<b>", b"[" * 60_000, b"\xff"])
async def test_a_display_that_is_not_json_is_a_guest_error(said):
    def answer(frame_id, channel):
        channel.send(FrameType.DATA, frame_id, payload=said, channel=DataChannel.DISPLAY)

    guest, _ = connect(on_end(answer))
    with pytest.raises(GuestError, match="not JSON"):
        await guest.code("1", on_output=Collected())
    await guest.close()


async def test_output_beyond_the_credit_ends_the_call():
    def flood(frame_id, channel):
        for _ in range(WINDOW_BYTES // 65536 + 1):
            channel.send(FrameType.DATA, frame_id, payload=b"x" * 65536, channel=DataChannel.STDOUT)

    guest, _ = connect(on_end(flood))

    async def stuck(_):
        await asyncio.sleep(0)

    with pytest.raises(GuestError, match="credit"):
        await guest.code("x", on_output=stuck)
    await guest.close()


async def test_a_damaged_stream_fails_what_is_open_and_the_next_call_greets_anew():
    damage = [b"\xfegarbage that is no frame"]

    def answer(frame_id, channel):
        if damage:
            channel.unread.put_nowait(damage.pop())
            channel.send(FrameType.DATA, frame_id, payload=b"x", channel=DataChannel.STDOUT)
        else:
            channel.send(FrameType.RESULT, frame_id, {"cpu_s": 1})

    guest, channel = connect(on_end(answer))
    with pytest.raises(GuestError, match="damaged"):
        await guest.cpu_s()
    assert await guest.cpu_s() == 1
    assert [frame.type for frame in channel.seen].count(FrameType.HELLO) == 2
    await guest.close()


async def test_ids_begin_above_what_the_guest_has_seen():
    guest, channel = connect(on_end(lambda frame_id, channel: channel.send(FrameType.RESULT, frame_id, {"cpu_s": 1})))
    await guest.cpu_s()
    assert {frame.id for frame in channel.seen if frame.type is FrameType.REQUEST} == {101}
    await guest.close()


async def test_an_answer_to_an_earlier_host_is_not_taken_for_ours():
    def script(frame, channel):
        if frame.type is FrameType.HELLO:
            channel.send(FrameType.WELCOME, 0, {**WELCOME, "nonce": 1, "generation": 5})
            channel.send(FrameType.WELCOME, 0, {**WELCOME, "nonce": unpack(frame.payload)["nonce"], "generation": 6})

    guest, _ = connect(script, greets=False)
    assert (await guest.hello()).generation == 6
    await guest.close()


async def test_nothing_is_written_between_quiesce_and_proceed():
    def script(frame, channel):
        if frame.type is FrameType.QUIESCE:
            channel.send(FrameType.QUIESCED, frame.id, {"took_ms": 1, "stopped_count": 2, "unparked": [3]})
        elif frame.type is FrameType.RESUMED:
            ready = {"generation": 0, "steps_ms": {"a": 1}, "reseeded": [], "dropped": [], "clock_skew_ms": 0}
            channel.send(FrameType.READY, frame.id, ready)
        elif frame.type is FrameType.END and channel.seen[-2].type is FrameType.REQUEST:
            channel.send(FrameType.RESULT, frame.id, {"cpu_s": 1})

    guest, channel = connect(script)
    report = await guest.quiesce()
    assert (report.stopped_count, report.unparked) == (2, (3,))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(guest.cpu_s())
        for _ in range(20):
            await asyncio.sleep(0)
        assert channel.seen[-1].type is FrameType.QUIESCE
        await guest.proceed(notice(1, Cause.ABORTED))
    assert waiting.result() == 1
    order = [frame.type for frame in channel.seen]
    assert order[order.index(FrameType.QUIESCE) + 1] is FrameType.RESUMED
    await guest.close()


async def test_a_guest_that_does_not_quiesce_in_time_may_be_let_go():
    answered = []

    def script(frame, channel):
        answered.append(frame.type)
        if frame.type is FrameType.RESUMED:
            ready = {"generation": 0, "steps_ms": {}, "reseeded": [], "dropped": [], "clock_skew_ms": 0}
            channel.send(FrameType.READY, frame.id, ready)

    guest, _ = connect(script)
    with pytest.raises(DeadlineExceeded):
        await guest.quiesce(timeout_s=0.05)
    await guest.proceed(notice(1, Cause.ABORTED))
    assert answered == [FrameType.QUIESCE, FrameType.RESUMED]
    await guest.close()


async def test_a_guest_at_another_generation_than_it_was_told_is_an_error():
    def script(frame, channel):
        if frame.type is FrameType.RESUMED:
            ready = {"generation": 4, "steps_ms": {}, "reseeded": [], "dropped": [], "clock_skew_ms": 0}
            channel.send(FrameType.READY, frame.id, ready)

    guest, _ = connect(script)
    with pytest.raises(GuestError, match="generation 4, not 5"):
        await guest.proceed(notice(5))
    await guest.close()


async def test_display_data_of_many_frames_arrives_whole():
    def answer(frame_id, channel):
        for more, piece in ((True, b'"' + b"{" * 65535), (True, b"x"), (False, b'"')):
            channel.send(FrameType.DATA, frame_id, payload=piece, channel=DataChannel.DISPLAY, more=more)
        channel.send(FrameType.RESULT, frame_id, {"dropped_bytes": 0})

    guest, _ = connect(on_end(answer))
    collected = Collected()
    await guest.code("x", on_output=collected)
    assert [output.data for output in collected.outputs] == [b'"' + b"{" * 65535 + b'x"']
    await guest.close()
