"""Propose records and run operations directly on the channel, in the calling thread: for the
command line and scripts.

`declare_dead` moves the bundles of a dead broker before its lease expires (section 4 of the
protocol). The proof of death is the lock of the broker's data directory: a caller that can take the
lock knows that the process has ended. The parent of a local cluster uses this, and so does a
service manager's stop hook with `equipoise brokers declare-dead`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from equipoise.brokers.agent.requests import (
    BY_COUNT,
    Intent,
    action_of,
    may_run_again,
    record_of,
    refusal,
    rejection,
    subject_of,
)
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import Access, until
from equipoise.brokers.operations.asking import order_to_drain, tls_for
from equipoise.brokers.operations.checks import check_request
from equipoise.brokers.operations.port import Condition, Listener
from equipoise.brokers.runtime.data_directory import instance_ids_of_dead
from equipoise.brokers.runtime.router import OpenedBundles, all_of, by_owner, opened_at
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.security.own_token import OwnToken
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BrokerEntry, BundleChanged, Verdict
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BrokerRecord, Reason
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import append, author_now, ignore, read_on
from equipoise.channel.system.clocks import Deadline

T = TypeVar("T")


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation that has a `ChannelPort` to its end, and return its result."""
    with asyncio.Runner() as runner:
        # Not `Runner.run`: it would hold Ctrl-C back until the log answers.
        return runner.get_loop().run_until_complete(operation)


class ChannelPort:
    """The port for one operation of an admin (`brokers.operations.port.Port`). It blocks the event
    loop.
    """

    placement: Placement = BY_COUNT

    def __init__(self, access: Access) -> None:
        self._access = access
        self._listeners: list[Listener] = []
        self.log_name = access.log.name
        self.requester = access.publisher

    @property
    def view(self) -> View:
        """See `Port`."""
        return self._access.view

    @contextmanager
    def listen(self, listener: Listener) -> Iterator[None]:
        """See `Port`."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def _heard(self, news: Folded | Resync) -> None:
        for listener in self._listeners:
            listener(news)

    async def propose(self, intent: Intent) -> Folded:
        """See `Port`. Raises what `submit` raises."""
        self._access.deadline.check(f"the request about {subject_of(intent)}")
        check_request(self.view, intent)
        return submit(self._access, partial(_record, intent), intent=intent, listener=self._heard)

    async def until(self, condition: Condition[T], what: str, *, within_ms: int | None = None) -> T:
        """See `Port`. Raises what `access.follow` raises."""
        return until(
            self._access,
            condition,
            what=what,
            deadline=None if within_ms is None else self._within(within_ms),
            listener=self._heard,
        )

    async def drain(self, broker: BrokerEntry) -> None:
        """See `Port`."""
        await order_to_drain(broker, self._access.deadline)

    async def undrain(self, broker: BrokerEntry) -> None:
        """See `Port`."""
        await order_to_drain(broker, self._access.deadline, ends=True)

    async def opened(self, tokens: Mapping[str, int], *, within_ms: int) -> OpenedBundles:
        """See `Port`."""
        timeout_ms, own_token = self._within(within_ms).remaining_ms(), OwnToken.of_environment()
        answers = [
            opened_at(
                owner,
                part,
                timeout_ms=timeout_ms,
                own_token=own_token,
                tls=tls_for(own_http(owner.joined.addresses) or ""),
            )
            for owner, part in by_owner(self.view, tokens)
        ]
        return all_of(await asyncio.gather(*answers))

    def _within(self, within_ms: int) -> Deadline:
        return Deadline.after(timeout_ms=min(within_ms, self._access.deadline.remaining_ms()))


def _record(intent: Intent, view: View, author: Author) -> AnyRecord:
    make = record_of(view, intent)
    if isinstance(make, Verdict):
        raise refusal(intent, make)
    return make(author)


def submit(
    access: Access,
    make_record: Callable[[View, Author], AnyRecord],
    *,
    intent: Intent | None = None,
    listener: Callable[[Folded], None] = ignore,
) -> Folded:
    """Propose a record and return it once it is accepted. Make it again if it loses a race
    (`may_run_again`).

    `intent` is what the record is made for, if it is for one. `listener` gets every record folded
    meanwhile. Raises `Rejected`, and what `channel.log.blocking_view.append` raises (for example
    `OutcomeUnknown`).
    """
    log, reader, deadline = access.log, access.reader, access.deadline
    if access.view.genesis is None:
        raise Rejected(
            key="log", reason=Reason.NO_GENESIS, problem=None, offset=None, action="change the"
        )
    race = 1
    while True:
        author = author_now(
            log, reader, publisher=access.publisher, deadline=deadline, listener=listener
        )
        folded = append(
            log, reader, make_record(access.view, author), deadline=deadline, listener=listener
        )
        reason = folded.verdict.reason
        if reason is None:
            return folded
        if not may_run_again(access.view, intent, reason, race):
            raise rejection(
                folded, access.view, "declare dead" if intent is None else action_of(intent)
            )
        race += 1


# --- deaths ---


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathDeclaration:
    """A broker that was declared dead. `offset` is that of the record; `bundles` counts the bundles
    that it had or was to get.
    """

    broker: str
    incarnation: int
    offset: int
    bundles: int


def declare_dead(access: Access, data_directory: Path) -> tuple[DeathDeclaration, ...]:
    """Declare each live incarnation dead whose instance id is in `data_directory`. Return none if
    there is none.

    Callers may run this after every end of a process. After a graceful stop there is nothing to
    declare. The lock is taken before the channel is read, so the last records of the process are on
    the log by then.

    Raises `OperatorError` if the process still runs or its lock proves nothing, and what `submit`
    raises.
    """
    instance_ids = instance_ids_of_dead(data_directory)
    read_on(access.log, access.reader, deadline=access.deadline)
    dead = [
        broker for broker in access.view.live_brokers() if broker.joined.instance_id in instance_ids
    ]
    return tuple(
        death_declaration
        for broker in dead
        if (death_declaration := _declare_dead(access, broker)) is not None
    )


def _declare_dead(access: Access, broker: BrokerEntry) -> DeathDeclaration | None:
    """Return None if somebody else declared it dead first."""
    incarnation = broker.incarnation
    try:
        accepted = submit(access, partial(_down, incarnation))
    except Rejected:
        if incarnation in access.view.live:
            raise
        return None
    bundles = sum(isinstance(change, BundleChanged) for change in accepted.verdict.changes)
    return DeathDeclaration(
        broker=broker.broker, incarnation=incarnation, offset=accepted.offset, bundles=bundles
    )


def _down(incarnation: int, view: View, author: Author) -> BrokerRecord:
    broker = view.live.get(incarnation)
    if broker is None:
        raise Rejected(
            key=f"#{incarnation}",
            reason=Reason.ILLEGAL_TRANSITION,
            problem="it is dead already",
            offset=None,
            action="declare dead",
        )
    return propose.down(
        author,
        broker,
        instance_id=broker.joined.instance_id,
        reason="its data directory is free: the process is gone",
    )
