"""Tests of the rules about serving evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import orjson
import pytest

from equipoise.spark_jobs.rules.facts import Fact, subject
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.rules.serving import (
    CLOCKS_APART_MS,
    COMES_LATE_MS,
    GONE_FOR_MS,
    OWNERSHIPS_MAX,
    STRETCHES_MAX,
    Holder,
    Serving,
    check_serving,
    expire_serving,
    follow_holder,
)

BUNDLE = subject("bundle", "t/n/0x00000000_0xffffffff")
AT_MS = 1_700_000_000_000
# So long ago the machine of all brokers of these tests was started, unless they say otherwise.
BOOTED_MS = AT_MS - 1_000_000
LEASE_MS = 3_000
A, B = 100, 200  # Incarnations.


def at(time_ms: int) -> int:
    """Return a time of these stories, in milliseconds since their beginning, as nanoseconds of boot
    time.
    """
    return (AT_MS + time_ms - BOOTED_MS) * 1_000_000


@dataclass
class Audit:
    """The memory of one bundle, and the findings so far."""

    memory: Serving = field(default_factory=Serving)
    findings: list[Finding] = field(default_factory=list)
    now_ms: int = AT_MS

    def holds(
        self, holder: Holder | None, offset: int, *, time_ms: int = 0, said_ms: int | None = None
    ) -> None:
        """Let the log give the bundle to a holder with the record at `offset`."""
        self.now_ms = max(self.now_ms, AT_MS + time_ms)
        record = {"timestamp_ms": AT_MS + (time_ms if said_ms is None else said_ms)}
        fact = Fact(
            subject=BUNDLE,
            source="channel",
            offset=offset,
            at_ms=self.now_ms,
            record=record,
            verdict="accepted",
        )
        self.findings += follow_holder(self.memory, holder, fact)

    def says(self, document: Mapping[str, object] | None, **context: object) -> None:
        """Check a document of evidence."""
        fact = Fact(
            subject=BUNDLE,
            source="serving",
            offset=1,
            at_ms=self.now_ms,
            record=document,
            context=context,
        )
        self.findings += check_serving(self.memory, fact)

    def passes(self, time_ms: int) -> None:
        """Let the log's time pass until `time_ms`."""
        self.now_ms = AT_MS + time_ms
        if min(self.memory.due_times(), default=self.now_ms + 1) <= self.now_ms:
            self.findings += expire_serving(self.memory, BUNDLE, self.now_ms)

    @property
    def rules(self) -> list[str]:
        """The rule of each finding."""
        return [finding.rule for finding in self.findings]


def served(
    incarnation: int = A,
    token: int = 10,
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    lease_ms: int | None = None,
    boot: str = "boot",
    **other: object,
) -> dict[str, object]:
    """Return a document of evidence, by default an honest one. `lease_ms` is the end of its
    lease.
    """
    said_ms = since_ms if until_ms is None else until_ms
    return {
        "log": "log",
        "broker": f"broker-{incarnation}",
        "incarnation": incarnation,
        "bundle": BUNDLE.partition(":")[2],
        "token": token,
        "boot": boot,
        "started_ns": at(since_ms),
        "answered_ns": None if until_ms is None else at(until_ms),
        "lease_deadline_ns": at(said_ms + LEASE_MS if lease_ms is None else lease_ms),
        "ended": None if until_ms is None else "closed",
        "by_token": False,
        "at_ms": AT_MS + said_ms,
        "at_ns": at(said_ms),
        **other,
    }


def moved() -> Audit:
    """Return the audit of a bundle that A owns from 0 s on with token 10, and B from 20 s on with
    token 30.
    """
    audit = Audit()
    audit.holds(None, 5)
    audit.holds((10, A), 10)
    audit.holds((30, B), 30, time_ms=20_000)
    return audit


HONEST = (
    served(A, 10, since_ms=1),
    served(A, 10, since_ms=1, until_ms=19_990),
    served(B, 30, since_ms=20_001),
    served(B, 30, since_ms=20_001, until_ms=40_000),
)


@pytest.mark.parametrize("order", list(permutations(HONEST)))
def test_an_honest_move_breaks_no_rule_in_any_order_of_evidence(
    order: Sequence[Mapping[str, object]],
) -> None:
    audit = moved()
    for document in order:
        audit.says(document)
    audit.passes(1_000_000)
    assert [] == audit.findings


def test_evidence_may_come_long_before_its_record() -> None:
    """An audit of an old log reads today's evidence at once."""
    audit = Audit(now_ms=AT_MS - 3_600_000)
    for document in HONEST:
        audit.says(document)
    audit.holds(None, 5, time_ms=-3_600_000)
    audit.passes(-COMES_LATE_MS)
    audit.holds((10, A), 10)
    audit.holds((30, B), 30, time_ms=20_000)
    audit.passes(1_000_000)
    assert [] == audit.findings


def test_serving_without_ownership_is_found_when_the_log_has_passed_it() -> None:
    audit = moved()
    audit.says(served(B, 44, since_ms=25_000))
    audit.says(served(B, 44, since_ms=25_000, until_ms=30_000))
    audit.passes(25_000 + COMES_LATE_MS - 1)
    assert [] == audit.findings
    audit.passes(25_000 + COMES_LATE_MS)
    audit.passes(1_000_000)
    assert [("served_without_ownership", (44,), "broker-200")] == [
        (one.rule, one.offsets, one.publisher) for one in audit.findings
    ]


def test_serving_without_ownership_is_found_at_once_if_the_log_was_read_past_it() -> None:
    """Ownerships from before the reading are unknown."""
    audit = moved()
    audit.says(served(B, 44, since_ms=30_000), begin=0, reached=43)
    audit.says(served(B, 45, since_ms=30_000), begin=0, reached=45)
    assert [] == audit.rules
    audit.now_ms = AT_MS + 30_000 + COMES_LATE_MS
    audit.says(served(B, 45, since_ms=30_001), begin=0, reached=45)
    assert [] == audit.rules
    audit.says(served(B, 46, since_ms=30_000), begin=0, reached=46)
    assert ["served_without_ownership"] == audit.rules
    begun_later = Audit()
    begun_later.says(served(B, 44), begin=44, reached=90)
    begun_later.passes(1_000_000)
    assert [] == begun_later.findings


def test_a_bundle_may_inherit_a_token_that_is_older_than_itself() -> None:
    audit = Audit()
    audit.says(served(A, 10, since_ms=5, until_ms=2_000), begin=0, reached=90)
    audit.holds((10, A), 95)
    audit.passes(1_000_000)
    assert [] == audit.findings


def test_late_evidence_about_a_forgotten_bundle_is_not_checked() -> None:
    for late_ms, found in ((GONE_FOR_MS, []), (GONE_FOR_MS // 2, ["served_without_ownership"])):
        audit = Audit(now_ms=AT_MS + late_ms)
        audit.says(served(A, 10), begin=0, reached=90)
        audit.passes(2 * GONE_FOR_MS)
        assert found == audit.rules


@pytest.mark.parametrize(
    ("incarnation", "token"),
    [
        pytest.param(B, 10, id="the token of another"),
        pytest.param(A, 20, id="a token between two that are known"),
    ],
)
def test_a_token_that_can_no_longer_become_known(incarnation: int, token: int) -> None:
    audit = moved()
    audit.says(served(incarnation, token, since_ms=20_001))
    assert ["served_without_ownership"] == audit.rules


def test_ownerships_from_before_the_audit_are_not_checked() -> None:
    audit = Audit()
    audit.holds((10, A), 500)
    audit.says(served(A, 10))
    audit.says(served(B, 7, since_ms=-5_000, until_ms=-4_000))
    audit.passes(1_000_000)
    assert [] == audit.findings
    audit.says(served(B, 10, since_ms=100, by_token=True))
    assert ["served_without_ownership"] == audit.rules


def test_the_beginning_of_the_first_known_ownership_is_unknown() -> None:
    audit = Audit()
    was = {"phase": "owned", "owner": A, "source": None, "last": 10, "token": 10}
    record = {"timestamp_ms": AT_MS + 60_000}
    fact = Fact(
        subject=BUNDLE,
        source="channel",
        offset=500,
        at_ms=AT_MS + 60_000,
        record=record,
        verdict="accepted",
        before=was,
    )
    audit.findings += follow_holder(audit.memory, (10, A), fact)
    audit.holds((510, B), 510, time_ms=60_010)
    audit.says(served(A, 10, since_ms=0, until_ms=60_009))
    assert [] == audit.findings
    audit.says(served(B, 510, since_ms=60_000 - CLOCKS_APART_MS, until_ms=60_020))
    assert ["served_before_owned", "served_two_at_once"] == sorted(audit.rules)


def test_a_bundle_without_records_is_not_checked() -> None:
    audit = Audit()
    audit.says(served())
    audit.passes(1_000_000)
    assert [] == audit.findings


def test_evidence_ahead_of_the_log_waits_for_it() -> None:
    """If folding has stopped, it waits in vain."""
    for context, found in (({}, ["served_without_ownership"]), ({"stopped": True}, [])):
        audit = Audit()
        audit.says(served(B, 99), begin=0, reached=90, **context)
        audit.passes(COMES_LATE_MS - 1)
        assert [] == audit.findings
        audit.passes(COMES_LATE_MS)
        assert found == audit.rules


def test_a_forged_timestamp_makes_no_ownership_older() -> None:
    for said_ms in (-AT_MS, 20_000 - CLOCKS_APART_MS - 1):
        audit = moved()
        audit.holds((50, A), 50, time_ms=40_000, said_ms=said_ms)
        audit.says(served(A, 50, since_ms=40_000 - CLOCKS_APART_MS - 1))
        assert ["served_before_owned"] == audit.rules


def test_serving_past_the_lease() -> None:
    """It is reported once, and not if only the token guards."""
    audit = moved()
    audit.says(served(until_ms=5_000, lease_ms=5_000))
    assert [] == audit.rules
    late = {**served(since_ms=2, until_ms=5_000, lease_ms=5_000), "answered_ns": at(5_000) + 1}
    audit.says({**late, "by_token": True})
    assert [] == audit.rules
    audit.says(late)
    audit.says(late)
    assert ["served_past_lease"] == audit.rules
    audit.says(served(since_ms=9_000, until_ms=7_000, lease_ms=7_000))
    assert ["served_past_lease"] == audit.rules


@pytest.mark.parametrize(
    ("until_ms", "since_ms", "found"),
    [
        pytest.param(20_000, 20_000, [], id="one ends as the other begins"),
        pytest.param(20_002, 20_001, ["served_two_at_once"], id="a millisecond together"),
    ],
)
def test_two_servers_on_one_machine_are_found_to_the_millisecond(
    until_ms: int, since_ms: int, found: Sequence[str]
) -> None:
    """In any order of the documents."""
    mine, other = served(A, 10, until_ms=until_ms), served(B, 30, since_ms=since_ms)
    ended = served(B, 30, since_ms=since_ms, until_ms=since_ms + 5_000)
    for order in permutations((mine, other, ended)):
        audit = moved()
        for document in order:
            audit.says(document)
        assert found == audit.rules
        assert all((10, 30) == finding.offsets for finding in audit.findings)


@pytest.mark.parametrize(
    ("until_ms", "found"),
    [
        pytest.param(20_000 + CLOCKS_APART_MS, [], id="as far as clocks may lie apart"),
        pytest.param(
            20_001 + CLOCKS_APART_MS, ["served_two_at_once", "served_old_token"], id="further"
        ),
    ],
)
def test_two_servers_on_two_machines_are_found_beyond_the_tolerance_of_clocks(
    until_ms: int, found: Sequence[str]
) -> None:
    audit = moved()
    audit.says(served(B, 30, since_ms=20_000, until_ms=40_000))
    audit.says(served(A, 10, until_ms=until_ms, boot="another"))
    assert found == audit.rules


def test_serving_by_token_may_overlap() -> None:
    audit = moved()
    audit.says(served(B, 30, since_ms=20_001, until_ms=60_000))
    audit.says(served(A, 10, until_ms=50_000, lease_ms=4_000, by_token=True))
    assert [] == audit.findings


def test_serving_with_an_old_token() -> None:
    audit = moved()
    audit.says(served(A, 10, until_ms=20_000 + CLOCKS_APART_MS))
    assert [] == audit.rules
    audit.says(served(A, 10, since_ms=1, until_ms=20_001 + CLOCKS_APART_MS))
    assert [("served_old_token", (10, 30))] == [(one.rule, one.offsets) for one in audit.findings]


def test_serving_before_the_record() -> None:
    """The earlier of the record's two times counts."""
    audit = moved()
    audit.says(served(A, 10, since_ms=-CLOCKS_APART_MS))
    assert [] == audit.rules
    audit.says(served(A, 10, since_ms=-CLOCKS_APART_MS - 1, until_ms=10))
    audit.says(served(A, 10, since_ms=-CLOCKS_APART_MS - 1, until_ms=10))
    assert ["served_before_owned"] == audit.rules
    replayed = Audit()
    replayed.holds((10, A), 10, time_ms=900_000, said_ms=0)
    replayed.says(served(A, 10))
    assert [] == replayed.findings


def test_an_ownership_may_have_several_stretches() -> None:
    audit = Audit()
    audit.holds((10, A), 10)
    audit.says(served(A, 10, until_ms=3_000, lease_ms=3_000))
    audit.holds((10, A), 12, time_ms=4_000)
    audit.says(served(A, 10, since_ms=5_000, until_ms=9_000))
    audit.holds(None, 20, time_ms=10_000)
    audit.holds(None, 21, time_ms=10_001)
    audit.passes(1_000_000)
    assert [] == audit.findings


def test_a_resumed_ownership_keeps_its_beginning() -> None:
    audit = Audit()
    audit.holds((10, A), 10)
    audit.says(served(A, 10, until_ms=9_000))
    audit.holds(None, 12, time_ms=9_000)
    audit.holds((10, A), 14, time_ms=10_000)
    for turn in range(1, 2 * OWNERSHIPS_MAX):
        audit.holds((10 * turn + 10, A + turn), 10 * turn + 10, time_ms=20_000 * turn)
    assert [] == audit.findings


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        served(broker=7),
        served() | {"token": "10"},
        served(token=-1),
        served(at_ns=2**63),
        served(started_ns=None),
        served(answered_ns="later"),
        served(by_token=1),
        served(incarnation=True),
        served(at_ms=2**63 - 1),
    ],
)
def test_malformed_evidence_is_ignored(document: Mapping[str, object] | None) -> None:
    audit = Audit()
    audit.says(document)
    assert ([], Serving()) == (audit.findings, audit.memory)


def test_evidence_of_another_log_is_ignored() -> None:
    audit = moved()
    audit.now_ms = AT_MS + COMES_LATE_MS
    audit.says(served(B, 44), begin=0, reached=90, log="another")
    assert [] == audit.findings
    audit.says(served(B, 44), begin=0, reached=90, log="log")
    assert ["served_without_ownership"] == audit.rules


def test_memory_is_bounded() -> None:
    audit = Audit()
    turns: Iterable[int] = range(1, 50)
    for turn in turns:
        audit.holds((turn * 10, A + turn), turn * 10, time_ms=turn * 100)
        audit.says(served(A + turn, turn * 10, since_ms=turn * 100, until_ms=turn * 100 + 90))
    size = len(orjson.dumps(audit.memory))
    audit.says(served(7, 13, since_ms=130))
    audit.passes(10_000_000)
    assert [] == audit.findings
    assert size < 400 * (OWNERSHIPS_MAX + STRETCHES_MAX)


def test_a_finding_names_brokers_tokens_and_command() -> None:
    audit = moved()
    audit.says(served(A, 10, until_ms=20_500))
    audit.says(served(B, 30, since_ms=20_001))
    (finding,) = audit.findings
    assert (
        "broker-100 (incarnation 100, token 10) and broker-200 (incarnation 200, token 30) served"
        " at the same time" in finding.text
    )
    assert finding.command.startswith("equipoise channel why ")
    assert (BUNDLE, AT_MS + 20_000) == (finding.subject, finding.at_ms)
