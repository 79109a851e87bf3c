"""Run one broker of a virtual cluster: its user's service, on a log in memory and a clock that only
the test moves.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from equipoise.brokers.agent.effects import Answered, Effect
from equipoise.brokers.agent.events import DrainRequested, Event, Instant, UndrainRequested, Wanted
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.requests import Intent, action_of, refusal, rejection, subject_of
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.placement import FewestBundles, Placement
from equipoise.brokers.runtime.callers import Line
from equipoise.brokers.runtime.router import OpenedBundles, Router, all_of, by_owner, may_deny
from equipoise.brokers.runtime.service import Ownership, Peer, Service, WorkerEnded
from equipoise.brokers.runtime.service_runner import ServiceRunner
from equipoise.brokers.runtime.state_stream import Arrival
from equipoise.brokers.testing.agent_host import AgentHost, Directory, Failed, SharedLog
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.log.listeners import Listeners

T = TypeVar("T")

# Not 0, so that no unset time equals the present.
_BOOT_START_MS: Final = 1_000_000
_WALL_AHEAD_MS: Final = 1_000_000_000


class VirtualClock:
    """Time that passes only when a test moves it. See `brokers.runtime.clock.Clock`."""

    def __init__(self, *, boot_ms: int = _BOOT_START_MS, ahead_ms: int = _WALL_AHEAD_MS) -> None:
        """`ahead_ms` is the wall clock minus the boot clock."""
        self.boot_ms = boot_ms
        self.ahead_ms = ahead_ms

    def now(self) -> Instant:
        """Return the reading of both clocks."""
        return Instant(self.boot_ms, self.ahead_ms + self.boot_ms)

    def boot_ns(self) -> int:
        """Return the boot time in nanoseconds."""
        return self.boot_ms * 1_000_000


class PlacementByHand:
    """Places bundles as production does, except for bundles that the test has given to a broker or
    taken.
    """

    def __init__(self) -> None:
        self.wishes: dict[str, str] = {}
        self.taken: set[str] = set()
        self._others = FewestBundles()

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        """Place as `brokers.balancing.placement.Placement` defines. A wish for a broker that is not
        up is ignored.
        """
        up = {
            broker.broker: broker.incarnation
            for broker in view.live_brokers()
            if broker.status == "up"
        }
        wished = {
            bundle.name: up[wish]
            for bundle in bundles
            if (wish := self.wishes.get(bundle.name)) in up
        }
        others = [
            bundle
            for bundle in bundles
            if bundle.name not in wished and bundle.name not in self.taken
        ]
        granted = [
            (name, owner)
            for name, owner in wished.items()
            if owner not in avoid.get(name, frozenset())
        ][:at_most]
        return dict(granted) | self._others.place(
            view, others, avoid=avoid, at_most=at_most - len(granted)
        )


@dataclass(slots=True, kw_only=True)
class World:
    """The parts that the members share, and that outlive them.

    * `serves_peers`: members fetch state from one another.
    * `directories`: each broker's data directory.
    * `waiting`: the tasks that wait for a change, by the future that wakes them.
    """

    clock: VirtualClock
    log: SharedLog
    placement: PlacementByHand
    serves_peers: bool
    members: dict[str, Member] = field(default_factory=dict)
    directories: dict[str, Directory] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    waiting: dict[asyncio.Future[None], asyncio.Task[object] | None] = field(default_factory=dict)

    def idle(self) -> frozenset[asyncio.Task[object] | None]:
        """Return the tasks that only a change can wake."""
        return frozenset(task for waiter, task in self.waiting.items() if not waiter.done())

    async def change(self) -> None:
        """Wait until anything has changed, including the time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[waiter] = asyncio.current_task()
        try:
            await waiter
        finally:
            self.waiting.pop(waiter, None)

    def changed(self) -> None:
        """Wake all waiting tasks, so that they look again."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


class Member(AgentHost):
    """One broker with its own service. It acts only when the test makes it act, or when its service
    has answered.
    """

    def __init__(self, broker: str, services: Mapping[str, Service], world: World) -> None:
        super().__init__(
            broker=broker,
            address=f"http://{broker}",
            directory=world.directories.setdefault(broker, Directory()),
            log=world.log,
            make_instance_id=lambda: f"instance_id {next(world.numbers)}",
            timing=Timing(),
            placement=world.placement,
        )
        for service in services.values():
            service.host = self
        self.broker_id = broker
        self._world = world
        self._answers: dict[int, Answered] = {}
        self._listeners = Listeners(f"broker {broker}", {"broker": broker})
        self.listen = self._listeners.listen
        self.service = self.runner = ServiceRunner(
            services,
            clock=world.clock,
            make_ownership=self._own,
            step=self.deliver,
            end_process=self.end,
            serves_peers=world.serves_peers,
            fetch_spilled=lambda source, bundle, digest: self._arrival(
                source.broker, bundle, digest
            ).whole(),
        )
        self.router = Router(
            self.agent,
            ownerships=self.runner.ownerships,
            clock=world.clock,
            waiting=self,
            step=self.deliver,
            log_is_readable=lambda: True,  # The log is in the same memory.
        )

    def now(self) -> Instant:
        """See `AgentHost`."""
        return self._world.clock.now()

    def append(self, data: bytes, _failed: Failed) -> None:
        """See `AgentHost`."""
        self.log.append(data)

    def observe(self, effect: Effect) -> None:
        """See `AgentHost`."""
        if isinstance(effect, Answered):
            self._answers[effect.ticket] = effect

    def stepped(self, event: Event, effects: Sequence[Effect], _now: Instant) -> None:
        """See `AgentHost`. A lookup without effects must not wake the waiting tasks."""
        for effect in effects:
            if isinstance(effect, Folded):
                self._listeners.folded(effect)
            elif isinstance(effect, Resync):
                self._listeners.resynced(effect)
        if effects or not isinstance(event, Wanted):
            self._world.changed()

    def ended(self, _why: str, *, killed: bool) -> None:  # noqa: ARG002 - a hook
        """See `AgentHost`."""
        del self._world.members[self.broker_id]
        self._world.changed()

    # --- what `brokers.operations.in_worker` needs of a broker ---

    @property
    def view(self) -> View:
        """The view."""
        return self.agent.view

    @property
    def log_name(self) -> str:
        """The name of the log, for errors."""
        return self.log.name

    @property
    def placement(self) -> Placement:
        """The placement policy."""
        return self.agent.placement

    def drain(self, *, requested_by: str | None = None) -> None:
        """Start to drain."""
        self.deliver(
            DrainRequested(
                leave=False, deadline_ms=self._world.clock.boot_ms, requested_by=requested_by
            )
        )

    def undrain(self) -> None:
        """End a drain."""
        self.deliver(UndrainRequested())

    async def opened(self, tokens: Mapping[str, int], *, timeout_ms: int) -> OpenedBundles:
        """Ask the owners of bundles, without the network, which they have opened under these
        `tokens`.
        """
        owners = [
            (self._world.members.get(owner.broker), part)
            for owner, part in by_owner(self.view, tokens)
        ]
        return all_of(
            [
                await owner.router.opened_here(part, timeout_ms=timeout_ms)
                for owner, part in owners
                if owner is not None
            ]
        )

    async def request(
        self, intent: Intent, *, timeout_ms: int, requested_by: str | None = None
    ) -> Folded:
        """Propose `intent` as `brokers.runtime.callers.Requests.request` does, but once."""
        ticket = self.submit(intent, requested_by=requested_by)
        answered = await self.until(
            lambda _: self._answers.pop(ticket, None),
            timeout_ms=timeout_ms,
            what=f"the answer about {subject_of(intent)}",
        )
        if answered.error is not None:
            raise answered.error
        if answered.refused is not None:
            raise refusal(intent, answered.refused)
        folded = answered.folded
        assert folded is not None, "a request ends with a record, a refusal or an error"
        if folded.verdict.reason is not None:
            raise rejection(folded, self.view, action_of(intent))
        return folded

    # --- what its service needs ---

    def check(self) -> None:
        """Raise `WorkerEnded` if it has ended."""
        if not self.alive:
            raise WorkerEnded(broker=self.broker_id, problem="the test has killed it")

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """Return its ownership of a key, or None."""
        return self.router.ownership(namespace, key)

    def owned(self, namespace: str, key: str) -> Ownership | None:
        """See `brokers.runtime.service.ServiceHost.owned`."""
        return self.router.owned(namespace, key)

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Route a key as `brokers.runtime.service.ServiceHost.route` does. `timeout_ms` counts on
        the cluster's clock.
        """
        return await self.router.route(namespace, key, timeout_ms=timeout_ms)

    async def until(
        self,
        condition: Callable[[View], T | None],
        *,
        timeout_ms: int,
        what: str,
        line: Line | None = None,  # noqa: ARG002 - a test has few callers, so each looks itself
    ) -> T:
        """Wait for a condition as `brokers.runtime.router.WaitingHost` defines, on the cluster's
        clock.
        """
        clock = self._world.clock
        deadline_ms = clock.boot_ms + timeout_ms
        while True:
            result = condition(self.agent.view)
            if result is not None:
                return result
            if clock.boot_ms >= deadline_ms:
                raise DeadlineExceeded(what=what, waited_ms=timeout_ms)
            await self._world.change()

    def has_line(self, line: Line) -> bool:  # noqa: ARG002 - as above
        """Return False: callers wait in no lines."""
        return False

    async def up_to_date(self, *, timeout_ms: int) -> bool:
        """Read to the log's end as `brokers.runtime.worker.Worker.up_to_date` does."""
        end = len(self.log.entries)
        with suppress(DeadlineExceeded):
            await self.until(
                lambda _: self.read >= end or None, timeout_ms=timeout_ms, what="the end of the log"
            )
            return may_deny(self.agent, self.now(), log_is_readable=True)
        return False

    def _own(self, handle: Handle, source: BrokerEntry | None) -> Ownership:
        if source is None:
            return Ownership(handle, clock=self._world.clock, admitted=self.runner.admitted)
        arrival = self._arrival(source.broker, handle.bundle)
        return Ownership(
            handle,
            clock=self._world.clock,
            fetch=arrival.whole,
            stream=arrival.stream,
            admitted=self.runner.admitted,
        )

    def _arrival(self, source: str, bundle: str, digest: str | None = None) -> Arrival:
        """Return the state at another member, without the network."""

        @asynccontextmanager
        async def request(offset: int) -> AsyncIterator[AsyncIterator[bytes] | None]:
            member = self._world.members.get(source)
            if member is None:
                yield None
            else:
                yield await member.runner.fetch_released(bundle, digest, offset=offset)

        return Arrival(Peer(broker=source), bundle, request)
