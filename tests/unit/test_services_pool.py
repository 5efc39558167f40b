"""Created sandboxes ahead of need: which are kept when there are more shapes than places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torpor.adapters.entropy.seeded import SeededEntropy
from torpor.ports.engine import InstanceShape
from torpor.services.pool import Pool
from torpor.services.supervisor import Supervisor
from torpor.testing.node import PROGRAM, FakeHost, fake_engine


@pytest.fixture
def engine():
    return fake_engine(FakeHost())


@pytest.fixture
def shapes(tmp_path):
    plain = InstanceShape(rootfs=tmp_path, argv=(PROGRAM,))
    return [replace(plain, cpus=float(number)) for number in range(1, 5)]


async def test_the_shape_that_was_asked_for_longest_ago_makes_room(engine, shapes):
    async with Supervisor() as supervisor:
        pool = Pool(supervisor, SeededEntropy(1), size=1, size_total=2)
        for shape in shapes[:2]:
            pool.refill(engine, shape)
            await supervisor.settle()
        pool.refill(engine, shapes[0])  # it has one, and was asked for last
        before = pool.instances()
        pool.refill(engine, shapes[2])
        assert len(pool.instances()) == 3  # one of them goes
        await supervisor.settle()
        assert len(pool.instances()) == 2
        assert pool.instances() == frozenset(engine.host.instances)
        assert len(before & pool.instances()) == 1
        shapes_left = {engine.host.instances[instance].shape.cpus for instance in pool.instances()}
        assert shapes_left == {1.0, 3.0}
        await pool.drain()
        assert not engine.host.instances


async def test_a_shape_of_which_all_are_taken_gives_its_place_to_others(engine, shapes):
    async with Supervisor() as supervisor:
        pool = Pool(supervisor, SeededEntropy(1), size=1, size_total=1)
        pool.refill(engine, shapes[0])
        await supervisor.settle()
        claimed = await pool.claim(engine, shapes[0])
        pool.refill(engine, shapes[1])
        await supervisor.settle()
        assert claimed in engine.host.instances
        assert {engine.host.instances[instance].shape for instance in pool.instances()} == {shapes[1]}
        await pool.drain()
