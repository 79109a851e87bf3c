"""What connections keep in memory, counted together."""

from __future__ import annotations

from equipoise.brokers.pulsar.server import Pool


def test_what_is_held_is_counted_by_holder() -> None:
    """The sum follows what each one holds, and a holder that lets go of all is forgotten."""
    pool = Pool[str](bytes_max=10)
    pool.hold("a", 6)
    pool.hold("b", 4)
    assert (10, False) == (pool.bytes, pool.is_exceeded)
    pool.hold("a", 7)
    assert (11, True, 7) == (pool.bytes, pool.is_exceeded, pool.held_by("a"))
    pool.hold("a", 0)
    assert (4, False, 0) == (pool.bytes, pool.is_exceeded, pool.held_by("a"))


def test_who_has_to_go_is_the_oldest_of_those_with_more_than_their_share() -> None:
    """To hold more, or less, makes nobody younger; to let go of all does, and who holds little is never meant."""
    pool = Pool[str](bytes_max=12)
    pool.hold("little", 1)
    pool.hold("a", 1)
    pool.hold("b", 6)
    assert "b" == pool.oldest_above_share
    pool.hold("a", 6)
    assert "a" == pool.oldest_above_share
    pool.hold("a", 0)
    pool.hold("a", 6)
    assert "b" == pool.oldest_above_share


def test_what_would_be_too_much_is_told_beforehand() -> None:
    """As much as there is room for is not."""
    pool = Pool[str](bytes_max=12)
    pool.hold("a", 10)
    assert (False, True) == (pool.would_exceed(2), pool.would_exceed(3))


def test_the_room_is_shared_by_those_who_hold_something() -> None:
    """Who is alone may have all of it."""
    pool = Pool[str](bytes_max=12)
    assert 12 == pool.share_bytes
    for holder in "abc":
        pool.hold(holder, 1)
    assert 4 == pool.share_bytes
