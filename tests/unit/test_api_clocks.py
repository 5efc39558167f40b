"""Clocks, snapshots and forks over HTTP, and by the client."""

from __future__ import annotations

import pytest

import torpor

KEY = "a-key-of-more-than-20-characters"


async def test_a_session_has_the_stated_clocks_unless_told_otherwise(api):
    said = (await api.client.post("/v1/sessions", json={"name": "one"})).json()
    assert said["clocks"] == {
        "idle_s": 30.0,
        "timeout_s": None,
        "timeout_action": "pause",
        "retention_s": 30 * 24 * 3600.0,
        "on_resume": "resume",
    }
    assert (said["hard_deadline_at"], said["expires_at"], said["timeline"]) == (None, None, [])
    body = {"idle_s": None, "timeout_s": 600, "timeout_action": "kill", "ttl_s": 60, "retention_s": 7}
    said = (await api.client.post("/v1/sessions", json=body)).json()
    assert said["clocks"] == {
        "idle_s": None, "timeout_s": 600, "timeout_action": "kill", "retention_s": 7, "on_resume": "resume",
    }  # fmt: skip
    assert said["hard_deadline_at"] == "2026-09-21T14:14:20.000Z"


async def test_a_change_of_clocks_is_of_those_that_are_named(api):
    await api.client.post("/v1/sessions", json={"name": "one", "ttl_s": 60, "timeout_s": 5})
    said = (await api.client.patch("/v1/sessions/one/clocks", json={"idle_s": 90, "ttl_s": None})).json()
    assert (said["clocks"]["idle_s"], said["clocks"]["timeout_s"], said["hard_deadline_at"]) == (90, 5, None)


@pytest.mark.parametrize("clock", ["idle_s", "timeout_s", "ttl_s", "retention_s"])
async def test_a_clock_that_makes_no_sense_is_named(api, clock):
    await api.client.post("/v1/sessions", json={"name": "one"})
    for value in (0, -1, 1e12, "10"):
        answer = await api.client.patch("/v1/sessions/one/clocks", json={clock: value})
        assert (answer.status_code, answer.json()["details"]["field"]) == (422, clock)


async def test_inspecting_says_what_keeps_a_session_awake(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    assert (await api.client.get("/v1/sessions/one")).json()["awake_because"] == ["a burst is in flight"]
    await api.client.post("/v1/sessions/one/pause")
    said = (await api.client.get("/v1/sessions/one")).json()
    assert said["awake_because"] == []
    assert said["expires_at"] == "2026-10-21T13:13:20.000Z"


async def test_caps_may_be_other_than_the_templates_but_for_the_disk(api):
    answer = await api.client.post("/v1/sessions", json={"cpus": 0.5, "memory_bytes": 2 << 30, "disk_bytes": 1 << 30})
    assert answer.status_code == 201
    assert answer.json()["limits"] == {"cpus": 0.5, "memory_bytes": 2 << 30, "disk_bytes": 1 << 30, "pids_max": 512}
    answer = await api.client.post("/v1/sessions", json={"disk_bytes": 2 << 30})
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
    assert answer.json()["details"] == {"field": "disk_bytes", "offered": 1 << 30}
    answer = await api.client.post("/v1/sessions", json={"memory_bytes": 4096})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")
    assert answer.json()["details"]["field"] == "memory_bytes"


def test_a_client_forks_snapshots_and_sets_clocks(served):
    with torpor.Client(served.url, KEY) as client:
        session = client.session("one", idle_s=None)
        assert session.info.raw["clocks"]["idle_s"] is None
        assert session.snapshot().raw["snapshot"]["sequence"] == 1
        one, two = session.fork(2)
        assert (one.info.raw["forked_from"], one.id == two.id) == (session.id, False)
        (named,) = session.fork(names=["left"], metadata={"way": "left"})
        assert (named.info.name, named.info.metadata) == ("left", {"way": "left"})
        assert session.set_clocks(idle_s=5.0, ttl_s=60).raw["clocks"]["idle_s"] == 5
        with pytest.raises(torpor.TorporError):
            session.fork(1000)


async def test_a_fork_that_is_repeated_is_done_once(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    headers = {"idempotency-key": "fork-once"}
    first = await api.client.post("/v1/sessions/one/fork", json={"count": 3}, headers=headers)
    again = await api.client.post("/v1/sessions/one/fork", json={"count": 3}, headers=headers)
    assert first.status_code == 201
    assert again.content == first.content
    assert len(api.backend.sessions) == 4
