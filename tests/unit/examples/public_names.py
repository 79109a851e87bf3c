"""A program that uses each public name, for type checkers. `make check` has mypy and basedpyright
look at it; nobody runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_type

from aiohttp import web
from fastapi import FastAPI

from equipoise import (
    Bundle,
    BundleLoad,
    Client,
    ClientInThread,
    Cluster,
    Deadline,
    Equipoise,
    Identity,
    Keyed,
    Messaging,
    Ownership,
    Peer,
    PostgresStore,
    RedisStore,
    Response,
    Service,
    ServiceHost,
    Shard,
    SqliteStore,
    Store,
    Tasks,
    Work,
    WorkerInThread,
    current_work,
    errors,
    identity_of,
    key_hash,
)
from equipoise.errors import (
    BrokerUnreachable,
    Bug,
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    InvalidConfig,
    InvalidName,
    LogUnavailable,
    NotFound,
    OperatorError,
    OutcomeUnknown,
    Overloaded,
    OwnershipLost,
    PeerError,
    Rejected,
    StaleToken,
    UnknownNamespace,
    WorkerEnded,
)


class Notes(Service):
    """A service with a method of its own."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Use what an ownership has."""
        assert_type(ownership.token, int)
        assert_type(ownership.handover_problem, str | None)
        if ownership.fetch is not None:
            assert_type(await ownership.fetch(), bytes | None)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Use what a bundle, a peer and a deadline have."""
        assert_type(bundle.contains(bundle.namespace, bundle.name), bool)
        assert_type(key_hash(bundle.name), int)
        if moved_to is not None:
            assert_type(moved_to.addresses, Mapping[str, str])
        return await deadline.wait(self.flush(), what="the flush")

    async def flush(self) -> bytes:
        """Return a state."""
        return b""

    def load(self) -> Mapping[str, BundleLoad]:
        """Return the load of a bundle of topics."""
        return {"shop/carts/0x00000000_0xffffffff": BundleLoad(messaging=Messaging(topics=1))}

    def role(self, request: web.Request) -> str:
        """Return who calls a route."""
        identity = assert_type(identity_of(request), Identity | None)
        return "" if identity is None else assert_type(identity.role, str)

    async def served(self, key: str) -> int | Mapping[str, str]:
        """Return the token of a piece of work, or where to send its caller."""
        assert_type(self.host, ServiceHost)
        served = await self.host.route("shop/carts", key, timeout_ms=1_000)
        if isinstance(served, Peer):
            return served.addresses
        with served.begin(key) as work:
            assert_type(work, Work)
            return work.token


async def serve() -> None:
    """Run a worker and a client on a loop."""
    async with (
        Equipoise("memory:notes", {"shop/*": Notes()}, cluster="shop", lease_ms=3_000) as worker,
        Client("memory:notes") as client,
    ):
        await worker.create_namespace("shop/carts", on_channel_loss="serve")
        assert_type(worker.ownership("shop/carts", "key"), Ownership | None)
        assert_type(worker.owned("shop/carts", "key"), Ownership | None)
        assert_type(await worker.route("shop/carts", "key"), Ownership | Peer)
        assert_type(await client.owner("shop/carts", "key"), Peer)
        assert_type(await client.request("GET", "shop/carts", "key", "/carts/key"), Response)


def program(worker: Equipoise) -> FastAPI:
    """Return a program behind a worker, with two kinds of keys."""
    app = FastAPI()
    app.add_middleware(worker.by_key, namespace="shop/carts", key="/carts/{key}")
    app.add_middleware(
        worker.by_key, namespace="shop/users", key=lambda scope: str(scope["path"]), forward=True
    )

    @app.get("/carts/{cart}")
    async def cart(cart: str) -> int:
        return assert_type(current_work(), Work).token

    return app


@dataclass
class Cart:
    """The state of a cart."""

    items: int = 0


async def work_on(shard: Shard) -> None:
    """Use what a shard has."""
    assert_type(shard.token, int)
    assert_type(shard.bundle, Bundle)
    assert_type(shard.begin("key"), Work)


def member(store: Store) -> FastAPI:
    """Return a program that keeps objects and runs tasks."""
    app = FastAPI()
    carts = Keyed("shop/carts", Cart, store=store)
    assert_type(carts, Keyed[Cart])

    @app.post("/carts/{cart}")
    @carts.route("cart")
    async def add(cart: str, state: Cart) -> int:
        async with carts.at(f"{cart}-2") as other:
            assert_type(other, Cart)
        return state.items

    tasks = Tasks("shop/mail", work_on, shards=4)
    Equipoise("memory:a", carts, tasks, cluster="shop", address="http://a", lease_ms=9).install(app)
    return app


for each in (SqliteStore("carts.db"), PostgresStore("postgresql://a"), RedisStore("redis://a")):
    assert_type(member(each), FastAPI)


def serve_in_threads() -> None:
    """Run the same in threads."""
    with (
        Equipoise("memory:notes", cluster="shop").in_thread() as worker,
        Client("memory:notes").in_thread() as client,
    ):
        assert_type(worker, WorkerInThread)
        assert_type(client, ClientInThread)
        assert_type(worker.route("shop/carts", "key"), Ownership | Peer)
        assert_type(client.owner("shop/carts", "key"), Peer)
        assert_type(client.request("GET", "shop/carts", "key", "/carts/key"), Response)


def try_out() -> None:
    """Test the service."""
    with Cluster(Notes, brokers=2) as cluster:
        assert_type(cluster, Cluster[Notes])
        notes = cluster.service(cluster.brokers[0])
        assert_type(notes, Notes)
        assert_type(cluster.call(notes.flush(), within_ms=10), bytes)


def advice(error: EquipoiseError) -> str | None:
    """Return what a program may do about an error, by what each has."""
    match error:
        case InvalidConfig():
            return assert_type(error.problems, tuple[str, ...])[0]
        case InvalidName():
            return assert_type(error.what, str)
        case DeadlineExceeded():
            return f"{assert_type(error.waited_ms, int)} ms"
        case Overloaded():
            return f"{assert_type(error.limit, int)}"
        case OwnershipLost():
            return assert_type(error.bundle, str)
        case BrokerUnreachable():
            return f"{assert_type(error.in_doubt, bool)}"
        case WorkerEnded():
            return assert_type(error.broker, str)
        case Rejected():
            return assert_type(error.reason, str)
        case UnknownNamespace():
            return assert_type(error.namespace, str)
        case LogUnavailable() | OutcomeUnknown():
            return assert_type(error.log, str)
        case StaleToken() | NotFound() | CallerError() | OperatorError() | PeerError() | Bug():
            return str(error)
        case _:
            return errors.__doc__
