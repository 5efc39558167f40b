"""The fake guest keeps the part of the guests' contract that has no processes in it."""

import asyncio

import pytest

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.guest import FramedDialer
from torpor.domain.errors import GuestError, Unsupported
from torpor.domain.ids import InstanceId
from torpor.testing.contracts.guest import GuestChannelContract, notice
from torpor.testing.fake_guest import FakeGuestProgram


class ProgramChannel:
    """A channel to a program in this process."""

    def __init__(self, station):
        self.station = station
        self.unread = bytearray()
        self.changed = asyncio.Event()
        self.closed = False

    async def read(self, count_max):
        while not self.unread and not self.closed and self.station.program:
            self.changed.clear()
            await self.changed.wait()
        data = bytes(self.unread[:count_max])
        del self.unread[:count_max]
        return data

    async def write(self, data):
        if self.closed or self.station.program is None:
            raise GuestError("cannot write: gone")
        for start in range(0, len(data), 1000):
            self.unread += self.station.program.receive(data[start : start + 1000])
        self.changed.set()

    async def close(self):
        self.closed = True
        self.changed.set()


class Station:
    def __init__(self):
        self.program = FakeGuestProgram()
        self.channel = None

    async def connect(self):
        self.channel = ProgramChannel(self)
        return FramedDialer(SystemClock()).connect(InstanceId("0" * 20), self.channel)

    async def kill(self):
        self.program = None
        self.channel.changed.set()


class TestFakeGuest(GuestChannelContract):
    @pytest.fixture
    async def station(self):
        return Station()


async def test_two_copies_of_one_memory_draw_differently_once_they_are_told_apart():
    first = Station()
    guest = await first.connect()
    await guest.code("set k 1")
    await guest.quiesce()
    image = first.program.dump()
    drawn = []
    for number in (1, 2):
        copy = Station()
        copy.program.load(image)
        clone = await copy.connect()
        await clone.proceed(notice(number, entropy=bytes([number]) * 32, name=f"clone-{number}"))
        drawn.append((await clone.code("draw")).result["text/plain"])
        assert (await clone.code("hostname")).result["text/plain"] == f"clone-{number}"
        assert (await clone.code("get k")).result["text/plain"] == "1"
        assert copy.program.filesystem["/run/torpor/generation"] == f"{number}\n".encode()
        await clone.close()
    assert drawn[0] != drawn[1]
    await guest.close()


async def test_a_guest_that_lacks_a_call_refuses_it_alone():
    guest = await Station().connect()
    for call in (guest.list_files("/"), anext(guest.attach(7)), guest.forward(80), anext(guest.watch_files("/"))):
        with pytest.raises(Unsupported):
            await call
    await guest.code("set k 1")
    assert (await guest.code("get k")).result["text/plain"] == "1"
    assert (await guest.hello()).operations == ()
    await guest.close()
