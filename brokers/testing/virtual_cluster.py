"""Run a cluster in one process and in virtual time, so that users can test their services.

Agents and fold are the product's own. The log is in memory and answers at once. The clock moves
only when a test moves it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, TypeVarTuple

from equipoise.brokers.agent.events import Tick, Wanted
from equipoise.brokers.agent.requests import Unload
from equipoise.brokers.balancing.namespace_policies import check_new_bundles
from equipoise.brokers.balancing.splitting.split_points import RANGE_EQUALLY_DIVIDE
from equipoise.brokers.errors import UnknownNamespace, invalid_request
from equipoise.brokers.operations import moves, verbs
from equipoise.brokers.operations.in_worker import Operations, WorkerPort
from equipoise.brokers.runtime.service import Ownership, Service, ServiceHost
from equipoise.brokers.testing.agent_host import SharedLog
from equipoise.brokers.testing.virtual_member import Member, PlacementByHand, VirtualClock, World
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    LogUnavailable,
    NotFound,
    PeerError,
)
from equipoise.channel.core.ranges import (
    check_broker_id,
    check_namespace,
    even_boundaries,
    key_hash,
)
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.loop_thread import not_running

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
S = TypeVar("S", bound=Service)

# A cluster settles within about ten exchanges of records per bundle. One that needs more than this
# never will.
_EXCHANGES_MAX: Final = 10_000

# A namespace may have thousands of bundles, and people read the message.
_NAMES_SHOWN_MAX: Final = 20

# How often the end of tasks may start further tasks.
_ENDS_MAX: Final = 10

# A bound that no operation reaches: what does not end while no time passes is cancelled.
OPERATION_MS_MAX: Final = 86_400_000

# How often a cluster checks whether an unfinished task waits for virtual time, not for the real
# world.
_LOOK_SECONDS: Final = 0.002

# How long a thread counts as at work: a busy disk takes longer to store something than a task to
# end. One that serves for as long as the program lives costs a test this time once. `_settle` waits
# this long for all threads together, so that it ends also where one always follows another.
_THREAD_S_MAX: Final = 2.0


class ClusterLoop(asyncio.SelectorEventLoop):
    """An event loop that knows since when threads work for it."""

    def __init__(self) -> None:
        super().__init__()
        self._since_s: dict[asyncio.Future[Any], float] = {}

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Let a thread call a function."""
        future = super().run_in_executor(executor, func, *args)
        self._since_s[future] = time.monotonic()
        future.add_done_callback(self._since_s.pop)
        return future

    def has_threads_at_work(self) -> bool:
        """Return whether a thread does what may soon end."""
        now_s = time.monotonic()
        return any(now_s - since_s < _THREAD_S_MAX for since_s in self._since_s.values())


NOT_SERVED: Final = "NotServed"
"""The code of an error: a bundle is not where the test wants it."""


def _not_served(*, bundle: str, broker: str | None, problem: str) -> PeerError:
    return PeerError(
        f"{bundle} is not served by {broker or 'any broker'}: {problem}",
        code=NOT_SERVED,
        bundle=bundle,
        broker=broker,
        problem=problem,
    )


class Cluster(Generic[S]):
    """Brokers of one cluster, each with a service of its own, in virtual time, for tests of that
    service.

    Use it as a context, from a plain function: it has an event loop of its own. Every call returns
    after everything has happened that can happen while no time passes. Only `advance`, and `call`
    within its bound, let time pass. If a service awaits something of the real world (a thread, a
    socket), the cluster waits for it, at most `patience_ms` of real time, and for a thread 2 s.

    The leader places a free bundle, as in production, unless the test has taken the bundle.

    Outside the context, and while no broker runs, calls raise `CallerError`.
    """

    def __init__(
        self,
        service: Callable[[], S],
        *,
        brokers: int | Sequence[str] = 3,
        patience_ms: int = 1_000,
        serves_peers: bool = False,
    ) -> None:
        """`service` makes the service of one broker; usually it is the class of the service.

        `serves_peers`: brokers fetch state from one another, as those of `Equipoise` and
        `equipoise broker` do. Without it the start of a broker refuses a service with `fetch`, with
        `CallerError`.

        `brokers` are ids, or the number of brokers `broker-1`, `broker-2`, ...; with 0 none runs
        until the test starts one. Raises `InvalidName` for an impossible id, and `CallerError`
        for a number below 0 or an id that is given twice.
        """
        self._names = _names_of(brokers)
        self._make_service = service
        self._patience_s = patience_ms / 1_000
        self._clock = VirtualClock()
        self._placement = PlacementByHand()
        self._log = SharedLog(name="virtual", cluster="virtual", folded=self._folded)
        self._world = World(
            clock=self._clock, log=self._log, placement=self._placement, serves_peers=serves_peers
        )
        self._services: dict[str, S] = {}
        self._runner = asyncio.Runner(loop_factory=ClusterLoop)
        self._is_open: bool | None = None
        self._stuck: set[asyncio.Task[object]] = set()
        self._reasons: dict[str, str] = {}
        self._last_reason = "none"

    def __repr__(self) -> str:
        running = ", ".join(self.brokers[:_NAMES_SHOWN_MAX]) or "no broker"
        more = len(self.brokers) - _NAMES_SHOWN_MAX
        return (
            f"<Cluster of {running}{f' and {more} more' if more > 0 else ''} at {self.now_ms} ms>"
        )

    def __enter__(self) -> Self:
        """Start the brokers; each is a member when this returns. Raises `CallerError` the second
        time, and in a coroutine.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise CallerError(
                "a Cluster has an event loop of its own; use it from a plain test function, not"
                " from a coroutine"
            )
        if self._is_open is not None:
            raise not_running(what="the cluster", problem="it was started before")
        self._is_open = True
        self._runner.__enter__()
        try:
            for name in self._names:
                self.start(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        for member in list(self._world.members.values()):
            member.end("ends with the cluster", killed=True)
        self._runner.run(_end_tasks())
        self._runner.__exit__(kind, error, trace)

    # --- brokers and namespaces ---

    @property
    def brokers(self) -> Sequence[str]:
        """Return the ids of the brokers that run."""
        return sorted(self._world.members)

    def service(self, broker: str) -> S:
        """Return the service of a broker, also of one that was killed. Raises `NotFound` if the
        broker never ran.
        """
        service = self._services.get(broker)
        if service is None:
            raise _not_in_cluster("broker", broker, known=sorted(self._services))
        return service

    def host(self, broker: str) -> ServiceHost:
        """Return the `self.host` of the service of a broker that runs. Raises `NotFound` for any
        other broker.
        """
        return self._member(broker)

    def start(self, broker: str) -> None:
        """Start a broker with a new service. It is a member when this returns. The broker is new,
        or was killed.

        Raises `CallerError` if it runs already, and `InvalidName` for an impossible id.
        """
        if check_broker_id(broker) in self._world.members:
            raise CallerError(
                f"the broker {broker!r} runs already; kill it first, or start another one"
            )

        async def start() -> None:
            self._world.members[broker] = self._new_member(broker)
            await self._settle()

        self._run(start())

    def kill(self, broker: str) -> None:
        """End a broker without notice. The others notice when its lease has run out: see `advance`.

        Raises `NotFound` if the broker does not run.
        """
        member = self._member(broker)
        self._crash(broker)
        self._run(member.runner.stop())
        self._run(self._settle())

    def create(self, namespace: str, *, bundles: int = 4) -> Sequence[str]:
        """Create a namespace, and return its bundles by name, in order of the hash space.

        Each bundle is served when this returns, except in two cases: its service refuses or hangs;
        or the leader (the broker that runs longest) was killed, and its lease has not run out, see
        `advance`. Raises `InvalidName`, `CallerError`, `Rejected`.
        """
        boundaries = even_boundaries(check_new_bundles(check_namespace(namespace), bundles))
        self._operate(lambda port: verbs.create_namespace(port, namespace, boundaries))
        return self.bundles(namespace)

    # --- bundles ---

    def bundles(self, namespace: str) -> Sequence[str]:
        """Return the bundles of a namespace by name, in order of the hash space. Raises
        `UnknownNamespace`.
        """
        if namespace not in self._view.namespaces:
            raise UnknownNamespace(namespace=namespace)
        return [bundle.name for bundle in self._view.bundles_of(namespace)]

    def bundle(self, namespace: str, key: str) -> str:
        """Return the name of the bundle that holds a key. Raises `UnknownNamespace`."""
        return self._entry(namespace, key).name

    def owner(self, bundle: str) -> str | None:
        """Return the broker that serves a bundle by the log; None if no broker does. Raises
        `NotFound` for an unknown bundle.
        """
        server = self._bundle(bundle).server
        entry = None if server is None else self._view.live.get(server)
        return None if entry is None else entry.broker

    def ownership(self, namespace: str, key: str) -> Ownership:
        """Return the right to work on a key, of the broker that has it now. Raises `PeerError` if
        none has it, `UnknownNamespace`.
        """
        bundle = self._entry(namespace, key)
        for member in self._world.members.values():
            found = member.router.ownership(namespace, key)
            if found is not None:
                return found
        raise _not_served(bundle=bundle.name, broker=None, problem=self._state_of(bundle.name))

    def give(self, bundle: str, broker: str) -> None:
        """Transfer a bundle to a broker, or place it there if it is free.

        Raises `PeerError` if the service refused the bundle or needs time; `NotFound`; `Rejected`.
        """
        phase = self._bundle(bundle).phase
        self.service(broker)
        self._placement.taken.discard(bundle)
        self._placement.wishes[bundle] = broker
        if phase == "free":
            self._run(self._want(bundle))
        elif self.owner(bundle) != broker:
            self._operate(
                lambda port: moves.transfer(
                    port, bundle, broker, wait=False, reason="given by the test"
                )
            )
        if self.owner(bundle) != broker or self._bundle(bundle).phase != "owned":
            raise _not_served(bundle=bundle, broker=broker, problem=self._state_of(bundle))

    def take(self, bundle: str) -> None:
        """Take a bundle from its owner. No broker serves it until it is given. Raises `Rejected` if
        it has no owner, `NotFound`.
        """
        self._bundle(bundle)
        self._placement.wishes.pop(bundle, None)
        self._placement.taken.add(bundle)
        unload = Unload(bundle=bundle, reason="taken by the test")
        self._operate(lambda port: port.propose(unload))

    def split(
        self,
        bundle: str,
        *,
        algorithm: str = RANGE_EQUALLY_DIVIDE,
        positions: tuple[int, ...] | None = None,
    ) -> None:
        """Have the owner of a bundle split it.

        Raises `NotFound`; `Rejected`; `CallerError` for positions that the algorithm does not take;
        `PeerError` if the owner did not split the bundle, because its service does not know the
        algorithm or takes longer.
        """
        self._bundle(bundle)
        self._operate(
            lambda port: moves.split(
                port, bundle, algorithm, positions, wait=False, reason="split by the test"
            )
        )
        if bundle in self._view.bundles:
            raise PeerError(f"{bundle} was not split: {self._state_of(bundle)}")

    def merge(self, left: str) -> None:
        """Merge `left` with its right neighbour, which must have the same owner. Raises `NotFound`,
        `Rejected`.
        """
        self._bundle(left)
        self._operate(lambda port: moves.merge(port, left, wait=False, reason="merged by the test"))

    # --- time and calls ---

    @property
    def now_ms(self) -> int:
        """Return the time of the cluster's clock, in milliseconds."""
        return self._clock.boot_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on the cluster's clock.

        After 4 seconds the bundles of a killed broker have new owners: its lease of 3 s, the grace
        period, and a step.
        """
        self._run(self._advance(self._clock.boot_ms + ms, until=lambda: False))

    def call(self, coroutine: Coroutine[None, None, T], *, within_ms: int = 0) -> T:
        """Run a coroutine of the test on the event loop of the services, and return its result.

        Meanwhile time passes, at most `within_ms` milliseconds. Raises the errors of the coroutine,
        and `DeadlineExceeded` if it does not end in that time. It is then cancelled.
        """

        async def run() -> T:
            self._stuck.clear()  # A task that hung may continue because of this call.
            task = asyncio.get_running_loop().create_task(coroutine)
            await self._settle()
            await self._advance(self._clock.boot_ms + within_ms, until=task.done)
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=self._patience_s)
                raise DeadlineExceeded(
                    what=f"the end of {getattr(coroutine, '__qualname__', 'a call')}",
                    waited_ms=within_ms,
                )
            return task.result()

        return self._run(run())

    def story(self) -> Sequence[str]:
        """Return the records of the channel as text, without renewals: the lines of `equipoise
        channel tail`.
        """
        return self._log.story()

    # --- implementation ---

    def _new_member(self, broker: str) -> Member:
        self._services[broker] = service = self._make_service()
        return Member(broker, {"*": service}, self._world)

    def _crash(self, broker: str) -> None:
        self._member(broker).end("is killed by the test", killed=True)

    def _run(self, coroutine: Coroutine[None, None, T]) -> T:
        """Return the result of a coroutine on the cluster's loop. Raises what it raises, and
        `CallerError` outside the context.
        """
        if not self._is_open:
            coroutine.close()  # It will never be awaited.
            raise not_running(
                what="the cluster",
                problem="it has not been started" if self._is_open is None else "it has ended",
            )
        return self._runner.run(coroutine)

    def _member(self, broker: str) -> Member:
        member = self._world.members.get(broker)
        if member is None:
            raise _not_in_cluster("running broker", broker, known=self.brokers)
        return member

    def _bundle(self, bundle: str) -> BundleEntry:
        view = self._view
        if bundle not in view.bundles:
            known = [
                entry.name for name in sorted(view.namespaces) for entry in view.bundles_of(name)
            ]
            raise _not_in_cluster("bundle", bundle, known=known)
        return view.bundles[bundle]

    @property
    def _leader(self) -> Member:
        """The member that has run longest."""
        for member in self._world.members.values():
            return member
        raise CallerError("no broker of the cluster runs; start one")

    @property
    def _view(self) -> View:
        return self._leader.agent.view

    def _entry(self, namespace: str, key: str) -> BundleEntry:
        bundle = self._view.bundle_at(namespace, key_hash(key))
        if bundle is None:
            raise UnknownNamespace(namespace=namespace)
        return bundle

    def _state_of(self, bundle: str) -> str:
        """Describe the state of a bundle, for an error."""
        entry = self._view.bundles[bundle]
        reason = self._reasons.get(bundle)
        return (
            f"it is {entry.state}, served by"
            f" {self.owner(bundle) or 'nobody'}{f' ({reason})' if reason else ''}"
        )

    def _folded(self, folded: Folded, _view: View) -> None:
        record = folded.record
        if (
            isinstance(record, BundleTransition)
            and folded.verdict.accepted
            and record.reason is not None
        ):
            self._reasons[record.key] = self._last_reason = record.reason

    def _operate(self, operation: Callable[[WorkerPort], Coroutine[None, None, object]]) -> None:
        """Run an operation at the leader until the cluster rests. Raises what the operation raises,
        or that it has not ended.
        """

        async def operate() -> None:
            task = asyncio.get_running_loop().create_task(operation(self._port()))
            await self._settle()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                raise LogUnavailable(
                    log=self._log.name, problem="nothing came of the request", in_doubt=False
                )
            task.result()

        self._run(operate())

    def _port(self) -> WorkerPort:
        """Return the port for one operation at the leader."""
        deadline = Deadline.after(timeout_ms=OPERATION_MS_MAX)
        return Operations(self._leader).port(deadline)

    async def _want(self, bundle: str) -> None:
        self._leader.deliver(Wanted(bundle=bundle))
        await self._settle()

    async def _advance(self, end_ms: int, *, until: Callable[[], bool]) -> None:
        """Advance from one due moment to the next."""
        while self._clock.boot_ms < end_ms and not until():
            members = list(self._world.members.values())
            wake_ms = min((member.agent.wake_at_ms for member in members), default=end_ms)
            self._clock.boot_ms = min(max(wake_ms, self._clock.boot_ms + 1), end_ms)
            for member in members:
                member.deliver(Tick())
            self._world.changed()
            await self._settle()

    async def _settle(self) -> None:
        """Run everything that can happen while no time passes."""
        loop, patience_s, threads_s = asyncio.get_running_loop(), self._patience_s, _THREAD_S_MAX
        assert isinstance(loop, ClusterLoop), "the runner has made it"
        exchanges = 0
        while exchanges < _EXCHANGES_MAX:
            await asyncio.sleep(0)  # Tasks that have been woken take a step.
            behind = [member for member in self._world.members.values() if member.lags]
            if behind:
                exchanges += 1
                for member in behind:
                    member.read_on()
                continue
            others = asyncio.all_tasks() - {asyncio.current_task()}
            busy = others - self._stuck - self._world.idle()
            if not busy:
                return
            done, pending = await asyncio.wait(
                busy, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            exchanges += len(done)
            if done:
                patience_s = self._patience_s
            elif threads_s > 0 and loop.has_threads_at_work():
                threads_s -= _LOOK_SECONDS
            else:
                patience_s -= _LOOK_SECONDS
            if patience_s <= 0:
                self._stuck = others & (self._stuck | pending)
        raise CallerError(
            "the cluster does not come to rest: records or tasks follow each other without end"
            f" while no time passes. The last reason on record is {self._last_reason!r}; check"
            " whether the service fails each time it opens a bundle"
        )


def _not_in_cluster(what: str, name: str, *, known: Sequence[str]) -> NotFound:
    """Return the error for a broker or a bundle that the cluster does not have."""
    shown, rest = ", ".join(known[:_NAMES_SHOWN_MAX]) or "none", len(known) - _NAMES_SHOWN_MAX
    return NotFound(
        f"the cluster has no {what} {name!r}; it has"
        f" {shown}{f' and {rest} more' if rest > 0 else ''}"
    )


def _names_of(brokers: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(brokers, int):
        if brokers < 0:
            raise invalid_request(
                what="the number of brokers", problem=f"there are not {brokers} of them"
            )
        return tuple(f"broker-{number + 1}" for number in range(brokers))
    names = tuple(check_broker_id(name) for name in brokers)
    if len(set(names)) < len(names):
        raise invalid_request(
            what="the list of brokers", problem=f"a name stands twice in {', '.join(names)}"
        )
    return names


async def _end_tasks() -> None:
    """Cancel all tasks, and those that start while others end: nobody would await these."""
    for _ in range(_ENDS_MAX):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
