"""How often a load worker logs faulty messages of a broker."""

from __future__ import annotations

from equipoise.brokers.load.worker.steps import LOG_INTERVAL_MS, SUBJECTS_MAX, Troubles


def test_each_broker_is_logged_at_once_and_then_at_intervals() -> None:
    """The first faulty message of a broker has a log line. The line after an interval counts those
    since.
    """
    troubles = Troubles()
    assert [1, 1, None, None] == [
        troubles.count(subject, now_ms=0) for subject in ("a:1", "b:1", "a:1", "a:1")
    ]
    assert [3, 1] == [troubles.count(subject, now_ms=LOG_INTERVAL_MS) for subject in ("a:1", "b:1")]
    assert 6 == troubles.total


def test_invented_names_fill_no_memory() -> None:
    """Beyond the most brokers of a cluster, all others share one line."""
    troubles = Troubles()
    for number in range(SUBJECTS_MAX):
        assert 1 == troubles.count(f"broker-{number}", now_ms=0)
    assert [1, None] == [troubles.count(subject, now_ms=0) for subject in ("one more", "another")]
