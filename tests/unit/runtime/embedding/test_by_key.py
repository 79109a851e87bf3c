"""Programs behind `by_key` on brokers in virtual time: who answers, what refusals say, and what a
move in the midst of a request does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from unittest.mock import AsyncMock, MagicMock

import httpx
import pytest
from fastapi import FastAPI, Request

from equipoise import Bundle, Cluster, Deadline, Ownership, Peer, Service, current_work
from equipoise.brokers.client.attempts import FORWARDED_BY, OUTCOME, RequestOutcome, outcome_of
from equipoise.brokers.runtime.embedding.by_key import ByKey
from equipoise.brokers.runtime.embedding.forwarding import Message, Receive, Send
from equipoise.brokers.testing.virtual_member import Member
from equipoise.channel.core.errors import CallerError, InvalidName
from equipoise.pytest import MakeCluster, MovesAtEveryAwait

NAMESPACE = "web/pages"
TIMEOUT_MS = 20_000


class Pages(Service):
    """Counts visits in memory, slowly. The counts move with their bundle."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        for line in (handover or b"").decode().splitlines():
            page, count = line.split()
            self.counts[page] = int(count)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        leaving = [page for page in self.counts if bundle.contains(NAMESPACE, page)]
        return "\n".join(f"{page} {self.counts.pop(page)}" for page in leaving).encode()

    async def visit(self, page: str) -> int:
        """Read, wait as for a store, and write."""
        count = self.counts[page] + 1
        await asyncio.sleep(0)
        self.counts[page] = count
        return count


def program(
    cluster: Cluster[Pages], broker: str, *, timeout_ms: int = TIMEOUT_MS, forward: bool = False
) -> httpx.AsyncClient:
    """Return a client of a program at one broker. Its address is that which the broker
    advertises.
    """
    app, pages = FastAPI(), cluster.service(broker)
    app.add_middleware(
        ByKey,
        host=cluster.host(broker),
        namespace=NAMESPACE,
        key="/visits/{key}",
        timeout_ms=timeout_ms,
        forward=forward,
    )

    @app.post("/visits/{page}")
    async def visit(page: str) -> dict[str, str | int]:
        return {"visits": await pages.visit(page), "broker": broker, "token": current_work().token}

    @app.get("/visits/{page}")
    async def fails(page: str) -> None:
        raise ValueError(page)

    @app.get("/about")
    async def about(request: Request) -> str:
        try:
            return str(current_work())
        except CallerError as error:
            return str(error)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=f"http://{broker}"
    )


async def post(
    client: httpx.AsyncClient, path: str = "/visits/home", headers: Mapping[str, str] | None = None
) -> httpx.Response:
    async with client:
        return await client.post(path, headers=headers)


@pytest.fixture
def cluster(equipoise_cluster: MakeCluster) -> Cluster[Pages]:
    """Two brokers, of which `broker-1` owns the only bundle."""
    cluster = equipoise_cluster(Pages, brokers=2)
    (bundle,) = cluster.create(NAMESPACE, bundles=1)
    cluster.give(bundle, "broker-1")
    return cluster


def test_the_owner_answers_with_its_token(cluster: Cluster[Pages]) -> None:
    answer = cluster.call(post(program(cluster, "broker-1")))
    token = cluster.ownership(NAMESPACE, "home").token
    assert {"visits": 1, "broker": "broker-1", "token": token} == answer.json()


def test_a_call_goes_behind_those_that_wait_for_its_owner(
    cluster: Cluster[Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker gives its ownership at once only if nobody waits for it."""
    host = cluster.host("broker-1")
    assert cluster.ownership(NAMESPACE, "home") is host.owned(NAMESPACE, "home")
    assert cluster.host("broker-2").owned(NAMESPACE, "home") is None
    monkeypatch.setattr(Member, "has_line", lambda _, line: line.name.startswith("calls of"))
    assert host.owned(NAMESPACE, "home") is None


def test_another_program_redirects_to_the_owner(cluster: Cluster[Pages]) -> None:
    """To the same path, as it was sent."""
    answer = cluster.call(post(program(cluster, "broker-2"), "/visits/a%20b?c=%2F"))
    assert (307, "http://broker-1/visits/a%20b?c=%2F") == (
        answer.status_code,
        answer.headers["Location"],
    )
    assert RequestOutcome.NOT_STARTED is outcome_of(
        answer.status_code, answer.headers[OUTCOME], is_to_peer=False
    )
    assert {"reason", "error"} == set(answer.json())


def test_a_request_without_a_key_is_the_programs(cluster: Cluster[Pages]) -> None:
    async def about() -> str:
        async with program(cluster, "broker-2") as client:
            return (await client.get("/about")).text

    assert "there is no current work" in cluster.call(about())


@pytest.mark.parametrize(
    ("version", "drains", "ends"), [("1.1", True, True), ("1.1", False, False), ("2", True, False)]
)
async def test_an_answer_of_a_worker_that_drains_ends_its_connection(
    version: str, drains: bool, ends: bool
) -> None:
    """Otherwise a client could send a request on it while the program closes it, and would not know
    whether it was executed.
    """
    sent: list[Message] = []

    async def app(_scope: Message, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    by_key = ByKey(
        app,
        MagicMock(),
        namespace=NAMESPACE,
        key=lambda _: None,
        timeout_ms=1,
        drains=lambda: drains,
    )
    await by_key(
        {"type": "http", "http_version": version, "path": "/x", "headers": []}, AsyncMock(), send
    )
    assert [[(b"connection", b"close")] if ends else []] == [message["headers"] for message in sent]


def test_a_request_waits_for_an_owner(cluster: Cluster[Pages]) -> None:
    bundle = cluster.bundle(NAMESPACE, "home")
    client = program(cluster, "broker-2")
    cluster.kill("broker-1")
    cluster.advance(2_000)  # The other broker suspects it from then on.
    answer = cluster.call(post(client), within_ms=3_000)
    assert (200, "broker-2") == (answer.status_code, answer.json()["broker"])
    assert cluster.owner(bundle) == "broker-2"


@pytest.mark.parametrize("forward", [False, True])
def test_without_an_owner_it_is_answered_503_and_may_be_repeated(
    cluster: Cluster[Pages], forward: bool
) -> None:
    cluster.take(cluster.bundle(NAMESPACE, "home"))
    answer = cluster.call(
        post(program(cluster, "broker-2", timeout_ms=500, forward=forward)), within_ms=1_000
    )
    assert (503, "1", "DeadlineExceeded") == (
        answer.status_code,
        answer.headers["Retry-After"],
        answer.json()["error"],
    )
    assert "an owner for web/pages/home" in answer.json()["reason"]
    assert RequestOutcome.NOT_STARTED is outcome_of(503, answer.headers[OUTCOME], is_to_peer=False)


def test_without_a_broker_that_takes_the_bundle_it_is_answered_503_at_once(
    cluster: Cluster[Pages],
) -> None:
    """So the end of all programs does not wait for owners that never come."""
    draining = cluster.host("broker-2")
    assert isinstance(draining, Member)

    async def drain() -> None:
        draining.drain()

    cluster.call(drain())
    cluster.kill("broker-1")
    cluster.advance(4_000)
    answer = cluster.call(post(program(cluster, "broker-2")))
    assert (503, "1", "PeerError") == (
        answer.status_code,
        answer.headers["Retry-After"],
        answer.json()["error"],
    )
    assert "all brokers stop or drain" in answer.json()["reason"]
    assert RequestOutcome.NOT_STARTED is outcome_of(503, answer.headers[OUTCOME], is_to_peer=False)


def test_a_namespace_that_does_not_exist_is_404(equipoise_cluster: MakeCluster) -> None:
    cluster = equipoise_cluster(Pages, brokers=1)
    answer = cluster.call(post(program(cluster, "broker-1")))
    assert (404, "UnknownNamespace") == (answer.status_code, answer.json()["error"])


def test_a_request_that_was_forwarded_is_not_sent_on(cluster: Cluster[Pages]) -> None:
    """Otherwise two programs with old views would send it back and forth."""
    for forward in (False, True):
        client = program(cluster, "broker-2", forward=forward)
        answer = cluster.call(post(client, headers={FORWARDED_BY: "broker-3"}))
        assert (421, "Misdirected") == (answer.status_code, answer.json()["error"])
        assert (
            "broker-3 forwarded a request for home to broker-2, but broker-1 serves it"
            in answer.json()["reason"]
        )
    answer = cluster.call(post(program(cluster, "broker-1"), headers={FORWARDED_BY: "broker-2"}))
    assert 200 == answer.status_code


def test_an_error_of_the_program_ends_the_work(cluster: Cluster[Pages]) -> None:
    """A move does not wait for it."""

    async def fail() -> int:
        async with program(cluster, "broker-1") as client:
            return (await client.get("/visits/home")).status_code

    assert 500 == cluster.call(fail())
    cluster.give(cluster.bundle(NAMESPACE, "home"), "broker-2")


def during(
    cluster: Cluster[Pages], gate: asyncio.Event, meanwhile: Callable[[], None]
) -> httpx.Response:
    """Return the answer of a request in whose midst something happens."""
    pages = cluster.service("broker-1")

    async def held(page: str) -> int:
        await gate.wait()
        pages.counts[page] += 1
        return pages.counts[page]

    pages.visit = held  # type: ignore[method-assign]  # a slow store
    answers: list[httpx.Response] = []

    async def begin() -> asyncio.Task[None]:
        async def keep() -> None:
            answers.append(await post(program(cluster, "broker-1")))

        task = asyncio.get_running_loop().create_task(keep())
        await asyncio.sleep(0)
        return task

    task = cluster.call(begin())
    meanwhile()

    async def end() -> None:
        gate.set()
        await task

    cluster.call(end())
    return answers[0]


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_an_answer_past_the_lease_is_replaced(
    equipoise_cluster: MakeCluster, is_cut_off: bool
) -> None:
    """The program may have done something, and the answer says so."""
    cluster = equipoise_cluster(Pages, brokers=2, patience_ms=50)
    (bundle,) = cluster.create(NAMESPACE, bundles=1)
    cluster.give(bundle, "broker-1")

    def meanwhile() -> None:
        if is_cut_off:
            cluster.kill("broker-1")
        cluster.advance(4_000)

    answer = during(cluster, asyncio.Event(), meanwhile)
    if is_cut_off:
        assert (503, "OwnershipLost") == (answer.status_code, answer.json()["error"])
        assert RequestOutcome.UNKNOWN is outcome_of(503, answer.headers[OUTCOME], is_to_peer=False)
    else:  # The lease was renewed.
        assert 200 == answer.status_code


async def visit(cluster: Cluster[Pages], page: str, *, first: str = "broker-1") -> int:
    """Visit a page as a client does that follows redirects. It repeats nothing else."""
    broker = first
    while True:
        answer = await post(program(cluster, broker), f"/visits/{page}")
        if answer.status_code != 307:
            assert 200 == answer.status_code, answer.text
            return int(answer.json()["visits"])
        broker = httpx.URL(answer.headers["Location"]).host


def test_no_move_fails_a_request_or_counts_it_twice(equipoise_moves: MovesAtEveryAwait) -> None:
    """At whatever await point, the move waits for the request, or the request for the move."""
    moved = 0
    for cluster in equipoise_moves(Pages, NAMESPACE, "home", brokers=2):
        cluster.create(NAMESPACE, bundles=1)
        assert [1, 2, 3] == [
            cluster.call(visit(cluster, "home", first=first))
            for first in ("broker-1", "broker-2", "broker-1")
        ]
        moved += 1
    assert moved > 3


def me(_scope: object) -> str:
    return "me"


@pytest.mark.parametrize(
    ("key", "root", "path", "found"),
    [
        ("/visits/{key}", "", "/visits/home", "home"),
        ("/visits/{key}", "", "/visits/home/comments/3", "home"),
        ("/shops/{shop}/users/{key}/", "", "/shops/a.b/users/me", "me"),
        ("/a.c/{key}", "", "/abc/home", None),
        ("/visits/{key}", "", "/visits/", None),
        ("/visits/{key}", "", "/other/visits/home", None),
        ("/visits/{key}", "/mount", "/mount/visits/home", "home"),
        (me, "", "/anything", "me"),
        (me, "", "/equipoise", None),
        (me, "", "/equipoise/v1/brokers", None),
        (me, "", "/equipoises", "me"),
    ],
)
async def test_the_key_is_found_in_the_path(
    key: str | Callable[[object], str], root: str, path: str, found: str | None
) -> None:
    """Paths of the broker have none: each broker answers for itself. Behind another program, its
    checks would see that program as the client.
    """
    route = AsyncMock(return_value=Peer(broker="b"))
    app, host = AsyncMock(), MagicMock(owned=MagicMock(return_value=None), route=route)
    by_key = ByKey(
        app, host, namespace=NAMESPACE, key=key, timeout_ms=1, mounted_at=lambda: "/equipoise"
    )
    scope = {"type": "http", "method": "GET", "path": path, "root_path": root}
    await by_key({**scope, "query_string": b"", "headers": []}, AsyncMock(), AsyncMock())
    assert [found] * (found is not None) == [call.args[1] for call in route.await_args_list]
    assert (found is None) == app.await_count


@pytest.mark.parametrize("key", ["/visits", "visits/{key}", "/{key}/{key}", "/a{key}"])
def test_a_path_without_one_key_is_refused(equipoise_cluster: MakeCluster, key: str) -> None:
    host = equipoise_cluster(Pages, brokers=1).host("broker-1")

    async def app(*_: object) -> None:
        return

    with pytest.raises(CallerError, match="has no key"):
        ByKey(app, host, namespace=NAMESPACE, key=key, timeout_ms=1)
    with pytest.raises(InvalidName):
        ByKey(app, host, namespace="no namespace", key="/{key}", timeout_ms=1)
