"""What a load worker decides of a message, as pure functions, without Faust and Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.load.bus import SUMMARIES_KEPT_MS
from equipoise.brokers.load.documents import decode_load, encode_load
from equipoise.brokers.load.worker.steps import (
    CLOCKS_APART_MS_MAX,
    Arrived,
    BrokerUpdate,
    BundleUpdate,
    LeftOut,
    Row,
    Sighting,
    decode_row,
    decode_sighting,
    encode_row,
    encode_sighting,
    is_forgotten,
    on_handover,
    on_sample,
    on_sighting,
)
from equipoise.shedder.loads import STEP_MS, BundleTraffic, Load, Traffic, averaged, kept_share
from tests.load.load_plane import LoadPlane

NOW_MS = 1_800_000_000_000
ORDERS = "shop/orders/0x00000000_0xffffffff"
PARTITIONS = 4


def bundle(rate: float, name: str = ORDERS) -> BundleTraffic:
    """A bundle with this message rate."""
    return BundleTraffic(bundle=name, traffic=Traffic(messages_in_per_second=rate), cost=rate / 2)


def sample(
    broker: str = "a:1", at_ms: int = 0, *, used: float = 0.5, bundles: Sequence[BundleTraffic] = ()
) -> Load:
    """A sample, `at_ms` after the start."""
    return Load(
        broker=broker,
        at_ms=NOW_MS + at_ms,
        average_use=used,
        bundle_count=len(bundles),
        bundles=tuple(bundles),
    )


def arrived(each: Load, *, offset: int = 0, partition: int = 0) -> Arrived:
    """The message that a broker writes."""
    return Arrived(
        partition=partition, offset=offset, key=each.broker.encode(), value=encode_load(each)
    )


def told(row: bytes | None, message: Arrived, *, now_ms: int = NOW_MS) -> BrokerUpdate:
    """The update that follows from a valid message on the topic of samples."""
    outcome = on_sample(row, message, now_ms=now_ms)
    assert isinstance(outcome, BrokerUpdate), outcome
    return outcome


def seen(row: bytes | None, sighting: Sighting, *, offset: int = 0) -> BundleUpdate | LeftOut:
    """The result of a sighting."""
    message = Arrived(
        partition=1,
        offset=offset,
        key=sighting.bundle.bundle.encode(),
        value=encode_sighting(sighting),
    )
    return on_sighting(row, message, now_ms=NOW_MS, partitions=PARTITIONS)


def sighting(broker: str, at_ms: int, rate: float, *, partition: int = 0) -> Sighting:
    """A sighting of the one bundle."""
    return Sighting(
        broker=broker, at_ms=NOW_MS + at_ms, partition=partition, history=0.9, bundle=bundle(rate)
    )


def summary_in(outcome: BrokerUpdate) -> Load:
    """The published load, which is also the stored one."""
    assert outcome.load is not None
    assert outcome.row is not None
    assert outcome.load == decode_row(outcome.row).body
    return decode_load(outcome.load)


# --- samples ---


def test_summaries_are_those_of_all_samples() -> None:
    """The stored and published load is the one that `averaged` makes of all samples."""
    samples = [
        sample(at_ms=number * STEP_MS, used=number / 4, bundles=[bundle(100.0 * number)])
        for number in range(4)
    ]
    row, expected = None, None
    for offset, each in enumerate(samples):
        outcome = told(row, arrived(each, offset=offset))
        expected = averaged(expected, each)
        assert expected == summary_in(outcome)
        row = outcome.row


def test_each_bundle_of_a_summary_gets_a_sighting() -> None:
    """A sighting has the bundle's name as its key, its average, and the partition of its broker's
    samples.
    """
    first = told(
        None, arrived(sample(bundles=[bundle(100.0), bundle(7.0, "shop/orders/y")]), partition=3)
    )
    then = told(
        first.row, arrived(sample(at_ms=STEP_MS, bundles=[bundle(0.0)]), offset=1, partition=3)
    )
    assert [ORDERS.encode(), b"shop/orders/y"] == [key for key, _ in first.sightings]
    ((key, value),) = then.sightings
    assert ORDERS.encode() == key
    found = decode_sighting(value)
    assert ("a:1", NOW_MS + STEP_MS, 3, 0.9) == (
        found.broker,
        found.at_ms,
        found.partition,
        found.history,
    )
    assert pytest.approx(90.0) == found.bundle.traffic.messages_in_per_second


def test_a_sample_that_is_read_twice_counts_once() -> None:
    """A worker may be killed before it commits. The next one reads the same message, and publishes
    the same load.
    """
    messages = [
        arrived(sample(at_ms=number * STEP_MS, used=number % 2), offset=number)
        for number in range(3)
    ]
    row = None
    for message in messages:
        row = told(row, message).row
    for message in messages:
        again = told(row, message)
        assert row == again.row
        assert decode_row(row or b"").body == again.load


def test_samples_of_a_recreated_topic_count() -> None:
    """Neither offsets that start again nor a clock that was set back hide a sample."""
    row = told(None, arrived(sample(used=1.0), offset=1_000)).row
    newer = told(row, arrived(sample(at_ms=STEP_MS, used=0.0), offset=0))
    assert pytest.approx(0.9) == summary_in(newer).average_use
    set_back = told(row, arrived(sample(at_ms=-STEP_MS, used=0.0), offset=1_001))
    assert NOW_MS - STEP_MS == summary_in(set_back).at_ms


def test_a_broker_that_leaves_is_forgotten() -> None:
    """A tombstone deletes the row, and is passed on."""
    row = told(None, arrived(sample())).row
    assert BrokerUpdate(row=None, load=None) == told(
        row, Arrived(partition=0, offset=1, key=b"a:1", value=None)
    )


@dataclass(frozen=True, kw_only=True)
class Doubtful:
    id: str
    message: Arrived
    subject: str
    problem: str


DOUBTFUL = (
    Doubtful(
        id="no key",
        message=replace(arrived(sample()), key=None),
        subject="b''",
        problem="not the id of a broker",
    ),
    Doubtful(
        id="no id",
        message=replace(arrived(sample()), key=b"\xff"),
        subject=r"b'\xff'",
        problem="not the id of a broker",
    ),
    Doubtful(
        id="garbage",
        message=replace(arrived(sample()), value=b"{"),
        subject="a:1",
        problem="a report of load cannot be read",
    ),
    Doubtful(
        id="of another",
        message=replace(arrived(sample("b:1")), key=b"a:1"),
        subject="a:1",
        problem="it names the broker b:1",
    ),
    Doubtful(
        id="old",
        message=arrived(sample(at_ms=-CLOCKS_APART_MS_MAX - 1)),
        subject="a:1",
        problem="it was taken 600 s before",
    ),
    Doubtful(
        id="ahead",
        message=arrived(sample(at_ms=CLOCKS_APART_MS_MAX + 1)),
        subject="a:1",
        problem="it was taken 600 s ahead of",
    ),
)


@pytest.mark.parametrize("case", DOUBTFUL, ids=lambda case: case.id)
def test_an_ignored_message_has_a_reason(case: Doubtful) -> None:
    """A message that is no sample, or of another broker or time, leaves the row as it is."""
    outcome = on_sample(None, case.message, now_ms=NOW_MS)
    assert isinstance(outcome, LeftOut)
    assert case.subject == outcome.subject
    assert case.problem in (outcome.problem or "")


@pytest.mark.parametrize(
    ("each", "problem"),
    [
        (sample(used=float("nan")), "its average use is nan"),
        (sample(used=-1.0), "its average use is -1.0"),
        (replace(sample(), cost=1e30), "it costs 1e+30"),
        (sample(bundles=[bundle(-1.0)]), f"{ORDERS} has messages_in_per_second=-1.0"),
        (sample(bundles=[replace(bundle(3.0), cost=float("nan"))]), f"{ORDERS} costs nan"),
    ],
    ids=["nan", "negative", "absurd", "of a bundle", "cost of a bundle"],
)
def test_an_impossible_figure_is_named_and_enters_no_average(each: Load, problem: str) -> None:
    """It is passed on and logged, and the next sample is averaged as if it had not been."""
    outcome = told(None, arrived(each))
    assert problem == outcome.problem
    after = summary_in(
        told(outcome.row, arrived(sample(at_ms=STEP_MS, used=0.5, bundles=[bundle(3.0)]), offset=1))
    )
    assert 0.5 == after.average_use
    assert [3.0] == [found.traffic.messages_in_per_second for found in after.bundles]


# --- bundles that move ---


def test_a_bundle_that_moves_is_handed_over() -> None:
    """Seen at another broker, a bundle gets the average of both, which goes to the partition of the
    new broker's samples.
    """
    first = seen(None, sighting("a:1", 0, 100.0))
    assert isinstance(first, BundleUpdate)
    assert first.handover is None
    then = seen(first.row, sighting("b:1", STEP_MS, 0.0, partition=2), offset=1)
    assert isinstance(then, BundleUpdate)
    assert then.handover is not None
    partition, key, value = then.handover
    assert (2, b"b:1") == (partition, key)
    assert pytest.approx(90.0) == decode_sighting(value).bundle.traffic.messages_in_per_second
    assert value == decode_row(then.row).body
    again = seen(then.row, sighting("b:1", 2 * STEP_MS, 81.0, partition=2), offset=2)
    assert isinstance(again, BundleUpdate)
    assert again.handover is None
    assert LeftOut(subject="b:1", problem=None) == seen(
        again.row, sighting("b:1", STEP_MS, 0.0, partition=2), offset=1
    )


def test_the_last_report_of_a_former_owner_has_no_effect() -> None:
    """An older sighting than that of the new broker has no effect, and is no error."""
    row = seen(None, sighting("b:1", STEP_MS, 1.0))
    assert isinstance(row, BundleUpdate)
    assert LeftOut(subject="a:1", problem=None) == seen(row.row, sighting("a:1", 0, 5.0), offset=1)


def test_a_handover_replaces_an_average_that_started_again() -> None:
    """Only the average of the bundle changes, however often the message is read."""
    began = told(
        None, arrived(sample("b:1", bundles=[bundle(0.0), bundle(7.0, "shop/orders/y")]), offset=5)
    )
    message = Arrived(
        partition=0, offset=0, key=b"b:1", value=encode_sighting(sighting("b:1", 0, 90.0))
    )
    row = began.row
    for _ in range(2):
        outcome = on_handover(row, message, now_ms=NOW_MS)
        assert isinstance(outcome, BrokerUpdate)
        found = summary_in(outcome)
        assert [90.0, 7.0] == [each.traffic.messages_in_per_second for each in found.bundles]
        assert {ORDERS: 45.0, "shop/orders/y": 3.5} == found.costs
        assert 5 == decode_row(outcome.row or b"").offset
        row = outcome.row
    later = told(row, arrived(sample("b:1", at_ms=STEP_MS, bundles=[bundle(0.0)]), offset=6))
    assert LeftOut(subject="b:1", problem=None) == on_handover(later.row, message, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "row",
    [
        None,
        b"of another version",
        told(None, arrived(sample("b:1"))).row,
        told(None, arrived(sample("c:1", bundles=[bundle(1.0)]))).row,
    ],
    ids=["has left", "cannot be read", "is not among its busiest", "of another"],
)
def test_a_late_handover_changes_nothing(row: bytes | None) -> None:
    message = Arrived(
        partition=0, offset=0, key=b"b:1", value=encode_sighting(sighting("b:1", 0, 90.0))
    )
    assert LeftOut(subject="b:1", problem=None) == on_handover(row, message, now_ms=NOW_MS)


def test_an_invalid_sighting_has_a_reason() -> None:
    garbage = Arrived(partition=0, offset=0, key=b"x", value=None)
    for outcome in (
        on_sighting(None, garbage, now_ms=NOW_MS, partitions=PARTITIONS),
        on_handover(None, garbage, now_ms=NOW_MS),
    ):
        assert isinstance(outcome, LeftOut)
        assert outcome.problem is not None
    beyond = seen(None, sighting("a:1", 0, 1.0, partition=PARTITIONS))
    assert (
        LeftOut(
            subject="a:1",
            problem=(
                f"its samples are in partition {PARTITIONS}, but the topic has {PARTITIONS}"
                " partitions"
            ),
        )
        == beyond
    )


# --- rows ---


def test_rows_are_forgotten_by_age_and_in_their_own_partition() -> None:
    """A row that was not renewed for an hour is deleted with a message of its partition, an
    unreadable row at once.
    """
    row = encode_row(Row(partition=2, offset=7, at_ms=NOW_MS, body=b"x"))
    late_ms = NOW_MS + SUMMARIES_KEPT_MS + 1
    assert [False, True, False] == [
        is_forgotten(row, partition=2, now_ms=late_ms - 1),
        is_forgotten(row, partition=2, now_ms=late_ms),
        is_forgotten(row, partition=1, now_ms=late_ms),
    ]
    assert is_forgotten(b"of another version", partition=1, now_ms=NOW_MS)


@settings(max_examples=300, deadline=None)
@given(
    row=st.none() | st.binary(max_size=60),
    value=st.none() | st.binary(max_size=60),
    key=st.none() | st.binary(max_size=20),
)
def test_no_message_and_no_row_raises(
    row: bytes | None, value: bytes | None, key: bytes | None
) -> None:
    message = Arrived(partition=0, offset=0, key=key, value=value)
    assert isinstance(on_sample(row, message, now_ms=NOW_MS), BrokerUpdate | LeftOut)
    assert isinstance(
        on_sighting(row, message, now_ms=NOW_MS, partitions=PARTITIONS), BundleUpdate | LeftOut
    )
    assert isinstance(on_handover(row, message, now_ms=NOW_MS), BrokerUpdate | LeftOut)
    if row is not None:
        is_forgotten(row, partition=0, now_ms=NOW_MS)


# --- all of it, against a slow model ---

BROKERS = ("a:1", "b:1", "c:1")


@settings(max_examples=150, deadline=None)
@given(
    owners=st.lists(st.sampled_from(BROKERS), min_size=1, max_size=12),
    rates=st.lists(st.floats(0, 1e6), min_size=12, max_size=12),
    deaths=st.sets(st.integers(0, 11)),
)
def test_a_bundle_keeps_its_average_wherever_it_goes(
    owners: list[str], rates: list[float], deaths: set[int]
) -> None:
    """Through moves, and deaths of all workers, its average is that of one list of its samples."""
    plane = LoadPlane(partitions=PARTITIONS, now_ms=NOW_MS)
    expected: float | None = None
    kept = kept_share(0.9, elapsed_ms=STEP_MS)
    for step, owner in enumerate(owners):
        rate = (
            decode_load(encode_load(sample(bundles=[bundle(rates[step])])))
            .bundles[0]
            .traffic.messages_in_per_second
        )
        expected = rate if expected is None else expected * kept + (1 - kept) * rate
        for broker in BROKERS:
            plane.publish(
                sample(
                    broker,
                    at_ms=step * STEP_MS,
                    bundles=[bundle(rates[step])] if broker == owner else [],
                )
            )
        plane.work()
        if step in deaths:
            plane.read_again(3)
            plane.work()
        found = {broker: plane.loads[broker.encode()] for broker in BROKERS}
        (only,) = decode_load(found[owner]).bundles
        assert pytest.approx(expected) == only.traffic.messages_in_per_second
        assert [0, 0] == [
            len(decode_load(found[broker]).bundles) for broker in BROKERS if broker != owner
        ]
