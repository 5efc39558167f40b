"""What a real guest promises beside bursts: processes, terminals, files, forwards, logs, activity. As tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest

from torpor.domain.errors import Conflict, GuestError, InvalidArgument, NotFound
from torpor.ports.guest import (
    Cause,
    FileChange,
    FileKind,
    Forward,
    Guest,
    OutputLost,
    ProcessEvent,
    ProcessExited,
    ProcessOutput,
    ProcessSpec,
    StreamKind,
    TerminalSize,
)
from torpor.testing.contracts.guest_channel import Collected, GuestStation, notice, pieces, whole

Item = TypeVar("Item")
SERVER = """
import socket, threading
server = socket.create_server(('127.0.0.1', 0))
def serve(client):
    while data := client.recv(65536): client.sendall(data)
    client.sendall(b'<end>'); client.close()
def accept():
    while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
server.getsockname()[1]
"""


async def until(stream: AsyncGenerator[Item, None], is_last: Callable[[list[Item]], bool]) -> list[Item]:
    """Items up to the one that completes what is waited for; then the stream is closed."""
    items: list[Item] = []
    async with aclosing(stream):
        async for item in stream:
            items.append(item)
            if is_last(items):
                break
    return items


def output_of(events: list[ProcessEvent], stream: StreamKind = StreamKind.STDOUT) -> bytes:
    """All of one stream, joined."""
    return b"".join(event.data for event in events if isinstance(event, ProcessOutput) and event.stream is stream)


def says(text: bytes) -> Callable[[list[ProcessEvent]], bool]:
    """True once the output holds ``text``."""
    return lambda events: text in output_of(events)


def never(_: object) -> bool:
    """To the end of the stream."""
    return False


async def everything(forward: Forward) -> bytes:
    """All that a forward gives."""
    got = b""
    while data := await forward.read():
        got += data
    return got


class WholeGuestContract:
    """Mix into GuestContract."""

    FOLDER = ""
    may_change_user = True

    async def test_a_started_process_is_followed_to_its_end_in_order(self, guest: Guest) -> None:
        script = "echo out; echo err >&2; cat; exit 3"
        info = await guest.start(ProcessSpec(argv=("sh", "-c", script), stdin=b"in"))
        events = await until(guest.attach(info.pid), never)
        assert output_of(events) == b"out\nin"
        assert output_of(events, StreamKind.STDERR) == b"err\n"
        assert events[-1] == ProcessExited(len(b"out\nerr\nin"), 3)
        (after,) = [row for row in await guest.processes() if row.pid == info.pid]
        assert (after.running, after.exit_code, after.sequence) == (False, 3, 10)

    async def test_many_readers_get_the_same_and_one_may_come_back_from_where_it_was(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("sh", "-c", "echo one; read x; echo two")), keep_stdin=True)
        first = await until(guest.attach(info.pid), says(b"one\n"))
        late = asyncio.ensure_future(until(guest.attach(info.pid, from_sequence=len(output_of(first))), never))
        other = asyncio.ensure_future(until(guest.attach(info.pid, from_sequence=1), never))
        await guest.send_input(info.pid, pieces(b"go\n"))
        assert output_of(await late) == b"two\n"
        assert output_of(await other) == b"ne\ntwo\n"
        with pytest.raises(InvalidArgument, match="sequence"):
            await until(guest.attach(info.pid, from_sequence=1000), never)

    async def test_what_is_kept_no_more_is_told_and_the_rest_has_no_hole(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("sh", "-c", "seq 400000")))
        await until(guest.attach(info.pid), never)
        events = await until(guest.attach(info.pid), never)
        lost = [event for event in events if isinstance(event, OutputLost)]
        assert [event.sequence for event in lost] == [0]
        whole_output = b"".join(b"%d\n" % n for n in range(1, 400_001))
        assert output_of(events) == whole_output[lost[0].count_bytes :]
        assert events[-1] == ProcessExited(len(whole_output), 0)

    async def test_an_abandoned_reader_never_holds_up_a_process(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("head", "-c", "9000000", "/dev/zero")))
        stalled = guest.attach(info.pid)
        await anext(stalled)
        events = await until(guest.attach(info.pid), never)
        assert events[-1] == ProcessExited(9_000_000, 0)
        await stalled.aclose()

    async def test_input_is_streamed_and_closed(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("wc", "-c")), keep_stdin=True)
        assert await guest.send_input(info.pid, pieces(b"x" * 1_000_000)) == 1_000_000
        assert await guest.send_input(info.pid, pieces(b"yz"), close=True) == 2
        assert output_of(await until(guest.attach(info.pid), never)).split() == [b"1000002"]
        with pytest.raises(Conflict):
            await guest.send_input(info.pid, pieces(b"more"))

    async def test_a_pid_that_was_not_started_is_not_found(self, guest: Guest) -> None:
        for call in (guest.send_input(1, pieces(b"")), guest.resize(1, TerminalSize()), anext(guest.attach(1))):
            with pytest.raises(NotFound):
                await call

    async def test_a_terminal_echoes_resizes_interrupts_and_ends(self, guest: Guest) -> None:
        shell = ProcessSpec(argv=("sh",), env={"PS1": "$ ", "HOME": "/nowhere"})
        info = await guest.start(shell, terminal=TerminalSize(columns=91, rows=17))
        assert info.terminal
        await guest.send_input(info.pid, pieces(b"tty -s && stty size; echo o'k'\n"))
        assert b"17 91" in output_of(await until(guest.attach(info.pid), says(b"ok\r\n")))
        await guest.resize(info.pid, TerminalSize(columns=120, rows=40))
        await guest.send_input(info.pid, pieces(b"stty size\n"))
        await until(guest.attach(info.pid), says(b"40 120\r\n"))
        # The command's own word, not its echo: an interrupt before it runs would only meet the shell that starts it.
        await guest.send_input(info.pid, pieces(b"(echo run'ning'; exec sleep 300)\n"))
        await until(guest.attach(info.pid), says(b"running\r\n"))
        await guest.send_input(info.pid, pieces(b"\x03"))
        await guest.send_input(info.pid, pieces(b"echo ag'ain'\n"))
        await until(guest.attach(info.pid), says(b"again\r\n"))
        await guest.send_input(info.pid, pieces(b""), close=True)
        events = await until(guest.attach(info.pid), never)
        assert isinstance(events[-1], ProcessExited)
        with pytest.raises(InvalidArgument):
            await guest.resize(info.pid, TerminalSize(columns=0, rows=1))

    async def test_a_terminal_of_a_missing_program_or_user_is_refused(self, guest: Guest) -> None:
        with pytest.raises(NotFound, match="no-such-program"):
            await guest.start(ProcessSpec(argv=("no-such-program",)), terminal=TerminalSize())
        with pytest.raises(InvalidArgument, match="no such user"):
            await guest.start(ProcessSpec(argv=("sh",), user="4242424"), terminal=TerminalSize())

    async def test_a_user_may_be_given_by_number_also_on_a_terminal(self, guest: Guest) -> None:
        if not self.may_change_user:
            return
        for size in (None, TerminalSize()):
            spec = ProcessSpec(argv=("sh", "-c", "id -un"), user="65534", cwd="/")
            info = await guest.start(spec, terminal=size)
            assert output_of(await until(guest.attach(info.pid), never)).split() == [b"nobody"]

    async def test_a_signal_may_go_to_a_whole_group(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("sh", "-c", "sleep 300 & echo up; wait; echo never")))
        await until(guest.attach(info.pid), says(b"up\n"))
        await guest.signal(info.pid, 9, group=True)
        events = await until(guest.attach(info.pid), never)
        assert events[-1] == ProcessExited(3, -9)
        async with asyncio.timeout(30):
            with contextlib.suppress(NotFound):
                while True:  # what the leader started ends a moment after it
                    await guest.signal(info.pid, 0, group=True)
                    await asyncio.sleep(0.01)

    async def test_the_log_tells_of_the_agent_and_of_processes_and_can_be_followed(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("sh", "-c", "echo logged; read x; echo later")), keep_stdin=True)
        source = str(info.pid)
        following = guest.logs(source=source, follow=True)
        first = await anext(following)
        assert (first.source, first.sequence, first.data) == (source, 0, b"logged\n")
        await guest.send_input(info.pid, pieces(b"\n"))
        assert (await anext(following)).data == b"later\n"
        await following.aclose()
        await until(guest.attach(info.pid), never)
        said = [entry async for entry in guest.logs()]
        agent = b"".join(entry.data for entry in said if entry.source == "agent").decode()
        assert f"started 'sh' as pid {source}" in agent
        assert f"pid {source} ended with exit code 0" in agent
        assert sorted(said, key=lambda entry: entry.at_s) == said
        with pytest.raises(NotFound):
            await anext(guest.logs(source="0"))

    async def test_a_forward_carries_both_ways_and_half_closes(self, guest: Guest) -> None:
        port = int((await guest.code(SERVER)).result["text/plain"])  # type: ignore[index]
        forward = await guest.forward(port)
        data = bytes(range(256)) * 8_000
        reading = asyncio.ensure_future(everything(forward))
        await forward.write(data)
        await forward.close_write()
        assert await reading == data + b"<end>"
        await forward.close()

    async def test_many_forwards_go_on_at_once(self, guest: Guest) -> None:
        port = int((await guest.code(SERVER)).result["text/plain"])  # type: ignore[index]
        forwards = [await guest.forward(port) for _ in range(12)]
        for number, forward in enumerate(forwards):
            await forward.write(b"%d" % number)
        for number, forward in enumerate(forwards):
            assert await forward.read() == b"%d" % number
            await forward.close()

    async def test_a_port_where_nothing_listens_is_refused(self, guest: Guest) -> None:
        with pytest.raises(NotFound, match="start the server"):
            await guest.forward(1)
        with pytest.raises(InvalidArgument):
            await guest.forward(0)

    async def test_blocked_forwards_end_with_an_error_when_the_host_goes_and_the_port_sees_its_end(
        self, station: GuestStation, guest: Guest
    ) -> None:
        source = "import socket\nstill = socket.create_server(('127.0.0.1', 0))\nstill.getsockname()[1]"
        port = int((await guest.code(source)).result["text/plain"])  # type: ignore[index]
        forward = await guest.forward(port)
        reading = asyncio.ensure_future(forward.read())
        writing = asyncio.ensure_future(_write_for_ever(forward))
        await guest.code("far, _ = still.accept()")
        second = await station.connect()
        for blocked in (reading, writing):
            with pytest.raises(GuestError):
                await blocked
        error = (await second.code("while far.recv(1 << 20): pass")).error
        assert error is None or error.name == "ConnectionResetError"
        await second.close()

    async def test_a_directory_is_made_listed_in_pages_moved_and_removed(self, guest: Guest) -> None:
        root = f"{self.FOLDER}/tree"
        assert await guest.make_directory(f"{root}/a/b", mode=0o700)
        assert not await guest.make_directory(f"{root}/a/b")
        for name in ("x", "y", "z"):
            await guest.write_file(f"{root}/{name}", pieces(name.encode() * 3), mode=0o640)
        await guest.shell(f"ln -s x {root}/link")
        first = await guest.list_files(root, limit=3)
        rest = await guest.list_files(root, limit=3, after=first.next_after)
        entries = [*first.entries, *rest.entries]
        assert [entry.path.rpartition("/")[2] for entry in entries] == ["a", "link", "x", "y", "z"]
        assert [entry.kind for entry in entries] == [FileKind.DIRECTORY, FileKind.SYMLINK, *[FileKind.FILE] * 3]
        assert (entries[1].target, entries[2].size_bytes, entries[2].mode, rest.next_after) == ("x", 3, 0o640, None)
        await guest.move_file(f"{root}/x", f"{root}/new/place")
        assert await whole(guest.read_file(f"{root}/new/place")) == b"xxx"
        with pytest.raises(NotFound):
            await guest.stat_file(f"{root}/x")
        with pytest.raises(InvalidArgument, match="not empty"):
            await guest.remove_file(root)
        await guest.remove_file(root, recursive=True)
        for refused in (guest.remove_file(root), guest.list_files(root), guest.move_file(root, f"{root}2")):
            with pytest.raises(NotFound):
                await refused

    async def test_what_is_made_belongs_to_whom_it_should(self, guest: Guest) -> None:
        if not self.may_change_user:
            return
        path = f"{self.FOLDER}/own/file"
        await guest.write_file(path, pieces(b"x"), user="nobody")
        await guest.write_file(path, pieces(b"y"))
        owners = [(await guest.stat_file(place)).owner for place in (path, path.rpartition("/")[0])]
        assert owners == ["nobody", "nobody"]
        with pytest.raises(InvalidArgument, match="no such user"):
            await guest.write_file(path, pieces(b"z"), user="nobody-at-all")

    async def test_a_watch_tells_what_happens_below_it(self, guest: Guest) -> None:
        root = f"{self.FOLDER}/watched"
        await guest.make_directory(root)
        watching = guest.watch_files(root, recursive=True)
        first = asyncio.ensure_future(anext(watching))
        while not first.done():
            await guest.shell(f"mkdir -p {root}/deep; rmdir {root}/deep")
        assert (await first).change is FileChange.CREATED
        await guest.shell(f"mkdir {root}/new; sleep 0.2; echo x > {root}/new/file; mv {root}/new/file {root}/moved")
        wanted = {
            (FileChange.WRITTEN, f"{root}/new/file"),
            (FileChange.MOVED_FROM, f"{root}/new/file"),
            (FileChange.MOVED_TO, f"{root}/moved"),
        }
        seen = await until(watching, lambda events: wanted <= {(event.change, event.path) for event in events})
        assert not [event for event in seen if event.dropped_count]
        with pytest.raises(NotFound):
            await anext(guest.watch_files(f"{root}/nowhere"))

    async def test_activity_counts_work_and_names_it(self, guest: Guest) -> None:
        before = await guest.activity()
        assert before.bursts_count == 0
        burn = "end = __import__('time').process_time() + 0.2\nwhile __import__('time').process_time() < end: pass"
        await guest.code(burn)
        after = await guest.activity()
        assert after.cpu_s - before.cpu_s > 0.1
        assert after.stream_in_bytes - before.stream_in_bytes == len(burn)
        assert after.busiest[0].cpu_s > 0.1
        idle = await guest.activity()
        # A tick may still be counted: of the end of that burst, or of a process of an earlier test that ends.
        assert idle.cpu_s - after.cpu_s < 0.1
        assert all(one.cpu_s < 0.1 for one in idle.busiest)
        streamed = (after.stream_in_bytes, after.stream_out_bytes, 0)
        assert (idle.stream_in_bytes, idle.stream_out_bytes, idle.bursts_count) == streamed
        hanging = asyncio.ensure_future(guest.code("while True: pass"))
        busy = await guest.activity()
        while not busy.bursts_count:
            busy = await guest.activity()
        await guest.interrupt()
        await hanging

    async def test_attachments_live_on_over_an_abandoned_capture(self, guest: Guest) -> None:
        info = await guest.start(ProcessSpec(argv=("sh", "-c", "read x; echo $x")), keep_stdin=True)
        following = asyncio.ensure_future(until(guest.attach(info.pid), never))
        await guest.activity()
        await guest.quiesce()
        await guest.proceed(notice(9, Cause.ABORTED))
        await guest.send_input(info.pid, pieces(b"on\n"))
        assert output_of(await following) == b"on\n"

    async def test_the_operations_are_named_and_an_unknown_one_fails_alone(self, guest: Guest) -> None:
        assert {"attach", "forward", "watch", "code"} <= set((await guest.hello()).operations)
        collected = Collected()
        await guest.shell("echo fine", on_output=collected)
        assert collected.stdout == b"fine\n"


async def _write_for_ever(forward: Forward) -> None:
    while True:
        await forward.write(b"x" * 100_000)
