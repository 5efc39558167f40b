"""What every guest promises that needs no real processes, as tests; and what such tests are written with.

Subclass GuestChannelContract and give the fixture ``station``. It speaks a language of a few phrases, so that fake
guests keep it too; a real agent keeps ``guest.GuestContract``, which adds the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from torpor.domain.errors import Conflict, GuestError, NotFound, TorporError
from torpor.ports.guest import Cause, Guest, Notice, Output, StreamKind

BIG_BYTES = 3 * 1024 * 1024 + 17  # several windows, and no whole number of frames


class GuestStation(Protocol):
    """One running guest, and the way to it."""

    async def connect(self) -> Guest:
        """A new connection, as a restarted server makes it; the earlier one is dropped without a farewell."""
        ...

    async def kill(self) -> None:
        """End the guest from outside."""
        ...


def notice(
    generation: int, cause: Cause = Cause.CREATED, *, entropy: bytes = b"e" * 32, name: str = "torpor-test"
) -> Notice:
    """What a guest is told, with defaults."""
    return Notice(
        session="s" * 20,
        generation=generation,
        cause=cause,
        clone=cause in {Cause.CREATED, Cause.FORKED},
        wall_time_s=1_700_000_000.0,
        gap_s=0.0,
        paused_at_s=None,
        entropy=entropy,
        hostname=name,
        machine_id=(name.encode().hex() + "0" * 32)[:32],
        env={"TORPOR_TEST": name},
    )


class Collected:
    """An output callback that keeps everything."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []

    async def __call__(self, output: Output) -> None:
        self.outputs.append(output)

    def of(self, stream: StreamKind) -> bytes:
        """All of one stream, joined."""
        return b"".join(output.data for output in self.outputs if output.stream is stream)

    @property
    def stdout(self) -> bytes:
        return self.of(StreamKind.STDOUT)


async def pieces(data: bytes, count: int = 70_001) -> AsyncIterator[bytes]:
    """``data`` in pieces that fit no frame."""
    for start in range(0, len(data), count):
        yield data[start : start + count]


async def whole(stream: AsyncIterator[bytes]) -> bytes:
    """All of a file."""
    return b"".join([piece async for piece in stream])


class GuestChannelContract:
    """Connections, variables, files, and the frame of the resume contract."""

    SET = "set k 41"
    GET = "get k"
    FAIL = "fail on purpose"
    HANG = "wait"
    PRINT = "print out"
    FOLDER = "/contract"

    @pytest.fixture
    async def guest(self, station: GuestStation) -> AsyncIterator[Guest]:
        guest = await station.connect()
        yield guest
        await guest.close()

    async def test_a_guest_can_be_greeted_again_and_says_the_same(self, guest: Guest) -> None:
        first = await guest.hello()
        assert await guest.hello() == first
        assert "default" in first.contexts

    async def test_a_variable_lives_from_burst_to_burst(self, guest: Guest) -> None:
        await guest.code(self.SET)
        result = await guest.code(self.GET)
        assert result.error is None
        assert result.result is not None
        assert result.result["text/plain"] == "41"

    async def test_contexts_do_not_share_variables(self, guest: Guest) -> None:
        await guest.code(self.SET)
        assert (await guest.code(self.GET, context="apart")).error is not None

    async def test_an_exception_is_a_value_and_the_context_lives_on(self, guest: Guest) -> None:
        await guest.code(self.SET)
        failed = await guest.code(self.FAIL)
        assert failed.error is not None
        assert failed.error.value == "on purpose"
        assert "on purpose" in failed.error.traceback
        assert (await guest.code(self.GET)).error is None

    async def test_output_arrives_before_the_burst_ends(self, guest: Guest) -> None:
        collected = Collected()
        await guest.code(self.PRINT, on_output=collected)
        assert collected.stdout == b"out\n"

    async def test_a_file_of_many_windows_comes_back_as_it_went(self, guest: Guest) -> None:
        data = bytes(range(256)) * (BIG_BYTES // 256) + b"\xfe\xfd" * 8
        path = f"{self.FOLDER}/new/folder/file.bin"
        assert await guest.write_file(path, pieces(data)) == len(data)
        assert await whole(guest.read_file(path)) == data

    async def test_a_missing_file_is_not_found(self, guest: Guest) -> None:
        with pytest.raises(NotFound, match="nowhere"):
            await whole(guest.read_file(f"{self.FOLDER}/nowhere"))

    async def test_a_reader_may_stop_early_and_go_on_with_other_work(self, guest: Guest) -> None:
        await guest.write_file(f"{self.FOLDER}/long", pieces(b"x" * BIG_BYTES))
        stream = guest.read_file(f"{self.FOLDER}/long")
        assert await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await guest.code(self.SET)

    async def test_a_burst_goes_on_while_others_are_answered(self, guest: Guest) -> None:
        await guest.hello()
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(guest.code(self.HANG))
            assert (await guest.code(self.SET, context="other")).error is None
            while not hanging.done():
                await guest.interrupt()
        error = hanging.result().error
        assert error is not None
        assert error.name == "KeyboardInterrupt", error

    async def test_a_new_connection_finds_what_the_old_one_left(self, station: GuestStation, guest: Guest) -> None:
        await guest.code(self.SET)
        second = await station.connect()
        result = await second.code(self.GET)
        assert result.result is not None
        assert result.result["text/plain"] == "41"
        await second.close()

    async def test_pending_calls_end_with_an_error_when_the_guest_is_gone(
        self, station: GuestStation, guest: Guest
    ) -> None:
        await guest.hello()
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(_error_of(guest.code(self.HANG)))
            await asyncio.sleep(0)
            await station.kill()
        assert isinstance(hanging.result(), GuestError)
        assert "gone" in str(hanging.result())
        with pytest.raises(GuestError):
            await guest.code(self.GET)

    async def test_closing_twice_is_harmless_and_ends_pending_calls(self, guest: Guest) -> None:
        await guest.hello()
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(_error_of(guest.code(self.HANG)))
            await asyncio.sleep(0)
            await guest.close()
        assert isinstance(hanging.result(), GuestError)
        await guest.close()

    async def test_an_abandoned_capture_goes_on_in_place(self, guest: Guest) -> None:
        generation = (await guest.hello()).generation
        await guest.code(self.SET)
        await guest.quiesce()
        ready = await guest.proceed(notice(99, Cause.ABORTED))
        assert ready.generation == generation
        assert ready.reseeded == ()
        assert (await guest.code(self.GET)).error is None

    async def test_a_burst_in_flight_survives_an_abandoned_capture(self, guest: Guest) -> None:
        await guest.hello()
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(guest.code(self.HANG))
            await guest.code(self.SET, context="other")
            await guest.quiesce()
            await guest.proceed(notice(9, Cause.ABORTED))
            while not hanging.done():
                await guest.interrupt()
        assert hanging.result().error is not None

    async def test_after_the_contract_the_guest_is_at_the_new_generation(self, guest: Guest) -> None:
        await guest.code(self.SET)
        contexts = (await guest.hello()).contexts
        await guest.quiesce()
        ready = await guest.proceed(notice(7))
        assert ready.generation == 7
        assert "default" in contexts
        assert ready.reseeded == contexts
        assert (await guest.hello()).generation == 7
        assert (await guest.code(self.GET)).error is None

    async def test_telling_a_guest_its_generation_again_does_nothing(self, guest: Guest) -> None:
        await guest.quiesce()
        await guest.proceed(notice(7))
        assert (await guest.proceed(notice(7))).reseeded == ()

    async def test_a_guest_that_was_not_quiesced_refuses_to_become_another(self, guest: Guest) -> None:
        with pytest.raises(Conflict):
            await guest.proceed(notice(8))

    async def test_a_restarted_server_can_let_a_quiesced_guest_go_on(self, station: GuestStation, guest: Guest) -> None:
        generation = (await guest.hello()).generation
        await guest.code(self.SET)
        await guest.quiesce()
        second = await station.connect()
        assert (await second.proceed(notice(99, Cause.ABORTED))).generation == generation
        assert (await second.code(self.GET)).error is None
        await second.close()


async def _error_of(call: object) -> TorporError | None:
    try:
        await call  # type: ignore[misc]
    except TorporError as error:
        return error
    return None
