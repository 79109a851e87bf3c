"""Run operations inside a broker, on its event loop: for HTTP handlers, the balancer and the
virtual cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Final, Protocol, TypeVar

from equipoise.brokers.agent.requests import CreateNamespace, Intent, tenant_of
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.operations.checks import check_request
from equipoise.brokers.operations.port import Condition, Listener
from equipoise.brokers.runtime.router import OpenedBundles
from equipoise.brokers.security.limits import Rate
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import DeadlineExceeded, Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline

OPERATIONS_MAX: Final = 1_024
"""Limit of concurrent operations that follow moves. Each one checks every change of the view: about
15 ms for all of them."""

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

    async def opened(self, tokens: Mapping[str, int], *, timeout_ms: int) -> OpenedBundles:
        """Return which bundles their owners have opened under these `tokens`."""

    async def request(
        self, intent: Intent, *, timeout_ms: int, requested_by: str | None = None
    ) -> Folded:
        """Propose `intent`. Return the accepted record."""

    async def until(
        self, condition: Callable[[View], T | None], *, timeout_ms: int, what: str
    ) -> T:
        """Return the first result of `condition` that is not None."""


class Operations:
    """What all operations of one broker share: their bounds, and the quotas of tenants
    (`TenantQuotas`).
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._following = 0
        self._records = Rate(1)
        # One at a time: each is checked against the view that has the one before, so many at once
        # cannot exceed a quota.
        self.creating = asyncio.Lock()

    def port(self, deadline: Deadline, *, requested_by: str | None = None) -> WorkerPort:
        """Return the port for one operation, which must end by `deadline`.

        Its records name `requested_by` (`admin:NAME`) as the requester; with None, the broker acts
        on its own.
        """
        return WorkerPort(self, deadline, requested_by)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Call `listener` for each change of the view. Raises `Overloaded` if too many operations
        listen.
        """
        if self._following >= OPERATIONS_MAX:
            raise Overloaded(
                what=f"the queue of operations at broker {self.host.broker_id}",
                limit=OPERATIONS_MAX,
            )
        end = self.host.listen(listener, resynced=listener)
        self._following += 1
        try:
            yield
        finally:
            self._following -= 1
            end()

    def count(self, intent: Intent, *, is_first: bool) -> None:
        """Count a record of a tenant. Raises `Overloaded` if it is the first one of an operation,
        and callers have made too many.

        The further records of an operation are let through: half of a deletion would help nobody.
        They delay the next operation.
        """
        tenant, now = tenant_of(intent), time.monotonic_ns() // 1_000_000
        if tenant is None:
            return
        if is_first:
            quotas = settings_in(self.host.view, BalancingSettings()).tenants
            per_second = quotas.records_per_second_max
            if self._records.per_second != per_second:
                self._records = Rate(per_second)
            if self._records.wait_ms(tenant, now):
                what = (
                    f"the number of changes per second in tenant {tenant} at broker"
                    f" {self.host.broker_id}"
                )
                raise Overloaded(what=f"{what} (tenants.records_per_second_max)", limit=per_second)
        self._records.take(tenant, 1, now)


class WorkerPort:
    """The port for one operation of a broker (`brokers.operations.port.Port`)."""

    def __init__(
        self, operations: Operations, deadline: Deadline, requested_by: str | None
    ) -> None:
        self._operations = operations
        self._host = operations.host
        self._deadline = deadline
        self._requested_by = requested_by
        self._has_proposed = False
        self.listen = operations.listening
        self.log_name = operations.host.log_name
        self.requester = requested_by or operations.host.broker_id

    @property
    def view(self) -> View:
        """See `Port`."""
        return self._host.view

    @property
    def placement(self) -> Placement:
        """See `Port`."""
        return self._host.placement

    async def propose(self, intent: Intent) -> Folded:
        """See `Port`. Raises what `Requests.request` raises, and `Overloaded` beyond the rate of a
        tenant.
        """
        if self._requested_by is not None:
            self._operations.count(intent, is_first=not self._has_proposed)
            self._has_proposed = True
        is_creation = isinstance(intent, CreateNamespace)
        async with self._operations.creating if is_creation else nullcontext():
            check_request(self._host.view, intent)
            return await self._host.request(
                intent, timeout_ms=self._deadline.remaining_ms(), requested_by=self._requested_by
            )

    async def until(self, condition: Condition[T], what: str, *, within_ms: int | None = None) -> T:
        """See `Port`."""
        remaining_ms = self._deadline.remaining_ms()
        timeout_ms = remaining_ms if within_ms is None else min(within_ms, remaining_ms)
        try:
            return await self._host.until(condition, timeout_ms=timeout_ms, what=what)
        except DeadlineExceeded:
            # The message counts milliseconds from the start of the request, not from this wait.
            self._deadline.check(what)
            raise

    async def drain(self, broker: BrokerEntry) -> None:
        """See `Port`. `broker` is this one."""
        self._host.drain(requested_by=self._requested_by)
        await self.until(partial(_drains, broker.broker), f"broker {broker.broker} draining")

    async def undrain(self, broker: BrokerEntry) -> None:  # noqa: ARG002 - it is this one
        """See `Port`."""
        self._host.undrain()

    async def opened(self, tokens: Mapping[str, int], *, within_ms: int) -> OpenedBundles:
        """See `Port`."""
        return await self._host.opened(
            tokens, timeout_ms=min(within_ms, self._deadline.remaining_ms())
        )


def _drains(broker_id: str, view: View) -> bool | None:
    """Return True if a broker drains in its newest incarnation: it may have joined again
    meanwhile.
    """
    broker = view.brokers.get(broker_id)
    return (broker is not None and broker.status == "draining") or None
