"""Run one broker of a virtual cluster over a log in memory and a clock that only the test moves.

It replaces `brokers.runtime.worker`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.effects import Answered, Append, Effect, ForgetNonces, WriteNonce
from equipoise.brokers.agent.events import Event, Instant, NonceWritten, Read, Requested, Tick, Wanted
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.runtime.router import Router
from equipoise.brokers.runtime.service import Ownership, Peer, Service
from equipoise.brokers.runtime.service_runner import ServiceEffect, ServiceRunner
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.log import READ_ENTRIES_MAX, Log
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.view import View

T = TypeVar("T")

CLUSTER: Final = "virtual"

# Not 0, so that no unset time equals the present.
_BOOT_START_MS: Final = 1_000_000
_WALL_START_MS: Final = 1_000_000_000

# A log in memory answers at once.
_APPEND_MS: Final = 1_000


class VirtualClock:
    """Time that passes only when a test moves it. See `brokers.runtime.clock.Clock`."""

    def __init__(self) -> None:
        self.boot_ms = _BOOT_START_MS

    def now(self) -> Instant:
        """Return the reading of both clocks."""
        return Instant(self.boot_ms, _WALL_START_MS + self.boot_ms)

    def boot_ns(self) -> int:
        """Return the boot time in nanoseconds."""
        return self.boot_ms * 1_000_000


@dataclass(slots=True, kw_only=True)
class World:
    """The parts that the members share, and that outlive them.

    * `heard`: called with every record that a member folds.
    * `serves_peers`: members fetch state from one another.
    * `nonces`: the instance ids in each broker's data directory.
    * `waiting`: the tasks that wait for a change, by the future that wakes them.
    """

    clock: VirtualClock
    log: Log
    placement: Placement
    heard: Callable[[Folded], None]
    serves_peers: bool
    members: dict[str, Member] = field(default_factory=dict)
    nonces: dict[str, frozenset[str]] = field(default_factory=dict)
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


class Member:
    """One broker with its own service. It acts only on `read`, `tick` and requests, or when its service has answered."""

    def __init__(self, broker: str, service: Service, world: World) -> None:
        self.broker_id = broker
        service.host = self
        self._world = world
        self._events: deque[Event] = deque()
        self._stepping = False
        self._answers: dict[int, Answered] = {}
        self._reader = Reader(log=world.log.name, cluster=CLUSTER)
        self.runner = ServiceRunner(
            {"*": service},
            clock=world.clock,
            make_ownership=self._own,
            step=self.step,
            end_process=self._end,
            serves_peers=world.serves_peers,
            fetch_spilled=lambda source, bundle, digest: self._fetch(source.broker, bundle, digest),
        )
        self.agent = Agent(
            broker=broker,
            cluster=CLUSTER,
            reader=self._reader,
            timing=Timing(),
            profile=Profile(addresses={"http": f"http://{broker}"}),
            make_nonce=lambda: f"nonce {next(world.numbers)}",
            predecessor_nonces=world.nonces.get(broker, frozenset()),
            placement=world.placement,
        )
        self.router = Router(
            self.agent,
            ownerships=self.runner.ownerships,
            clock=world.clock,
            waiting=self,
            step=self.step,
            log_is_readable=lambda: True,  # The log is in the same memory.
        )

    def start(self) -> None:
        """Start to read. The log may be empty."""
        if not self.read():
            self.step(Read(entries=()))

    def read(self) -> bool:
        """Fold what is new on the log. Return whether there was anything."""
        entries = self._world.log.read(self._reader.position, limit=READ_ENTRIES_MAX)
        if entries:
            self.step(Read(entries=entries, caught_up=entries[-1].offset >= self._world.log.end()))
        return bool(entries)

    def tick(self) -> None:
        """Do what is due by now."""
        self.step(Tick())

    def want(self, bundle: str) -> None:
        """Request that a free bundle is placed."""
        self.step(Wanted(bundle=bundle))

    def ask(self, intent: Intent) -> int:
        """Request an operation. Return the ticket for `answer`."""
        ticket = next(self._world.numbers)
        self.step(Requested(ticket=ticket, intent=intent))
        return ticket

    def answer(self, ticket: int) -> Answered | None:
        """Return the answer to a request; None while it is unknown."""
        return self._answers.pop(ticket, None)

    def step(self, event: Event) -> None:
        """Give the agent one event, and carry out the effects."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events and self._world.members.get(self.broker_id) is self:
                taken = self._events.popleft()
                effects = self.agent.step(taken, self._world.clock.now())
                for effect in effects:
                    self._carry_out(effect)
                # A lookup without effects must not wake the waiting tasks.
                if effects or not isinstance(taken, Wanted):
                    self._world.changed()
        finally:
            self._stepping = False

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Append):
            self._world.log.append([effect.data], timeout_ms=_APPEND_MS)
        elif isinstance(effect, ServiceEffect):
            self.runner.carry_out(effect)
        elif isinstance(effect, WriteNonce):
            self._world.nonces[self.broker_id] = self._world.nonces.get(self.broker_id, frozenset()) | {effect.nonce}
            self._events.append(NonceWritten(nonce=effect.nonce))
        elif isinstance(effect, ForgetNonces):
            self._world.nonces[self.broker_id] = frozenset({effect.keep})
        elif isinstance(effect, Answered):
            self._answers[effect.ticket] = effect
        elif isinstance(effect, Folded):
            self._world.heard(effect)

    def _end(self, _problem: str) -> None:
        """End the process of this broker, because its service cannot be stopped."""
        self._world.members.pop(self.broker_id, None)

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Route a key as `brokers.runtime.service.ServiceHost.route` does. `timeout_ms` counts on the cluster's clock."""
        return await self.router.route(namespace, key, timeout_ms=timeout_ms)

    async def until(self, condition: Callable[[View], T | None], *, timeout_ms: int, what: str) -> T:
        """Wait for a condition as `brokers.runtime.router.Waiting` defines, on the cluster's clock."""
        clock = self._world.clock
        deadline_ms = clock.boot_ms + timeout_ms
        while True:
            result = condition(self.agent.view)
            if result is not None:
                return result
            if clock.boot_ms >= deadline_ms:
                raise DeadlineExceeded(what=what, waited_ms=timeout_ms)
            await self._world.change()

    def _own(self, handle: Handle, source: BrokerEntry | None) -> Ownership:
        fetch = None if source is None else partial(self._fetch, source.broker, handle.bundle)
        return Ownership(handle, clock=self._world.clock, fetch=fetch)

    async def _fetch(self, source: str, bundle: str, digest: str | None = None) -> bytes | None:
        member = self._world.members.get(source)
        return None if member is None else await member.runner.fetch_parted(bundle, digest)
