"""The counter example over HTTP: the status of each answer, and the content of the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response

from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.service import Ownership, Peer
from equipoise.brokers.testing.virtual_cluster import Cluster
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.examples.counter import Counter
from equipoise.examples.counter_store import CounterStore, Increment, Stored
from equipoise.pytest import MovesAtEveryAwait

NAMESPACE, KEY = "shop/orders", "k 1"
PATH = "/counter/shop/orders/k%201"


class Counters:
    """Two brokers, a and b, with counters over one store. a owns everything."""

    def __init__(self, cluster: Cluster[Counter], path: Path) -> None:
        self.cluster = cluster
        self.path = path
        (self.bundle,) = cluster.create(NAMESPACE, bundles=1)
        assert cluster.owner(self.bundle) == "a"

    def post(
        self, broker: str, *, namespace: str = NAMESPACE, within_ms: int = 0, **headers: str
    ) -> Response:
        """Call one broker."""
        tenant, _, rest = namespace.partition("/")
        match = {"tenant": tenant, "namespace": rest, "key": KEY}
        request = make_mocked_request(
            "POST",
            PATH,
            {name.replace("_", "-"): value for name, value in headers.items()},
            match_info=match,
        )
        return self.cluster.call(
            self.cluster.service(broker).increment(request), within_ms=within_ms
        )

    def rows(self, table: str) -> list[tuple[object, ...]]:
        """Return the requests in one table of the store."""
        with closing(sqlite3.connect(self.path)) as connection:
            # A test's own words.
            return connection.execute(f"SELECT request FROM {table} ORDER BY position").fetchall()  # noqa: S608


@pytest.fixture
def counters(tmp_path: Path) -> Iterator[Counters]:
    """Return a new cluster over a new store."""
    path = tmp_path / "counter.db"
    stores: list[CounterStore] = []

    def counter() -> Counter:
        stores.append(CounterStore(path))
        return Counter(stores[-1])

    with Cluster(counter, brokers=("a", "b"), patience_ms=20_000) as cluster:
        yield Counters(cluster, path)
    for store in stores:
        store.close()


def body(response: Response) -> Mapping[str, object]:
    """Return the document of an answer."""
    assert isinstance(response.text, str)
    document = json.loads(response.text)
    assert isinstance(document, dict)
    return document


def test_the_owner_counts(counters: Counters) -> None:
    """It answers with key, value, token and its id."""
    token = counters.cluster.ownership(NAMESPACE, KEY).token
    first, second = counters.post("a"), counters.post("a")
    assert (200, 200) == (first.status, second.status)
    assert {"key": "shop/orders/k 1", "value": 1, "token": token, "broker": "a"} == body(first)
    assert 2 == body(second)["value"]


def test_another_broker_redirects_to_the_owner(counters: Counters) -> None:
    """It writes nothing."""
    response = counters.post("b")
    assert (307, f"http://a{PATH}") == (response.status, response.headers["Location"])
    assert [] == counters.rows("writes")


def test_a_repeated_request_counts_once(counters: Counters) -> None:
    """Also after a transfer. The answer is the first one, with the former owner and its token."""
    first = body(counters.post("a", X_Request_Id="r1"))
    counters.cluster.give(counters.bundle, "b")
    assert first == body(counters.post("b", X_Request_Id="r1"))
    assert [("r1",)] == counters.rows("writes")


# --- moves in the middle of a call ---


async def counted(cluster: Cluster[Counter], request_id: str) -> int:
    """Call as a client does: follow redirects, and repeat a call whose outcome is unknown."""
    broker, match = "a", {"tenant": "shop", "namespace": "orders", "key": KEY}
    while True:
        request = make_mocked_request("POST", PATH, {"X-Request-Id": request_id}, match_info=match)
        response = await cluster.service(broker).increment(request)
        if response.status == 200:
            value = body(response)["value"]
            assert isinstance(value, int)
            return value
        assert response.status in (307, 500, 503)
        if response.status == 307:
            broker = response.headers["Location"].removesuffix(PATH).removeprefix("http://")


def test_each_call_counts_once_wherever_its_bundle_moves(
    equipoise_moves: MovesAtEveryAwait, tmp_path: Path
) -> None:
    """Each run has a new store, which both brokers write to."""
    stores: list[CounterStore] = []

    def counter() -> Counter:
        stores.append(CounterStore(tmp_path / f"counter-{len(stores) // 2}.db"))
        return Counter(stores[-1])

    for cluster in equipoise_moves(counter, NAMESPACE, KEY, brokers=("a", "b"), patience_ms=20_000):
        cluster.create(NAMESPACE, bundles=1)
        assert [1, 2, 3] == [
            cluster.call(counted(cluster, request_id)) for request_id in ("r1", "r2", "r3")
        ]
    for store in stores:
        store.close()
    assert len(stores) // 2 == 4  # One run without a move, and one for each write.


# --- what only a stall can bring about ---


class Believer:
    """A host that believes to own every key, as a broker does that has stalled after its first
    check.
    """

    broker_id = "a"

    def __init__(self, token: int) -> None:
        lease = Lease(incarnation=1, skew_max_ms=2**62, deadline_ms=2**62)
        self.handle = Handle(
            bundle=f"{NAMESPACE}/0x0_0x1",
            namespace=NAMESPACE,
            low=0,
            high=HASH_MAX,
            token=token,
            lease=lease,
            is_open=True,
        )

    def owned(self, namespace: str, key: str) -> Ownership | None:
        return None

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        return Ownership(self.handle, clock=VirtualClock())


class Interrupted(CounterStore):
    """A store during whose write the broker loses the bundle."""

    def __init__(self, path: Path, host: Believer) -> None:
        super().__init__(path)
        self.host = host

    async def increment(self, increment: Increment) -> Stored:
        stored = await super().increment(increment)
        self.host.handle.is_open = False
        return stored


def sql(counters: Counters, statement: str) -> None:
    """Change the file of the store, as no broker does."""
    with closing(sqlite3.connect(counters.path, isolation_level=None)) as spoiler:
        spoiler.execute(statement)


def believing(counters: Counters) -> None:
    """Broker a has stalled, and believes to own what b owns and has written to by now."""
    stale = counters.cluster.ownership(NAMESPACE, KEY).token
    counters.cluster.give(counters.bundle, "b")
    assert 200 == counters.post("b", X_Request_Id="r1").status
    counters.cluster.service("a").host = Believer(stale)


ANOTHER_KEY = "INSERT INTO writes(key, value, token, broker, request)"
ANOTHER_KEY += " VALUES ('shop/orders/other', 1, 1, 'a', 'r2')"
SPOIL = "CREATE TRIGGER spoil BEFORE INSERT ON writes BEGIN SELECT RAISE(ABORT, 'spoilt'); END"


@pytest.mark.parametrize(
    ("situation", "asked", "status", "told", "refused"),
    [
        (None, {"namespace": "shop/returns"}, 404, "equipoise namespaces create", []),
        (None, {"X_Request_Id": "tab\tin it"}, 400, "", []),
        (None, {"X_Request_Id": "Grüße"}, 400, "", []),
        # The refusal is recorded.
        (believing, {"X_Request_Id": "r2"}, 503, "", [("r2",)]),
        (lambda counters: sql(counters, SPOIL), {}, 500, "spoilt", []),
        (lambda counters: sql(counters, ANOTHER_KEY), {"X_Request_Id": "r2"}, 409, "", []),
    ],
)
def test_a_request_that_writes_nothing_says_why(
    counters: Counters,
    situation: Callable[[Counters], None] | None,
    asked: dict[str, str],
    *,
    status: int,
    told: str,
    refused: list[tuple[str]],
) -> None:
    if situation is not None:
        situation(counters)
    before = counters.rows("writes")
    response = counters.post("a", **asked)  # type: ignore[arg-type]
    assert (status, True) == (response.status, told in (response.text or ""))
    assert (status == 503) == (response.headers.get("Retry-After") == "1")
    assert (before, refused) == (counters.rows("writes"), counters.rows("refusals"))


def test_a_loss_of_ownership_during_the_write_is_500(counters: Counters, tmp_path: Path) -> None:
    """503 would promise that nothing was written."""
    host = Believer(token=5)
    store = Interrupted(tmp_path / "counter.db", host)
    counter = Counter(store)
    counter.host = host
    request = make_mocked_request(
        "POST",
        PATH,
        {"X-Request-Id": "r1"},
        match_info={"tenant": "shop", "namespace": "orders", "key": KEY},
    )
    counters.cluster.call(counter.open(counters.cluster.ownership(NAMESPACE, KEY), None))
    response = counters.cluster.call(counter.increment(request))
    store.close()
    assert 500 == response.status
    assert [("r1",)] == counters.rows("writes")


def test_a_namespace_of_another_service_is_404(counters: Counters) -> None:
    host = Believer(token=5)
    counter = Counter(CounterStore(counters.path))
    counter.host = host
    request = make_mocked_request(
        "POST", PATH, match_info={"tenant": "shop", "namespace": "orders", "key": KEY}
    )
    assert 404 == counters.cluster.call(counter.increment(request)).status
    assert [] == counters.rows("writes")
