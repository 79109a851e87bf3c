"""A broker inside a program: on its event loop or in a thread, over a log in memory or in a
file.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import uuid
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from equipoise import identity_of
from equipoise.brokers.errors import InvalidConfig, Rejected, UnknownNamespace
from equipoise.brokers.runtime.embedding.embedded import Worker, WorkerInThread
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service, WorkerEnded
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    InvalidName,
    OperatorError,
)
from equipoise.channel.system.clocks import Deadline
from tests.house.house_rules import ROOT
from tests.unit.security.signing import SETTINGS, bearer, token

pytestmark = pytest.mark.integration

NAMESPACE = "shop/orders"
DEADLINE_S = 120.0


class Keeper(Service):
    """A service that notes handovers, and hands over the id of its broker."""

    def __init__(self) -> None:
        self.handed_over: list[bytes | None] = []

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.handed_over.append(handover)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        return self.host.broker_id.encode()


def memory() -> str:
    """Return the URL of a new log in memory."""
    return f"memory:{uuid.uuid4()}"


async def test_two_programs_share_the_keys(tmp_path: Path, log_url: str) -> None:
    """Each worker routes its own keys to itself, and the others to the other."""
    two_has = tmp_path / "two"
    async with (
        Worker(log_url, Keeper(), advertised_addresses={"http": "http://one"}) as one,
        Worker(
            log_url,
            Keeper(),
            broker_id="two",
            data_dir=two_has,
            advertised_addresses={"http": "http://two"},
        ) as two,
    ):
        await one.create_namespace(NAMESPACE, bundles=8)
        await two.create_namespace(NAMESPACE, bundles=2)
        for key in map(str, range(40)):
            at_one, at_two = await one.route(NAMESPACE, key), await two.route(NAMESPACE, key)
            if isinstance(at_one, Ownership):
                assert Peer(broker=one.broker_id, addresses={"http": "http://one"}) == at_two
                assert (at_one, None) == (
                    one.ownership(NAMESPACE, key),
                    two.ownership(NAMESPACE, key),
                )
                at_one.begin(key).finish()
            else:
                assert Peer(broker="two", addresses={"http": "http://two"}) == at_one
                assert isinstance(at_two, Ownership)


ENDED = """
import asyncio, signal, sys
from tests.integration.test_embedded import NAMESPACE, Keeper
from equipoise import Equipoise

# It may have been started with SIGINT ignored, as by a shell in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    try:
        async with Equipoise(sys.argv[1], {NAMESPACE: Keeper()}, cluster="equipoise") as goes:
            await goes.create_namespace(NAMESPACE)
            await goes.route(NAMESPACE, "key")
            print(goes.broker_id, flush=True)
            await goes.finished()
    finally:
        print("left")

asyncio.run(main())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)])
async def test_a_plain_program_hands_over_at_a_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Nothing else is written for it. Its contexts end before it does."""
    log, keeper = f"sqlite:{tmp_path}/channel.db", Keeper()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ENDED, log), cwd=ROOT, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    goes = (await process.stdout.readline()).strip()
    async with Worker(log, keeper, broker_id="stays", data_dir=tmp_path / "stays") as stays:
        process.send_signal(number)
        output, errors = await process.communicate()
        assert (b"left\n", code) == (output, process.returncode), errors
        assert number == signal.SIGINT or not errors
        assert isinstance(await stays.route(NAMESPACE, "key"), Ownership)
        assert {goes} == set(keeper.handed_over)


def test_a_named_broker_on_kafka_needs_a_data_dir() -> None:
    """A temporary one would not let it come back as itself."""
    with pytest.raises(
        InvalidConfig, match="data_dir: name a directory for the data of broker named"
    ):
        Worker("kafka://localhost:9092/channel", Keeper(), broker_id="named")
    with pytest.raises(InvalidConfig, match="data_dir: the name is empty"):
        Worker("kafka://localhost:9092/channel", Keeper(), broker_id="named", data_dir="")
    Worker("kafka://localhost:9092/channel", Keeper(), broker_id="named", data_dir="elsewhere")
    Worker("kafka://localhost:9092/channel", Keeper())


@pytest.mark.on_every_log
async def test_without_http_a_worker_never_outlasts_its_lease(log_url: str) -> None:
    """The others could not ask it for assurances."""
    async with Worker(log_url, Keeper()) as worker:
        (joined,) = [record.joined for record in worker._started.view.live_brokers()]  # noqa: SLF001
        assert 0 == joined.extend_ms
    extended = Worker(log_url, Keeper(), extend_ms=30_000, renew_ms=300)
    with pytest.raises(InvalidConfig, match="extend_ms: it needs http_port or a mount"):
        await extended.__aenter__()


async def test_on_channel_loss_is_a_policy_of_a_new_namespace() -> None:
    async with Worker(memory(), Keeper(), broker_id="a") as worker:
        await worker.create_namespace(NAMESPACE, on_channel_loss="serve")
        with pytest.raises(Rejected, match="on_channel_loss is 'sometimes'"):
            await worker.create_namespace("shop/others", on_channel_loss="sometimes")  # type: ignore[arg-type]
        ownership = await worker.route(NAMESPACE, "key")
        assert isinstance(ownership, Ownership)


async def test_mistakes_are_typed_errors() -> None:
    """None of them ends the worker."""
    with pytest.raises(InvalidConfig, match="lease"):
        Worker(memory(), Keeper(), lease="long")
    async with Worker(memory(), Keeper()) as worker:
        with pytest.raises(UnknownNamespace):
            await worker.route("shop/returns", "key")
        with pytest.raises(InvalidName):
            await worker.create_namespace("no namespace")
        with pytest.raises(CallerError, match="1 to 4096 bundles, not 5000"):
            await worker.create_namespace(NAMESPACE, bundles=5_000)
        await worker.create_namespace(NAMESPACE)
        assert isinstance(await worker.route(NAMESPACE, "key"), Ownership)


async def test_a_call_waits_for_a_program_that_serves_its_namespace() -> None:
    """At its end it says that there is none."""
    log = memory()
    async with Worker(log, {"shop/*": Keeper()}, broker_id="shop") as shop:
        await shop.create_namespace("blog/posts", bundles=1)
        with pytest.raises(DeadlineExceeded, match="no broker that is up serves blog/posts"):
            await shop.route("blog/posts", "key", timeout_ms=300)
        waiting = asyncio.create_task(shop.route("blog/posts", "key"))
        async with Worker(log, {"blog/posts": Keeper()}, broker_id="blog"):
            assert Peer(broker="blog", addresses={}) == await waiting
        with pytest.raises(DeadlineExceeded, match="no broker that is up serves blog/posts"):
            await shop.route("blog/posts", "key", timeout_ms=300)


async def test_a_drained_worker_stays_and_routes_to_the_new_owners() -> None:
    """A second drain changes nothing."""
    log, stays = memory(), Keeper()
    async with Worker(log, Keeper()) as goes:
        await goes.create_namespace(NAMESPACE)
        await goes.route(NAMESPACE, "key")
        async with Worker(log, stays) as other:
            assert await goes.drain()
            for key in map(str, range(20)):
                served = await goes.route(NAMESPACE, key)
                assert isinstance(served, Peer)
                assert served.broker == other.broker_id
                assert isinstance(await other.route(NAMESPACE, key), Ownership)
            assert {goes.broker_id.encode()} == set(stays.handed_over)
            assert await goes.drain()
            goes.check()


async def test_a_drain_does_not_wait_for_brokers_that_do_not_exist() -> None:
    """The worker serves on."""
    async with Worker(memory(), Keeper()) as worker:
        await worker.create_namespace(NAMESPACE)
        await worker.route(NAMESPACE, "key")
        assert not await worker.drain()
        assert isinstance(await worker.route(NAMESPACE, "key"), Ownership)


class Reluctant(Keeper):
    """A service that closes no bundle until `may_close` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_close = asyncio.Event()

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        await self.may_close.wait()
        return None


async def test_a_drain_returns_at_its_deadline() -> None:
    """It goes on, and a second call waits for its end."""
    log, reluctant = memory(), Reluctant()
    async with Worker(log, reluctant) as goes:
        await goes.create_namespace(NAMESPACE)
        await goes.route(NAMESPACE, "key")
        async with Worker(log, Keeper()):
            assert not await goes.drain(timeout_ms=1)
            reluctant.may_close.set()
            assert await goes.drain()


async def test_a_mounted_worker_has_all_paths() -> None:
    """Also those of its services. Other brokers find it at the mount. Outside the context it
    answers 503.
    """

    class Greeting(Keeper):
        def routes(self) -> Sequence[web.RouteDef]:
            return (web.get("/hello", self.hello),)

        async def hello(self, request: web.Request) -> web.Response:
            return web.Response(text="hello")

    worker = Worker(
        memory(), Greeting(), advertised_addresses={"http": "http://one:8000/"}, insecure=True
    )
    app = worker.asgi("/equipoise")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://one:8000"
    ) as client:
        assert 503 == (await client.get("/health")).status_code
        async with worker:
            await worker.create_namespace(NAMESPACE)
            for path in (
                "/health",
                "/ready",
                "/metrics",
                "/hello",
                "/admin/v2/brokers",
                "/v1/assignment/shop/orders",
            ):
                assert 200 == (await client.get(path)).status_code, path
            assert 421 == (await client.get("/health", headers={"Host": "evil"})).status_code
            (entry,) = (await client.get("/v1/brokers")).json()
            assert {"http": "http://one:8000/", "peer": "http://one:8000/equipoise"} == entry[
                "addresses"
            ]
            assert 204 == (await client.post("/admin/v2/brokers/drain")).status_code
            assert "it drains" in (await client.get("/ready")).text
        assert 503 == (await client.get("/health")).status_code


class Asked(Keeper):
    """A service that answers with the role of its caller."""

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/role", self.role)]

    async def role(self, request: web.Request) -> web.Response:
        """Return the role, or nothing without authentication."""
        identity = identity_of(request)
        return web.Response(text="" if identity is None else identity.role)


@pytest.mark.parametrize(("settings", "expected"), [({}, ""), (SETTINGS, "operator")])
async def test_a_route_of_a_service_learns_the_role_of_its_caller(
    settings: dict[str, Any], expected: str
) -> None:
    app = (
        worker := Worker(
            memory(), Asked(), advertised_addresses={"http": "http://127.0.0.1"}, **settings
        )
    ).asgi()
    async with (
        worker,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client,
    ):
        assert expected == (await client.get("/role", headers=bearer(token("operator")))).text


NO_PREFIXES = (
    "/",
    "/equipoise/",
    "//equipoise",
    "/equi%70oise",
    "/my broker",
    "/a/../b",
    "/a?b",
    "/Grüße",
    "/a\n",
)


@pytest.mark.parametrize(
    ("prefix", "options", "problem"),
    [
        ("", {"http_port": 0}, "leave out one of the two"),
        (
            "equipoise",
            {"advertised_addresses": {"http": "http://127.0.0.1:8000"}},
            "'equipoise' is no plain path",
        ),
        *(
            (prefix, {"advertised_addresses": {"http": "http://localhost"}}, "is no plain path")
            for prefix in NO_PREFIXES
        ),
    ],
)
def test_a_worker_that_cannot_be_mounted(
    prefix: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CallerError, match=f"cannot be mounted: .*{problem}"):
        Worker(memory(), Keeper(), **options).asgi(prefix)


async def test_a_worker_is_mounted_once_and_before_its_start() -> None:
    worker = Worker(memory(), Keeper(), advertised_addresses={"http": "http://127.0.0.1"})
    async with worker:
        with pytest.raises(CallerError, match="has started"):
            worker.asgi()
    mounted = Worker(memory(), Fetched(), advertised_addresses={"http": "http://127.0.0.1"})
    mounted.asgi()
    with pytest.raises(CallerError, match="mounted already"):
        mounted.aiohttp_app("/equipoise")
    async with mounted:  # Its service has `fetch`, and other brokers reach it.
        pass


async def test_two_workers_of_one_address_are_refused() -> None:
    """Callers would reach either of them. The first goes on; another log is another cluster."""
    log, addresses = memory(), {"http": "http://one"}
    async with (
        Worker(log, Keeper(), advertised_addresses=addresses),
        Worker(memory(), Keeper(), advertised_addresses=addresses),
    ):
        with pytest.raises(
            OperatorError, match=r"cannot advertise http://one on memory:.*--workers 1"
        ):
            await Worker(log, Keeper(), advertised_addresses=addresses).__aenter__()
    async with Worker(log, Keeper(), advertised_addresses=addresses):
        pass


class Fetched(Keeper):
    """A service whose next owner fetches its state."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[bytes | None] = []
        self.has_fetched = asyncio.Event()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        if ownership.fetch is not None:
            self.fetched.append(await ownership.fetch())
            self.has_fetched.set()

    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:
        return b"state at " + self.host.broker_id.encode()


async def test_a_service_with_fetch_needs_an_address() -> None:
    with pytest.raises(CallerError, match=r"'Fetched' cannot be used: .*no address.*http_port=0"):
        async with Worker(memory(), Fetched(), advertised_addresses={"http": "http://one"}):
            pass


async def test_state_is_fetched_from_the_worker_not_from_the_program() -> None:
    log, stays = memory(), Fetched()
    async with (
        aiohttp.ClientSession() as session,
        AsyncExitStack() as parts,
        Worker(log, Fetched(), http_port=0, advertised_addresses={"http": "http://goes"}) as goes,
    ):
        await goes.create_namespace(NAMESPACE, bundles=1)
        assert isinstance(await goes.route(NAMESPACE, "key"), Ownership)
        one = await parts.enter_async_context(Worker(log, stays, http_port=0))
        peer = await one.route(NAMESPACE, "key")
        assert peer == Peer(
            broker=goes.broker_id,
            addresses={"http": "http://goes", "peer": f"http://{goes.broker_id}"},
        )
        async with session.post(f"{peer.addresses['peer']}/admin/v2/brokers/drain") as response:
            assert 204 == response.status
        await stays.has_fetched.wait()
        assert [f"state at {goes.broker_id}".encode()] == stays.fetched


async def lose(worker: Worker, log: Path) -> None:
    """Rename the file of a worker's log, and wait until that has ended the worker."""
    await asyncio.to_thread(log.rename, log.with_suffix(".elsewhere"))
    with pytest.raises(OperatorError):
        await worker.finished()


async def test_the_end_of_a_worker_reaches_its_program(tmp_path: Path) -> None:
    """Every call, `check()`, `finished()` and the end of the context raise the reason."""
    log, keeper = tmp_path / "channel.db", Keeper()

    async def program() -> None:
        async with Worker(f"sqlite:{log}", keeper) as worker:
            await worker.create_namespace(NAMESPACE)
            worker.check()
            await lose(worker, log)
            for call in (
                worker.route(NAMESPACE, "key"),
                worker.create_namespace(NAMESPACE),
                keeper.host.route(NAMESPACE, "key", timeout_ms=1_000),
            ):
                with pytest.raises(
                    WorkerEnded,
                    match=r"has ended: .*channel.db .* was replaced .*start this program again",
                ) as caught:
                    await call
                assert isinstance(caught.value.__cause__, OperatorError)
            with pytest.raises(WorkerEnded):
                worker.check()
            with pytest.raises(WorkerEnded):
                worker.ownership(NAMESPACE, "key")
            assert worker.broker_id == keeper.host.broker_id

    with pytest.raises(OperatorError, match="stop all brokers"):
        await program()


async def test_an_error_of_the_program_is_not_hidden_by_the_end_of_its_worker(
    tmp_path: Path,
) -> None:

    async def program() -> None:
        async with Worker(f"sqlite:{tmp_path}/channel.db", Keeper()) as worker:
            await lose(worker, tmp_path / "channel.db")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()


def test_the_end_of_a_worker_in_a_thread_reaches_its_program(tmp_path: Path) -> None:
    log = tmp_path / "channel.db"

    def ended(worker: WorkerInThread) -> WorkerEnded:
        give_up = time.monotonic() + DEADLINE_S
        while time.monotonic() < give_up:
            try:
                worker.check()
            except WorkerEnded as error:
                return error
            time.sleep(0.01)
        pytest.fail("it goes on")

    def program() -> None:
        with Worker(f"sqlite:{log}", Keeper()).in_thread() as worker:
            worker.create_namespace(NAMESPACE)
            log.rename(tmp_path / "elsewhere.db")
            assert "was replaced" in ended(worker).problem
            with pytest.raises(WorkerEnded, match="was replaced"):
                worker.route(NAMESPACE, "key")

    with pytest.raises(OperatorError):
        program()


def test_a_worker_in_a_thread(tmp_path: Path) -> None:
    """The thread ends with the context."""
    before = threading.active_count()
    with Worker(f"sqlite:{tmp_path}/channel.db", Keeper(), broker_id="one").in_thread() as worker:
        worker.create_namespace(NAMESPACE, bundles=2)
        served = worker.route(NAMESPACE, "key")
        assert isinstance(served, Ownership)
        with served.begin("key") as work:
            assert work.token == served.token
        with pytest.raises(UnknownNamespace):
            worker.route("shop/returns", "key")
        assert worker.broker_id == "one"
        assert (tmp_path / "channel.db.brokers" / "broker-one").is_dir()
    assert before == threading.active_count()


def test_a_call_from_another_thread_is_bounded() -> None:
    class Refuses(Keeper):
        async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
            raise RuntimeError("not here")

    with Worker(memory(), Refuses()).in_thread() as worker:
        worker.create_namespace(NAMESPACE)
        with pytest.raises(DeadlineExceeded, match="an owner for shop/orders/key"):
            worker.route(NAMESPACE, "key", timeout_ms=50)


async def test_a_log_of_another_cluster_refuses_the_start(log_url: str) -> None:
    async with Worker(log_url, Keeper()):
        with pytest.raises(OperatorError):
            await Worker(log_url, Keeper(), cluster="another").__aenter__()
