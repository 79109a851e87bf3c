"""Put together what one broker does beside serving: report its load, balance, split and merge,
compact, and watch what may change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import KEY, problems_in, settings_in
from equipoise.brokers.decision_log import DecisionLog
from equipoise.brokers.runtime.loops.addresses import PeerAddresses, call_next_address
from equipoise.brokers.runtime.loops.balancing import Balancing
from equipoise.brokers.runtime.loops.compacting import Compacting
from equipoise.brokers.runtime.loops.death_watch import DeathWatch
from equipoise.brokers.runtime.loops.decision_writer import DecisionWriter
from equipoise.brokers.runtime.loops.file_watch import LOOK_S, FileWatch
from equipoise.brokers.runtime.loops.load_reporter import LoadReporter
from equipoise.brokers.runtime.loops.splitting import Splitting
from equipoise.brokers.runtime.worker import Worker

_logger: Final = logging.getLogger(__name__)


def loops_of(worker: Worker, *, listens: bool) -> Sequence[Coroutine[None, None, None]]:
    """Return the loops of a worker, which `listens` to clients.

    Those of balancing always run, because the settings that enable them change at run time.
    """
    settings = SettingsInForce(worker)
    metrics = worker.metrics.balancing
    writer = DecisionWriter(
        DecisionLog(worker.config.log_url),
        broker=worker.broker_id,
        clock=worker.clock,
        counted=metrics.decided,
    )
    reporter = LoadReporter(worker, worker.load_bus, settings)
    balancing = Balancing(worker, worker.load_bus, settings=settings, decided=writer.decided)
    splitting = Splitting(worker, reporter.bundles, settings, writer.decided)
    loops = [
        DeathWatch(worker).run(),
        writer.run(),
        reporter.run(),
        balancing.run(),
        splitting.run(),
        Compacting(worker).run(),
    ]
    if listens:
        loops += [
            _every_second(FileWatch(worker).look),
            # A broker that joined has exceeded no limit after a second.
            _every_second(PeerAddresses(worker).look),
            call_next_address(worker),
        ]
    if worker.config.tls_files.paths():
        loops.append(_every_second(worker.access.certificates.look))
    if worker.access.gate is not None:
        loops.append(_every_second(worker.access.gate.look))
    return loops


async def _every_second(look: Callable[[], Awaitable[None] | None]) -> None:
    while True:
        looking = look()
        if looking is not None:
            await looking
        await asyncio.sleep(LOOK_S)


class SettingsInForce:
    """A callable that returns the current settings: the channel's, and the broker's own where the
    channel has none.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._base = worker.config.base_settings
        self._settings = self._base
        self._last: int | None = None

    def __call__(self) -> BalancingSettings:
        """Return the settings, parsed again only after a change. An unreadable one is logged, and
        the broker's own applies.
        """
        view = self._worker.view
        entry = view.policies.get(KEY)
        last = None if entry is None else entry.last
        if last != self._last:
            self._last = last
            self._settings = settings_in(view, self._base)
            for problem in problems_in(view, self._base):
                _logger.error(
                    "balancing setting ignored: %s",
                    problem,
                    extra={"broker": self._worker.broker_id},
                )
            _logger.info(
                "balancing settings changed",
                extra={"broker": self._worker.broker_id, "offset": last},
            )
        return self._settings
