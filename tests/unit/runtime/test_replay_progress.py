"""How far a broker is: what is left, the estimate of its time, and the lines that tell of it."""

from __future__ import annotations

import logging

import pytest

from equipoise.brokers.runtime.replay import Left, ReplayProgress

SECOND_NS = 1_000_000_000


class Way(ReplayProgress):
    """A way with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0
        super().__init__(broker="a", now_ns=lambda: self.now_ns)


def test_nothing_is_left_before_the_beginning_and_after_the_end() -> None:
    """A broker that is not on its way has nothing to tell of it."""
    way = Way()
    assert way.left is None
    way.read(10, 5)
    way.ended()
    assert way.left is None


def test_the_time_left_follows_from_the_rate_so_far() -> None:
    """Of 3,000 records 1,000 took a second, so that the rest takes two; before half a second nothing is said of it."""
    way = Way()
    way.read(0, 3_000)
    way.now_ns = SECOND_NS // 4
    way.read(250, 2_750)
    assert Left(what="reading the channel", records=2_750, seconds=None) == way.left
    way.now_ns = SECOND_NS
    way.read(750, 2_000)
    assert Left(what="reading the channel", records=2_000, seconds=2.0) == way.left
    assert "it is still reading the channel: 2,000 left, about 2 s" == str(way.left)


def test_the_snapshot_and_the_log_are_counted_apart() -> None:
    """Rows of the snapshot say nothing about the rate at which records are read."""
    way = Way()
    way.restored(0, None)
    assert "it is still loading the channel's snapshot" == str(way.left)
    way.now_ns = SECOND_NS
    way.restored(900, 1_000)
    assert "it is still loading the channel's snapshot: 100 left, about 0 s" == str(way.left)
    way.read(10, 90)
    assert Left(what="reading the channel", records=90, seconds=None) == way.left


def test_a_line_in_two_seconds_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """A quick start writes nothing; a long one, what is done and left, and for how long."""
    way = Way()
    with caplog.at_level(logging.INFO, "equipoise.brokers.runtime.replay"):
        for tenth in range(31):
            way.now_ns = tenth * SECOND_NS // 10
            way.read(100, 4_000 - 100 * tenth)
    (line,) = caplog.records
    assert "reading the channel" == line.message
    assert (2_100, 2_000, 1.9) == (line.__dict__["done"], line.__dict__["left"], line.__dict__["seconds_left"])
