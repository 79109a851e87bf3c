"""The rules of Pulsar's channel, written a second time: equal to Pulsar's class and to the fold,
silent about a healthy cluster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError
from equipoise.pulsar_cluster.reading import Read
from equipoise.pulsar_cluster.records import (
    STATES,
    VERSION_MAX,
    VERSION_MIN,
    StateRecord,
    parse_record,
)
from equipoise.pulsar_cluster.table import rejection_of
from equipoise.spark_jobs.rules import pulsar
from equipoise.spark_jobs.rules.pulsar import (
    BundleAudit,
    GoneBrokers,
    Message,
    State,
    keeps_left,
    parse_sighting,
    parse_state,
)
from equipoise.spark_jobs.rules.rule import RULES, Finding, Rule, Severity
from equipoise.spark_jobs.sequence.pulsar import PulsarRows
from equipoise.spark_jobs.sequence.rows import Table
from tests.pulsar.faults import FAULTS, golden_reads
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, RIGHT, Written, a_life
from tests.vectors.cases import read_cases

BROKERS = st.sampled_from([None, "a:80", "b:80"])
VERSIONS = st.sampled_from([VERSION_MIN, 1, 2, 3, 4, VERSION_MAX])
RECORDS = st.none() | st.builds(
    State, st.sampled_from((*STATES, "Warming")), BROKERS, BROKERS, st.booleans(), VERSIONS
)


def findings(
    written: Sequence[Read], verdict: str | None = None, later_ms: int = 0
) -> list[Finding]:
    """The findings of a channel whose recording goes on for `later_ms`, as the Spark job makes
    them; those about brokers come last.
    """
    rows, brokers, found = PulsarRows(), GoneBrokers(), list[Finding]()
    audit, gone = BundleAudit(), list[Finding]()
    for offset, read in enumerate(written):
        emitted = list(
            rows.feed(
                (offset, read.message_id, read.key, read.published_ms, read.value, read.producer)
            )
        )
        folded = next(row.verdict for row in emitted if row.table == Table.RECORDS)
        assert folded is not None
        of_bundle, sighting = audit.check(
            Message(offset, read.key, read.published_ms, read.producer, read.value),
            verdict or folded,
        )
        found += of_bundle
        gone += brokers.check(parse_sighting(sighting.to_bytes()))
    found += audit.end(max(read.published_ms for read in written) + later_ms)
    return found + gone


def broken(written: Sequence[Read]) -> list[tuple[str, int]]:
    return [(finding.rule, finding.offsets[-1]) for finding in findings(written)]


def test_the_rule_for_conflicts_is_that_of_pulsars_class() -> None:
    """tests/vectors holds what ServiceUnitStateDataConflictResolver.shouldKeepLeft answered."""
    asked = 0
    for case in read_cases("conflict_rules"):
        if case["input"]["storage"] == "SystemTopic":
            left = case["input"]["left"] and State(*case["input"]["left"])
            answers = "".join(
                "01"[keeps_left(left, right and State(*right))] for right in case["input"]["rights"]
            )
            assert case["output"]["keepLeft"] == answers, case["id"]
            asked += len(answers)
    assert asked > 1_000


@given(RECORDS, RECORDS)
def test_the_rule_for_conflicts_is_that_of_the_fold(
    left: State | None, right: State | None
) -> None:
    """Two statements of one rule, of which neither knows the other."""
    before, after = (None if each is None else StateRecord(*each[:5]) for each in (left, right))
    assert (rejection_of(before, after) is not None) == keeps_left(left, right)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "state",
                "versionId",
                "timestamp",
                "dstBroker",
                "sourceBroker",
                "force",
                "splitServiceUnitToDestBroker",
            ]
        ),
        st.sampled_from([None, "", " ", "Owned", 1, 1 << 63, True, {"0x0_0x1": None}, [1]]),
    )
)
def test_both_read_a_value_alike(document: dict[str, object]) -> None:
    value = json.dumps(document).encode()
    try:
        read: tuple[object, ...] | None = parse_record(value)
    except CallerError:
        read = None
    try:
        state: State | None = parse_state(value)
    except ValueError:
        state = None
    assert (read is None) == (state is None)
    if isinstance(read, StateRecord) and state is not None:
        assert (
            read.state,
            read.destination,
            read.source,
            read.force,
            read.version,
            read.children,
        ) == state


def test_each_rule_of_pulsar_names_its_source_and_what_an_operator_can_do() -> None:
    rules = [rule for rule in RULES.values() if rule.name.startswith("pulsar_")]
    assert 9 == len(rules)
    for rule in rules:
        assert "PIP-" in rule.source or "of Pulsar 4.0.8" in rule.source
        assert rule.remedy
        assert rule.severity in get_args(Severity)
    assert not [rule.name for rule in RULES.values() if rule.source and rule not in rules]


@pytest.mark.parametrize(("name", "rule"), [(name, fault.rule) for name, fault in FAULTS.items()])
def test_each_fault_in_a_copy_of_the_golden_log_is_found(name: str, rule: str) -> None:
    faulty = FAULTS[name].inject(golden_reads())
    assert [(f"pulsar_{rule}", len(faulty) - 1)] == broken(faulty)


OTHER = "public/default/0x40000000_0x80000000"
CHILD = f"public/default/{LEFT}"


def owned() -> Written:
    return Written().assign(BUNDLE, "a:80")


def made_again() -> Written:
    """A namespace is deleted and created again. Children stay `Free` for up to an hour."""
    written = owned().split(BUNDLE, "a:80", LEFT, RIGHT)
    for child in (LEFT, RIGHT):
        written.unload(f"public/default/{child}", "a:80", force=True)
    return written.assign(BUNDLE, "b:80")


def taken_over() -> Written:
    return owned().add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Neither a short life has findings, nor the channel of a real Pulsar, with its races,
        # splits and killed brokers.
        (a_life().reads, []),
        (golden_reads(), []),
        (
            owned().split(BUNDLE, "a:80", LEFT, RIGHT).assign(BUNDLE, "b:80").reads,
            [(pulsar.revived_parent, 7), (pulsar.revived_parent, 8)],
        ),
        (made_again().reads, []),
        # A child that somebody serves counts.
        (
            made_again()
            .assign(CHILD, "a:80")
            .add(BUNDLE, "leader:80", "Releasing", source="b:80")
            .reads,
            [(pulsar.revived_parent, 15)],
        ),
        (
            owned()
            .add(BUNDLE, "a:80", "Owned", to="a:80", version=7)
            .add(BUNDLE, "a:80", "Warming", to="a:80")
            .garble("$(reboot)")
            .reads,
            [(pulsar.version_gap, 2), (pulsar.unknown_state, 3), (pulsar.unreadable, 4)],
        ),
        # A broker that started again is not gone. It takes what it is assigned, over a new
        # connection or, after a lost ZooKeeper session, over the old one.
        (
            taken_over().transfer(BUNDLE, "b:80", "a:80").transfer(BUNDLE, "a:80", "b:80").reads,
            [],
        ),
        (
            [
                read._replace(producer="producer-a:80-again") if offset >= 5 else read
                for offset, read in enumerate(
                    taken_over()
                    .transfer(BUNDLE, "b:80", "a:80")
                    .transfer(BUNDLE, "a:80", "b:80")
                    .reads
                )
            ],
            [],
        ),
        # It is gone until it takes what it was assigned after the takeover. What was assigned
        # before does not count, nor what is late and ignored.
        (
            owned()
            .add(OTHER, "leader:80", "Assigning", to="a:80")
            .add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True)
            .add(OTHER, "a:80", "Owned", to="a:80")
            .add(BUNDLE, "leader:80", "Releasing", to="a:80", source="b:80")
            .add(BUNDLE, "b:80", "Assigning", to="a:80", source="b:80")
            .add(BUNDLE, "a:80", "Owned", to="a:80", version=2)
            .add(BUNDLE, "a:80", "Owned", to="a:80", source="b:80")
            .add(BUNDLE, "a:80", "Splitting", source="a:80")
            .reads,
            [(pulsar.gone_broker, 4), (pulsar.gone_broker, 7)],
        ),
    ],
)
def test_what_a_channel_breaks(written: Sequence[Read], expected: list[tuple[Rule, int]]) -> None:
    assert [(rule.name, offset) for rule, offset in expected] == broken(written)


def test_a_step_that_nobody_ends_is_found_and_names_where_it_began() -> None:
    written = owned()
    written.transfer(BUNDLE, "a:80", "b:80", wait_ms=31_000)
    [finding] = findings(written.reads)
    assert ("pulsar_stuck", (2, 3), "it was Releasing for 31 s") == (
        finding.rule,
        finding.offsets,
        finding.text,
    )
    assert f"equipoise pulsar why {BUNDLE} --source {{log}}" == finding.command


@pytest.mark.parametrize("to", [None, "b:80"])
def test_a_step_that_has_not_ended_when_the_recording_ends_is_found(to: str | None) -> None:
    written = owned()
    written.add(BUNDLE, "leader:80", "Releasing", to=to, source="a:80")
    assert [] == findings(written.reads, later_ms=30_000)
    [finding] = findings(written.reads, later_ms=31_000)
    assert ("pulsar_stuck", (2,), "it has been Releasing for 31 s") == (
        finding.rule,
        finding.offsets,
        finding.text,
    )
    assert written.now_ms + 31_000 == finding.at_ms


def test_a_bundle_with_an_owner_or_a_tombstone_is_not_stuck_when_the_recording_ends() -> None:
    written = a_life()
    written.add(f"{BUNDLE.rpartition('/')[0]}/{LEFT}", "leader:80", "Releasing", source="a:80")
    written.add(f"{BUNDLE.rpartition('/')[0]}/{LEFT}", "a:80", None)
    assert [] == findings(written.reads, later_ms=3_600_000)


def test_a_fold_that_decides_otherwise_is_found() -> None:
    written = owned()
    assert [pulsar.verdict_differs.name] * 2 == [
        finding.rule for finding in findings(written.reads, verdict="old version")
    ]
