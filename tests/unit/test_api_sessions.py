"""The API's routes about sessions: shapes, errors, keys. In-process, over a backend in memory."""

from __future__ import annotations

import httpx
import pytest
from memory_backend import MemoryBackend, StillClock
from pydantic import TypeAdapter

from torpor.apps.api.app import create_app, make_ready
from torpor.domain.errors import TorporError

KEY = "a-key-of-more-than-20-characters"

PROMISED = {
    "id", "name", "status", "status_detail", "durability", "generation", "template", "persistence", "created_at",
    "snapshot", "compute_s", "cpu_s", "paused_at", "limits", "metadata", "last_error", "last_timings_ms",
}  # fmt: skip


async def test_a_created_session_runs_and_says_so(api):
    answer = await api.client.post(
        "/v1/sessions", json={"name": "one", "metadata": {"user": "ann"}, "env": {"TZ": "UTC", "TOKEN": "secret"}}
    )
    said = answer.json()
    assert answer.status_code == 201
    assert said.keys() >= PROMISED
    assert (said["name"], said["status"], said["durability"], said["generation"]) == ("one", "running", None, 1)
    assert said["metadata"] == {"user": "ann"}
    assert said["env_names"] == ["TOKEN", "TZ"]
    assert "secret" not in answer.text
    assert said["resumed"]["cause"] == "created"
    assert said["created_at"].endswith("Z")


async def test_a_body_is_not_needed_where_everything_has_a_default(api):
    created = await api.client.post("/v1/sessions")
    assert created.status_code == 201
    session = created.json()["id"]
    assert (await api.client.post(f"/v1/sessions/{session}/pause")).json()["status"] == "paused"
    assert (await api.client.post(f"/v1/sessions/{session}/resume")).json()["status"] == "running"
    assert (await api.client.post(f"/v1/sessions/{session}/interrupt")).status_code == 204


async def test_a_session_is_found_by_id_and_by_name(api):
    created = (await api.client.post("/v1/sessions", json={"name": "one"})).json()
    by_id = (await api.client.get(f"/v1/sessions/{created['id']}")).json()
    by_name = (await api.client.get("/v1/sessions/one")).json()
    assert by_id == by_name


async def test_inspecting_counts_what_the_live_instance_has_used(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    said = (await api.client.get("/v1/sessions/one")).json()
    assert said["compute_s"] == 15.0  # 5 before, 10 since it runs
    assert said["cpu_s"] == 1.25
    assert said["memory_bytes"] == 64_000_000


async def test_a_paused_session_says_how_durable_it_is_and_what_it_cost(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    said = (await api.client.post("/v1/sessions/one/pause", json={"wait": "disk"})).json()
    assert (said["status"], said["status_detail"], said["durability"]) == ("paused", "paused_durable", "disk")
    assert said["paused_at"] == "2026-09-21T13:13:20.000Z"
    assert said["snapshot"] == {
        "sequence": 1,
        "instant": "2026-09-21T13:13:20.000Z",
        "image_bytes": 268435456,
        "new_bytes": 1234567,
        "timings_ms": {"checkpoint": 190.5},
    }
    again = (await api.client.post("/v1/sessions/one/pause")).json()
    assert again == said


async def test_a_durability_that_is_not_offered_is_refused(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    answer = await api.client.post("/v1/sessions/one/pause", json={"wait": "object"})
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
    assert (await api.client.get("/v1/sessions/one")).json()["status"] == "running"


async def test_resuming_tells_the_gap_once(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    await api.client.post("/v1/sessions/one/pause")
    first = (await api.client.post("/v1/sessions/one/resume")).json()
    assert first["generation"] == 2
    assert first["resumed"] == {
        "cause": "resumed",
        "outcome": "resumed",
        "stepped_down": [],
        "gap_s": 3600.0,
        "wall_time": "2026-09-21T14:13:20.000Z",
        "tier": "local",
        "generation": 2,
        "attempts": 1,
        "dropped": ["one open connection"],
        "timings_ms": {"restore": 100.0, "total": 120.0},
    }
    assert (await api.client.post("/v1/sessions/one/resume")).json()["resumed"] is None


async def test_pages_follow_their_cursor_to_the_end(api):
    for number in range(5):
        await api.client.post("/v1/sessions", json={"name": f"s{number}"})
    first = (await api.client.get("/v1/sessions", params={"limit": 3})).json()
    second = (await api.client.get("/v1/sessions", params={"limit": 3, "cursor": first["cursor"]})).json()
    assert [session["name"] for session in first["sessions"]] == ["s4", "s3", "s2"]
    assert [session["name"] for session in second["sessions"]] == ["s1", "s0"]
    assert second["cursor"] is None


async def test_a_deleted_session_is_not_found_any_more(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    assert (await api.client.delete("/v1/sessions/one")).json()["status"] == "deleted"
    answer = await api.client.get("/v1/sessions/one")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["details"] == {"session": "one"}


@pytest.mark.parametrize("kind", TorporError.__subclasses__(), ids=lambda kind: kind.code)
async def test_every_error_has_its_status_and_its_form(api, kind):
    answer = await api.client.get(f"/v1/sessions/raise-{kind.code}")
    assert answer.status_code == kind.http_status
    assert answer.json() == {
        "code": kind.code,
        "message": f"cannot do it: raise-{kind.code}",
        "details": {"why": "asked for", "retry_after_s": 2.0},
    }
    assert answer.headers["retry-after"] == "2"


async def test_a_bug_is_an_internal_error_that_tells_no_secret(api):
    answer = await api.client.get("/v1/sessions/bug")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"template": 7}, "template"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"persistence": "eternal"}, "persistence"),
        ({"tempalte": "data"}, "tempalte"),
        ({"metadata": {str(number): "" for number in range(65)}}, "metadata"),
        ([], "body"),
    ],
)
async def test_a_wrong_field_is_named(api, body, field):
    answer = await api.client.post("/v1/sessions", json=body)
    said = answer.json()
    assert (answer.status_code, said["code"], said["details"]["field"]) == (422, "invalid_argument", field)


async def test_broken_json_is_an_invalid_argument(api):
    answer = await api.client.post(
        "/v1/sessions", content=b'{"template": ', headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"], answer.json()["details"]["field"]) == (
        422, "invalid_argument", "body",
    )  # fmt: skip


async def test_an_unknown_route_and_a_wrong_method_have_the_form_of_errors(api):
    unknown = await api.client.get("/v1/nonsense")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert "GET /v1/nonsense" in unknown.json()["message"]
    wrong = await api.client.put("/v1/sessions")
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["details"]) == (
        405, "invalid_argument", {"field": "method"},
    )  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/sessions/one", "/v1/engine", "/v1/nonsense"])
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": "Bearer another-key-of-20-characters"},
        {"authorization": "Basic a-key-of-more-than-20-characters"},
        {"authorization": "", "x-api-key": "a-key-of-more-than-20-character"},
        {"authorization": "Bearer schlüssel".encode("latin-1")},
    ],
)
async def test_nothing_is_answered_without_the_key(api, path, headers):
    answer = await api.client.get(path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "bearer a-key-of-more-than-20-characters"},
        {"authorization": "", "x-api-key": "a-key-of-more-than-20-characters"},
    ],
)
async def test_the_key_is_taken_in_either_header(api, headers):
    assert (await api.client.get("/v1/sessions", headers=headers)).status_code == 200


async def test_health_needs_no_key_and_tells_of_no_tenant(api):
    answer = await api.client.get("/v1/health", headers={"authorization": ""})
    assert answer.status_code == 200
    assert answer.json().keys() == {"status", "version", "engine"}


async def test_templates_engine_and_store_answer(api):
    templates = (await api.client.get("/v1/templates")).json()["templates"]
    assert [(template["name"], template["engine_build"]) for template in templates] == [("data", "gvisor-1")]
    assert (await api.client.get("/v1/engine")).json() == {"engine": "memory", "version": "0"}
    assert (await api.client.post("/v1/store/check")).json() == {"clean": True, "tenant": "default"}


async def test_openapi_describes_every_route_with_its_key_and_failures(api):
    described = (await api.client.get("/openapi.json")).json()
    assert described["components"]["securitySchemes"].keys() == {"HTTPBearer", "APIKeyHeader"}
    for path, routes in described["paths"].items():
        for route in routes.values():
            assert route["description"], path
            if path != "/v1/health":
                assert {"401", "404", "409", "503"} <= route["responses"].keys(), path
                assert route["security"], path


async def test_an_application_that_was_made_ready_leaves_no_models_to_the_first_request(monkeypatch):
    made = []
    make = TypeAdapter.__init__

    def noting(self, *args, **named):
        made.append(args)
        make(self, *args, **named)

    app = create_app(MemoryBackend(), KEY, clock=StillClock())
    await make_ready(app)
    monkeypatch.setattr(TypeAdapter, "__init__", noting)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://torpor", headers=headers) as client,
    ):
        session = (await client.post("/v1/sessions", json={"name": "one"})).json()["id"]
        assert (await client.post(f"/v1/sessions/{session}/code", json={"source": "1+1"})).status_code == 200
    assert made == []
