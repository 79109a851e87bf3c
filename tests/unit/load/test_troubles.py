"""How loud a load worker is about what brokers say wrong."""

from __future__ import annotations

from equipoise.brokers.load.worker.steps import LOG_INTERVAL_MS, SUBJECTS_MAX, Troubles


def test_each_broker_is_named_at_once_and_then_now_and_then() -> None:
    """The first message of each has its line, those of the next minute are counted, and the line after that stands for all of them."""
    troubles = Troubles()
    assert [1, 1, None, None] == [troubles.count(subject, now_ms=0) for subject in ("a:1", "b:1", "a:1", "a:1")]
    assert [3, 1] == [troubles.count(subject, now_ms=LOG_INTERVAL_MS) for subject in ("a:1", "b:1")]
    assert 6 == troubles.total


def test_invented_names_fill_no_memory() -> None:
    """Beyond as many brokers as a cluster may have, all others share one line."""
    troubles = Troubles()
    for number in range(SUBJECTS_MAX):
        assert 1 == troubles.count(f"broker-{number}", now_ms=0)
    assert [1, None] == [troubles.count(subject, now_ms=0) for subject in ("one more", "another")]
