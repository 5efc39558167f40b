"""What a repeated request does: nothing again."""

from __future__ import annotations

import asyncio

import pytest

from torpor.adapters.answers import SqliteAnswers
from torpor.domain.errors import Conflict
from torpor.domain.ids import TenantId
from torpor.ports.answers import KEPT_S, Keyed, StoredAnswer

ASKED = Keyed(TenantId("acme"), "k1", "f1")
ANSWER = StoredAnswer(201, b'{"id": "x"}')


async def test_a_create_with_the_same_key_is_done_once(api):
    headers = {"idempotency-key": "create-once"}
    first = await api.client.post("/v1/sessions", json={"name": "one"}, headers=headers)
    again = await api.client.post("/v1/sessions", json={"name": "one"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len(api.backend.sessions) == 1


async def test_a_key_is_for_one_request(api):
    headers = {"idempotency-key": "for-one"}
    await api.client.post("/v1/sessions", json={"name": "one"}, headers=headers)
    for path, body in (("/v1/sessions", {"name": "two"}), ("/v1/sessions/one/pause", {})):
        answer = await api.client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["details"]["reason"]) == (409, "key_reused")


async def test_a_pause_that_is_repeated_after_a_resume_does_not_pause_again(api):
    headers = {"idempotency-key": "pause-once"}
    await api.client.post("/v1/sessions", json={"name": "one"})
    first = await api.client.post("/v1/sessions/one/pause", headers=headers)
    await api.client.post("/v1/sessions/one/resume")
    again = await api.client.post("/v1/sessions/one/pause", headers=headers)
    assert again.json() == first.json()
    assert (await api.client.get("/v1/sessions/one")).json()["status"] == "running"


async def test_a_request_that_failed_may_be_repeated_under_its_key(api):
    headers = {"idempotency-key": "failed-before"}
    refused = await api.client.post("/v1/sessions/one/pause", headers=headers)
    assert refused.status_code == 404
    await api.client.post("/v1/sessions", json={"name": "one"})
    assert (await api.client.post("/v1/sessions/one/pause", headers=headers)).status_code == 200


async def test_a_request_whose_outcome_a_bug_hides_is_not_repeated(api):
    headers = {"idempotency-key": "a-bug"}
    assert (await api.client.post("/v1/sessions/bug/pause", headers=headers)).status_code == 500
    again = await api.client.post("/v1/sessions/bug/pause", headers=headers)
    assert (again.status_code, again.json()["details"]["reason"]) == (409, "outcome_unknown")


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_that_is_none_is_refused(api, key):
    answer = await api.client.post("/v1/sessions", headers={"idempotency-key": key})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


async def test_a_book_outlives_its_server(tmp_path):
    path = tmp_path / "answers.sqlite3"
    book = SqliteAnswers(path)
    await book.open()
    assert await book.begin(ASKED, now_s=0) is None
    await book.finish(ASKED, ANSWER)
    begun = Keyed(ASKED.tenant, "k2", "f2")
    assert await book.begin(begun, now_s=0) is None
    with pytest.raises(Conflict) as waiting:
        await book.begin(begun, now_s=0)
    assert waiting.value.details == {"reason": "in_progress", "retry_after_s": 1.0}
    await book.close()

    successor = SqliteAnswers(path)
    await successor.open()
    assert await successor.begin(ASKED, now_s=1) == ANSWER
    with pytest.raises(Conflict) as unknown:
        await successor.begin(begun, now_s=1)
    assert unknown.value.details == {"reason": "outcome_unknown"}
    other = Keyed(TenantId("other"), ASKED.key, ASKED.fingerprint)
    assert await successor.begin(other, now_s=1) is None
    await successor.close()
    await successor.close()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_book_forgets_after_a_day():
    book = SqliteAnswers(None)
    await book.open()
    await book.begin(ASKED, now_s=0)
    await book.finish(ASKED, ANSWER)
    assert await book.begin(ASKED, now_s=KEPT_S) == ANSWER
    assert await book.begin(ASKED, now_s=KEPT_S + 1) is None
    await book.close()


async def test_of_many_at_once_one_is_new():
    book = SqliteAnswers(None)
    await book.open()
    outcomes = await asyncio.gather(*(book.begin(ASKED, now_s=0) for _ in range(20)), return_exceptions=True)
    assert [type(one) for one in outcomes if one is not None] == [Conflict] * 19
    await book.close()


# ---- get or create --------------------------------------------------------------------------------------------------


async def test_get_or_create_gives_the_session_that_exists(api):
    body = {"name": "one", "get_or_create": True}
    first = await api.client.post("/v1/sessions", json=body)
    again = await api.client.post("/v1/sessions", json={**body, "template": "data"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert (first.json()["resumed"]["cause"], again.json()["resumed"]) == ("created", None)


async def test_get_or_create_is_not_given_a_session_of_another_template(api):
    await api.client.post("/v1/sessions", json={"name": "one"})
    answer = await api.client.post("/v1/sessions", json={"name": "one", "get_or_create": True, "template": "base"})
    assert (answer.status_code, answer.json()["details"]["reason"]) == (409, "template_differs")


async def test_get_or_create_wants_a_name(api):
    answer = await api.client.post("/v1/sessions", json={"get_or_create": True})
    assert (answer.status_code, answer.json()["details"]) == (422, {"field": "name"})
