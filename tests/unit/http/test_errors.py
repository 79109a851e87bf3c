"""Errors as HTTP answers: each with its status, its reason and an id, and none with a traceback."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from equipoise.brokers.errors import (
    Cancelled,
    InvalidRequest,
    NotReady,
    Rejected,
    UnknownNamespace,
)
from equipoise.brokers.http.bodies import BODY_BYTES_MAX
from equipoise.brokers.http.errors import REQUEST_ID, status_of, typed
from equipoise.channel.core.errors import (
    Bug,
    DeadlineExceeded,
    EquipoiseError,
    InvalidName,
    LogDamaged,
    LogStorageFull,
    LogUnavailable,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    invalid_boundaries,
)
from equipoise.channel.core.records import Reason
from tests.unit.http.cluster import run

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Case:
    status: int
    error: EquipoiseError


CASES = (
    Case(status=400, error=InvalidRequest(what="the body", problem="it is no JSON")),
    Case(status=404, error=UnknownNamespace(namespace="a/b")),
    Case(status=404, error=NotFound("there is no such bundle")),
    Case(status=412, error=InvalidName(what="tenant", name="", expected="more")),
    Case(status=412, error=invalid_boundaries(subject="a", problem="b")),
    Case(status=409, error=Cancelled(bundle="a", move="transfer", problem="b")),
    Case(status=504, error=DeadlineExceeded(what="a", waited_ms=1)),
    Case(status=503, error=LogStorageFull(log="sqlite:a.db")),
    Case(status=504, error=OutcomeUnknown(log="a", subject="b", problem="c")),
    Case(status=503, error=LogUnavailable(log="a", problem="b")),
    Case(status=503, error=Overloaded(what="a", limit=1)),
    Case(status=503, error=NotReady(broker="a")),
    Case(status=500, error=LogDamaged(log="a", problem="b")),
    Case(status=500, error=Bug("a")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.error).__name__)
def test_each_error_has_its_status(case: Case) -> None:
    assert case.status == status_of(case.error)


def test_no_rejection_is_an_internal_error() -> None:
    statuses = {reason: status_of(Rejected(key="a", reason=reason, problem=None, offset=1)) for reason in Reason}
    assert {404, 409, 412, 503} == set(statuses.values())
    assert [412, 412, 409, 404] == [
        statuses[reason] for reason in (Reason.DEAD_TARGET, Reason.DRAINING_TARGET, Reason.STALE, Reason.UNKNOWN_BUNDLE)
    ]


def asked(
    raised: BaseException, check: Callable[[TestClient[web.Request, web.Application]], Awaitable[None]], *, method: str = "GET"
) -> None:
    """Have a handler raise something, and a client ask it."""

    async def story() -> None:
        async def handler(request: web.Request) -> web.Response:
            await request.read()
            raise raised

        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes([typed(web.route(method, "/path", handler))])
        async with TestClient(TestServer(app)) as client:
            await check(client)

    run(story)


def test_an_error_is_answered_with_its_reason_and_code() -> None:
    async def check(client: TestClient[web.Request, web.Application]) -> None:
        async with client.get("/path", headers={REQUEST_ID: "mine-7"}) as response:
            assert (412, "mine-7", "application/json") == (response.status, response.headers[REQUEST_ID], response.content_type)
            body = json.loads(await response.read())
        assert "dead_target" == body["error"]
        assert "was rejected at offset 9: dead_target" in body["reason"]

    asked(Rejected(key="a/b/0x00000000_0xffffffff", reason="dead_target", problem=None, offset=9), check)


@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "ümlaut"])
def test_an_unprintable_or_long_request_id_is_replaced(given: str) -> None:
    async def check(client: TestClient[web.Request, web.Application]) -> None:
        async with client.get("/path", headers={REQUEST_ID: given}) as response:
            told = response.headers[REQUEST_ID]
        assert given != told
        assert 16 == len(told)

    asked(NotReady(broker="a"), check)


@pytest.mark.parametrize("raised", [RuntimeError("secret"), KeyError("secret"), LogDamaged(log="a", problem="b"), AssertionError()])
def test_an_unexpected_error_is_logged_and_answered_500_without_details(raised: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def check(client: TestClient[web.Request, web.Application]) -> None:
        with caplog.at_level(logging.ERROR):
            async with client.get("/path") as response:
                assert 500 == response.status
                text = await response.text()
                request_id = response.headers[REQUEST_ID]
        assert "secret" not in text
        assert "Traceback" not in text
        (record,) = [record for record in caplog.records if record.name == "equipoise.brokers.http.errors"]
        assert (request_id, "/path") == (record.__dict__["request"], record.__dict__["path"])
        assert record.exc_info is not None
        assert raised is record.exc_info[1]

    asked(raised, check)


def test_a_body_that_is_too_large_is_told_alike() -> None:
    async def check(client: TestClient[web.Request, web.Application]) -> None:
        async with client.put("/path", data=io.BytesIO(bytes(BODY_BYTES_MAX + 1))) as response:
            assert 413 == response.status
            body = json.loads(await response.read())
        assert {"reason": "the body of PUT /path is larger than 1048576 bytes, the maximum", "error": "BodyTooLarge"} == body

    asked(RuntimeError(), check, method="PUT")


def test_an_answer_that_a_service_raises_is_unchanged() -> None:
    async def redirected(client: TestClient[web.Request, web.Application]) -> None:
        async with client.get("/path", allow_redirects=False) as response:
            assert (307, "http://elsewhere/path") == (response.status, response.headers["Location"])

    asked(web.HTTPTemporaryRedirect("http://elsewhere/path"), redirected)

    async def refused(client: TestClient[web.Request, web.Application]) -> None:
        async with client.get("/path") as response:
            assert (409, b"mine") == (response.status, await response.read())

    asked(web.HTTPConflict(text="mine"), refused)
