"""Route a key to the broker that serves it, from this broker's view, and tell whether owners have
opened their bundles.

Callers wait in one line for each bundle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeVar

import aiohttp

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.events import Instant, Wanted
from equipoise.brokers.balancing.named import server_of
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.brokers.balancing.quarantine import why_quarantined
from equipoise.brokers.errors import UnknownNamespace, channel_lost, quarantined
from equipoise.brokers.runtime.assuring import answer_of
from equipoise.brokers.runtime.callers import HELD_MAX, Line
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.service import Ownership, Peer, own_http
from equipoise.brokers.runtime.service_runner import peer_of
from equipoise.brokers.security.own_token import OwnToken
from equipoise.brokers.security.tls import ClientTls
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded, PeerError
from equipoise.channel.core.ranges import key_hash
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import why_unserved
from equipoise.channel.log.subscription import Outage

T = TypeVar("T")

# For the way there and back, beyond the time that the owner has to open the bundles.
_WAY_MS: Final = 1_000


Purpose = Literal["calls", "lookups"]

PLACES_MAX: Final[Mapping[Purpose, int]] = {"calls": 512, "lookups": HELD_MAX // 2}
"""Callers that wait for an owner of one bundle.

* Calls, which this broker serves or sends to the owner. A program that needs 1 ms for each has
  served all half a second after the opening, so before those that came last give up. A connection
  of a Pulsar client has up to 64 of them.
* Lookups. Those of other bundles always have the other half.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The answer to a lookup: the bundle and the broker that serves it.

    `lost_ms` is set if the answering broker has lost the channel for that long: it may be out of
    date.
    """

    bundle: BundleEntry
    broker: BrokerEntry
    lost_ms: int | None = None


class WaitingHost(Protocol):
    """Waits for the view to change, by the real clock or by a test's.
    `brokers.runtime.worker.Worker` defines its calls.
    """

    async def until(
        self,
        condition: Callable[[View], T | None],
        *,
        timeout_ms: int,
        what: str,
        line: Line | None = None,
    ) -> T:
        """Return the first result of `condition` that is not None."""
        ...

    def has_line(self, line: Line) -> bool:
        """Return whether callers wait in a line. Who comes now goes behind them."""
        ...

    async def up_to_date(self, *, timeout_ms: int) -> bool:
        """Read to the log's end. Return whether what the view lacks may be denied."""
        ...


class Router:
    """One broker's knowledge of who serves what. See `brokers.runtime.worker.Worker`."""

    def __init__(
        self,
        agent: Agent,
        *,
        ownerships: Mapping[str, Ownership],
        clock: Clock,
        waiting: WaitingHost,
        step: Callable[[Wanted], None],
        log_is_readable: Callable[[], bool],
        promised: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`ownerships` are the open bundles by name; `step` gives the agent an event. `promised`
        namespaces are about to be created.
        """
        self._agent = agent
        self._ownerships = ownerships
        self._clock = clock
        self._waiting = waiting
        self._step = step
        self._log_is_readable = log_is_readable
        self._promised = promised

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """Return this broker's ownership of `key`, or None if it does not own the key now."""
        bundle = self._agent.view.bundle_at(namespace, key_hash(key))
        ownership = None if bundle is None else self._ownerships.get(bundle.name)
        return ownership if ownership is not None and ownership.is_good else None

    def owned(self, namespace: str, key: str) -> Ownership | None:
        """Return this broker's ownership of `key`, which may be lost. None if it has none, or if
        callers wait for it, who are first.
        """
        bundle = self._agent.view.bundle_at(namespace, key_hash(key))
        ownership = None if bundle is None else self._ownerships.get(bundle.name)
        if ownership is None or self._waiting.has_line(_line("calls", ownership.bundle.name)):
            return None
        return ownership

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Return this broker's ownership of `key`, or the broker that serves it. Wait while no
        broker does.

        Raise `PeerError` if the bundle is in quarantine, as `locate` does.
        """
        ownership = self.owned(namespace, key)
        if ownership is not None and ownership.is_good:
            return ownership
        point = key_hash(key)

        def look(_: View) -> Ownership | Peer | None:
            ours = self.ownership(namespace, key)
            if ours is not None:
                return ours
            located = self._located(namespace, point)
            return (
                None
                if located is None or located.broker.broker == self._agent.broker
                else peer_of(located.broker)
            )

        what = f"an owner for {namespace}/{key}"
        return await self.known(
            namespace, look, timeout_ms=timeout_ms, what=what, point=point, purpose="calls"
        )

    async def locate(self, namespace: str, point: int, *, timeout_ms: int) -> Located:
        """Return the bundle of a hash point and its broker. Wait while no broker serves it.

        Raise `UnknownNamespace`, `DeadlineExceeded` after `timeout_ms`, and `Overloaded`.
        """
        what = f"an owner for point 0x{point:08x} of {namespace}"
        if not self._agent.is_ready:
            what = f"broker {self._agent.broker} becoming ready"
        return await self.known(
            namespace,
            lambda _: self._located(namespace, point),
            timeout_ms=timeout_ms,
            what=what,
            point=point,
        )

    async def opened_here(self, tokens: Mapping[str, int], *, timeout_ms: int) -> OpenedBundles:
        """Wait until this broker has opened bundles under these `tokens`, or does not own them so.
        Return those that are open then.

        Raise `Overloaded` and `WorkerEnded`.
        """
        pending, done = dict(tokens), set[str]()

        def look(view: View) -> OpenedBundles | None:
            for name, token in list(pending.items()):
                ownership, bundle = self._ownerships.get(name), view.bundles.get(name)
                if ownership is not None and ownership.token == token:
                    done.add(name)
                elif view.offset < token:
                    continue  # Its record is not read yet.
                elif bundle is not None and (bundle.phase, bundle.owner, bundle.token) == (
                    "owned",
                    self._agent.incarnation,
                    token,
                ):
                    continue  # The service still opens it.
                del pending[name]
            return None if pending else OpenedBundles(bundles=frozenset(done), offset=view.offset)

        try:
            return await self._waiting.until(
                look, timeout_ms=timeout_ms, what="the opening of bundles"
            )
        except DeadlineExceeded:
            return OpenedBundles(bundles=frozenset(done), offset=self._agent.view.offset)

    async def opened(
        self, tokens: Mapping[str, int], *, timeout_ms: int, own_token: OwnToken, tls: ClientTls
    ) -> OpenedBundles:
        """Ask the owners of bundles as `opened_here`, all at once. An owner that does not answer
        has opened nothing.
        """
        answers = []
        for owner, part in by_owner(self._agent.view, tokens):
            if owner.broker == self._agent.broker:
                answers.append(self.opened_here(part, timeout_ms=timeout_ms))
            else:
                answers.append(
                    opened_at(owner, part, timeout_ms=timeout_ms, own_token=own_token, tls=tls)
                )
        return all_of(await asyncio.gather(*answers))

    async def known(
        self,
        namespace: str,
        look: Callable[[View], T | None],
        *,
        timeout_ms: int,
        what: str,
        point: int | None = None,
        purpose: Purpose = "lookups",
    ) -> T:
        """Return the first result of `look`, which looks for something in `namespace`. Wait for it
        as `Worker.until` does.

        With `point`, wait in the line of its bundle. Raise `UnknownNamespace` if the view lacks the
        namespace once it is up to date.
        """
        try:
            return await self._known(
                namespace, look, timeout_ms=timeout_ms, what=what, point=point, purpose=purpose
            )
        except DeadlineExceeded:
            unserved = why_unserved(self._agent.view, namespace)
            raise explained(
                DeadlineExceeded(
                    what=what if unserved is None else f"{what} ({unserved})", waited_ms=timeout_ms
                ),
                self._agent,
                self._clock.now(),
            ) from None

    async def _known(
        self,
        namespace: str,
        look: Callable[[View], T | None],
        *,
        timeout_ms: int,
        what: str,
        point: int | None,
        purpose: Purpose,
    ) -> T:
        end_ms = self._clock.now().boot_ms + timeout_ms

        def is_worth_a_look(view: View) -> bool | None:
            return (
                may_deny(self._agent, self._clock.now(), log_is_readable=self._log_is_readable())
                or namespace in view.namespaces
                or None
            )

        while True:
            left_ms = max(end_ms - self._clock.now().boot_ms, 0)
            bundle = self._bundle_name(namespace, point)

            def looked(view: View, bundle: str | None = bundle) -> tuple[T | None] | None:
                found = look(view)
                # After a split or a merge the callers of a line wait for different owners: each
                # goes on in the line of its own bundle.
                is_settled = (
                    found is not None
                    or namespace not in view.namespaces
                    or self._bundle_name(namespace, point) != bundle
                )
                return (found,) if is_settled else None

            line = None if bundle is None else _line(purpose, bundle)
            (found,) = await self._waiting.until(looked, timeout_ms=left_ms, what=what, line=line)
            if found is not None:
                return found
            if not left_ms:
                raise DeadlineExceeded(what=what, waited_ms=timeout_ms)
            if namespace in self._agent.view.namespaces:
                continue
            if namespace in self._promised():
                await self._waiting.until(
                    lambda view: namespace in view.namespaces or None,
                    timeout_ms=left_ms,
                    what=what,
                    line=_line(purpose, namespace),
                )
            elif not await self._waiting.up_to_date(timeout_ms=left_ms):
                await self._waiting.until(
                    is_worth_a_look, timeout_ms=left_ms, what=what, line=_line(purpose, namespace)
                )
            elif namespace not in self._agent.view.namespaces:
                raise UnknownNamespace(namespace=namespace)

    def _bundle_name(self, namespace: str, point: int | None) -> str | None:
        bundle = None if point is None else self._agent.view.bundle_at(namespace, point)
        return None if bundle is None else bundle.name

    def _located(self, namespace: str, point: int) -> Located | None:
        view = self._agent.view
        bundle = view.bundle_at(namespace, point)
        now = self._clock.now()
        if bundle is None:
            return None  # It may be in records that are not read yet.
        if bundle.phase == "free":
            problem = why_quarantined(view, bundle.name)
            if problem is not None:
                raise quarantined(bundle=bundle.name, problem=problem)
            if self._agent.drains and not view.takers(namespace):
                problem = why_unserved(view, namespace) or "all brokers stop or drain"
                raise PeerError(
                    f"no broker takes {bundle.name}: {problem}; start one, and try again"
                )
            self._step(Wanted(bundle=bundle.name))
        server = server_of(view, bundle)
        if server is not None and goes_on(self._agent, namespace, now):
            return Located(bundle=bundle, broker=server, lost_ms=self._agent.out_of_touch_ms(now))
        if not self._agent.lease.good(now):
            return None  # A broker without a lease may be cut off; its view cannot be trusted.
        if server is None or self._agent.is_suspect(
            server, now, log_is_readable=self._log_is_readable()
        ):
            return None
        return Located(bundle=bundle, broker=server, lost_ms=self._agent.out_of_touch_ms(now))


async def opened_at(
    owner: BrokerEntry,
    tokens: Mapping[str, int],
    *,
    timeout_ms: int,
    own_token: OwnToken,
    tls: ClientTls,
) -> OpenedBundles:
    """Ask one owner as `Router.opened_here`. One that does not answer has opened nothing."""
    url = f"{own_http(owner.joined.addresses)}{OPENED_PATH}"
    timeout = aiohttp.ClientTimeout(
        total=(timeout_ms + _WAY_MS) / 1_000, sock_connect=CONNECT_MS / 1_000
    )
    question = opened_question(tokens, timeout_ms=timeout_ms)
    return opened_in(await answer_of(url, question, within=timeout, own_token=own_token, tls=tls))


@lru_cache(maxsize=4_096)  # Each call looks whether there is one.
def _line(purpose: Purpose, bundle: str) -> Line:
    """Return the line of the callers that wait for an owner of a bundle."""
    return Line(f"{purpose} of {bundle}", PLACES_MAX[purpose])


def may_deny(agent: Agent, now: Instant, *, log_is_readable: bool) -> bool:
    """Return whether a broker may deny what its view lacks once it has read the log to its end: it
    needs a lease and the channel.
    """
    return (
        log_is_readable
        and agent.is_ready
        and agent.lease.holds(now)
        and agent.out_of_touch_ms(now) is None
    )


def goes_on(agent: Agent, namespace: str, now: Instant) -> bool:
    """Return whether to answer lookups despite the loss of the channel, because the owners serve
    on.

    Silence then proves nothing. A broker that has just slept must hear from the log first.
    """
    return (
        agent.out_of_touch_ms(now) is not None
        and agent.lease.is_attended(now)
        and serves_on(agent.view, namespace)
    )


def explained(error: DeadlineExceeded, agent: Agent, now: Instant) -> DeadlineExceeded:
    """Return `error`, which ended a wait, or one that says since when this broker has lost the
    channel.
    """
    lost_ms = agent.out_of_touch_ms(now)
    if lost_ms is None:
        return error
    return channel_lost(
        what=error.what, waited_ms=error.waited_ms, broker=agent.broker, lost_ms=lost_ms
    )


OPENED_PATH: Final = "/v1/opened"
OPENED_ASKED_MAX: Final = 1_024
"""Bundles in one question: 700 KiB if all names are as long as they may be."""

OPENED_MS_MAX: Final = 10_000
"""How long an owner is asked to wait: an opening takes at most `open_ms`, 10 s by default."""

CONNECT_MS: Final = 500
"""How long a connection to an owner may take. A caller that cannot reach it, as through a firewall,
waits no longer than without asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBundles:
    """Those of some bundles that their owners have opened. The owners knew the log up to
    `offset`.
    """

    bundles: frozenset[str] = frozenset()
    offset: int = 0


def by_owner(
    view: View, tokens: Mapping[str, int]
) -> Iterator[tuple[BrokerEntry, Mapping[str, int]]]:
    """Yield each live owner of some bundles with the `tokens` of those bundles, in parts of at most
    `OPENED_ASKED_MAX`.
    """
    parts: dict[int, dict[str, int]] = {}
    for name, token in tokens.items():
        bundle = view.bundles.get(name)
        if bundle is not None and bundle.owner in view.live:
            parts.setdefault(bundle.owner, {})[name] = token
    for owner, part in parts.items():
        names = list(part)
        for start in range(0, len(names), OPENED_ASKED_MAX):
            yield (
                view.live[owner],
                {name: part[name] for name in names[start : start + OPENED_ASKED_MAX]},
            )


def opened_question(tokens: Mapping[str, int], *, timeout_ms: int) -> Mapping[str, object]:
    """Return the body that asks an owner which bundles it has opened under their `tokens`, once it
    has, or after `timeout_ms`, or after `OPENED_MS_MAX`.
    """
    return {"bundles": dict(tokens), "timeout_ms": min(timeout_ms, OPENED_MS_MAX)}


def opened_in(answer: object) -> OpenedBundles:
    """Read the answer of an owner. No bundles if the answer has another form."""
    if (
        not isinstance(answer, dict)
        or not isinstance(names := answer.get("open"), list)
        or not isinstance(answer.get("offset"), int)
    ):
        return OpenedBundles()
    return OpenedBundles(
        bundles=frozenset(name for name in names if isinstance(name, str)), offset=answer["offset"]
    )


def all_of(answers: Iterable[OpenedBundles]) -> OpenedBundles:
    """Return the answers of several owners as one."""
    answers = list(answers)
    bundles = frozenset[str]().union(*(answer.bundles for answer in answers))
    return OpenedBundles(
        bundles=bundles, offset=max((answer.offset for answer in answers), default=0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoss:
    """One broker's loss of the channel: it cannot read the log, or has read back no own renewal for
    half a lease.

    It cannot know whether others lost it, too.

    * `since_ms`: Unix time.
    * `problem`: the log's last error, if it cannot be read.
    * `serving_on`: open bundles per namespace with `on_channel_loss: serve`, which outlast the
      lease.
    """

    since_ms: int
    lost_ms: int
    problem: str | None
    serving_on: Mapping[str, int]

    def document(self) -> dict[str, object]:
        """Return the loss as a JSON document."""
        since = datetime.fromtimestamp(self.since_ms / 1_000, UTC).isoformat(
            timespec="milliseconds"
        )
        return {
            "since": since.replace("+00:00", "Z"),
            "lost_ms": self.lost_ms,
            "problem": self.problem,
            "serving_on": sorted(self.serving_on),
        }


def channel_loss(agent: Agent, outage: Outage | None, clock: Clock) -> ChannelLoss | None:
    """Return this broker's loss of the channel, if any. `outage` is set while the log cannot be
    read.
    """
    now = clock.now()
    outage_ms = 0 if outage is None else (clock.boot_ns() - outage.since_ns) // 1_000_000
    out_of_touch_ms = agent.out_of_touch_ms(now)
    if outage is None and out_of_touch_ms is None:
        return None
    lost_ms = max(outage_ms, out_of_touch_ms or 0)
    serving_on = Counter(
        handle.namespace
        for handle in agent.handles.values()
        if handle.serves_on and handle.passes(now)
    )
    problem = None if outage is None else str(outage.error)
    return ChannelLoss(
        since_ms=now.wall_ms - lost_ms, lost_ms=lost_ms, problem=problem, serving_on=serving_on
    )
