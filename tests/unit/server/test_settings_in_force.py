"""The settings in force at one broker: those of the channel as soon as they are read, and its own for all else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import SetSettings
from equipoise.brokers.balancing.settings.settings_records import KEY
from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.on_channel import submit
from equipoise.brokers.server.balancing import SettingsInForce
from equipoise.channel.core import propose
from equipoise.channel.core.records import Document, Scalar
from tests.unit.http.cluster import cluster, run, until

pytestmark = pytest.mark.integration


def write(log_url: str, document: Document) -> None:
    """Put a document where the settings are, as an admin who checks nothing."""
    with opened(log_url, timeout_ms=20_000, publisher="admin:erin") as access:
        submit(access, lambda view, author: propose.set_policy(author, view, name=KEY, document=document))


async def test_a_change_on_the_channel_is_in_force_at_every_broker_until_it_is_taken_away(tmp_path: Path) -> None:
    """What one broker writes all go by, over what each was started with; without it they go by that again."""
    async with cluster(tmp_path, brokers=2, balance_interval_ms=700) as brokers:
        first, second = brokers.brokers
        settings = [SettingsInForce(broker.worker) for broker in (first, second)]
        assert [700, 700] == [each().balancing.shed_interval_ms for each in settings]
        changes: dict[str, Scalar | None] = {"balancing.shed_interval_ms": 90, "balancing.shedder": "TransferShedder"}
        await first.worker.request(SetSettings(changes=changes, changed_by="erin"), timeout_ms=20_000)
        await until(lambda: [90, 90] == [each().balancing.shed_interval_ms for each in settings])
        assert ["TransferShedder"] * 2 == [each().balancing.shedder for each in settings]
        await second.worker.request(SetSettings(changes=dict.fromkeys(changes)), timeout_ms=20_000)
        await until(lambda: [700, 700] == [each().balancing.shed_interval_ms for each in settings])


def test_what_cannot_be_read_is_told_once_and_our_own_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A record that somebody wrote past all checks changes what of it can be read, and the rest is named in one line each."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=1) as brokers:
            worker = brokers.brokers[0].worker
            settings = SettingsInForce(worker)
            interval_ms = settings().balancing.shed_interval_ms
            await asyncio.to_thread(write, worker.config.log_url, {"balancing.shed_interval_ms": "soon", "balancing.moves_max": 3})
            await until(lambda: settings().balancing.moves_max == 3)
            assert interval_ms == settings().balancing.shed_interval_ms

    with caplog.at_level("ERROR", logger="equipoise.brokers.server.balancing"):
        run(story)
    (line,) = (record.getMessage() for record in caplog.records if record.name == "equipoise.brokers.server.balancing")
    assert "balancing.shed_interval_ms" in line
