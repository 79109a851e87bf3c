"""A broker inside a program: on the loop that is there, or in a thread; over a log in memory and over a file."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from equipoise.brokers.errors import InvalidConfig, Rejected, UnknownNamespace
from equipoise.brokers.runtime.config import ENDING_MS
from equipoise.brokers.runtime.loop_thread import CROSSING_MS, InThread
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service, WorkerEnded
from equipoise.brokers.server.embedded import Worker, WorkerInThread
from equipoise.channel.core.errors import CallerError, DeadlineExceeded, InvalidName, LogReplaced, OperatorError
from equipoise.channel.system.deadline import Deadline

pytestmark = pytest.mark.integration

NAMESPACE = "shop/orders"
DEADLINE_S = 120.0


class Keeper(Service):
    """A service that keeps its ownerships, and hands over who had the bundle before."""

    def __init__(self) -> None:
        self.handed_over: list[bytes | None] = []

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.handed_over.append(handover)

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        return self.host.broker_id.encode()


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run one test on a loop of its own, with a bound on the whole of it."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story()

    asyncio.run(bounded())


def memory() -> str:
    """The URL of a new log in memory."""
    return f"memory:{uuid.uuid4()}"


async def test_two_programs_share_the_keys(tmp_path: Path, log_url: str) -> None:
    """On one running loop two workers serve a namespace: each routes to itself what it owns, and to the other the rest."""
    two_has = tmp_path / "two"
    async with (
        Worker(log_url, Keeper(), advertised_addresses={"http": "http://one"}) as one,
        Worker(log_url, Keeper(), broker_id="two", data_dir=two_has, advertised_addresses={"http": "http://two"}) as two,
    ):
        await one.create_namespace(NAMESPACE, bundles=8)
        await two.create_namespace(NAMESPACE, bundles=2)
        for key in map(str, range(40)):
            at_one, at_two = await one.route(NAMESPACE, key), await two.route(NAMESPACE, key)
            if isinstance(at_one, Ownership):
                assert Peer(broker=one.broker_id, addresses={"http": "http://one"}) == at_two
                assert (at_one, None) == (one.ownership(NAMESPACE, key), two.ownership(NAMESPACE, key))
                at_one.begin(key).finish()
            else:
                assert Peer(broker="two", addresses={"http": "http://two"}) == at_one
                assert isinstance(at_two, Ownership)


async def test_leaving_hands_everything_over(tmp_path: Path, log_url: str) -> None:
    """When a program ends, the others own its keys, with its state, before its context is left."""
    keeper = Keeper()
    async with Worker(log_url, keeper, broker_id="stays", data_dir=tmp_path / "stays") as stays:
        async with Worker(log_url, Keeper(), broker_id="goes", data_dir=tmp_path / "goes") as goes:
            await goes.create_namespace(NAMESPACE, bundles=4)
            await stays.create_namespace(NAMESPACE)
            for key in map(str, range(20)):
                await stays.route(NAMESPACE, key)
            keeper.handed_over.clear()
        served = [await stays.route(NAMESPACE, str(key)) for key in range(20)]
        assert all(isinstance(each, Ownership) for each in served)
        assert b"goes" in keeper.handed_over


async def test_a_worker_may_serve_http() -> None:
    """With a port given, the broker answers where it says that it does."""
    async with Worker(memory(), Keeper(), http_port=0) as worker, aiohttp.ClientSession() as session:
        await worker.create_namespace(NAMESPACE)
        async with session.get(f"http://{worker.broker_id}/admin/v2/namespaces/shop") as response:
            assert (200, [NAMESPACE]) == (response.status, await response.json())


def test_a_named_broker_on_kafka_says_where_its_data_is() -> None:
    """Beside a log on other machines there is no place for it, and a temporary one would not let it come back as itself."""
    with pytest.raises(InvalidConfig, match="data_dir: name a directory for the data of broker named"):
        Worker("kafka://localhost:9092/channel", Keeper(), broker_id="named")
    with pytest.raises(InvalidConfig, match="data_dir: the name is empty"):
        Worker("kafka://localhost:9092/channel", Keeper(), broker_id="named", data_dir="")
    Worker("kafka://localhost:9092/channel", Keeper(), broker_id="named", data_dir="elsewhere")
    Worker("kafka://localhost:9092/channel", Keeper())


async def test_a_namespace_is_made_to_serve_on() -> None:
    """What its owners do while they have lost the channel is said at its creation; what cannot be is refused."""
    async with Worker(memory(), Keeper(), broker_id="a") as worker:
        await worker.create_namespace(NAMESPACE, on_channel_loss="serve")
        with pytest.raises(Rejected, match="on_channel_loss is 'sometimes'"):
            await worker.create_namespace("shop/others", on_channel_loss="sometimes")  # type: ignore[arg-type]
        ownership = await worker.route(NAMESPACE, "key")
        assert isinstance(ownership, Ownership)


async def test_what_goes_wrong_is_typed() -> None:
    """Settings, names and keys that cannot be are errors that say so, and none of them ends the worker."""
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


class Fetched(Keeper):
    """A service whose state is fetched by the next owner."""

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


async def test_state_that_nobody_could_fetch_is_refused_at_the_start() -> None:
    """A service with `fetch` needs an address of its broker; without one the worker does not start, and says what to do."""
    with pytest.raises(CallerError, match=r"'Fetched' cannot be used: .*no address.*http_port=0"):
        async with Worker(memory(), Fetched(), advertised_addresses={"http": "http://one"}):
            pass


async def test_callers_and_peers_have_an_address_each() -> None:
    """Where the program serves callers, and its worker listens for its peers, state is fetched from the worker."""
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
        assert peer == Peer(broker=goes.broker_id, addresses={"http": "http://goes", "peer": f"http://{goes.broker_id}"})
        async with session.post(f"{peer.addresses['peer']}/admin/v2/brokers/drain") as response:
            assert 204 == response.status
        await stays.has_fetched.wait()
        assert [f"state at {goes.broker_id}".encode()] == stays.fetched


class Large(Keeper):
    """A service with more state than a record takes."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str | None] = []
        self.opened = asyncio.Event()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.handed_over.append(handover)
        self.problems.append(ownership.handover_problem)
        self.opened.set()

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        return b"x" * 1_000_000


@pytest.mark.parametrize("http_port", [0, None])
async def test_large_state_of_a_program_that_ends_goes_on(http_port: int | None) -> None:
    """It is fetched from the worker that ends, before that is gone; without a port the next owner is told why it does not come."""
    log, stays = memory(), Large()
    goes = Worker(log, Large(), http_port=http_port)
    async with AsyncExitStack() as parts:
        async with goes:
            await goes.create_namespace(NAMESPACE, bundles=1)
            await goes.route(NAMESPACE, "key")
            await parts.enter_async_context(Worker(log, stays))
        await stays.opened.wait()
    if http_port is None:
        assert [None] == stays.handed_over
        assert "it has 1000000 bytes" in (stays.problems[0] or "")
    else:
        assert ([b"x" * 1_000_000], [None]) == (stays.handed_over, stays.problems)


async def lose(worker: Worker, log: Path) -> None:
    """Put the file of a worker's log elsewhere, and wait until that has ended the worker."""
    await asyncio.to_thread(log.rename, log.with_suffix(".elsewhere"))
    with pytest.raises(LogReplaced):
        await worker.finished()


def test_the_end_of_a_worker_reaches_its_program(tmp_path: Path) -> None:
    """When its log is replaced, the program learns why: from `finished()`, from every call, and at the end of the context."""
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
                with pytest.raises(WorkerEnded, match=r"has ended: .*channel.db .* was replaced .*start this program again") as told:
                    await call
                assert isinstance(told.value.__cause__, LogReplaced)
            with pytest.raises(WorkerEnded):
                worker.check()
            with pytest.raises(WorkerEnded):
                worker.ownership(NAMESPACE, "key")
            assert worker.broker_id == keeper.host.broker_id

    with pytest.raises(LogReplaced, match="stop all brokers"):
        run(program)


def test_an_error_of_the_program_is_not_hidden_by_the_end_of_its_worker(tmp_path: Path) -> None:
    """Where the program fails too, its own error leaves the context."""

    async def program() -> None:
        async with Worker(f"sqlite:{tmp_path}/channel.db", Keeper()) as worker:
            await lose(worker, tmp_path / "channel.db")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(program)


def test_the_health_of_a_worker_that_has_ended_is_bad(tmp_path: Path) -> None:
    """A worker that serves HTTP answers 503 with the reason once it has ended, whatever it is asked."""

    async def program() -> None:
        async with aiohttp.ClientSession() as session, Worker(f"sqlite:{tmp_path}/channel.db", Keeper(), http_port=0) as worker:
            await lose(worker, tmp_path / "channel.db")
            for path in ("health", "ready", "admin/v2/brokers/health", "admin/v2/tenants"):
                async with session.get(f"http://{worker.broker_id}/{path}") as response:
                    assert (503, True) == (response.status, "was replaced" in await response.text()), path

    with pytest.raises(LogReplaced):
        run(program)


def test_the_end_of_a_worker_in_a_thread_reaches_its_program(tmp_path: Path) -> None:
    """A program without a loop learns the same from `check()`, from every call, and at the end of the context."""
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

    with pytest.raises(LogReplaced):
        program()


def test_a_worker_without_a_loop(tmp_path: Path) -> None:
    """In a thread of its own a worker serves a program that has no loop, and its thread ends with its context."""
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


def test_its_end_may_take_as_long_as_its_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves the context waits for the drain that was configured, and not for some time that has nothing to do with it."""
    waits: dict[str, int] = {}
    run_in_loop = InThread.run

    def noted(door: InThread, coroutine: Coroutine[None, None, object], *, timeout_ms: int, what: str) -> object:
        waits[what] = timeout_ms
        return run_in_loop(door, coroutine, timeout_ms=timeout_ms, what=what)

    monkeypatch.setattr(InThread, "run", noted)
    with Worker(memory(), Keeper(), drain_ms=3_600_000, close_ms=60_000).in_thread():
        pass
    assert 3_600_000 + 60_000 + ENDING_MS + CROSSING_MS == waits["the end of the worker"]


def test_a_name_is_taken_once(tmp_path: Path, log_url: str) -> None:
    """A second worker of the same name finds the directory locked; its own thread ends, and the first one serves on."""
    with Worker(log_url, Keeper(), broker_id="one", data_dir=tmp_path / "one").in_thread() as worker:
        worker.create_namespace(NAMESPACE)
        with pytest.raises(OperatorError), Worker(log_url, Keeper(), broker_id="one", data_dir=tmp_path / "one").in_thread():
            pass
        assert isinstance(worker.route(NAMESPACE, "key"), Ownership)


def test_a_named_worker_comes_back_as_itself(tmp_path: Path, log_url: str) -> None:
    """A program that starts again under its name owns its keys again, under greater tokens."""
    tokens = []
    for _ in range(2):
        with Worker(log_url, Keeper(), broker_id="one", data_dir=tmp_path / "one").in_thread() as worker:
            worker.create_namespace(NAMESPACE)
            served = worker.route(NAMESPACE, "key")
            assert isinstance(served, Ownership)
            tokens.append(served.token)
    assert tokens[0] < tokens[1]


def test_a_call_from_another_thread_is_bounded() -> None:
    """A key that nobody serves is waited for as long as the caller says, and its error is the worker's own."""

    class Refuses(Keeper):
        async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
            raise RuntimeError("not here")

    with Worker(memory(), Refuses()).in_thread() as worker:
        worker.create_namespace(NAMESPACE)
        with pytest.raises(DeadlineExceeded, match="an owner for shop/orders/key"):
            worker.route(NAMESPACE, "key", timeout_ms=50)
