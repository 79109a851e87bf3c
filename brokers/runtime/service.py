"""Define the `Service` port, which users implement, and `Ownership`, the right to do work."""

from __future__ import annotations

import asyncio
import concurrent.futures
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from reprlib import repr as shortened
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.brokers.load.metering import Account, Charge
from equipoise.brokers.runtime.clock import NANOSECONDS_PER_MILLISECOND, Clock
from equipoise.channel.core.errors import CallerError, PeerError
from equipoise.channel.core.ranges import bundle_contains, key_hash
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import BundleLoad

if TYPE_CHECKING:
    from aiohttp.web import RouteDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A hash range of a namespace.

    * `name`: `TENANT/NAMESPACE/0xLOW_0xHIGH`, with eight hexadecimal digits each.
    * `low`, `high`: hash points, from 0 to 2**32 - 1. `high` is exclusive, except in the last
      bundle of the namespace.
    """

    name: str
    namespace: str
    low: int
    high: int

    def contains(self, namespace: str, key: str) -> bool:
        """Return whether the bundle holds `key` of `namespace`.

        The ranges of all namespaces are the same, so a hash alone does not identify the bundle.
        """
        return namespace == self.namespace and bundle_contains(self.low, self.high, key_hash(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another broker, by its id. `addresses` maps a protocol (`http`, `https`) to the address for
    clients: `https://host:8080`.
    """

    broker: str
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def http_url(self) -> str:
        """The address to redirect callers to over HTTP, `https://` where the broker has TLS. Raise
        `PeerError` if it has none.
        """
        url = http_address(self.addresses)
        if url is None:
            raise PeerError(
                f"broker {self.broker} serves this key, but has no HTTP address; give its worker"
                " http_port or an http address"
            )
        return url


PEER: Final = "peer"
"""The protocol under which a broker inside a program advertises its own HTTP, where the program
serves clients at another address."""


def own_http(addresses: Mapping[str, str]) -> str | None:
    """Return the address of a broker's own HTTP, for administration and other brokers, by the
    `addresses` that it advertises.
    """
    return addresses.get(PEER, http_address(addresses))


def http_address(addresses: Mapping[str, str]) -> str | None:
    """Return the address of HTTP for clients, by the `addresses` that a broker advertises: by TLS
    where it has it.
    """
    return addresses.get("https", addresses.get("http"))


def pulsar_address(addresses: Mapping[str, str]) -> str | None:
    """Return the address for Pulsar's clients, as `http_address` does."""
    return addresses.get("pulsar+ssl", addresses.get("pulsar"))


State = bytes | AsyncIterator[bytes]
"""What `Service.fetch` may return: the whole state, or its chunks."""


class OwnershipLost(PeerError):
    """Work may not start, or not be answered, here: the bundle has moved, or the lease has run
    out.
    """

    def __init__(self, *, bundle: str, token: int, problem: str, is_closed: bool = False) -> None:
        """`token` is the fencing token under which this broker held `bundle`; `problem` gives the
        reason of the loss.

        `is_closed`: the bundle is no longer open here, and the service's `close` was called or is
        about to be called.
        """
        self.bundle = bundle
        self.is_closed = is_closed
        self.token = token
        self.problem = problem
        super().__init__(
            f"work on {bundle} under token {token} may not go on: {problem}; ask again who owns it"
        )


class WorkerEnded(PeerError):
    """The broker of the worker has ended, and does not come back. `__cause__` is the error that
    ended it, if any.
    """

    def __init__(self, *, broker: str, problem: str) -> None:
        """`broker` is the id of the worker's broker; `problem` gives the reason of its end."""
        self.broker = broker
        self.problem = problem
        super().__init__(
            f"broker {broker} has ended: {problem}; call another broker, and start this program"
            " again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One piece of work that passed both checks, for a checker. Times are nanoseconds of boot time.

    * `message`: what it was, if its key stands for many: `PRODUCER:SEQUENCE` for a topic.
    * `by_token`: it ran past the lease, because its namespace serves on. Only its token guards it.
    """

    bundle: str
    key: str
    token: int
    started_ns: int
    answered_ns: int
    lease_deadline_ns: int
    message: str | None = None
    by_token: bool = False


class Admitted:
    """The admitted work of one broker: a bundle that moves is closed when its own has ended. Any
    thread may add and remove work.
    """

    def __init__(self) -> None:
        self._works: dict[Work, str] = {}  # The namespace of each.
        # Of work that a move waits for: others need none, and one takes microseconds to make.
        self._ends: dict[Work, concurrent.futures.Future[None]] = {}

    def add(self, work: Work, namespace: str) -> None:
        """Note work that begins."""
        self._works[work] = namespace

    def has(self, work: Work) -> bool:
        """Return whether work has begun and not ended."""
        return work in self._works

    def remove(self, work: Work) -> None:
        """Note that work has ended. You may repeat it."""
        self._works.pop(work, None)
        end = self._ends.pop(work, None)
        if end is not None:
            end.set_result(None)

    async def all_ended(self, bundle: Bundle, *, timeout_ms: int) -> None:
        """Wait until the work on a bundle has ended, at most `timeout_ms`."""
        ends = [
            asyncio.wrap_future(self._end_of(work))
            for work, namespace in list(self._works.items())
            if bundle.contains(namespace, work.key)
        ]
        if ends:
            await asyncio.wait(ends, timeout=timeout_ms / 1_000)

    def _end_of(self, work: Work) -> concurrent.futures.Future[None]:
        end = self._ends.setdefault(work, concurrent.futures.Future())
        if work not in self._works:  # Another thread has just removed it, and saw no end.
            self.remove(work)
        return end


class Ownership:
    """The right to work on one bundle, for one ownership. Ask it when work starts, and again before
    the work is answered.

    Give `token` to every store that you write to, and have the store refuse a smaller one than it
    has seen.

    * `bundle`: the bundle that it is about.
    * `fetch`: a function that asks the former owner's service for state that its `close` did not
      return, or None if no broker can be asked. It returns None if that service has nothing, and
      raises `PeerError` if it does not answer, or sends more than 64 MiB: `stream` takes state of
      any size.
    * `handover_problem`: the reason why `open` got no handover although the former owner closed the
      bundle and left one. Otherwise it is None: the handover came; there was none; the former owner
      died or did not close in time; the log was truncated before this broker read the handover.
    * `account`: what its work has used. It is part of the load of the bundle.
    """

    __slots__ = (
        "_admitted",
        "_clock",
        "_handle",
        "_record",
        "_stream",
        "account",
        "bundle",
        "fetch",
        "handover_problem",
    )

    def __init__(
        self,
        handle: Handle,
        *,
        clock: Clock,
        record: Callable[[Evidence], None] | None = None,
        fetch: Callable[[], Awaitable[bytes | None]] | None = None,
        stream: Callable[[], AsyncGenerator[bytes, None]] | None = None,
        admitted: Admitted | None = None,
        account: Account | None = None,
    ) -> None:
        """Only the worker creates one."""
        self._handle = handle
        self.account = account or Account()
        self._admitted = admitted
        self._clock = clock
        self._record = record
        self.fetch = fetch
        self._stream = stream
        self.handover_problem: str | None = None
        self.bundle = Bundle(
            name=handle.bundle, namespace=handle.namespace, low=handle.low, high=handle.high
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield what the former owner's `fetch` returns, in chunks of at most 256 KiB.

        There is no chunk if there is no former owner, it is dead, or its `fetch` returned None.
        Serve from the chunks only once the iteration has ended, because its end checks the checksum
        of the whole. While chunks come, the deadline of `open` does not run out.

        Raises `PeerError` if the source does not send all of its state: it has ended, was silent
        for ten seconds, or the checksum does not match. Discard the chunks, and open without them,
        or let the error refuse the bundle.
        """
        if self._stream is None:
            return
        try:
            async with aclosing(self._stream()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except PeerError as error:
            self.handover_problem = str(error)
            raise

    @property
    def token(self) -> int:
        """Return the fencing token of this ownership, from 1 to 2**63 - 1; over any key tokens only
        rise.
        """
        return self._handle.token

    @property
    def is_good(self) -> bool:
        """Return whether work may start now."""
        return self._handle.passes(self._clock.now())

    def __repr__(self) -> str:
        return (
            f"<Ownership of {self.bundle.name}, token {self.token},"
            f" {'good' if self.is_good else 'lost'}>"
        )

    def begin(self, key: str) -> Work:
        """Start work on `key`. Raises `OwnershipLost` if it may not start, `CallerError` if the
        bundle does not hold the key.
        """
        return Work(self._handle, key, self._clock, self._record, account=self.account)

    def admit(self, key: str) -> Work:
        """Start work on `key` that a move of the bundle waits for. Use it as a context, and raise
        in it what makes the work fail.

        Work of `begin` fails its second check once the bundle moves. This work may still be
        finished: the broker calls `close` when it has ended, or after half of `close_ms`. Meanwhile
        no other work on the bundle starts, so keep it short. Raises as `begin` does.
        """
        return Work(
            self._handle,
            key,
            self._clock,
            self._record,
            account=self.account,
            admitted=self._admitted,
        )


def note_first(ownership: Ownership, note: Callable[[Evidence], None]) -> None:
    """Give `note` the evidence of the next work that begins and is answered. No method, because
    users would see it.
    """
    record = ownership._record  # noqa: SLF001

    def first(evidence: Evidence) -> None:
        # Others may have begun meanwhile.
        if ownership._record is first:  # noqa: SLF001
            ownership._record = record  # noqa: SLF001
            note(evidence)
        if record is not None:
            record(evidence)

    ownership._record = first  # noqa: SLF001


class Work:
    """One piece of work under an ownership. Call `finish` before you answer, or use it as a
    context, which calls `finish` at its end.

    A context that ends with an exception does not call `finish`. `key` is the key of the work,
    `token` its fencing token. Its CPU time, until then, is part of the load of the bundle.
    """

    __slots__ = (
        "_account",
        "_admitted",
        "_began_ns",
        "_by_token",
        "_charge",
        "_clock",
        "_handle",
        "_point",
        "_record",
        "_started_ns",
        "key",
        "token",
    )

    def __init__(
        self,
        handle: Handle,
        key: str,
        clock: Clock,
        record: Callable[[Evidence], None] | None,
        *,
        account: Account,
        admitted: Admitted | None = None,
    ) -> None:
        self._handle = handle
        self._account = account
        self._admitted = admitted
        self._clock = clock
        self._record = record
        self.key = key
        self.token = handle.token
        self._point = key_hash(key)
        if not bundle_contains(handle.low, handle.high, self._point):
            problem = f"{key!r} does not lie in {handle.bundle}, and its token would not fence it"
            raise CallerError(f"{problem}; route the key, and use what that returns")
        now = clock.now()
        if not handle.passes(now):
            raise self._lost(handle, now)
        self._by_token = handle.serves_on and not handle.lease.good(now)
        # Read inside the two checks, so that the evidence never claims more time than was checked.
        self._started_ns = 0 if record is None else clock.boot_ns()
        self._charge: Charge | None = account.called()

    def __repr__(self) -> str:
        return f"<Work on {shortened(self.key)} of {self._handle.bundle}, token {self.token}>"

    @property
    def is_recorded(self) -> bool:
        """Return whether evidence is recorded. If not, a `message` for `finish` is not needed."""
        return self._record is not None

    def finish(self, *, message: str | None = None) -> None:
        """Check again. Raises `OwnershipLost` if the result must not be answered; the work may have
        been done.

        `message` describes the work in the evidence, if its key does not.
        """
        self._end_charge()
        handle = self._handle if self._handle.is_open else self._successor()
        answered_ns = self._clock.boot_ns()
        now = self._clock.now()
        passes = handle.passes(now) or (self._admitted is not None and handle.settles(now))
        if not passes or handle.token != self.token:
            raise self._lost(handle, now)
        by_token = self._by_token or (handle.serves_on and not handle.lease.good(now))
        handle.answered_ns = answered_ns
        handle.answered_by_token = handle.answered_by_token or by_token
        if self._record is not None:
            self._record(
                Evidence(
                    bundle=handle.bundle,
                    key=self.key,
                    token=self.token,
                    started_ns=self._started_ns,
                    answered_ns=answered_ns,
                    lease_deadline_ns=handle.lease.ends_ms * NANOSECONDS_PER_MILLISECOND,
                    message=message,
                    by_token=by_token,
                )
            )

    @property
    def namespace(self) -> str:
        """Return the namespace of the key."""
        return self._handle.namespace

    @property
    def is_awaited(self) -> bool:
        """Return whether a move of the bundle waits for this work: it has not ended."""
        return self._admitted is not None and self._admitted.has(self)

    def _successor(self) -> Handle:
        """Return the open handle for this key: a split or a merge does not interrupt work."""
        handle = self._handle
        point = self._point
        while not handle.is_open and handle.children:
            child = next(
                (
                    child
                    for child in handle.children
                    if bundle_contains(child.low, child.high, point)
                ),
                None,
            )
            if child is None:
                break
            handle = child
        return handle

    def _end_charge(self) -> None:
        if self._charge is not None:
            self._charge.end()

    def _lost(self, handle: Handle, now: Instant) -> OwnershipLost:
        if not handle.is_open:
            problem = "the bundle has been closed here"
        elif not handle.lease.good(now):
            problem = "the lease of this broker has run out"
        else:
            problem = "the bundle was merged under another token"
        return OwnershipLost(
            bundle=handle.bundle, token=self.token, problem=problem, is_closed=not handle.is_open
        )

    def __enter__(self) -> Self:
        if self._admitted is not None:
            self._admitted.add(self, self._handle.namespace)
        if self._charge is None:
            self._charge = self._account.undriven()
        self._began_ns = self._account.began()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._end_charge()
            self._account.ended(self._began_ns)
            if self._admitted is not None:
                self._admitted.remove(self)


class ServiceHost(Protocol):
    """What a service may ask of the worker that runs it."""

    @property
    def broker_id(self) -> str:
        """See `Equipoise.broker_id`."""
        ...

    def owned(self, namespace: str, key: str) -> Ownership | None:
        """See `Equipoise.owned`."""
        ...

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """See `Equipoise.route`. `timeout_ms` has no default."""
        ...


class Service(ABC):
    """A service that Equipoise balances. One instance serves all bundles of its broker; every
    method runs on the worker's event loop.

    A method that blocks stalls the broker and its renewals, until the broker fences itself: use
    threads for blocking work. An exception from `prepare` or `open` refuses the bundle, with its
    text as the reason. Each call has a deadline, after which it is cancelled.

    A bundle has one operation at a time: `prepare`, `open`, `close` or `discard`. The next one is
    called when the previous one has ended, even if that was cancelled. `fetch`, `split_points` and
    `load` are questions, and may run beside any operation.

    `host` is the worker. The worker sets it before it calls any method.
    """

    host: ServiceHost

    # A default, not a gap.
    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:  # noqa: B027
        """Warm up for `bundle`, which `source` still serves (None: no broker does). Serve nothing
        yet.
        """

    @abstractmethod
    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Begin to serve. `handover` is the return value of the former owner's `close`.

        None means that there is no handover. If the former owner left one,
        `ownership.handover_problem` gives the reason.
        """

    @abstractmethod
    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Stop serving: settle what was accepted, redirect clients to `moved_to`, and return the
        state for the next owner.

        The state is that of the bundle's keys: `bundle.contains(namespace, key)` selects them.

        Up to 16 KiB go on the channel. This broker keeps larger state for 30 s, up to 64 MiB for
        all bundles together, and the next owner's broker fetches it. If this broker serves no
        peers, larger state is lost, and the next owner gets the reason. State of any size streams
        from `fetch`.

        The ownership is already void: no new work starts, and work in progress fails its second
        check. A move has waited for work of `Ownership.admit` before. No broker serves the bundle
        until this method returns. Past `deadline` it is cancelled, without a handover. To end
        earlier yourself, use `await deadline.wait(flush(), what="the flush")` or
        `deadline.remaining_ms()`.

        It is called for every bundle that is open when the broker ends, for any reason. Then
        `moved_to` is None, and the handover is discarded.
        """

    async def discard(self, bundle: Bundle) -> None:  # noqa: B027 - as above
        """Discard what `prepare` warmed up, because that transfer was cancelled. Another `prepare`
        may follow.
        """

    # A default needs neither.
    async def fetch(self, bundle: Bundle, token: int) -> State | None:  # noqa: ARG002
        """Return the state of a bundle that was closed here, for its next owner, beside the
        handover. `token` is that of this broker.

        For state of any size, return an asynchronous iterator of its chunks, such as an
        asynchronous generator that reads a file. It is asked for the next chunk when the next owner
        has taken the one before, and may take ten seconds for each. After a broken connection
        `fetch` is called again, and must return the same bytes.
        """
        return None

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:  # noqa: B027 - as above
        """Take note that `parent` has become `children`, all owned here, under the same token.
        Sessions continue.
        """

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:  # noqa: B027 - as above
        """Take note that `left` and `right` have become one bundle, owned here. Sessions
        continue.
        """

    async def split_points(
        self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None
    ) -> Sequence[int]:
        """Return where to cut `bundle`, as hash points that rise and lie strictly inside it.

        `algorithm` is a name that Pulsar gives, such as `range_equally_divide`. `positions` are the
        hash points that an operator asks for, or None. The default knows no topics, so it finds
        only the halves and the given positions.
        """
        return split_points(
            algorithm,
            SplitQuestion(low=bundle.low, high=bundle.high, positions=positions, force=True),
        )

    def routes(self) -> Sequence[RouteDef]:
        """Return the HTTP routes (aiohttp) that the broker serves on its port.

        With authentication, `equipoise.identity_of(request)` is the caller of a handler.
        """
        return ()

    def load(self) -> Mapping[str, BundleLoad]:
        """Return what each open bundle costs now, by name of bundle."""
        return {}
