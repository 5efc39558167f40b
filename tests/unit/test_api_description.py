"""The API against its own description: whatever is sent, the answer is one that is declared, and no bug of ours."""

from __future__ import annotations

import asyncio
import os
import threading

import httpx
import pytest
import schemathesis
from fake_backend import FakeBackend
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from torpor.adapters.clock.system import SystemClock
from torpor.apps.api.app import create_app
from torpor.apps.api.pages import HEADERS, page_of
from torpor.apps.api.reference import openapi
from torpor.testing.node import FakeMachine, open_fake

KEY = "a-key-of-more-than-20-characters"
HERE = "here"  # the session that most requests are about
EXAMPLES = 3 if os.environ.get("TORPOR_CHECK") == "1" else 8
CHECKS = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]

described = schemathesis.openapi.from_dict(dict(openapi()))
# A node over fakes has no engine to describe, and no whole store to check.
NODE_ROUTES = {"/v1/engine", "/v1/store/check", "/v1/health"}
OPERATIONS = [one for found in described.get_all_operations() if (one := found.ok()).path not in NODE_ROUTES]


class FakeApi:
    """The application over a whole fake node, in a loop of its own thread: hypothesis is synchronous."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stop = asyncio.Event()
        self._ready = threading.Event()

    def __enter__(self):
        self._thread.start()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        while not self._ready.wait(0.05):
            if self._life.done():
                self._life.result()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._life.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _live(self):
        machine = FakeMachine()
        async with open_fake(machine) as node:
            app = create_app(FakeBackend(node, machine), KEY, clock=SystemClock())
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://torpor", timeout=20) as self._client,
            ):
                self._ready.set()
                await self._stop.wait()

    def ask(self, method, url, **request) -> httpx.Response:
        async def asked():
            return await self._client.request(method, url, **request)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(30)


@pytest.fixture(scope="module")
def fake_api():
    with FakeApi() as api:
        yield api


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method.upper()} {one.path}")
def test_every_answer_is_one_that_is_declared(fake_api, operation):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), known=st.integers(0, 3))
    def whatever_is_sent(case, known):
        headers = {"authorization": f"Bearer {KEY}"}
        fake_api.ask("POST", "/v1/sessions", json={"name": HERE, "get_or_create": True}, headers=headers)
        if known and "ref" in case.path_parameters:
            case.path_parameters["ref"] = HERE
        sent = case.as_transport_kwargs(base_url="http://torpor")
        sent["headers"] = {**sent.get("headers", {}), **headers}
        body = sent.pop("data", None)
        sent.pop("cookies", None)
        answer = fake_api.ask(sent.pop("method"), sent.pop("url"), content=body, **sent)
        case.validate_response(answer, checks=CHECKS)
        assert answer.status_code < 500, answer.text

    whatever_is_sent()


def test_every_route_below_v1_declares_its_failures():
    for path, routes in openapi()["paths"].items():
        for route in routes.values():
            if path != "/v1/health":
                assert {"401", "403", "404", "409", "422", "500", "503"} <= route["responses"].keys(), path


async def test_the_description_and_its_page_need_no_key_and_no_other_host(api):
    described, page = await api.client.get("/openapi.json"), await api.client.get("/docs")
    assert described.json()["info"]["title"] == "torpor"
    assert page.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert "://" not in page.text
    for path in described.json()["paths"]:
        assert path in page.text


def test_the_page_escapes_what_it_is_given():
    api = {"info": {"title": "<x>", "version": "1"}, "components": {"schemas": {}}, "paths": {}}
    assert "<x>" not in page_of(api)
