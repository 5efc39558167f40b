"""Any cut of a stream gives the same events; nothing that is damaged is ever taken for a frame; nothing grows."""

import contextlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor_wire import (
    BULK,
    BULK_PAYLOAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PLAIN,
    WINDOW_BYTES,
    Assembler,
    BadMessage,
    Connection,
    DataChannel,
    Decoder,
    Frame,
    FrameType,
    Gap,
    SendWindow,
    Skipped,
    agreed,
    cut,
    encode,
    unpack,
)

calm = settings(deadline=None)
SPECIAL = [b"\xfe", b"\xfd", b"\x01", b"\x02", b"TPW", b"x", b"\xfeTP", b"\0"]
frames = st.builds(
    Frame,
    type=st.sampled_from(FrameType),
    id=st.integers(0, 2**64 - 1),
    payload=st.one_of(
        st.binary(max_size=300),
        st.lists(
            st.sampled_from([b"\xfe", b"\xfd", b"\x01", b"\x02", b"TPW", b"x", b"\xfeTP", b"\0"]), max_size=60
        ).map(b"".join),
    ),
    channel=st.sampled_from(DataChannel),
    more=st.booleans(),
)
noise = st.one_of(
    st.binary(max_size=80),
    st.lists(
        st.sampled_from([b"\xfe", b"\xfd\x01", b"\xfd", b"\xfeTPW\0", b"\xfeTPW\1", b"\xfeTP\0", b"\xfeTP", b"W"])
    ).map(b"".join),
)
bulk = st.booleans()
encoded = st.builds(lambda frame, bulk: encode(frame, 7, bulk=bulk), frames, bulk)


def pieces_of(data, cuts):
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def received(data, cuts=()):
    decoder = Decoder()
    return [event for piece in pieces_of(data, cuts) for event in decoder.receive_data(piece)]


def held_bytes(decoder):
    return decoder.held_bytes


@calm
@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_what_is_sent_is_received_however_it_is_cut(sent, cuts):
    sender, receiver = Connection(), Connection()
    data = b"".join(sender.send(frame) for frame in sent)
    events = [event for piece in pieces_of(data, cuts) for event in receiver.receive_data(piece)]
    assert events == sent


@calm
@given(
    st.lists(st.one_of(noise, encoded), max_size=8),
    st.lists(st.integers(0, 10**6)),
)
def test_any_cut_of_any_bytes_gives_the_same_events(parts, cuts):
    data = b"".join(parts)
    assert received(data, cuts) == received(data)
    assert received(data, range(len(data))) == received(data)


@calm
@given(frames, frames, bulk, st.data())
def test_a_frame_that_was_cut_short_costs_nothing_but_itself(first, second, bulk, data):
    whole = encode(first, 0, bulk=bulk)
    kept = data.draw(st.integers(1, len(whole) - 1))
    events = received(whole[:kept] + encode(second, 1))
    assert events[-1] == (second, 1)
    assert [event for event in events if isinstance(event, tuple)] == [(second, 1)]
    assert isinstance(events[0], Skipped)


@calm
@given(frames, frames, bulk, st.data())
def test_a_flipped_bit_is_never_a_frame_and_the_next_one_is_found(first, second, bulk, data):
    damaged = bytearray(encode(first, 0, bulk=bulk))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    events = received(bytes(damaged) + encode(second, 1))
    assert any(isinstance(event, Skipped) for event in events)
    accepted = [event for event in events if isinstance(event, tuple)]
    # A flipped partner of an escape that is the last byte leaves the payload what it was.
    assert accepted in ([(second, 1)], [(first, 0), (second, 1)])


@calm
@given(frames, frames, bulk, bulk)
def test_a_frame_inside_a_payload_is_payload(inner, outer, bulk_inside, bulk):
    carrying = Frame(FrameType.DATA, 1, encode(inner, 3, bulk=bulk_inside)[:PAYLOAD_BYTES_MAX])
    data = encode(carrying, 0, bulk=bulk)
    assert data.count(b"\xfeTPW") == 1
    assert received(data) == [(carrying, 0)]
    torn = [event for event in received(data[: len(data) - 1] + encode(outer, 1)) if isinstance(event, tuple)]
    assert torn == [(outer, 1)]


@calm
@given(st.lists(frames, max_size=4), st.lists(st.integers(0, 10**6), max_size=12))
def test_bulk_frames_carry_what_plain_ones_do(sent, cuts):
    data = b"".join(encode(frame, number, bulk=True) for number, frame in enumerate(sent))
    assert received(data, cuts) == [(frame, number) for number, frame in enumerate(sent)]


@pytest.mark.parametrize("piece", [b"\xfeTP", b"\xfe", b"\xfeTPW", b"\xfeTP\0", b"\xfeT"])
def test_a_bulk_payload_of_nothing_but_guards_is_received(piece):
    frame = Frame(FrameType.DATA, 1, (piece * BULK_PAYLOAD_BYTES_MAX)[:BULK_PAYLOAD_BYTES_MAX], DataChannel.STDOUT)
    data = encode(frame, 0, bulk=True)
    assert received(data) == [(frame, 0)]
    assert received(data[:-1] + encode(frame, 1, bulk=True))[-1] == (frame, 1)


def test_only_large_data_is_sent_in_bulk_and_only_to_a_peer_that_offered_it():
    sender = Connection()
    large, small = Frame(FrameType.DATA, 1, bytes(5000)), Frame(FrameType.DATA, 1, bytes(50))
    assert [sender.send(frame)[4] for frame in (large, small)] == [0, 0]
    sender.bulk = True
    result = Frame(FrameType.RESULT, 1, bytes(5000))
    assert [sender.send(frame)[4] for frame in (large, small, result)] == [1, 0, 0]


def test_limits_are_the_smaller_offer_and_never_below_those_of_the_first_agents():
    assert agreed({}) is PLAIN
    assert agreed({"bulk": {"payload_bytes": 2**40, "window_bytes": 2**40}}) == BULK
    small = agreed({"bulk": {"payload_bytes": 1, "window_bytes": 1}})
    assert (small.payload_bytes, small.window_bytes, small.bulk) == (PAYLOAD_BYTES_MAX, WINDOW_BYTES, True)
    with pytest.raises(BadMessage, match="window_bytes"):
        agreed({"bulk": {"payload_bytes": 1}})


@calm
@given(st.lists(st.one_of(st.binary(max_size=400), noise), max_size=10))
def test_a_receiver_holds_at_most_one_frame(parts):
    decoder = Decoder()
    for part in parts:
        decoder.receive_data(part)
        assert held_bytes(decoder) <= 32 + BULK_PAYLOAD_BYTES_MAX + len(part)


def test_a_length_beyond_the_limit_is_refused_before_anything_is_held():
    header = bytearray(encode(Frame(FrameType.DATA, 1, b"x"), 0))
    events = received(bytes(header[:20]) + b"\xff" * 5_000_000 + encode(Frame(FrameType.END, 2), 1))
    assert events[-1] == (Frame(FrameType.END, 2), 1)
    assert len(events) == 2


@calm
@given(st.lists(frames, min_size=3, max_size=8), st.data())
def test_a_missing_frame_is_a_gap(sent, data):
    sent = [
        Frame(FrameType.HELLO),
        *(frame for frame in sent if frame.type not in {FrameType.HELLO, FrameType.WELCOME}),
    ]
    if len(sent) < 3:
        return
    sender, receiver = Connection(), Connection()
    encoded = [sender.send(frame) for frame in sent]
    lost = data.draw(st.integers(1, len(sent) - 2))
    events = receiver.receive_data(b"".join(encoded[:lost] + encoded[lost + 1 :]))
    assert events == [*sent[:lost], Gap(lost, lost + 1), *sent[lost + 1 :]]


def test_a_greeting_restarts_the_sequence():
    sender, receiver = Connection(), Connection()
    receiver.receive_data(sender.send(Frame(FrameType.HELLO)) + sender.send(Frame(FrameType.END, 5)))
    restarted = Connection()
    hello, end = Frame(FrameType.HELLO), Frame(FrameType.END, 6)
    assert receiver.receive_data(restarted.send(hello) + restarted.send(end)) == [hello, end]


@calm
@given(st.integers(0, 5), st.binary(max_size=10), st.integers(-1, 1))
def test_a_message_of_any_length_is_cut_and_joined(count, tail, around):
    payload = (b"p" * max(0, count * PAYLOAD_BYTES_MAX + around)) + tail
    assembler = Assembler()
    parts = list(cut(FrameType.RESULT, 9, payload))
    messages = [assembler.add(part) for part in parts]
    assert messages[:-1] == [None] * (len(parts) - 1)
    assert messages[-1].payload == payload
    assert assembler._held_bytes == 0


def test_a_message_without_end_is_dropped_whole_and_said():
    assembler = Assembler()
    piece = Frame(FrameType.RESULT, 1, b"x" * PAYLOAD_BYTES_MAX, more=True)
    for _ in range(2 * MESSAGE_BYTES_MAX // PAYLOAD_BYTES_MAX):
        assert assembler.add(piece) is None
        assert assembler._held_bytes <= MESSAGE_BYTES_MAX
    assert assembler.add(Frame(FrameType.RESULT, 1, b"end")).payload is None
    assert assembler._held_bytes == 0


def test_unfinished_messages_are_bounded_together():
    assembler = Assembler()
    for frame_id in range(2000):
        assembler.add(Frame(FrameType.RESULT, frame_id, b"x" * PAYLOAD_BYTES_MAX, more=True))
    assert assembler._held_bytes <= 2 * MESSAGE_BYTES_MAX


@calm
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode),
    )
)
def test_a_control_payload_is_an_object_or_a_bad_message(payload):
    with contextlib.suppress(BadMessage):
        assert isinstance(unpack(payload), dict)


@given(st.lists(st.tuples(st.booleans(), st.integers(-10, 2 * WINDOW_BYTES)), max_size=40))
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
def test_a_window_is_never_overdrawn_whatever_is_acknowledged(steps):
    window, sent, acknowledged = SendWindow(), 0, 0
    for is_send, number in steps:
        if is_send:
            count = max(0, min(number, window.room_bytes))
            window.sent(count)
            sent += count
        else:
            news = window.acknowledged(number)
            assert news == (acknowledged < number <= sent)
            acknowledged = number if news else acknowledged
        assert window.room_bytes == WINDOW_BYTES - (sent - acknowledged)
