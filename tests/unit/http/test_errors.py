"""Errors as HTTP answers: each with its status, its reason and an id, and none with a traceback."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from equipoise.brokers.errors import (
    Rejected,
    UnknownNamespace,
    cancelled,
    invalid_request,
    not_ready,
)
from equipoise.brokers.http.answers import REQUEST_ID, status_of, typed
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

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Case:
    status: int
    error: EquipoiseError


CASES = (
    Case(status=400, error=invalid_request(what="the body", problem="it is no JSON")),
    Case(status=404, error=UnknownNamespace(namespace="a/b")),
    Case(status=404, error=NotFound("there is no such bundle")),
    Case(status=412, error=InvalidName(what="tenant", name="", expected="more")),
    Case(status=412, error=invalid_boundaries(subject="a", problem="b")),
    Case(status=409, error=cancelled(bundle="a", move="transfer", problem="b")),
    Case(status=504, error=DeadlineExceeded(what="a", waited_ms=1)),
    Case(status=503, error=LogStorageFull(log="sqlite:a.db")),
    Case(status=504, error=OutcomeUnknown(log="a", subject="b", problem="c")),
    Case(status=503, error=LogUnavailable(log="a", problem="b")),
    Case(status=503, error=Overloaded(what="a", limit=1)),
    Case(status=503, error=not_ready(broker="a")),
    Case(status=500, error=LogDamaged(log="a", problem="b")),
    Case(status=500, error=Bug("a")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.error).__name__)
def test_each_error_has_its_status(case: Case) -> None:
    assert case.status == status_of(case.error)


def test_no_rejection_is_an_internal_error() -> None:
    statuses = {
        reason: status_of(Rejected(key="a", reason=reason, problem=None, offset=1))
        for reason in Reason
    }
    assert {404, 409, 412, 503} == set(statuses.values())
    assert [412, 412, 409, 404] == [
        statuses[reason]
        for reason in (
            Reason.DEAD_TARGET,
            Reason.DRAINING_TARGET,
            Reason.STALE,
            Reason.UNKNOWN_BUNDLE,
        )
    ]


@asynccontextmanager
async def client_of(
    raised: BaseException,
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of a handler that raises something."""

    async def handler(_request: web.Request) -> web.Response:
        raise raised

    app = web.Application()
    app.add_routes([typed(web.get(path, handler)) for path in ("/path", "/admin/v2/path")])
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            "list those that exist: equipoise namespaces list; or",
            "list those that exist: pulsar-admin namespaces list TENANT; or",
        ),
        ("equipoise namespaces list acme", "pulsar-admin namespaces list acme"),
        (
            "(equipoise namespaces create acme/NAMESPACE)",
            "(pulsar-admin namespaces create acme/NAMESPACE)",
        ),
        ("equipoise brokers list --all --json", "pulsar-admin brokers list CLUSTER"),
        (
            "no policy 'isolation/x'; see equipoise policies list",
            "no policy 'isolation/x'; see pulsar-admin ns-isolation-policy list CLUSTER",
        ),
        (
            "no policy 'pin/x'; see equipoise policies list",
            "no policy 'pin/x'; see equipoise policies list",
        ),
    ],
)
async def test_a_path_of_pulsar_names_the_commands_of_its_tool(told: str, expected: str) -> None:
    """Where the tool has one. At other paths, it is our own tool that asks."""
    async with client_of(NotFound(told)) as client:
        for path, reason in (("/admin/v2/path", expected), ("/path", told)):
            async with client.get(path) as response:
                assert (404, reason) == (
                    response.status,
                    json.loads(await response.read())["reason"],
                )


async def test_an_error_is_answered_with_its_reason_and_code() -> None:
    """The id of the request is the caller's own."""
    error = Rejected(key="a/b/0x00000000_0xffffffff", reason="dead_target", problem=None, offset=9)
    async with (
        client_of(error) as client,
        client.get("/path", headers={REQUEST_ID: "mine-7"}) as response,
    ):
        assert (412, "mine-7", "application/json") == (
            response.status,
            response.headers[REQUEST_ID],
            response.content_type,
        )
        body = json.loads(await response.read())
    assert "dead_target" == body["error"]
    told = (
        "cannot change a/b/0x00000000_0xffffffff: the destination is not alive (refused at offset"
        " 9); name a broker that is up: "
    )
    assert f"{told}equipoise brokers list" == body["reason"]


@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "ümlaut"])
async def test_an_unprintable_or_long_request_id_is_replaced(given: str) -> None:
    async with (
        client_of(not_ready(broker="a")) as client,
        client.get("/path", headers={REQUEST_ID: given}) as response,
    ):
        replaced = response.headers[REQUEST_ID]
    assert given != replaced
    assert 16 == len(replaced)


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("secret"),
        KeyError("secret"),
        LogDamaged(log="a", problem="b"),
        AssertionError(),
    ],
)
async def test_an_unexpected_error_is_logged_and_answered_500_without_details(
    raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with client_of(raised) as client, client.get("/path") as response:
            assert 500 == response.status
            text = await response.text()
            request_id = response.headers[REQUEST_ID]
    assert "secret" not in text
    assert "Traceback" not in text
    (record,) = [
        record for record in caplog.records if record.name == "equipoise.brokers.http.answers"
    ]
    assert (request_id, "/path") == (record.__dict__["request"], record.__dict__["path"])
    assert record.exc_info is not None
    assert raised is record.exc_info[1]


async def test_an_answer_that_a_service_raises_is_unchanged() -> None:
    redirect = web.HTTPTemporaryRedirect("http://elsewhere/path")
    async with (
        client_of(redirect) as client,
        client.get("/path", allow_redirects=False) as response,
    ):
        assert (307, "http://elsewhere/path") == (response.status, response.headers["Location"])
    async with client_of(web.HTTPConflict(text="mine")) as client, client.get("/path") as response:
        assert (409, b"mine") == (response.status, await response.read())


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_speaks_to_an_operator(reason: Reason) -> None:
    """Its code is for programs, so no sentence has the code or another word with an underscore."""
    told = str(
        Rejected(key="acme/shop", reason=reason, problem=None, offset=9, action="delete namespace")
    )
    assert told.startswith("cannot delete namespace acme/shop: ")
    assert "_" not in told
