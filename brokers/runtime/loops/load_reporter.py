"""Sample a broker's load at intervals, and publish it to the load bus when a report is due.

`sampling` and `resource_use` compute the figures; `report_due` decides when to publish.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from equipoise.brokers.agent.events import Instant
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.load.cpu_window import CpuWindow
from equipoise.brokers.load.load_sampler import ServiceLoads
from equipoise.brokers.load.process_use import ProcessUse
from equipoise.brokers.load.sampling import (
    BundleAverages,
    Carried,
    Report,
    carried_bytes,
    report_due,
    sampled,
)
from equipoise.brokers.runtime.clock import interval_passed
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.system.failures import LoggedFailures
from equipoise.shedder.costs import exchanges_of
from equipoise.shedder.fit import fit
from equipoise.shedder.loads import FIGURE_MAX, BundleTraffic, Load
from equipoise.shedder.snapshot import capacities_in

_logger: Final = logging.getLogger(__name__)

# Use is measured between two looks. The second look comes soon, because a broker that joins gets
# bundles when it has reported.
_SECOND_LOOK_MS: Final = 200
# How often what all brokers report is fitted (see `shedder.fit`), and read for the exchange of
# units. Both change slowly.
_FIT_MS: Final = 15_000
_EXCHANGE_MS: Final = 10_000


class LoadReporter:
    """The reports of one worker. `run` continues until it is cancelled; it logs failures and
    retries.
    """

    def __init__(
        self, worker: Worker, bus: LoadBus, settings: Callable[[], BalancingSettings]
    ) -> None:
        """`settings` is called each turn, because settings change at run time."""
        self._worker = worker
        self._settings = settings
        self._bus = bus
        self._publishing: asyncio.Future[None] | None = None
        self._use = ProcessUse(broker=worker.broker_id, cpu_cores=worker.config.cpu_cores)
        self._cores = worker.profile.capacity / 100
        self._cpu = CpuWindow(cores=os.cpu_count() or 1)
        self._fit_ms: int | None = None
        self._exchange_ms: int | None = None
        self._exchanged: Mapping[str, float] = {}
        self._averages = BundleAverages()
        self._services_at_ms = worker.clock.now().boot_ms
        self._carried = Carried()
        self._reported: Report | None = None
        self._failures = LoggedFailures(
            _logger,
            broker=worker.broker_id,
            failed="load not reported",
            over="load is reported again",
        )

    def bundles(self) -> Sequence[BundleTraffic]:
        """Return the average load of each open bundle, by name, as of the last sample; empty before
        the first.

        Call it in a thread: thousands of bundles take tens of milliseconds.
        """
        return self._carried.bundles()

    async def run(self) -> None:
        """Sample and report until cancelled. Then withdraw the report, because no broker should
        weigh one that has left.
        """
        try:
            while True:
                await self._turn()
                await interval_passed(self._interval_ms, self._worker.clock)
        finally:
            await self._withdraw()

    def _interval_ms(self) -> int:
        interval_ms = self._settings().reports.sample_interval_ms
        return interval_ms if self._reported is not None else min(interval_ms, _SECOND_LOOK_MS)

    async def _turn(self) -> None:
        try:
            # A report from before the joining would not count as the first, and the next one would
            # be seconds away.
            now, settings, is_member = (
                self._worker.clock.now(),
                self._settings(),
                self._worker.agent.incarnation is not None,
            )
            services, open_bundles = self._worker.loads.latest(), tuple(self._worker.open_bundles)
            percents = (
                capacities_in(self._worker.view)
                if any(load.unit for load in services.loads.values())
                else {}
            )
            # In a thread: it takes milliseconds, which would block the loop.
            carried, sample = await asyncio.to_thread(
                self._look, services, open_bundles, now, settings, percents
            )
            self._carried = carried
            if sample is not None:
                self._worker.loads.resources = sample.resources
            if sample is not None and is_member:
                await self._report(
                    Report(sample=sample, at_ms=now.boot_ms, open_bundles=tuple(carried.settled)),
                    settings,
                )
        # A figure that the system does not have must not end the reports.
        except Exception as error:  # noqa: BLE001
            self._failures.failed(error, self._worker.clock.now().boot_ms)
        else:
            self._failures.succeeded()

    def _look(
        self,
        services: ServiceLoads,
        open_bundles: tuple[str, ...],
        now: Instant,
        settings: BalancingSettings,
        percents: Mapping[str, float],
    ) -> tuple[Carried, Load | None]:
        """Return the load of the bundles, and the sample to report; None at the first look, which
        has no earlier counters. `percents`: of all brokers, if services declare costs.
        """
        elapsed_ms, self._services_at_ms = services.at_ms - self._services_at_ms, services.at_ms
        bytes_in, bytes_out = carried_bytes(services.loads)
        resources = self._use.look(
            at_ms=now.boot_ms,
            reported_in=bytes_in,
            reported_out=bytes_out,
            nic_speed_gbps=settings.reports.nic_speed_gbps,
        )
        if self._fit_ms is None or now.boot_ms - self._fit_ms >= _FIT_MS:
            self._fit_ms = now.boot_ms  # Also if it fails: costs go on as they are.
            self._worker.loads.fit = fit(load.cpu_sums for load in self._bus.latest())
            self._worker.metrics.assume(self._worker.loads.fit.for_costs)
        found = self._worker.loads.fit
        window_ms = settings.reports.cost_window_ms
        carried = self._averages.update(
            open_bundles,
            services.loads,
            coefficients=found.for_costs,
            rates=self._rates(percents, now.boot_ms) if percents else {},
            elapsed_ms=elapsed_ms,
            cost_window_ms=window_ms,
        )
        if resources is None:
            return carried, None
        self._cpu.update(
            services.loads.values(),
            bundles=len(open_bundles),
            used_cores=resources.cpu.used / 100,
            elapsed_ms=elapsed_ms,
            window_ms=window_ms,
        )
        other_cores = self._cpu.other_work(found.coefficients, window_ms=window_ms)
        sample = sampled(
            carried,
            broker=self._worker.broker_id,
            at_ms=now.wall_ms,
            resources=resources,
            settings=settings,
            capacities=self._worker.config.capacities,
            problem=services.problem,
        )
        return carried, replace(
            sample,
            other_work=None if other_cores is None else other_cores / self._cores,
            cpu_sums=self._cpu.sums,
            cpu_problem=self._cpu.problem,
        )

    def _rates(self, percents: Mapping[str, float], now_ms: int) -> Mapping[str, float]:
        """Return what one of each declared unit counts as here, a share of a core. `percents`: the
        capacities of all brokers.
        """
        if self._exchange_ms is None or now_ms - self._exchange_ms >= _EXCHANGE_MS:
            found = exchanges_of(self._bus.latest(), percents)
            self._exchanged = {unit: each.rate for unit, each in found.items()}
            # Soon again as long as nobody has reported a unit.
            self._exchange_ms = now_ms if found else None
        own, limits = percents.get(self._worker.broker_id, 0) / 100, self._worker.config.capacities
        rates = {**self._exchanged, **{unit: own / limit for unit, limit in limits.items()}}
        return {unit: rate for unit, rate in rates.items() if 0 < rate <= FIGURE_MAX}

    async def _report(self, due: Report, settings: BalancingSettings) -> None:
        if not report_due(self._reported, due, settings.reports):
            return
        with self._worker.span("load report"):
            self._publishing = asyncio.ensure_future(
                asyncio.to_thread(self._bus.publish, due.sample)
            )
            await asyncio.shield(self._publishing)
            self._reported = due

    async def _withdraw(self) -> None:
        if self._publishing is not None:
            # A thread outlives its task, and its report must not follow the withdrawal.
            await asyncio.gather(self._publishing, return_exceptions=True)
        try:
            await asyncio.to_thread(self._bus.withdraw, self._worker.broker_id)
        except EquipoiseError as error:
            _logger.info(
                "load report not removed, it expires: %s",
                error,
                extra={"broker": self._worker.broker_id},
            )
