"""The counter example, spoken to as HTTP speaks to it: each status that it answers, and what is in the store then."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
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

NAMESPACE, KEY = "shop/orders", "k 1"
DEADLINE_MS = 10_000  # That of a counter's call.
PATH = "/counter/shop/orders/k%201"


class Party:
    """A cluster of two brokers, a and b, with counters over one store; a owns everything."""

    def __init__(self, cluster: Cluster[Counter], path: Path) -> None:
        self.cluster = cluster
        self.path = path
        (self.bundle,) = cluster.create(NAMESPACE, bundles=1)
        assert cluster.owner(self.bundle) == "a"

    def post(self, broker: str, *, namespace: str = NAMESPACE, within_ms: int = 0, **headers: str) -> Response:
        """One call at a broker."""
        tenant, _, rest = namespace.partition("/")
        match = {"tenant": tenant, "namespace": rest, "key": KEY}
        request = make_mocked_request("POST", PATH, {name.replace("_", "-"): value for name, value in headers.items()}, match_info=match)
        return self.cluster.call(self.cluster.service(broker).increment(request), within_ms=within_ms)

    def rows(self, table: str) -> list[tuple[object, ...]]:
        """What stands in the store."""
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(f"SELECT request FROM {table} ORDER BY position").fetchall()  # noqa: S608 - a test's own words
        finally:
            connection.close()


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    """A new cluster over a new store."""
    path = tmp_path / "counter.db"
    stores: list[CounterStore] = []

    def counter() -> Counter:
        stores.append(CounterStore(path))
        return Counter(stores[-1])

    with Cluster(counter, brokers=("a", "b"), patience_ms=20_000) as cluster:
        yield Party(cluster, path)
    for store in stores:
        store.close()


def body(response: Response) -> Mapping[str, object]:
    """The answer's document."""
    assert isinstance(response.text, str)
    told = json.loads(response.text)
    assert isinstance(told, dict)
    return told


def test_the_owner_counts(party: Party) -> None:
    """The owner answers key, value, token and its id, and counts each call."""
    token = party.cluster.ownership(NAMESPACE, KEY).token
    first, second = party.post("a"), party.post("a")
    assert (200, 200) == (first.status, second.status)
    assert {"key": "shop/orders/k 1", "value": 1, "token": token, "broker": "a"} == body(first)
    assert 2 == body(second)["value"]


def test_another_broker_sends_the_caller_on(party: Party) -> None:
    """Who does not own the key answers 307 with the owner's same path, and writes nothing."""
    response = party.post("b")
    assert (307, f"http://a{PATH}") == (response.status, response.headers["Location"])
    assert [] == party.rows("writes")


def test_a_request_counts_once_wherever_it_comes_again(party: Party) -> None:
    """A request that is sent again after a transfer is answered as the first time, with the former owner and its token."""
    first = body(party.post("a", X_Request_Id="r1"))
    party.cluster.give(party.bundle, "b")
    assert first == body(party.post("b", X_Request_Id="r1"))
    assert [("r1",)] == party.rows("writes")


def test_nobody_to_serve_is_503_at_the_end_of_the_deadline(party: Party) -> None:
    """A key that nobody serves is waited for, and then refused with the time to come again."""
    party.cluster.take(party.bundle)
    begun_ms = party.cluster.now_ms
    response = party.post("a", within_ms=2 * DEADLINE_MS)
    assert (503, "1") == (response.status, response.headers["Retry-After"])
    assert party.cluster.now_ms - begun_ms >= DEADLINE_MS
    assert [] == party.rows("writes")


def test_an_unknown_namespace_is_404(party: Party) -> None:
    """A namespace that is not there is refused, with what to do about it."""
    response = party.post("a", namespace="shop/returns")
    assert 404 == response.status
    assert "equipoise namespaces create" in (response.text or "")


@pytest.mark.parametrize("request_id", ["tab\tin it", "Grüße"])
def test_a_request_id_is_printable_ascii(party: Party, request_id: str) -> None:
    """An id that could not be stored, or not be read by people, is the caller's mistake."""
    assert 400 == party.post("a", X_Request_Id=request_id).status
    assert [] == party.rows("writes")


def test_the_load_is_told_by_bundle(party: Party) -> None:
    """The load is what was called since it was asked for last."""
    party.post("a")
    counter = party.cluster.service("a")
    assert [party.bundle] == list(counter.load())
    party.post("a")
    assert counter.load()[party.bundle].calls_per_second > 0
    assert {} == counter.load()


# --- what only a stall can bring about ---


class Believer:
    """A host that believes to own every key under a token, as a broker does that has stalled after its first check."""

    broker_id = "a"

    def __init__(self, token: int) -> None:
        lease = Lease(incarnation=1, skew_max_ms=2**62, deadline_ms=2**62)
        self.handle = Handle(
            bundle=f"{NAMESPACE}/0x0_0x1", namespace=NAMESPACE, low=0, high=HASH_MAX, token=token, lease=lease, is_open=True
        )

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


def test_a_stale_token_is_refused_by_the_store_and_promised_so(party: Party) -> None:
    """A write that arrives after another owner's is refused, put on record, and answered 503: nothing was written."""
    stale = party.cluster.ownership(NAMESPACE, KEY).token
    party.cluster.give(party.bundle, "b")
    assert 200 == party.post("b", X_Request_Id="r1").status
    party.cluster.service("a").host = Believer(stale)
    response = party.post("a", X_Request_Id="r2")
    assert (503, "1") == (response.status, response.headers["Retry-After"])
    assert ([("r1",)], [("r2",)]) == (party.rows("writes"), party.rows("refusals"))


def test_what_was_written_is_never_denied(party: Party, tmp_path: Path) -> None:
    """Where the ownership ends while the write is under way, the answer is 500, which promises nothing, and not 503."""
    host = Believer(token=5)
    store = Interrupted(tmp_path / "counter.db", host)
    counter = Counter(store)
    counter.host = host
    request = make_mocked_request("POST", PATH, {"X-Request-Id": "r1"}, match_info={"tenant": "shop", "namespace": "orders", "key": KEY})
    party.cluster.call(counter.open(party.cluster.ownership(NAMESPACE, KEY), None))
    response = party.cluster.call(counter.increment(request))
    store.close()
    assert 500 == response.status
    assert [("r1",)] == party.rows("writes")


def test_a_namespace_of_another_service_is_none_of_a_counters(party: Party) -> None:
    """A broker with several services owns bundles that were opened for another one: 404, and nothing is written."""
    host = Believer(token=5)
    counter = Counter(CounterStore(party.path))
    counter.host = host
    request = make_mocked_request("POST", PATH, match_info={"tenant": "shop", "namespace": "orders", "key": KEY})
    assert 404 == party.cluster.call(counter.increment(request)).status
    assert [] == party.rows("writes")


def test_a_store_that_fails_is_500(party: Party) -> None:
    """Where the store cannot tell whether it has written, neither can the answer."""
    spoiler = sqlite3.connect(party.path, isolation_level=None)
    spoiler.execute("CREATE TRIGGER spoil BEFORE INSERT ON writes BEGIN SELECT RAISE(ABORT, 'spoilt'); END")
    spoiler.close()
    response = party.post("a")
    assert 500 == response.status
    assert "spoilt" in (response.text or "")


def test_an_id_that_was_used_for_another_key_is_409(party: Party) -> None:
    """The same id for two keys is refused, and counts nothing."""
    spoiler = sqlite3.connect(party.path, isolation_level=None)
    spoiler.execute("INSERT INTO writes(key, value, token, broker, request) VALUES ('shop/orders/other', 1, 1, 'a', 'r1')")
    spoiler.close()
    assert 409 == party.post("a", X_Request_Id="r1").status


def test_an_owner_without_an_address_is_told(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not the owner and knows no address of it says so, and that asking again may help."""

    async def route(*_arguments: object, **_named: object) -> Peer:
        return Peer(broker="a", addresses={})

    monkeypatch.setattr(party.cluster.service("b").host, "route", route)
    response = party.post("b")
    assert (503, "1") == (response.status, response.headers["Retry-After"])
    assert response.text is not None
    assert "broker a serves this key" in response.text
