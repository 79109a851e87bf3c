"""Provide the balancing settings in force at one broker, read again when the channel changes them."""

from __future__ import annotations

import logging
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import KEY, problems_in, settings_in
from equipoise.brokers.runtime.worker import Worker

_logger: Final = logging.getLogger(__name__)


class SettingsInForce:
    """A callable that returns the current settings: the channel's, and the broker's own where the channel has none."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._base = worker.config.base_settings
        self._settings = self._base
        self._last: int | None = None

    def __call__(self) -> BalancingSettings:
        """Return the settings, parsed again only after a change. An unreadable one is logged, and the broker's own applies."""
        view = self._worker.view
        entry = view.policies.get(KEY)
        last = None if entry is None else entry.last
        if last != self._last:
            self._last = last
            self._settings = settings_in(view, self._base)
            for problem in problems_in(view, self._base):
                _logger.error("balancing setting ignored: %s", problem, extra={"broker": self._worker.broker_id})
            _logger.info("balancing settings changed", extra={"broker": self._worker.broker_id, "offset": last})
        return self._settings
