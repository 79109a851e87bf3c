"""Test meters: counts, and the rates of the last closed window."""

from __future__ import annotations

from equipoise.brokers.pulsar.topics.rates import Meter


def test_rates_are_those_of_the_last_window() -> None:
    meter = Meter(now_ms=1_000)
    meter.messages += 30
    meter.bytes += 600
    assert (0.0, 0.0) == (meter.message_rate, meter.byte_rate)
    meter.roll(3_000)
    assert (15.0, 300.0) == (meter.message_rate, meter.byte_rate)
    meter.messages += 1
    meter.roll(4_000)
    assert (1.0, 0.0) == (meter.message_rate, meter.byte_rate)
    assert (31, 600) == (meter.messages, meter.bytes)


def test_a_window_without_time_changes_nothing() -> None:
    meter = Meter(now_ms=0)
    meter.messages += 5
    meter.roll(1_000)
    meter.messages += 7
    meter.roll(1_000)
    assert 5.0 == meter.message_rate
    meter.roll(2_000)
    assert 7.0 == meter.message_rate
