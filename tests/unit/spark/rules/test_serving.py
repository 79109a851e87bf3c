"""Tests of the rules about serving evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Self

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
    ) -> Self:
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
        return self

    def says(self, document: Mapping[str, object] | None, **context: object) -> Self:
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
        return self

    def passes(self, time_ms: int) -> Self:
        """Let the log's time pass until `time_ms`."""
        self.now_ms = AT_MS + time_ms
        if min(self.memory.due_times(), default=self.now_ms + 1) <= self.now_ms:
            self.findings += expire_serving(self.memory, BUNDLE, self.now_ms)
        return self

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
    return Audit().holds(None, 5).holds((10, A), 10).holds((30, B), 30, time_ms=20_000)


LATE = served(since_ms=2, until_ms=5_000, lease_ms=5_000) | {"answered_ns": at(5_000) + 1}
HONEST = (
    served(A, 10, since_ms=1),
    served(A, 10, since_ms=1, until_ms=19_990),
    served(B, 30, since_ms=20_001),
    served(B, 30, since_ms=20_001, until_ms=40_000),
)


@pytest.mark.parametrize(
    ("audit", "rules"),
    [
        # An audit of an old log reads today's evidence at once, long before its record.
        (
            Audit(now_ms=AT_MS - 3_600_000)
            .says(HONEST[0])
            .says(HONEST[1])
            .says(HONEST[2])
            .says(HONEST[3])
            .holds(None, 5, time_ms=-3_600_000)
            .passes(-COMES_LATE_MS)
            .holds((10, A), 10)
            .holds((30, B), 30, time_ms=20_000)
            .passes(1_000_000),
            [],
        ),
        # Serving without ownership is found when the log has passed it.
        (moved().says(served(B, 44, since_ms=25_000)).passes(24_999 + COMES_LATE_MS), []),
        # It is found at once if the log was read past it. The earlier log is unknown.
        (moved().says(served(B, 44, since_ms=30_000), begin=0, reached=43), []),
        (moved().says(served(B, 45, since_ms=30_000), begin=0, reached=45), []),
        (
            moved()
            .passes(30_000 + COMES_LATE_MS)
            .says(served(B, 45, since_ms=30_001), begin=0, reached=45),
            [],
        ),
        (
            moved()
            .passes(30_000 + COMES_LATE_MS)
            .says(served(B, 46, since_ms=30_000), begin=0, reached=46),
            ["served_without_ownership"],
        ),
        (Audit().says(served(B, 44), begin=44, reached=90).passes(1_000_000), []),
        # A bundle may inherit a token that is older than itself.
        (
            Audit()
            .says(served(A, 10, since_ms=5, until_ms=2_000), begin=0, reached=90)
            .holds((10, A), 95)
            .passes(1_000_000),
            [],
        ),
        # Late evidence about a forgotten bundle is not checked.
        (
            Audit(now_ms=AT_MS + GONE_FOR_MS)
            .says(served(A, 10), begin=0, reached=90)
            .passes(2 * GONE_FOR_MS),
            [],
        ),
        (
            Audit(now_ms=AT_MS + GONE_FOR_MS // 2)
            .says(served(A, 10), begin=0, reached=90)
            .passes(2 * GONE_FOR_MS),
            ["served_without_ownership"],
        ),
        # Tokens that can no longer become known: that of another, and one between two.
        (moved().says(served(B, 10, since_ms=20_001)), ["served_without_ownership"]),
        (moved().says(served(A, 20, since_ms=20_001)), ["served_without_ownership"]),
        # Ownerships from before the audit are not checked.
        (
            Audit()
            .holds((10, A), 500)
            .says(served(A, 10))
            .says(served(B, 7, since_ms=-5_000, until_ms=-4_000))
            .passes(1_000_000),
            [],
        ),
        (
            Audit().holds((10, A), 500).says(served(B, 10, since_ms=100, by_token=True)),
            ["served_without_ownership"],
        ),
        (Audit().says(served()).passes(1_000_000), []),
        # Evidence ahead of the log waits for it: in vain, if folding has stopped.
        (Audit().says(served(B, 99), begin=0, reached=90).passes(COMES_LATE_MS - 1), []),
        (
            Audit().says(served(B, 99), begin=0, reached=90).passes(COMES_LATE_MS),
            ["served_without_ownership"],
        ),
        (
            Audit().says(served(B, 99), begin=0, reached=90, stopped=True).passes(COMES_LATE_MS),
            [],
        ),
        # A forged timestamp makes no ownership older.
        *(
            (
                moved()
                .holds((50, A), 50, time_ms=40_000, said_ms=said_ms)
                .says(served(A, 50, since_ms=40_000 - CLOCKS_APART_MS - 1)),
                ["served_before_owned"],
            )
            for said_ms in (-AT_MS, 20_000 - CLOCKS_APART_MS - 1)
        ),
        # A lease is reported once, and not if only the token guards.
        (moved().says(served(until_ms=5_000, lease_ms=5_000)), []),
        (moved().says(LATE | {"by_token": True}), []),
        (
            moved()
            .says(LATE)
            .says(LATE)
            .says(served(since_ms=9_000, until_ms=7_000, lease_ms=7_000)),
            ["served_past_lease"],
        ),
        # Two machines: as far as clocks may lie apart, and further.
        (
            moved()
            .says(served(B, 30, since_ms=20_000, until_ms=40_000))
            .says(served(A, 10, until_ms=20_000 + CLOCKS_APART_MS, boot="another")),
            [],
        ),
        (
            moved()
            .says(served(B, 30, since_ms=20_000, until_ms=40_000))
            .says(served(A, 10, until_ms=20_001 + CLOCKS_APART_MS, boot="another")),
            ["served_two_at_once", "served_old_token"],
        ),
        # Serving by token may overlap.
        (
            moved()
            .says(served(B, 30, since_ms=20_001, until_ms=60_000))
            .says(served(A, 10, until_ms=50_000, lease_ms=4_000, by_token=True)),
            [],
        ),
        (moved().says(served(A, 10, until_ms=20_000 + CLOCKS_APART_MS)), []),
        # The earlier of a record's two times counts.
        (moved().says(served(A, 10, since_ms=-CLOCKS_APART_MS)), []),
        (
            moved()
            .says(served(A, 10, since_ms=-CLOCKS_APART_MS - 1, until_ms=10))
            .says(served(A, 10, since_ms=-CLOCKS_APART_MS - 1, until_ms=10)),
            ["served_before_owned"],
        ),
        (Audit().holds((10, A), 10, time_ms=900_000, said_ms=0).says(served(A, 10)), []),
        # An ownership may have several stretches.
        (
            Audit()
            .holds((10, A), 10)
            .says(served(A, 10, until_ms=3_000, lease_ms=3_000))
            .holds((10, A), 12, time_ms=4_000)
            .says(served(A, 10, since_ms=5_000, until_ms=9_000))
            .holds(None, 20, time_ms=10_000)
            .holds(None, 21, time_ms=10_001)
            .passes(1_000_000),
            [],
        ),
        # Evidence of another log is ignored.
        (
            moved().passes(COMES_LATE_MS).says(served(B, 44), begin=0, reached=90, log="another"),
            [],
        ),
        (
            moved().passes(COMES_LATE_MS).says(served(B, 44), begin=0, reached=90, log="log"),
            ["served_without_ownership"],
        ),
    ],
)
def test_what_an_audit_finds(audit: Audit, rules: list[str]) -> None:
    assert rules == audit.rules


@pytest.mark.parametrize(
    ("audit", "found"),
    [
        (
            moved()
            .says(served(B, 44, since_ms=25_000))
            .says(served(B, 44, since_ms=25_000, until_ms=30_000))
            .passes(25_000 + COMES_LATE_MS)
            .passes(1_000_000),
            ("served_without_ownership", (44,), "broker-200"),
        ),
        (
            moved().says(served(A, 10, since_ms=1, until_ms=20_001 + CLOCKS_APART_MS)),
            ("served_old_token", (10, 30), "broker-100"),
        ),
    ],
)
def test_a_finding_names_the_tokens_and_the_broker(
    audit: Audit, found: tuple[str, tuple[int, ...], str]
) -> None:
    assert [found] == [(one.rule, one.offsets, one.publisher) for one in audit.findings]


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
