"""Run operations inside a broker: the asynchronous driver, for HTTP handlers, the balancer and the
virtual cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from equipoise.brokers.agent.intents import (
    CreateNamespace,
    Intent,
    action_of,
    subject_of,
    tenant_of,
)
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.checks import check_request, rejection, unless_overtaken
from equipoise.brokers.operations.steps import (
    AskOpened,
    Condition,
    Listen,
    Listener,
    Look,
    Operation,
    OrderDrain,
    Propose,
    ProposeEach,
    Seen,
    Step,
    Until,
    UntilOrGiveUp,
)
from equipoise.brokers.runtime.router import Opened
from equipoise.brokers.security.limits import Rate
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError, Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Unreadable
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

OPERATIONS_MAX: Final = 1_024
"""Limit of concurrent operations. Each one checks every change of the view: about 15 ms for all of
them."""

T = TypeVar("T")


class Host(Protocol):
    """The broker that runs operations. `brokers.runtime.worker.Worker` defines its calls."""

    @property
    def broker_id(self) -> str:
        """The id of the broker."""

    @property
    def view(self) -> View:
        """The view."""

    @property
    def log_name(self) -> str:
        """The name of the log, for errors."""

    @property
    def placement(self) -> Placement:
        """The current placement policy."""

    def drain(self, *, requested_by: str | None = None) -> None:
        """Start to drain."""

    def undrain(self) -> None:
        """End a drain, once all bundles are away."""

    def listen(
        self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None]
    ) -> Callable[[], None]:
        """Call `listener` for each record. Return the end of it."""

    async def opened(self, tokens: Mapping[str, int], *, timeout_ms: int) -> Opened:
        """Return which bundles their owners have opened under these `tokens`."""

    async def request(
        self, intent: Intent, *, timeout_ms: int, requested_by: str | None = None
    ) -> int:
        """Propose `intent`. Return the offset of the accepted record."""

    async def until(
        self, condition: Callable[[View], T | None], *, timeout_ms: int, what: str
    ) -> T:
        """Return the first result of `condition` that is not None."""


class Operations:
    """Runs operations at one broker, concurrently."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running = 0
        self._quotas = _Quotas(host)

    async def run(
        self, operation: Operation[T], deadline: Deadline, *, requested_by: str | None = None
    ) -> T:
        """Run an operation to its end by `deadline`, and return its result.

        Its records name `requested_by` (`admin:NAME`) as the requester; with None, the broker acts
        on its own.

        Raises what the operation and `Worker.request` raise, and `Overloaded` if too many
        operations run.
        """
        if self._running >= OPERATIONS_MAX:
            raise Overloaded(
                what=f"the queue of operations at broker {self._host.broker_id}",
                limit=OPERATIONS_MAX,
            )
        run = _Run(self._host, deadline, requested_by, self._quotas)
        end = self._host.listen(run.heard, resynced=run.heard)
        self._running += 1
        try:
            return await run.to_the_end(operation)
        finally:
            self._running -= 1
            end()
            operation.close()


class _Quotas:
    """What the callers of one broker may change in a tenant (`TenantQuotas`)."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._records = Rate(1)
        # One at a time: each is checked against the view that has the one before, so many at once
        # cannot exceed a quota.
        self.creating = asyncio.Lock()

    def take(self, intent: Intent, *, is_first: bool) -> None:
        """Count a record of a tenant. Raise `Overloaded` if it is the first one of an operation,
        and callers have made too many.

        The further records of an operation are let through: half of a deletion would help nobody.
        They delay the next operation.
        """
        tenant, now = tenant_of(intent), time.monotonic_ns() // 1_000_000
        if tenant is None:
            return
        if is_first:
            per_second = settings_in(
                self._host.view, BalancingSettings()
            ).tenants.records_per_second_max
            if self._records.per_second != per_second:
                self._records = Rate(per_second)
            if self._records.wait_ms(tenant, now):
                what = (
                    f"the number of changes per second in tenant {tenant} at broker"
                    f" {self._host.broker_id}"
                )
                raise Overloaded(what=f"{what} (tenants.records_per_second_max)", limit=per_second)
        self._records.take(tenant, 1, now)


class _Run:
    """One running operation."""

    def __init__(
        self, host: Host, deadline: Deadline, requested_by: str | None, quotas: _Quotas
    ) -> None:
        self._host = host
        self._quotas = quotas
        self._deadline = deadline
        self._requested_by = requested_by
        self._listeners: list[Listener] = []
        self._proposed: set[str] = set()
        self._has_proposed = False
        self._own: dict[int, Folded] = {}

    def heard(self, news: Folded | Resync) -> None:
        """Pass a change to the operation's listeners, and keep the records that it has proposed."""
        if isinstance(news, Folded):
            record = news.record
            if (
                not isinstance(record, Unreadable)
                and record.publisher == self._host.broker_id
                and record.key in self._proposed
            ):
                self._own[news.offset] = news
        for listener in self._listeners:
            listener(news)

    async def to_the_end(self, operation: Operation[T]) -> T:
        answer: object = None
        problem: EquipoiseError | None = None
        try:
            while True:
                step = operation.send(answer) if problem is None else operation.throw(problem)
                answer = problem = None
                try:
                    answer = await self._carry_out(step)
                except EquipoiseError as error:
                    problem = error
        except StopIteration as end:
            result: T = end.value
            return result

    async def _carry_out(self, step: Step) -> object:
        host = self._host
        match step:
            case Look():
                return Seen(
                    view=host.view,
                    log=host.log_name,
                    requester=self._requested_by or host.broker_id,
                    placement=host.placement,
                )
            case Listen(listener=listener):
                self._listeners.append(listener)
                return None
            case Propose(intent=intent):
                return await self._propose(intent)
            case ProposeEach(intents=intents):
                return await self._propose_each(intents)
            case OrderDrain(ends=True):
                host.undrain()
                return None
            case OrderDrain(broker=broker):
                host.drain(requested_by=self._requested_by)
                return await self._until(
                    partial(_drains, broker.broker), f"broker {broker.broker} draining"
                )
            case AskOpened(tokens=tokens, within_ms=within_ms):
                return await host.opened(
                    tokens, timeout_ms=min(within_ms, self._deadline.remaining_ms())
                )
            case Until(condition=condition, what=what):
                return await self._until(condition, what)
            case UntilOrGiveUp(condition=condition, what=what, within_ms=within_ms):
                with suppress(DeadlineExceeded):
                    timeout_ms = min(within_ms, self._deadline.remaining_ms())
                    return await host.until(condition, timeout_ms=timeout_ms, what=what)
                return None

    async def _propose(self, intent: Intent) -> Folded:
        """Return the accepted record, once it is read. Describe a refusal from the record that was
        read.
        """
        if self._requested_by is not None:
            self._quotas.take(intent, is_first=not self._has_proposed)
            self._has_proposed = True
        if isinstance(intent, CreateNamespace):
            async with self._quotas.creating:
                return await self._propose_now(intent)
        return await self._propose_now(intent)

    async def _propose_now(self, intent: Intent) -> Folded:
        host, subject = self._host, subject_of(intent)
        check_request(host.view, intent)
        self._proposed.add(subject)
        try:
            offset = await host.request(
                intent, timeout_ms=self._deadline.remaining_ms(), requested_by=self._requested_by
            )
            return await self._until(lambda _: self._own.get(offset), f"the change of {subject}")
        except Rejected as error:
            refused = None if error.offset is None else self._own.get(error.offset)
            raise (
                error if refused is None else rejection(refused, host.view, action_of(intent))
            ) from None
        finally:
            self._proposed.discard(subject)

    async def _propose_each(self, intents: Sequence[Intent]) -> dict[str, int]:
        """Propose concurrently. Return the offsets of the accepted records by subject. Raise the
        first error that is not a lost race.
        """
        offsets = {}
        for intent, result in zip(
            intents,
            await asyncio.gather(*map(self._propose, intents), return_exceptions=True),
            strict=True,
        ):
            if isinstance(result, Folded):
                offsets[subject_of(intent)] = result.offset
                continue
            with unless_overtaken():
                raise result
        return offsets

    async def _until(self, condition: Condition[T], what: str) -> T:
        try:
            return await self._host.until(
                condition, timeout_ms=self._deadline.remaining_ms(), what=what
            )
        except DeadlineExceeded:
            # The message counts milliseconds from the start of the request, not from this wait.
            self._deadline.check(what)
            raise


def _drains(broker_id: str, view: View) -> bool | None:
    """Return True if a broker drains in its newest incarnation: it may have joined again
    meanwhile.
    """
    broker = view.brokers.get(broker_id)
    return (broker is not None and broker.status == "draining") or None
