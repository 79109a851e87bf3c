"""Requests for a key over a scripted network: what is sent again, where to, and what the caller
gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final
from unittest.mock import MagicMock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from equipoise.brokers.client import calls as module
from equipoise.brokers.client.attempts import OUTCOME, Breakers, Call
from equipoise.brokers.client.calls import Calls, Response
from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    InvalidName,
    Overloaded,
    PeerError,
)

NAMESPACE, KEY = "web/pages", "home"
A, B = "http://a", "http://b"
OTHER = "the other"
PATIENCE_MS = 20_000


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None


Step = Callable[[Request], Awaitable[Response]]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass between attempts."""
    monkeypatch.setattr(module, "pause_ms", lambda _failures, _chance: 0)


@dataclass(kw_only=True)
class Table:
    """Owners by a list: each report about a wrong one moves on to the next. The last one stays."""

    peers: list[Peer]
    reports: list[str] = field(default_factory=list)

    async def owner(self, namespace: str, key: str, *, timeout_ms: int) -> Peer:
        assert (NAMESPACE, KEY) == (namespace, key)
        if not timeout_ms:
            raise DeadlineExceeded(what="an owner", waited_ms=0)
        return self.peers[0]

    def misrouted(self, namespace: str, key: str, seen: Peer) -> None:
        assert (NAMESPACE, KEY, seen) == (namespace, key, self.peers[0])
        self.reports.append(seen.broker)
        if len(self.peers) > 1:
            del self.peers[0]


class Network:
    """Brokers that do the next step of a script, and then answer. `seen` are the addresses;
    `executed` counts what had an effect.
    """

    def __init__(self, steps: Sequence[str]) -> None:
        self.steps = list(steps)
        self.seen: list[str] = []
        self.requests: list[Request] = []
        self.executed = 0

    async def __call__(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        _connect_s: float,
    ) -> Response:
        request = Request(method=method, url=url, headers=headers, body=body)
        self.seen.append(f"{request.url.scheme}://{request.url.host}")
        self.requests.append(request)
        step = self.steps.pop(0) if self.steps else "answer"
        self.executed += step in EXECUTES
        return await STEPS[step](request)


async def _refused(_request: Request) -> Response:
    raise aiohttp.ClientConnectorError(MagicMock(), OSError("refused"))


async def _broken(_request: Request) -> Response:
    raise aiohttp.ServerDisconnectedError("the connection broke")


async def _silent(_request: Request) -> Response:
    raise TimeoutError


def answering(status: int, *, to: str | None = None, mark: str | None = None) -> Step:
    """Answer, with a redirect `to` an address, or to the other broker."""

    async def answer(request: Request) -> Response:
        address = {OTHER: A if request.url.host == "b" else B}.get(to or "", to)
        headers = {
            "Location": None if address is None else address + request.url.raw_path_qs,
            OUTCOME: mark,
        }
        known = {name: value for name, value in headers.items() if value is not None}
        return Response(status_code=status, headers=known, content=b"text")

    return answer


STEPS: Final[dict[str, Step]] = {
    "answer": answering(200),
    "refused": _refused,
    "broken before": _broken,
    "broken after": _broken,
    "silent": _silent,
    "redirect": answering(307, to=OTHER, mark="not-started"),
    "plain redirect": answering(307, to=OTHER),
    "421": answering(421),
    "waiting": answering(503, mark="not-started"),
    "lost": answering(503, mark="unknown"),
    "503": answering(503),
    "login": answering(307, to="http://b/login?next="),
}
EXECUTES: Final = frozenset({"answer", "broken after", "silent", "lost", "503", "login"})
UNKNOWN: Final = frozenset({"broken before", "broken after", "silent", "lost"})
FINAL: Final = frozenset({"answer", "503", "login"})


def call(method: str = "POST", path: str = "/visits/home", *, idempotent: bool = False) -> Call:
    return Call(
        method=method,
        namespace=NAMESPACE,
        key=KEY,
        path=path,
        is_idempotent=idempotent,
        headers={"X-Mine": "1"},
        content=None,
        json={"a": 1},
    )


async def outcome(
    network: Network,
    table: Table | None = None,
    *,
    request: Call | None = None,
    timeout_ms: int = PATIENCE_MS,
) -> Response:
    """Return the answer, over a scripted network."""
    calls = Calls(table or Table(peers=[peer("a", A)]), send=network)
    try:
        return await calls.request(request or call(), timeout_ms=timeout_ms)
    finally:
        await calls.close()


def peer(broker: str, address: str) -> Peer:
    return Peer(broker=broker, addresses={"http": address})


async def test_the_answer_of_the_owner_is_returned() -> None:
    network = Network(["answer"])
    assert 200 == (await outcome(network)).status_code
    (request,) = network.requests
    assert ("POST", "http://a/visits/home", b'{"a":1}') == (
        request.method,
        str(request.url),
        request.body,
    )
    assert {"X-Mine": "1", "Content-Type": "application/json"} == request.headers


@pytest.mark.parametrize("step", ["redirect", "plain redirect"])
async def test_a_redirect_is_followed_at_once_and_reported(step: str) -> None:
    network, table = Network([step]), Table(peers=[peer("a", A)])
    assert 200 == (await outcome(network, table)).status_code
    assert ([A, B], ["a"]) == (network.seen, table.reports)
    assert [b'{"a":1}'] * 2 == [request.body for request in network.requests]


async def test_two_brokers_that_name_each_other_do_not_hold_a_request_forever() -> None:
    """After one redirect the table is asked again, so the pauses grow."""
    network = Network(["redirect"] * 100_000)
    with pytest.raises(
        DeadlineExceeded,
        match=(
            r"an answer to POST /visits/home for web/pages/home \(the last attempt, at http://b: it"
            r" answered 307"
        ),
    ):
        await outcome(network, timeout_ms=50)
    assert {A, B} == set(network.seen[:4])


async def test_no_redirect_leads_out_of_tls() -> None:
    network, table = (
        Network(["redirect"]),
        Table(peers=[peer("a", "https://a"), peer("c", "https://c")]),
    )
    assert 200 == (await outcome(network, table)).status_code
    assert ["https://a", "https://c"] == network.seen


@pytest.mark.parametrize("step", ["503", "login"])
async def test_other_answers_are_the_callers(step: str) -> None:
    network, table = Network([step]), Table(peers=[peer("a", A)])
    assert {"503": 503, "login": 307}[step] == (await outcome(network, table)).status_code
    assert ([A], []) == (network.seen, table.reports)


async def test_a_request_that_may_have_been_executed_is_not_repeated() -> None:
    for step in ("broken after", "silent"):
        network = Network([step])
        with pytest.raises(BrokerUnreachable, match="it may have executed the request") as raised:
            await outcome(network)
        assert (True, "a", 1) == (raised.value.in_doubt, raised.value.broker, network.executed)
    network = Network(["lost"])
    assert (503, 1) == ((await outcome(network)).status_code, network.executed)


async def test_an_address_that_takes_no_connection_is_spared_after_three_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By all requests of the client, also of other keys. Then the table is asked for another
    owner.
    """
    network, table = Network(["refused"] * 3), Table(peers=[peer("a", A), peer("b", B)])
    now_ms = 5_000
    monkeypatch.setattr(module, "now_ms", lambda: now_ms)
    calls = Calls(table, send=network)
    assert 200 == (await calls.request(call(), timeout_ms=PATIENCE_MS)).status_code
    assert ([A, A, A, B], ["a"]) == (network.seen, table.reports)
    table.peers = [peer("a", A)]
    with pytest.raises(DeadlineExceeded, match="http://a took no connection lately"):
        await calls.request(call(), timeout_ms=20)
    assert 4 == len(network.seen)
    now_ms += 1_000
    assert 200 == (await calls.request(call(), timeout_ms=PATIENCE_MS)).status_code
    assert A == network.seen[4]
    await calls.close()


async def test_the_last_problem_is_in_the_error() -> None:
    with pytest.raises(DeadlineExceeded, match="at http://a: Cannot connect") as raised:
        await outcome(Network(["refused"] * 1_000), timeout_ms=20)
    assert 20 == raised.value.waited_ms


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (call(path="visits"), InvalidName, "begins with a slash"),
        (call(path="/\x00"), InvalidName, "is printable"),
    ],
)
async def test_what_cannot_be_sent_is_refused(
    request_: Call, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await outcome(Network([]), request=request_)


async def test_an_owner_without_an_address_is_an_error() -> None:
    with pytest.raises(PeerError, match="has no HTTP address"):
        await outcome(Network([]), Table(peers=[Peer(broker="a")]))


@given(steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=12), is_idempotent=st.booleans())
def test_whatever_happens_a_request_has_at_most_one_effect(
    steps: list[str], is_idempotent: bool
) -> None:
    """Unless it may be repeated. It ends at the first answer, or at the first doubt."""
    ends = [step in FINAL or (step in UNKNOWN and not is_idempotent) for step in steps]
    last = ends.index(True) if True in ends else len(steps)
    expected = [*steps, "answer"][: last + 1]
    network = Network(steps)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "pause_ms", lambda _failures, _chance: 0)
        patched.setattr(Breakers, "wait_ms", lambda *_: 0)
        try:
            status = asyncio.run(
                outcome(network, request=call(idempotent=is_idempotent))
            ).status_code
        except BrokerUnreachable:
            status = 0
    assert len(expected) == len(network.seen)
    assert sum(step in EXECUTES for step in expected) == network.executed
    assert is_idempotent or network.executed <= 1
    assert {"answer": 200, "503": 503, "lost": 503, "login": 307}.get(expected[-1], 0) == status


# --- over a real network ---


@asynccontextmanager
async def served(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[Calls]:
    """Yield calls whose owner is a server with one handler."""
    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", handle)])
    async with TestServer(app) as server:
        calls = Calls(Table(peers=[peer("a", str(server.make_url("")).rstrip("/"))]))
        try:
            yield calls
        finally:
            await calls.close()


async def test_an_answer_is_whole() -> None:
    async def handle(request: web.Request) -> web.Response:
        text = f"{request.raw_path} {request.headers.get('Content-Type')} {await request.text()} é"
        return web.Response(status=207, text=text, charset="latin-1", headers={"X-Mine": "1"})

    async with served(handle) as calls:
        answer = await calls.request(call(path="/visits/a b%2Fc?d=é"), timeout_ms=PATIENCE_MS)
    assert (207, "1") == (answer.status_code, answer.headers["x-mine"])
    assert '/visits/a%20b%2Fc?d=%C3%A9 application/json {"a":1} é' == answer.text


async def test_json_in_an_answer_is_read() -> None:
    assert {"a": [1]} == Response(status_code=200, headers={}, content=b'{"a": [1]}').json()
    with pytest.raises(ValueError, match="invalid literal"):
        Response(status_code=200, headers={}, content=b"no").json()
    assert (
        "\ufffd"
        == Response(
            status_code=200, headers={"Content-Type": "text/plain; charset=none"}, content=b"\xff"
        ).text
    )


async def test_cookies_and_redirects_are_the_callers() -> None:
    async def handle(request: web.Request) -> web.Response:
        assert "Cookie" not in request.headers
        return web.Response(
            status=302, headers={"Set-Cookie": "session=1", "Location": "/elsewhere"}
        )

    async with served(handle) as calls:
        for _ in range(2):
            assert 302 == (await calls.request(call(), timeout_ms=PATIENCE_MS)).status_code


@pytest.mark.parametrize(
    ("method", "idempotent", "times"),
    [("GET", False, 1), ("GET", True, 2), ("POST", False, 1), ("POST", True, 2)],
)
async def test_only_the_caller_decides_whether_a_request_is_sent_again(
    method: str, *, idempotent: bool, times: int
) -> None:
    """Not the HTTP library, when a kept connection breaks."""
    asked = 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal asked
        asked += request.path == "/breaks"
        if request.path == "/breaks" and asked == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.Response()

    async with served(handle) as calls:
        await calls.request(call("GET", "/keeps"), timeout_ms=PATIENCE_MS)
        with suppress(BrokerUnreachable):
            await calls.request(
                call(method, "/breaks", idempotent=idempotent), timeout_ms=PATIENCE_MS
            )
    assert times == asked


async def test_a_header_with_a_line_break_is_not_sent() -> None:
    async def handle(_request: web.Request) -> web.Response:
        raise AssertionError("it is never asked")

    broken = replace(call(), headers={"X-Mine": "1\r\nX-Other: 2"})
    async with served(handle) as calls:
        with pytest.raises(CallerError, match="cannot be sent"):
            await calls.request(broken, timeout_ms=PATIENCE_MS)


# --- under load ---


class Slow:
    """Owners that answer when the test lets them. `begun` are the addresses, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.goes_on = asyncio.Event()

    async def __call__(
        self,
        _method: str,
        url: URL,
        _headers: Mapping[str, str],
        _body: bytes | None,
        _connect_s: float,
    ) -> Response:
        self.begun.append(str(url.origin()))
        if url.host == "a":
            await self.goes_on.wait()
        return Response(status_code=200, headers={}, content=b"")


async def test_requests_to_an_address_are_bounded_and_the_others_wait_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until their deadline, and no more than the queue takes. Other addresses are not affected."""
    monkeypatch.setattr(module, "UNANSWERED_MAX", 2)
    monkeypatch.setattr(module, "QUEUED_MAX", 1)
    slow, table = Slow(), Table(peers=[peer("a", A)])
    calls = Calls(table, send=slow)

    def request(*, timeout_ms: int = PATIENCE_MS) -> asyncio.Task[Response]:
        return asyncio.get_running_loop().create_task(calls.request(call(), timeout_ms=timeout_ms))

    begun = [request(), request()]
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match="2 requests to http://a wait for answers"):
        await request(timeout_ms=10)
    queued = request()
    await asyncio.sleep(0)
    with pytest.raises(
        Overloaded, match="the queue of requests of this client is full: it holds 1"
    ):
        await request()
    assert [A, A] == slow.begun
    table.peers = [peer("b", B)]
    assert 200 == (await request()).status_code
    slow.goes_on.set()
    assert [200] * 3 == [answer.status_code for answer in await asyncio.gather(*begun, queued)]
    assert [A, A, B, B] == slow.begun, "what waited goes to the owner of that time"
