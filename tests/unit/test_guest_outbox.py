"""The agent's way out: what is small is written at once by who has it, all else by the writer, and the order holds."""

import fcntl
import os
import signal
import threading

import pytest

from torpor_guest.outbox import AT_ONCE_BYTES_MAX, Outbox
from torpor_wire import PLAIN, Connection, DataChannel, Frame, FrameType


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    yield read_fd, write_fd
    signal.signal(signal.SIGPIPE, before)


def frames_of(host: Connection, read_fd: int, count: int) -> list[Frame]:
    """The next ``count`` frames; waits for them."""
    frames: list[Frame] = []
    while len(frames) < count:
        frames += [event for event in host.receive_data(os.read(read_fd, 1 << 20)) if isinstance(event, Frame)]
    assert len(frames) == count
    return frames


def is_empty(read_fd: int) -> bool:
    os.set_blocking(read_fd, False)
    try:
        return not os.read(read_fd, 1)
    except BlockingIOError:
        return True
    finally:
        os.set_blocking(read_fd, True)


def filled(write_fd: int) -> int:
    """Fill the pipe; how many bytes that took."""
    os.set_blocking(write_fd, False)
    count = 0
    try:
        while True:
            count += os.write(write_fd, b"\0" * 4096)
    except BlockingIOError:
        return count
    finally:
        os.set_blocking(write_fd, True)


def test_small_output_and_its_answer_leave_in_the_thread_that_has_them(pipe):
    read_fd, write_fd = pipe
    outbox, host = Outbox(Connection(), write_fd), Connection()  # its writer is not even started
    stream = outbox.open(1, lossy=True)
    stream.put(DataChannel.STDOUT, b"awake\n")
    stream.finish(FrameType.RESULT, dict)
    frames = frames_of(host, read_fd, 2)
    assert [frame.type for frame in frames] == [FrameType.DATA, FrameType.RESULT]
    assert frames[0].payload == b"awake\n"


def test_what_is_large_and_what_follows_it_is_left_to_the_writer(pipe):
    read_fd, write_fd = pipe
    outbox, host = Outbox(Connection(), write_fd), Connection()
    stream = outbox.open(1, lossy=True)
    large = os.urandom(AT_ONCE_BYTES_MAX)
    stream.put(DataChannel.STDOUT, large)
    stream.put(DataChannel.STDOUT, b"after")
    assert is_empty(read_fd)
    outbox.start()
    stream.finish(FrameType.RESULT, dict)
    frames = frames_of(host, read_fd, 3)
    assert [bytes(frame.payload) for frame in frames[:2]] == [large, b"after"]
    assert frames[2].type is FrameType.RESULT


def test_nobody_waits_for_a_full_pipe_but_the_writer(pipe):
    read_fd, write_fd = pipe
    outbox, host = Outbox(Connection(), write_fd), Connection()
    filling = filled(write_fd)
    stream = outbox.open(1, lossy=True)
    stream.put(DataChannel.STDOUT, b"one")
    stream.put(DataChannel.STDOUT, b"two")
    outbox.start()
    while filling:
        filling -= len(os.read(read_fd, filling))
    assert [bytes(frame.payload) for frame in frames_of(host, read_fd, 2)] == [b"one", b"two"]


def test_a_host_that_has_gone_and_come_back_gets_what_was_to_leave_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    read_fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_fd = os.open(fifo, os.O_WRONLY)
    outbox, host = Outbox(Connection(), write_fd), Connection()
    os.close(read_fd)
    stream = outbox.open(1, lossy=True)
    stream.put(DataChannel.STDOUT, b"one")
    stream.put(DataChannel.STDOUT, b"two")
    read_fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(read_fd, True)
    outbox.start()
    assert [bytes(frame.payload) for frame in frames_of(host, read_fd, 2)] == [b"one", b"two"]
    signal.signal(signal.SIGPIPE, before)


def test_while_held_nothing_leaves_and_the_release_comes_first(pipe):
    read_fd, write_fd = pipe
    outbox, host = Outbox(Connection(), write_fd), Connection()
    outbox.start()
    stream = outbox.open(1, lossy=True)
    outbox.hold(FrameType.QUIESCED, 2, {})
    assert frames_of(host, read_fd, 1)[0].type is FrameType.QUIESCED
    stream.put(DataChannel.STDOUT, b"later")
    assert is_empty(read_fd)
    outbox.release(FrameType.READY, 3, {})
    assert [frame.type for frame in frames_of(host, read_fd, 2)] == [FrameType.READY, FrameType.DATA]


def test_a_greeting_is_the_writers_since_frames_change_their_form_with_it(pipe):
    read_fd, write_fd = pipe
    outbox = Outbox(Connection(), write_fd)
    outbox.greet({"nonce": 1}, PLAIN)
    assert is_empty(read_fd)
    outbox.start()
    assert frames_of(Connection(), read_fd, 1)[0].type is FrameType.WELCOME


def test_many_threads_write_whole_frames(pipe):
    read_fd, write_fd = pipe
    outbox, host = Outbox(Connection(), write_fd), Connection()
    outbox.start()
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 4096)
    streams = [outbox.open(number, lossy=True) for number in range(1, 9)]

    def write(stream):
        for number in range(50):
            stream.put(DataChannel.STDOUT, b"%d," % number)
        stream.finish(FrameType.RESULT, dict)

    for stream in streams:
        threading.Thread(target=write, args=(stream,)).start()
    said: dict[int, bytes] = {}
    open_ids = {stream.id for stream in streams}
    while open_ids:
        for event in host.receive_data(os.read(read_fd, 1 << 16)):
            assert isinstance(event, Frame), event
            if event.type is FrameType.RESULT:
                open_ids.discard(event.id)
            else:
                said[event.id] = said.get(event.id, b"") + bytes(event.payload)
    assert set(said.values()) == {b"".join(b"%d," % number for number in range(50))}
