"""The progress of a replay, and the comparison of a live view with the log."""

from __future__ import annotations

import asyncio
import logging
from unittest.mock import Mock

import pytest

from equipoise.brokers.runtime.snapshots import Left, ReplayCheck, ReplayProgress
from equipoise.channel.core.errors import Bug, EquipoiseError, LogDamaged
from equipoise.channel.core.view import View

SECOND_NS = 1_000_000_000


class Clocked(ReplayProgress):
    """Progress with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0
        super().__init__(broker="a", now_ns=lambda: self.now_ns)


def test_nothing_is_left_before_the_beginning_and_after_the_end() -> None:
    progress = Clocked()
    assert progress.left is None
    progress.read(10, 5)
    progress.ended()
    assert progress.left is None


def test_the_time_left_follows_from_the_rate_so_far() -> None:
    """In the first half second it is unknown."""
    progress = Clocked()
    progress.read(0, 3_000)
    progress.now_ns = SECOND_NS // 4
    progress.read(250, 2_750)
    assert Left(what="reading the channel", records=2_750, seconds=None) == progress.left
    progress.now_ns = SECOND_NS
    progress.read(750, 2_000)
    assert Left(what="reading the channel", records=2_000, seconds=2.0) == progress.left
    assert "it is still reading the channel: 2,000 left, about 2 s" == str(progress.left)


def test_the_snapshot_and_the_log_are_counted_apart() -> None:
    progress = Clocked()
    progress.restored(0, None)
    assert "it is still loading the channel's snapshot" == str(progress.left)
    progress.now_ns = SECOND_NS
    progress.restored(900, 1_000)
    assert "it is still loading the channel's snapshot: 100 left, about 0 s" == str(progress.left)
    progress.read(10, 90)
    assert Left(what="reading the channel", records=90, seconds=None) == progress.left


def test_there_is_a_line_every_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """A quick start writes none."""
    progress = Clocked()
    with caplog.at_level(logging.INFO, "equipoise.brokers.runtime.snapshots"):
        for tenth in range(31):
            progress.now_ns = tenth * SECOND_NS // 10
            progress.read(100, 4_000 - 100 * tenth)
    (line,) = caplog.records
    assert "reading the channel" == line.message
    assert (2_100, 2_000, 1.9) == (
        line.__dict__["done"],
        line.__dict__["left"],
        line.__dict__["seconds_left"],
    )


DEADLINE_S = 30.0


def failures(*outcomes: int | Exception | None) -> list[EquipoiseError]:
    """Run one check for each outcome: a digest of the fold, or an error. Return the errors that
    ended the broker.
    """
    ended: list[EquipoiseError] = []
    folds = Mock(side_effect=outcomes)

    async def story() -> None:
        view, replay_check = View(), ReplayCheck(folds, broker="b", fail=ended.append)
        async with asyncio.timeout(DEADLINE_S):
            for _ in outcomes:
                assert [True, False] == [replay_check.begin(view), replay_check.begin(view)]
                (comparing,) = asyncio.all_tasks() - {asyncio.current_task()}
                await asyncio.wait([comparing])

    asyncio.run(story())
    return ended


def test_a_wrong_view_ends_the_broker() -> None:
    """The same digest, or an unknown one, does not."""
    (failure,) = failures(View().digest(), None, View().digest() + 1)
    assert isinstance(failure, Bug)


@pytest.mark.parametrize(
    "error",
    [LogDamaged(log="x", problem="rust"), ZeroDivisionError("surprise")],
    ids=["ours", "nobody's"],
)
def test_a_failed_check_is_logged_and_the_next_one_runs(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert 1 == len(failures(error, View().digest() + 1))
    assert "replay check failed: the log could not be folded" in caplog.text
