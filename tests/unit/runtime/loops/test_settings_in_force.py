"""The balancing settings in force at a broker: the channel's, and its own for all others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import SetSettings
from equipoise.brokers.balancing.settings.settings_records import KEY
from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.on_channel import submit
from equipoise.brokers.runtime.loops.background import SettingsInForce
from equipoise.channel.core import propose
from equipoise.channel.core.records import Document, Scalar
from tests.unit.http.cluster import cluster, until

pytestmark = pytest.mark.integration


def write(log_url: str, document: Document) -> None:
    """Write a settings document without any checks."""
    with opened(log_url, timeout_ms=20_000, publisher="admin:erin") as access:
        submit(
            access,
            lambda view, author: propose.set_policy(author, view, name=KEY, document=document),
        )


async def test_settings_of_the_channel_override_those_of_every_broker(tmp_path: Path) -> None:
    """Until they are removed."""
    async with cluster(tmp_path, brokers=2, balance_interval_ms=700) as brokers:
        first, second = brokers.brokers
        settings = [SettingsInForce(broker.worker) for broker in (first, second)]
        assert [700, 700] == [each().balancing.shed_interval_ms for each in settings]
        changes: dict[str, Scalar | None] = {
            "balancing.shed_interval_ms": 90,
            "balancing.shedder": "TransferShedder",
        }
        await first.worker.request(
            SetSettings(changes=changes, changed_by="erin"), timeout_ms=20_000
        )
        await until(lambda: [90, 90] == [each().balancing.shed_interval_ms for each in settings])
        assert ["TransferShedder"] * 2 == [each().balancing.shedder for each in settings]
        await second.worker.request(SetSettings(changes=dict.fromkeys(changes)), timeout_ms=20_000)
        await until(lambda: [700, 700] == [each().balancing.shed_interval_ms for each in settings])


async def test_an_unreadable_setting_is_logged_once_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other settings of the same record apply."""
    caplog.set_level("ERROR", logger="equipoise.brokers.runtime.loops.background")
    async with cluster(tmp_path, brokers=1) as brokers:
        worker = brokers.brokers[0].worker
        settings = SettingsInForce(worker)
        interval_ms = settings().balancing.shed_interval_ms
        await asyncio.to_thread(
            write,
            worker.config.log_url,
            {"balancing.shed_interval_ms": "soon", "balancing.moves_max": 3},
        )
        await until(lambda: settings().balancing.moves_max == 3)
        assert interval_ms == settings().balancing.shed_interval_ms
    (line,) = (
        record.getMessage()
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.loops.background"
    )
    assert "balancing.shed_interval_ms" in line
