"""Keys that may use one session only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torpor.apps.api.tokens import Grant, SessionTokens
from torpor.domain.errors import InvalidArgument, Unauthenticated
from torpor.domain.ids import SessionId, TenantId

KEY = "a-key-of-more-than-20-characters"
GRANT = Grant(TenantId("acme"), SessionId("s" * 20))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_790_000_000.0

    def wall_s(self) -> float:
        return self.now_s


@pytest.fixture
async def sessions(api):
    """Two sessions, and what to send as the holder of a token for the first."""
    one = (await api.client.post("/v1/sessions", json={"name": "one"})).json()["id"]
    two = (await api.client.post("/v1/sessions", json={"name": "two"})).json()["id"]
    said = (await api.client.post("/v1/sessions/one/tokens", json={"ttl_s": 60})).json()
    assert said["session"] == one
    assert said["expires_at"] == "2026-09-21T14:14:20.000Z"
    return one, two, {"authorization": f"Bearer {said['token']}"}


async def test_a_token_uses_its_session_by_id_and_by_name(api, sessions):
    one, _, headers = sessions
    for ref in (one, "one"):
        said = await api.client.post(f"/v1/sessions/{ref}/code", json={"source": "1 + 1"}, headers=headers)
        assert (said.status_code, said.json()["result"]) == (200, {"text/plain": "2"})
    assert (await api.client.get("/v1/sessions/one", headers=headers)).json()["id"] == one
    key = {"authorization": "", "x-api-key": headers["authorization"].removeprefix("Bearer ")}
    assert (await api.client.post("/v1/sessions/one/pause", headers=key)).status_code == 200


async def test_a_token_reaches_no_other_session_and_nothing_else(api, sessions):
    one, two, headers = sessions
    asked = [
        ("GET", f"/v1/sessions/{two}"),
        ("GET", "/v1/sessions/two"),
        ("GET", "/v1/sessions/nobody"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/"),
        ("POST", "/v1/sessions"),
        ("GET", "/v1/engine"),
        ("POST", "/v1/store/check"),
        ("DELETE", f"/v1/sessions/{one}"),
        ("POST", f"/v1/sessions/{one}/tokens"),
        ("POST", f"/v1/sessions/{one}/fork"),
        ("GET", f"/v1/sessions/{one}/../{two}"),
    ]
    for method, path in asked:
        answer = await api.client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), path
        assert answer.json()["details"] == {"session": one}


async def test_a_token_ends_with_its_session_even_if_the_name_is_given_anew(api, sessions):
    one, _, headers = sessions
    assert (await api.client.delete("/v1/sessions/one")).status_code == 200
    assert (await api.client.get(f"/v1/sessions/{one}", headers=headers)).status_code == 404
    await api.client.post("/v1/sessions", json={"name": "one"})
    assert (await api.client.get("/v1/sessions/one", headers=headers)).status_code == 403


async def test_a_token_expires(api, sessions):
    _, _, headers = sessions

    class Later:
        def wall_s(self) -> float:
            return 1_790_000_060.0

    tokens = api.app.state.context.tokens
    before = tokens._clock
    tokens._clock = Later()
    try:
        answer = await api.client.get("/v1/sessions/one", headers=headers)
    finally:
        tokens._clock = before
    assert (answer.status_code, answer.json()["details"]) == (401, {"reason": "expired"})


@pytest.mark.parametrize("change", [lambda t: t + "x", lambda t: "x" + t, lambda t: t.rpartition(".")[0] + "."])
async def test_an_altered_token_is_nobodys(api, sessions, change):
    token = change(sessions[2]["authorization"].removeprefix("Bearer "))
    answer = await api.client.get("/v1/sessions/one", headers={"authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_tokens_are_of_one_key_and_of_no_other_algorithm():
    ours, theirs = SessionTokens(KEY, Clock()), SessionTokens(KEY + "x", Clock())
    token, _ = ours.make(GRANT, ttl_s=1)
    assert ours.read(token) == GRANT
    unsigned = "eyJhbGciOiJub25lIn0." + token.split(".")[1] + "."
    for reader, text in ((theirs, token), (ours, unsigned), (ours, "a.b.c"), (ours, "..")):
        with pytest.raises(Unauthenticated):
            reader.read(text)


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), 1e9])
def test_a_life_that_makes_no_sense_is_refused(ttl_s):
    with pytest.raises(InvalidArgument):
        SessionTokens(KEY, Clock()).make(replace(GRANT), ttl_s=ttl_s)
