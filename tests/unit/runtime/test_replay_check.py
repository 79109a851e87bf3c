"""Folding the log anew beside a live view: what ends the broker, what does not, and that the next alarm is looked into again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.runtime.replay import ReplayCheck
from equipoise.brokers.runtime.snapshots import Snapshots
from equipoise.channel.core.errors import Bug, EquipoiseError, LogDamaged
from equipoise.channel.core.view import View

DEADLINE_S = 30.0


class Scripted(Snapshots):
    """Gives these digests, or raises these errors, in their order."""

    def __init__(self, directory: DataDirectory, *outcomes: int | Exception | None) -> None:
        super().__init__(directory, log="x", cluster="c")
        self._outcomes = list(outcomes)

    def refold(self, url: str, offset: int) -> int | None:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def failures(folder: Path, *outcomes: int | Exception | None) -> list[EquipoiseError]:
    """Look into one alarm for each outcome, one after the other; what the broker ended of."""
    ended: list[EquipoiseError] = []
    directory = DataDirectory(folder)

    async def story() -> None:
        view = View()
        replay_check = ReplayCheck(Scripted(directory, *outcomes), log_url="memory:x", broker="b", fail=ended.append)
        async with asyncio.timeout(DEADLINE_S):
            for _ in outcomes:
                assert [True, False] == [replay_check.begin(view), replay_check.begin(view)]
                (comparing,) = asyncio.all_tasks() - {asyncio.current_task()}
                await asyncio.wait([comparing])

    try:
        asyncio.run(story())
    finally:
        directory.close()
    return ended


def test_a_view_that_is_not_what_the_log_folds_to_ends_the_broker(tmp_path: Path) -> None:
    """The same digest, or none that can be told, ends nothing; another one does."""
    (failure,) = failures(tmp_path, View().digest(), None, View().digest() + 1)
    assert isinstance(failure, Bug)


@pytest.mark.parametrize("error", [LogDamaged(log="x", problem="rust"), ZeroDivisionError("surprise")], ids=["ours", "nobody's"])
def test_whatever_goes_wrong_the_next_alarm_is_looked_into(error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A comparison that fails is told, ends nothing, and is not taken for one that is still under way."""
    assert 1 == len(failures(tmp_path, error, View().digest() + 1))
    assert "replay check failed: the log could not be folded" in caplog.text
