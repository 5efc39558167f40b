"""The warm tier on real sandboxes: frozen, unaltered, free of CPU, and gone when it has to be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from e2e_home import eventually, run, traces

from torpor.adapters.clock.system import SystemClock
from torpor.adapters.engines.gvisor.cgroup import Cgroup, hierarchies_of

pytestmark = pytest.mark.engine

WARM_BYTES = str(2 * 1024**3)


@pytest.fixture
def client(server, monkeypatch):
    monkeypatch.setenv("TORPOR_WARM_BYTES", WARM_BYTES)
    return server.start()


def resumed(client, ref, source):
    """Run Python in a paused session: what it answered, and how the session came back."""
    said = client.code(ref, source, on_piece=lambda *_: None)
    assert not said["error"], said["error"]
    return said["result"]["text/plain"], said["resumed"]


def paused(client, ref):
    """Pause it; the instance that it had."""
    instance = client.get(ref)["instance"]
    assert client.pause(ref)["status"] == "paused"
    return instance


def cgroup(home, instance):
    hierarchies = hierarchies_of(Path("/proc/self/mountinfo").read_text())
    (place,) = {name.split("/torpor/", 1)[1] for name in traces(home)["cgroups"] if instance in name}
    return Cgroup(f"/torpor/{place}", hierarchies, SystemClock())


def processes(home, instance):
    return [line for line in traces(home)["processes"] if instance in line]


def test_a_burst_right_after_a_pause_is_served_warm_under_the_next_generation(client):
    ref = client.create(template="data", name="day")["id"]
    run(client, ref, "x = 41")
    before = client.get(ref)["generation"]
    instance = paused(client, ref)
    answer, how = resumed(client, ref, "x + 1")
    assert (answer, how["tier"], how["cause"], how["generation"]) == ("42", "warm", "resumed", before + 1)
    assert client.get(ref)["instance"] == instance
    instance = paused(client, ref)
    assert resumed(client, ref, "x + 2")[1]["tier"] == "warm"


def test_a_warm_instance_uses_no_cpu_while_it_waits(client, home):
    ref = client.create(template="data", name="day")["id"]
    run(
        client,
        ref,
        "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    )
    group = cgroup(home, paused(client, ref))
    eventually(group.is_frozen, "the instance is frozen")
    used_s = group.usage()["cpu_s"]
    time.sleep(1)  # noqa: TID251 - what must not happen in it is looked at afterwards
    assert group.usage()["cpu_s"] == used_s


def test_removing_a_warm_session_leaves_no_process(client, home):
    ref = client.create(template="data", name="day")["id"]
    instance = paused(client, ref)
    assert processes(home, instance)
    client.delete(ref)
    assert processes(home, instance) == []


def test_without_a_budget_nothing_stays_and_the_resume_is_local(server, home):
    client = server.start()
    ref = client.create(template="data", name="day")["id"]
    run(client, ref, "x = 41")
    instance = paused(client, ref)
    eventually(lambda: not processes(home, instance), "the instance is destroyed")
    answer, how = resumed(client, ref, "x + 1")
    assert (answer, how["tier"]) == ("42", "local")


def test_the_next_server_destroys_what_was_warm_and_resumes_from_the_store(client, server, home):
    ref = client.create(template="data", name="day")["id"]
    run(client, ref, "x = 41")
    instance = paused(client, ref)
    assert processes(home, instance)
    server.kill()
    client = server.start()
    assert processes(home, instance) == []
    answer, how = resumed(client, ref, "x + 1")
    assert (answer, how["tier"]) == ("42", "local")
