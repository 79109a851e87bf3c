"""Refusals: how long a broker that refuses a bundle is not asked again."""

from __future__ import annotations

from equipoise.brokers.agent.leading import ASK_AGAIN_MS, ASK_AGAIN_MS_MAX, Refusals

BUNDLE = "t/n/0x00000000_0xffffffff"


def rest_ms(refusals: Refusals, now_ms: int) -> int:
    """Return how long from `now_ms` on broker 7 is not asked."""
    return next(
        ms
        for ms in range(0, 2 * ASK_AGAIN_MS_MAX, 50)
        if BUNDLE not in refusals.to_avoid([BUNDLE], now_ms + ms)
    )


def test_each_refusal_in_a_row_doubles_the_back_off() -> None:
    """Up to a minute."""
    refusals = Refusals()
    now_ms, rests = 0, []
    for _ in range(9):
        refusals.note(BUNDLE, 7, now_ms)
        rests.append(rest_ms(refusals, now_ms))
        now_ms += rests[-1]
    assert [750, 1_500, 3_000, 6_000, 12_000, 24_000, 48_000, 60_000, 60_000] == rests


def test_a_slow_failure_counts_as_a_refusal_in_a_row() -> None:
    refusals = Refusals()
    refusals.note(BUNDLE, 7, 0)
    refusals.note(BUNDLE, 7, ASK_AGAIN_MS + 10_000)
    assert 2 * ASK_AGAIN_MS == rest_ms(refusals, ASK_AGAIN_MS + 10_000)


def test_a_refusal_long_ago_is_forgotten() -> None:
    refusals = Refusals()
    for at_ms in (0, 750, 2_250):
        refusals.note(BUNDLE, 7, at_ms)
    much_later_ms = 2_250 + 3_000 + ASK_AGAIN_MS_MAX
    refusals.note(BUNDLE, 7, much_later_ms)
    assert ASK_AGAIN_MS == rest_ms(refusals, much_later_ms)
    assert {} == refusals.to_avoid([BUNDLE], much_later_ms + 10 * ASK_AGAIN_MS_MAX)
    # That nothing is kept cannot be seen from outside.
    assert {} == refusals._refused  # noqa: SLF001


def test_each_broker_has_its_own_back_off() -> None:
    refusals = Refusals()
    refusals.note(BUNDLE, 7, 0)
    refusals.note(BUNDLE, 8, 500)
    resting = {
        at_ms: refusals.to_avoid([BUNDLE], at_ms).get(BUNDLE)
        for at_ms in (500, 749, 750, 1_249, 1_250)
    }
    assert {500: {7, 8}, 749: {7, 8}, 750: {8}, 1_249: {8}, 1_250: None} == resting
    refusals.note(BUNDLE, 7, 1_250)
    assert {BUNDLE: frozenset({7})} == refusals.to_avoid([BUNDLE], 1_250)


def test_other_bundles_and_brokers_are_not_affected() -> None:
    refusals = Refusals()
    refusals.note(BUNDLE, 7, 0)
    assert {BUNDLE: frozenset({7})} == refusals.to_avoid([BUNDLE, "t/n/0x00000000_0x80000000"], 1)
    refusals.forget(BUNDLE)
    assert {} == refusals.to_avoid([BUNDLE], 1)
