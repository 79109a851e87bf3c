"""Loads and their averages: what a bundle may weigh, and how samples decay.

May live here: examples of `brokers.load`.
"""

from __future__ import annotations

import math

import pytest

from brokers.errors import InvalidLoad
from brokers.load import Averages, BundleLoad, Messaging, Report

HALF_LIFE_MS = 10_000


def calls(rate: float) -> dict[str, BundleLoad]:
    """A sample of one bundle."""
    return {"b": BundleLoad(calls_per_second=rate)}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["calls_per_second", "bytes_per_second", "sessions"])
def test_no_bundle_weighs_less_than_nothing_or_more_than_any_number(field: str, value: float) -> None:
    """A load that could not be added and compared is refused where it is made, by the name of its field."""
    with pytest.raises(InvalidLoad, match=field) as caught:
        BundleLoad(**{field: value})  # type: ignore[arg-type]
    assert field == caught.value.field


@pytest.mark.parametrize("field", ["messages_in_per_second", "bytes_out_per_second", "topics"])
def test_messaging_is_checked_in_the_same_way(field: str) -> None:
    """What more is said of a bundle of topics must be numbers, too."""
    with pytest.raises(InvalidLoad, match=field):
        Messaging(**{field: math.nan})  # type: ignore[arg-type]


def test_a_broker_has_a_capacity() -> None:
    """A report whose capacity nothing could be divided by is refused."""
    with pytest.raises(InvalidLoad, match="a broker cannot have capacity=0"):
        Report(broker="a", at_ms=0, capacity=0)


def test_the_first_sample_is_the_average() -> None:
    """A bundle that has just come is believed at its word, however short a time has passed."""
    assert calls(80) == Averages(half_life_ms=HALF_LIFE_MS).update(calls(80), elapsed_ms=1)


def test_a_sample_weighs_half_as_much_after_each_half_life() -> None:
    """One half life after a change half of it is believed, and after another one three quarters."""
    averages = Averages(half_life_ms=HALF_LIFE_MS)
    averages.update(calls(0), elapsed_ms=0)
    assert calls(50) == averages.update(calls(100), elapsed_ms=HALF_LIFE_MS)
    assert calls(75) == averages.update(calls(100), elapsed_ms=HALF_LIFE_MS)


def test_a_clock_that_went_back_changes_nothing() -> None:
    """Where no time has passed a sample says nothing new."""
    averages = Averages(half_life_ms=HALF_LIFE_MS)
    averages.update(calls(40), elapsed_ms=0)
    assert calls(40) == averages.update(calls(100), elapsed_ms=-5)


def test_sessions_are_counted_and_bytes_averaged() -> None:
    """The number of sessions is that of the newest sample; bytes decay as calls do."""
    averages = Averages(half_life_ms=HALF_LIFE_MS)
    averages.update({"b": BundleLoad(bytes_per_second=8.0, sessions=7)}, elapsed_ms=0)
    after = averages.update({"b": BundleLoad(bytes_per_second=0.0, sessions=2)}, elapsed_ms=2 * HALF_LIFE_MS)
    assert {"b": BundleLoad(bytes_per_second=2.0, sessions=2)} == after


def test_what_is_not_in_the_sample_is_forgotten() -> None:
    """A bundle that moved away leaves no average behind, and comes back as a new one."""
    averages = Averages(half_life_ms=HALF_LIFE_MS)
    averages.update(calls(100), elapsed_ms=0)
    assert {} == averages.update({}, elapsed_ms=1_000)
    assert calls(3) == averages.update(calls(3), elapsed_ms=1_000)


def test_the_rates_of_messages_decay_and_what_is_connected_is_counted() -> None:
    """They are averaged as all rates are; a bundle that says nothing of messages has nothing averaged."""
    averages = Averages(half_life_ms=HALF_LIFE_MS)
    old = Messaging(messages_in_per_second=8, bytes_in_per_second=80, messages_out_per_second=16, bytes_out_per_second=160, producers=3)
    averages.update({"b": BundleLoad(messaging=old)}, elapsed_ms=0)
    new = Messaging(producers=1, consumers=2, topics=3)
    after = averages.update({"b": BundleLoad(messaging=new)}, elapsed_ms=HALF_LIFE_MS)
    expected = Messaging(
        messages_in_per_second=4,
        bytes_in_per_second=40,
        messages_out_per_second=8,
        bytes_out_per_second=80,
        producers=1,
        consumers=2,
        topics=3,
    )
    assert {"b": BundleLoad(messaging=expected)} == after
    assert {"b": BundleLoad()} == averages.update({"b": BundleLoad()}, elapsed_ms=HALF_LIFE_MS)
