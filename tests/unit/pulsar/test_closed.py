"""Test what is kept of closed bundles."""

from __future__ import annotations

from equipoise.brokers.pulsar.closed import ClosedBundles, Left
from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.handover import size_of
from equipoise.brokers.pulsar.topics.topic import TopicState
from equipoise.brokers.runtime.service import Bundle
from tests.unit.http.cluster import until

STATES = {"t": TopicState(entries=(Entry(1, b"block", 3),))}
ROW_BYTES = 512 + size_of(STATES)


def left(
    name: str,
    *,
    place: int = 0,
    token: int = 1,
    handover: bytes | None = None,
    is_awaited: bool = True,
) -> Left:
    """What a bundle of ten points left."""
    bundle = Bundle(name=name, namespace="n", low=10 * place, high=10 * place + 10)
    return Left(bundle=bundle, token=token, handover=handover, states=STATES, is_awaited=is_awaited)


class Kept:
    """A table, and what it lost."""

    def __init__(self, *, rows_max: int = 10, kept_ms: int = 60_000) -> None:
        self.lost: list[str] = []
        self.table = ClosedBundles(
            bytes_max=rows_max * ROW_BYTES,
            kept_ms=kept_ms,
            on_lost=lambda left: self.lost.append(left.bundle.name),
        )

    def names(self) -> str:
        """Return which of the bundles a to f have something to fetch."""
        return "".join(bundle for bundle in "abcdef" if self.table.get(bundle) is not None)


async def test_a_state_expires_and_can_be_fetched_until_then() -> None:
    """A state that expires before it was fetched is reported."""
    kept = Kept(kept_ms=30)
    first, second = left("a"), left("b", place=1)
    kept.table.keep(first)
    kept.table.keep(second)
    kept.table.forget(left("never there", place=7).bundle)
    kept.table.fetched(first)
    assert [first, first, None] == [kept.table.get(bundle) for bundle in ("a", "a", "c")]
    await until(lambda: not kept.names())
    assert ["b"] == kept.lost


async def test_fetched_states_are_dropped_first() -> None:
    """Then the oldest state is dropped and reported: its messages are lost."""
    kept = Kept(rows_max=3)
    rows = {
        name: left(name, place=place, is_awaited=name != "c") for place, name in enumerate("abcdef")
    }
    for name in "abc":
        kept.table.keep(rows[name])
    kept.table.fetched(rows["b"])
    kept.table.keep(rows["d"])
    assert ("ad", []) == (kept.names(), kept.lost)
    kept.table.keep(rows["e"])
    assert ("ade", []) == (kept.names(), kept.lost)
    kept.table.keep(rows["f"])
    assert ("def", ["a"]) == (kept.names(), kept.lost)
    kept.table.keep(left("d", place=3))
    assert ("def", ["a"]) == (kept.names(), kept.lost)


async def test_awaited_states_are_counted() -> None:
    """A fetch of an earlier ownership's state does not count."""
    table = Kept().table
    former, current = left("a"), left("a", token=2)
    for each in (former, current, left("b", place=1, is_awaited=False)):
        table.keep(each)
    table.fetched(former)
    assert 1 == table.awaited
    assert not await table.next_fetch(timeout_ms=1)
    table.fetched(current)
    assert 0 == table.awaited


async def test_a_state_belongs_to_the_handover_that_it_was_left_with() -> None:
    """With another handover its messages would be delivered twice."""
    table = Kept().table
    table.keep(left("a", handover=b"mine"))
    assert [STATES, None] == [
        table.belonging_to("a", handover) for handover in (b"mine", b"another's")
    ]
    assert table.belonging_to("b", b"mine") is None


async def test_a_state_is_reused_only_if_no_other_broker_owned_it_since() -> None:
    """A union continues with the greater of two tokens."""
    table = Kept().table
    lower, upper, other = (
        left("lower", token=3),
        left("upper", place=1, token=7),
        left("other", place=2, token=8),
    )
    for each in (lower, upper, other):
        table.keep(each)
    union = Bundle(name="union", namespace="n", low=0, high=20)
    assert [[], [lower, upper], []] == [[*table.of_ownership(union, token)] for token in (8, 7, 9)]
    assert () == table.of_ownership(Bundle(name="union", namespace="m", low=0, high=20), 7)
    table.forget(union)
    assert () == table.of_ownership(union, 7)
    assert (other,) == tuple(table.of_ownership(other.bundle, 8))
