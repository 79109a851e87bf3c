"""Tests of sequences over small logs: the rows and facts of each kind of entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import ChannelIncomplete
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.memory import put_rows
from equipoise.spark_jobs.rules.rule import NOT_FOLDED
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.sequence import (
    LEAP_MS_MIN,
    LEAPS_MAX,
    FactSequence,
    RowSequence,
    nothing_lost,
)
from tests.channels.folding import (
    CLUSTER,
    MIDDLE,
    NAMESPACE,
    Channel,
    channel_in,
    channel_with,
    raise_level,
)
from tests.unit.spark.sequence.test_loads import REPORT

WHOLE, LOW, HIGH = (
    f"{NAMESPACE}/{name}"
    for name in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)


def arrivals(entries: Iterable[tuple[int, bytes | None]], *, at_ms: int = 1_000) -> list[Arrival]:
    """Entries of the channel, all of one moment."""
    return [Arrival("channel", offset, at_ms, data) for offset, data in entries]


@dataclass(frozen=True)
class Told:
    """What sequences tell of arrivals."""

    rows: list[Emitted]
    facts: list[Fact]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the log in its facts."""
        return [
            dict(fact.after)
            for fact in self.facts
            if fact.subject == "log:" and fact.after is not None
        ]

    @property
    def records(self) -> list[Emitted]:
        """The archived records."""
        return [row for row in self.rows if row.table == Table.RECORDS]

    @property
    def verdicts(self) -> list[tuple[int, str | None]]:
        """The archived records: their offsets and verdicts."""
        return [(row.offset, row.verdict) for row in self.records]


class Both:
    """A sequence of rows and one of facts."""

    def __init__(
        self, begin: bytes | None = None, *, lost: Lost = nothing_lost, log: str | None = None
    ) -> None:
        self.rows = RowSequence(begin, lost=lost)
        self.facts = FactSequence(begin, lost=lost, log=log)

    def feed(self, batch: Iterable[Arrival]) -> Told:
        batch = list(batch)
        return Told(list(self.rows.feed(batch)), list(self.facts.feed(batch)))

    def restored(self) -> Both:
        """Sequences that go on from the state of these."""
        both = Both()
        for sequence, before in ((both.rows, self.rows), (both.facts, self.facts)):
            state: dict[str, bytes] = {}
            put_rows(state, before.changed_rows())
            sequence.restore(state)
        return both


def facts_at(channel: Channel, offset: int) -> dict[str, Fact]:
    """Return the facts of one record by subject."""
    told = Both().feed(arrivals(channel.entries)).facts
    return {fact.subject: fact for fact in told if fact.offset == offset}


# --- facts ---


def test_a_renewal_with_another_digest_is_marked() -> None:
    channel = channel_with("b1")
    author, entry = channel.author("b1"), channel.broker("b1")
    raw = orjson.loads(encode(propose.renewed(author, entry)))
    channel.put_bytes(orjson.dumps({**raw, "digest": raw["digest"] ^ 1}))
    after = facts_at(channel, channel.view.offset)["broker:b1"].after
    assert after is not None
    assert after["diverged"] is True


def test_a_creation_has_all_ranges_in_the_namespaces_fact_only() -> None:
    channel = channel_with("b1", bundles=2)
    told = facts_at(channel, channel.view.offset)
    assert [f"namespace:{NAMESPACE}", f"bundle:{LOW}", f"bundle:{HIGH}"] == list(told)
    namespace = told[f"namespace:{NAMESPACE}"]
    offset = channel.view.offset
    assert {
        "status": "created",
        "last": offset,
        "removed": [],
        "added": [[0, MIDDLE, "free", None, offset], [MIDDLE, HASH_MAX, "free", None, offset]],
    } == namespace.after
    assert namespace.record is not None
    assert [0, MIDDLE, HASH_MAX] == namespace.record["boundaries"]
    bundle = told[f"bundle:{LOW}"]
    assert bundle.record is not None
    assert "boundaries" not in bundle.record
    free = {
        "phase": "free",
        "owner": None,
        "source": None,
        "last": offset,
        "token": offset,
        "low": 0,
        "high": MIDDLE,
    }
    assert (None, free) == (bundle.before, bundle.after)


def test_facts_of_what_is_no_record() -> None:
    channel = channel_with("b1")
    entries: list[tuple[int, bytes | None]] = [
        *channel.entries,
        (10, b"\xff"),
        (11, None),
        (12, b'{"kind":"odd","publisher":"b1","key":7}'),
    ]
    told = Both().feed(arrivals(entries))
    assert ["garbage", "damaged", "malformed"] == [event["event"] for event in told.events]
    assert [b"\xff", None, entries[-1][1]] == [row.body for row in told.records][-3:]
    assert [(10, "malformed"), (11, "malformed"), (12, "malformed")] == told.verdicts[-3:]
    odd = told.records[-1]
    assert ["broker:b1", "log:"] == [fact.subject for fact in told.facts if fact.offset == 12]
    assert ("odd", "b1", "") == (odd.kind, odd.publisher, odd.subject)


def test_facts_leave_out_what_is_nested_too_deep_for_json() -> None:
    channel = channel_with("b1")
    raw = encode(propose.renewed(channel.author("b1"), channel.broker("b1")))
    deep = raw[:-1] + b',"extra":' + b"[" * 500 + b"]" * 500 + b"}"
    told = Both().feed(arrivals([*channel.entries, (99, deep)]))
    fact = told.facts[-1]
    assert ("accepted", orjson.loads(raw)) == (fact.verdict, fact.record)
    assert deep == told.records[-1].body


# --- events of the log ---


def test_moves_are_asked_for_by_the_admin_and_not_by_the_broker_that_wrote_it() -> None:
    """Their publisher among the records is the broker all the while."""
    channel = channel_in("owned")
    asked = replace(channel.author("owner"), requested_by="admin:alice")
    channel.accept(propose.unload(asked, channel.bundle()))
    channel.accept(propose.released(channel.author("owner"), channel.bundle()))
    rows = list(RowSequence().feed(arrivals(channel.entries)))
    (moved,) = [orjson.loads(row.body or b"") for row in rows if row.table == Table.MOVES]
    assert ("admin:alice", "unloaded") == (moved["asked_by"], moved["result"])
    publishers = [
        orjson.loads(row.body or b"")["publisher"] for row in rows if row.table == Table.TRANSITIONS
    ][-2:]
    assert ["admin:alice", "owner"] == publishers
    assert ["owner", "owner"] == [row.publisher for row in rows if row.table == Table.RECORDS][-2:]


def test_the_header_of_a_topic_is_no_entry() -> None:
    channel = channel_with("b1")
    told = Both().feed(arrivals([(0, b"header"), *channel.entries]))
    assert told == Both().feed(arrivals(channel.entries))


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_leap_of_the_logs_time_is_reported_once(*, is_restored: bool) -> None:
    """A night without writers is no leap: time continues after it."""
    channel = channel_with("b1")
    night, day_ms = 8 * 3_600_000, 86_400_000
    for times_ms, expected in (
        ((5, night, night - 2), [{"event": "time_fell", "by_ms": 2}]),
        ((day_ms, day_ms + night, 0), [{"event": "time_fell", "by_ms": day_ms + night}]),
        (
            (5, day_ms, 7),
            [
                {"event": "time_fell", "by_ms": day_ms - 7},
                {"event": "time_leapt", "by_ms": day_ms - 5, "stands_ms": day_ms - 7},
            ],
        ),
    ):
        entries = [
            Arrival("channel", offset, at_ms, data)
            for (offset, data), at_ms in zip(channel.entries, times_ms, strict=True)
        ]
        both = Both()
        assert [] == both.feed(entries[:2]).events
        if is_restored:
            both = both.restored()
        assert expected == both.feed(entries[2:]).events
        later = Arrival("channel", 90, times_ms[2], b"later")
        assert "time_fell" == both.feed([later]).events[0]["event"]


def test_a_clock_that_is_ahead_and_pauses() -> None:
    """The leap is its first step ahead."""
    day_ms, pause_ms = 86_400_000, 2 * LEAP_MS_MIN
    times_ms = (
        5,
        5 + pause_ms,
        day_ms,
        *(day_ms + each * pause_ms for each in range(1, LEAPS_MAX - 1)),
        9 + pause_ms,
        10 + pause_ms,
    )
    told = Both().feed(
        Arrival("channel", offset, at_ms, b"any") for offset, at_ms in enumerate(times_ms, 1)
    )
    leaps = [event for event in told.events if event["event"] == "time_leapt"]
    assert [day_ms + (LEAPS_MAX - 2) * pause_ms - (5 + pause_ms)] == [
        event["by_ms"] for event in leaps
    ]


def test_a_time_that_no_frame_holds_is_ignored() -> None:
    channel = channel_with("b1")
    times_ms = (5, 253_402_300_799_999, 7)
    entries = [
        Arrival("channel", offset, at_ms, data)
        for (offset, data), at_ms in zip(channel.entries, times_ms, strict=True)
    ]
    told = Both().feed(entries)
    assert ([], [5, 5, 7]) == (told.events, [row.at_ms for row in told.records])


def test_skipped_offsets_are_no_loss() -> None:
    asked = []

    def lost(first: int, below: int) -> None:
        asked.append((first, below))

    channel = channel_with("b1")
    channel.put(propose.renewed(channel.author("b1"), channel.broker("b1")), offset=50)
    told = Both(lost=lost).feed(arrivals(channel.entries))
    assert [(4, 50)] * 2 == asked
    assert (50, "accepted") == told.verdicts[-1]


def after_a_loss(lost: Lost) -> tuple[Channel, Both, Told]:
    """Return a log whose middle is lost, and what tells of it when it is read with `lost`."""
    channel = channel_with("b1", "b2")
    head = len(channel.entries)
    channel.own("b1")
    for _ in range(3):
        channel.accept(propose.renewed(channel.author("b2"), channel.broker("b2")))
    both = Both(lost=lost)
    read = [*channel.entries[:head], *channel.entries[head + 1 :]]
    return channel, both, both.feed(arrivals(read))


def test_after_a_loss_a_snapshot_leads_on() -> None:
    whole = channel_with("b1", "b2")
    whole.own("b1")
    horizon = whole.view.offset
    snapshot = to_bytes(whole.view)
    channel, both, told = after_a_loss(lambda _first, _below: snapshot)
    assert {
        "event": "records_lost",
        "from": horizon - 1,
        "to": horizon,
        "restored": True,
        "goes_on": horizon + 1,
    } in told.events
    assert [(horizon, NOT_FOLDED), (horizon + 1, "accepted")] == told.verdicts[-4:-2]
    assert channel.view.digest() == both.rows.view.digest()
    assert horizon == told.facts[-1].context["begun"]
    assert channel.view.digest() == both.restored().rows.view.digest()


def test_a_loss_without_a_snapshot_ends_the_folding() -> None:

    def lost(first: int, below: int) -> None:
        raise ChannelIncomplete(
            log="log", first=first, last=below, compacted_snapshot="it has no snapshot"
        )

    _, _, told = after_a_loss(lost)
    assert ["records_lost", "channel_incomplete"] == [event["event"] for event in told.events[-2:]]
    assert [NOT_FOLDED] * 4 == [verdict for _, verdict in told.verdicts[-4:]]


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_closed_log_is_folded_to_its_end(*, is_restored: bool) -> None:
    channel = channel_with("b1")
    channel.die("b1")
    channel.accept(propose.close_log(channel.admin(), channel.view, copied_to="sqlite:new.db"))
    both = Both()
    told = both.feed(arrivals(channel.entries))
    assert (channel.view.offset, "accepted") == told.verdicts[-1]
    assert {"event": "log_closed", "copied_to": "sqlite:new.db"}.items() <= told.events[-1].items()
    if is_restored:
        both = both.restored()
    late = both.feed(arrivals([(90, b"late"), (91, b"later")]))
    assert [(90, NOT_FOLDED), (91, NOT_FOLDED)] == late.verdicts
    assert not late.events


def test_a_format_version_that_is_too_new_ends_the_folding() -> None:
    channel = channel_with("b1")
    channel.die("b1")
    channel.accept(raise_level(channel.admin(), channel.view, level=2))
    told = Both().feed(arrivals([*channel.entries, (90, b"late")]))
    assert "level_too_new" == told.events[-1]["event"]
    assert [(channel.view.offset, "accepted"), (90, NOT_FOLDED)] == told.verdicts[-2:]


def test_a_log_that_went_back_ends_the_folding() -> None:
    channel = channel_with("b1")
    told = Both().feed(arrivals([*channel.entries, channel.entries[1], (90, b"new")]))
    assert {"event": "log_went_back", "position": 4, "found": 2} == told.events[-1]
    assert [1, 2, 3, 90] == [row.offset for row in told.records]


def test_an_unfinished_copy_continues_from_its_snapshot() -> None:
    old = channel_with("b1")
    old.view.go_on_above(100, level=old.view.level, level_last=old.view.level_last)
    snapshot = to_bytes(old.view)
    genesis = encode(propose.genesis(Author(publisher="admin:ops"), cluster=CLUSTER, base=100))
    both = Both(lost=lambda _first, _below: snapshot)
    assert [(101, "accepted")] == both.feed(arrivals([(1, genesis)])).verdicts
    assert "b1" in both.rows.view.brokers
    assert "begun_above" == Both().feed(arrivals([(1, genesis)])).events[-1]["event"]


def test_a_sequence_begins_with_a_snapshot() -> None:
    """Entries that the snapshot includes are stored without folding."""
    channel = channel_with("b1")
    snapshot, horizon = to_bytes(channel.view), channel.view.offset
    channel.own("b1")
    both = Both(snapshot)
    told = both.feed(arrivals(channel.entries[2:]))
    assert [
        (horizon, NOT_FOLDED),
        (horizon + 1, "accepted"),
        (horizon + 2, "accepted"),
    ] == told.verdicts
    assert channel.view.digest() == both.rows.view.digest()


def test_the_snapshot_of_a_closed_log_folds_nothing() -> None:
    channel = channel_with("b1")
    channel.die("b1")
    channel.accept(propose.close_log(channel.admin(), channel.view))
    told = Both(to_bytes(channel.view)).feed(arrivals([(90, b"late")]))
    assert ["log_closed"] == [event["event"] for event in told.events]
    assert [(90, NOT_FOLDED)] == told.verdicts


# --- notes ---


def test_a_decision_is_stored_unchanged_at_its_own_time() -> None:
    told = Both().feed(
        [*arrivals([(1, b"")], at_ms=9_000), Arrival("decisions", 7, 5_000, b'{"kind":"shed"}')]
    )
    expected = Emitted("decisions", "", 7, 0, 5_000, None, None, None, b'{"kind":"shed"}')
    assert expected in told.rows


def test_a_load_report_has_a_row_of_its_broker_and_of_each_bundle() -> None:
    """The tombstone of a broker that leaves has none."""
    told = Both().feed([Arrival("loads", 3, 1, REPORT), Arrival("loads", 5, 1, None)])
    rows = [(row.table, row.ordinal) for row in told.rows]
    assert ([("loads", 0), ("loads", 1), ("loads", 2)], []) == (rows, told.facts)


def test_serving_evidence_is_a_fact_of_its_bundle() -> None:
    """With the log's time, and the bundle's present state."""
    channel = channel_with("b1")
    channel.own("b1")
    document = {"bundle": WHOLE, "broker": "b1", "token": 4}
    told = Both(log="its id").feed(
        [
            *arrivals(channel.entries, at_ms=8_000),
            Arrival("serving", 1, 2_000, orjson.dumps(document)),
        ]
    )
    (fact,) = (fact for fact in told.facts if fact.source == "serving")
    assert (f"bundle:{WHOLE}", document, 8_000, None) == (
        fact.subject,
        fact.record,
        fact.at_ms,
        fact.verdict,
    )
    reached = channel.view.offset
    context = {"begin": 0, "reached": reached, "received_ms": 2_000, "log": "its id"}
    assert context == fact.context
    assert fact.after is not None
    assert "owned" == fact.after["phase"]


def test_serving_evidence_after_the_end_of_folding_is_marked() -> None:
    channel = channel_with("b1")
    channel.die("b1")
    channel.accept(propose.close_log(channel.admin(), channel.view))
    document = orjson.dumps({"bundle": WHOLE, "broker": "b1", "token": 99})
    told = Both().feed([*arrivals(channel.entries), Arrival("serving", 1, 2_000, document)])
    context = {"begin": 0, "reached": channel.view.offset, "received_ms": 2_000, "stopped": True}
    assert context == told.facts[-1].context


@pytest.mark.parametrize("source", ["decisions", "loads", "serving"])
def test_an_unreadable_note_is_a_fact_of_the_log(source: str) -> None:
    for data in (
        b"no JSON",
        b"[]",
        *([] if source == "decisions" else [b"{}"]),
        *([] if source == "loads" else [None]),
    ):
        told = Both().feed([Arrival(source, 5, 1, data)])
        assert [{"event": "unreadable_note", "source": source}] == told.events
        assert [(5, {"reached": 0})] == [(fact.offset, fact.context) for fact in told.facts]
        assert [] == told.rows


def test_a_view_without_a_genesis_is_restored() -> None:
    both = Both()
    both.feed(arrivals([(7, b"garbage")]))
    again = both.restored()
    assert (7, View().digest()) == (again.rows.view.offset, again.rows.view.digest())
    assert [(9, "no_genesis")] == again.feed(arrivals([(9, b"more")])).verdicts
