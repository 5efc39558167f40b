"""Calls to a sandbox's control socket, against a socket of the test's own."""

import asyncio

import pytest

from torpor.adapters.engines.gvisor.control import CallFailed, Control
from torpor.domain.errors import EngineError


async def test_a_sandbox_that_does_not_answer_in_time_is_an_engine_error(tmp_path):
    release = asyncio.Event()

    async def mute(_reader, writer):
        await release.wait()
        writer.close()

    server = await asyncio.start_unix_server(mute, tmp_path / "s")
    with pytest.raises(EngineError, match="no answer within"):
        await Control(tmp_path / "s", timeout_s=0.05).resume()
    release.set()
    server.close()
    await server.wait_closed()


async def test_what_the_sandbox_refuses_is_told_in_its_words(tmp_path):
    async def refuse(reader, writer):
        await reader.read(100)
        writer.write(b'{"success": false, "err": "not now"}')
        writer.close()

    server = await asyncio.start_unix_server(refuse, tmp_path / "s")
    with pytest.raises(CallFailed, match="not now"):
        await Control(tmp_path / "s", timeout_s=5).pause()
    server.close()
    await server.wait_closed()


async def test_a_sandbox_that_is_gone_is_an_engine_error(tmp_path):
    with pytest.raises(EngineError, match="cannot call"):
        await Control(tmp_path / "nowhere", timeout_s=5).resume()
