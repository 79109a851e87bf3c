"""A runner of services with one service that does what a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from equipoise.brokers.agent.effects import Open
from equipoise.brokers.agent.events import Event, Instant
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.service_runner import FetchSpilled, ServiceRunner
from equipoise.brokers.runtime.state_stream import Arrival, over_http
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.ranges import HASH_MAX, bundle_name
from equipoise.channel.system.clocks import Deadline

NAMESPACE = "t/n"
BUNDLE = bundle_name(NAMESPACE, 0, HASH_MAX)


class Plain(Service):
    """A service without state to fetch, which does what a test sets."""

    def __init__(self) -> None:
        self.opening: Callable[[], Coroutine[None, None, None]] = self._nothing
        self.leaves: object = None
        self.closing: Callable[[], Coroutine[None, None, None]] = self._nothing
        self.closed: list[tuple[str, Peer | None, int]] = []
        self.given: bytes | None = None
        self.cuts: object = ()
        self.state: object = None
        self.fetching: Callable[[], Coroutine[None, None, None]] = self._nothing

    async def _nothing(self) -> None:
        return

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.given = handover
        await self.opening()

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self.closed.append((bundle.name, moved_to, deadline.remaining_ms()))
        await self.closing()
        return self.leaves  # type: ignore[return-value]  # what a user's code may do

    async def split_points(
        self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None
    ) -> Sequence[int]:
        return self.cuts  # type: ignore[return-value]  # as above


class Odd(Plain):
    """The same with `fetch`."""

    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:
        await self.fetching()
        return self.state  # type: ignore[return-value]  # as above


async def fetch_over_http(source: Peer, bundle: str, digest: str) -> bytes | None:
    """Fetch a handover from its former owner."""
    return await Arrival(source, bundle, over_http(source, bundle, digest)).whole()


def runner_of(
    service: Service,
    *,
    pattern: str = "*",
    step: Callable[[Event], None] = lambda _: None,
    end_process: Callable[[str], None] = lambda _: None,
    serves_peers: bool = True,
    fetch_spilled: FetchSpilled = fetch_over_http,
) -> ServiceRunner:
    """Return a runner of one service, on the clocks of this machine."""
    return ServiceRunner(
        {pattern: service},
        clock=SystemClock(),
        make_ownership=lambda handle, _source: Ownership(handle, clock=SystemClock()),
        step=step,
        end_process=end_process,
        serves_peers=serves_peers,
        fetch_spilled=fetch_spilled,
    )


class Bench:
    """A runner with one service, its events, and the reasons for which it ended the process."""

    def __init__(
        self,
        pattern: str = "*",
        *,
        service: Odd | None = None,
        serves_peers: bool = True,
        fetch_spilled: FetchSpilled = fetch_over_http,
    ) -> None:
        self.ended: list[str] = []
        self.events: list[Event] = []
        self.service = service or (Odd() if serves_peers else Plain())
        self.runner = runner_of(
            self.service,
            pattern=pattern,
            step=self.events.append,
            end_process=self.ended.append,
            serves_peers=serves_peers,
            fetch_spilled=fetch_spilled,
        )

    @property
    def warming(self) -> Warming:
        """Return the service as a `Warming`."""
        assert isinstance(self.service, Warming)
        return self.service

    def open(
        self,
        token: int,
        *,
        low: int = 0,
        high: int = HASH_MAX,
        handover: bytes | None = None,
        source: BrokerEntry | None = None,
    ) -> Handle:
        """Open a bundle under a token."""
        lease = Lease(incarnation=1, skew_max_ms=1_000)
        bundle = bundle_name(NAMESPACE, low, high)
        handle = Handle(
            bundle=bundle, namespace=NAMESPACE, low=low, high=high, token=token, lease=lease
        )
        self.runner.carry_out(
            Open(
                handle=handle,
                source=source,
                handover=handover,
                deadline_ms=SystemClock().now().boot_ms + 60_000,
            )
        )
        return handle


async def stubborn(gate: asyncio.Event, cancelled: Callable[[], None] = lambda: None) -> None:
    """Wait for a gate, and swallow the first cancellation."""
    try:
        await gate.wait()
    except asyncio.CancelledError:
        cancelled()
        await gate.wait()


async def settled() -> None:
    """Let all tasks run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Warming(Odd):
    """A service that notes the begin and end of each preparation and discarding. `waits` holds them
    up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.waits: dict[str, asyncio.Event] = {}

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        await self._do("prepare")

    async def discard(self, bundle: Bundle) -> None:
        await self._do("discard")

    async def _do(self, operation: str) -> None:
        self.noted.append(f"{operation} begins")
        gate = self.waits.pop(operation, None)
        if gate is not None:
            await stubborn(gate, lambda: self.noted.append(f"{operation} is cancelled"))
        self.noted.append(f"{operation} ends")


def good_ownership(namespace: str) -> Ownership:
    """Return the ownership of all keys of a namespace, under a lease that a clock which stands
    still never ends.
    """
    lease = Lease(incarnation=1, skew_max_ms=250)
    lease.renew(decided=Instant(1_000, 1_000), lease_ms=3_000)
    handle = Handle(
        bundle=bundle_name(namespace, 0, HASH_MAX),
        namespace=namespace,
        low=0,
        high=HASH_MAX,
        token=9,
        lease=lease,
        is_open=True,
    )
    return Ownership(handle, clock=VirtualClock(boot_ms=1_000, ahead_ms=0))
