"""Define rules and their findings, and run all rules of one kind of subject on a fact.

A rule is a short function under the decorator `rule`, with severity, meaning and remedy. Its name
is the name of its findings, its docstring the statement of the rule. It gets a `Case` and yields a
`Violation` for each fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import Any, Final, Literal, NamedTuple, get_args
from zlib import crc32

import orjson

from equipoise.spark_jobs.rules.facts import Fact, Raw, SubjectKind
from equipoise.spark_jobs.rules.ranges import parse_bundle

Severity = Literal["alarm", "warning", "notice"]
"""`alarm`: a promise was broken, or an unauthorised process writes. `warning`: look at it today.
`notice`: good to know."""

ACCEPTED: Final = "accepted"
NOT_FOLDED: Final = "not_folded"
"""The verdict on records after one at which the fold stopped for good. There is nothing to
compare."""

STOP_THE_WRITER: Final = (
    "Find out who wrote the record, and stop that process. Ask each broker for its version."
)
REPORT_A_BUG: Final = (
    "Run `equipoise channel verify`. Keep the log as it is, and report the two verdicts as a bug."
)
CHECK_THE_BROKER: Final = "Look at the log lines and the clock of the broker that is named."
RESTRICT_WRITERS: Final = (
    "Find out who can write to the log, and revoke this permission where it is not needed."
)

_ORDINALS: Final = 1 << 31

# --- findings ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule.

    * `subject`: in the format of `spark_jobs.rules.facts.subject`.
    * `offsets`: logical offsets, rising; the last is the record that showed the fault.
    * `at_ms`: the log's time at that record.
    * `text`: one sentence that describes the fault.
    * `command`: a command that shows it, with `{log}` in place of the log's URL.
    """

    rule: str
    subject: str
    offsets: tuple[int, ...]
    at_ms: int
    text: str
    command: str
    publisher: str | None = None

    def to_bytes(self) -> bytes:
        """Return it as the body of a row of `Table.FINDINGS` and of a message on the findings
        topic.
        """
        return orjson.dumps(self)

    @property
    def ordinal(self) -> int:
        """An ordinal that does not depend on the batch: the findings of one record come from many
        tasks.

        It ignores the time: evidence is checked at the end of a batch, and another run may cut
        batches elsewhere.
        """
        return crc32(orjson.dumps([self.rule, self.subject, self.text])) % _ORDINALS


def parse_finding(body: bytes) -> Finding:
    """Return the finding from the output of `Finding.to_bytes`."""
    raw = orjson.loads(body)
    return Finding(**{**raw, "offsets": tuple(raw["offsets"])})


def command_on(log: str, command: str) -> str:
    """Return the `command` of a finding for the log with URL `log`."""
    return command.replace("{log}", quote(log))


def command_for(rule: str, subject: str, offsets: Sequence[int]) -> str:
    """Return the command that shows a finding.

    * Records are lost or damaged, so there is none to show: verify the log.
    * A bundle: show its history.
    * One of two records is forged: show both.
    * Otherwise: show the last record.

    The command contains `{log}` for the log's URL. The rest is quoted for a shell and may contain
    braces: insert the URL with `str.replace`, never with `str.format`.
    """
    kind, _, name = subject.partition(":")
    if rule in ("entries_missing", "entry_damaged", "records_lost"):
        return "equipoise channel verify --log {log}"
    if kind == "bundle" and parse_bundle(name) is not None:
        return f"equipoise channel why {quote(name)} --log {{log}}"
    shown = offsets if rule == "sequence_reused" else offsets[-1:]
    return " && ".join(f"equipoise channel show {offset} --log {{log}}" for offset in shown)


# --- rules ---


class Violation(NamedTuple):
    """A fault that a rule found in a fact. `offsets` are earlier records that it concerns.

    `subject` replaces the fact's, and `publisher` then the record's.
    """

    text: str
    offsets: tuple[int, ...] = ()
    subject: str | None = None
    publisher: str | None = None


Violations = Iterator[Violation]
Check = Callable[[Any], Iterator[Any]]
CaseKind = Literal["bundle", "broker", "namespace", "log", "evidence", "ownership"]
"""What a function checks: a fact of a subject, or a stretch of serving, alone or against ownerships
(`spark_jobs.rules.serving`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `says` states it, `means` is the consequence of a violation, `remedy` what to do.

    * `subject`: the kind of subject under which the reference lists it. Findings may be about
      others.
    * `source`: the documents of Pulsar that state a rule of its channel. Rules of our own channel
      have none.
    * `accepted_instead_of`: verdicts, each alone or as `FORM: VERDICT`. The rule is also broken if
      the fold accepts a record that gets this verdict from the audit. If the rule has no function,
      that is all that it checks.
    """

    name: str
    subject: SubjectKind
    severity: Severity
    says: str
    means: str
    remedy: str
    source: str = ""
    accepted_instead_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Register the rule."""
        assert self.name not in RULES, self.name
        RULES[self.name] = self
        _BROKEN_BY_ACCEPTING.update(dict.fromkeys(self.accepted_instead_of, self.name))

    def also(self, *kinds: CaseKind) -> Callable[[Check], Check]:
        """Return a decorator for a further function that checks this rule on these kinds of
        case.
        """

        def add(check: Check) -> Check:
            for kind in kinds:
                _CHECKS[kind].append((self, check))
            return check

        return add

    def finding(
        self,
        subject: str,
        text: str,
        *,
        offsets: tuple[int, ...],
        at_ms: int,
        publisher: str | None = None,
    ) -> Finding:
        """Return a finding about `subject` at the last of `offsets`."""
        command = command_for(self.name, subject, offsets)
        return Finding(
            rule=self.name,
            subject=subject,
            offsets=offsets,
            at_ms=at_ms,
            text=text,
            command=command,
            publisher=publisher,
        )


RULES: Final[dict[str, Rule]] = {}
"""All rules by name, as soon as `spark_jobs.rules.checkers` is imported."""

_CHECKS: Final[Mapping[CaseKind, list[tuple[Rule, Check]]]] = {
    kind: [] for kind in get_args(CaseKind)
}
_BROKEN_BY_ACCEPTING: Final[dict[str, str]] = {}


def rule(
    subject: SubjectKind,
    severity: Severity,
    *,
    means: str,
    remedy: str,
    on: Sequence[CaseKind] = (),
    instead_of: Sequence[str] = (),
) -> Callable[[Check], Rule]:
    """Return a decorator that makes a `Rule` of a function, and checks it on these kinds of case:
    by default, on its subject.

    The function's name is the name of the rule, its docstring the statement. `instead_of` is
    `Rule.accepted_instead_of`.
    """

    def made(check: Check) -> Rule:
        name, verdicts, says = (
            check.__name__,
            tuple(instead_of),
            " ".join((check.__doc__ or "").split()),
        )
        new = Rule(
            name=name,
            subject=subject,
            severity=severity,
            says=says,
            means=means,
            remedy=remedy,
            accepted_instead_of=verdicts,
        )
        new.also(*(on or (subject,)))(check)
        return new

    return made


def checks_on(kind: CaseKind) -> Sequence[tuple[Rule, Check]]:
    """Return the functions that check one kind of case, with their rules."""
    return _CHECKS[kind]


class Case:
    """A fact with what rules need to know. Each kind of subject extends it."""

    def __init__(self, fact: Fact) -> None:
        self.fact = fact
        self.record: Raw = fact.record or {}
        self.name = fact.subject.partition(":")[2]
        self.is_accepted = fact.verdict == ACCEPTED

    @cached_property
    def expected(self) -> str | None:
        """The audit's verdict on the record; None if another subject compares the verdicts."""
        context = self.fact.context
        return context.get("expected") if self.fact.subject == context.get("checked_by") else None

    @property
    def form(self) -> str:
        """The form of the record: its kind, for a broker's record with the status."""
        kind = self.record.get("kind")
        return f"broker {self.record.get('status')}" if kind == "broker" else str(kind)

    @property
    def what(self) -> str:
        """The record as the subject of a sentence: `the record "bundle owned" of b1`."""
        detail = self.record.get("state") or self.record.get("status")
        kind = (
            f"{self.record.get('kind')}"
            if detail is None
            else f"{self.record.get('kind')} {detail}"
        )
        return f'the record "{kind[:64]}" of {str(self.record.get("publisher"))[:64]}'

    def who(self, incarnation: int | None) -> str:
        """Return an incarnation with its broker's id, if known: `b1 (incarnation 7)`."""
        context = self.fact.context
        name = (
            self.record.get("key")
            if incarnation == context.get("dead")
            else context.get("names", {}).get(str(incarnation))
        )
        return (
            f"incarnation {incarnation}" if name is None else f"{name} (incarnation {incarnation})"
        )


EXPLAINED_BY_DAMAGE: Final = frozenset(
    {
        "baseless",
        "digest_differs",
        "false_proof",
        "too_many_rejections",
        "writes_after_leaving",
        "writes_what_it_may_not",
    }
)
"""Rules that records of honest brokers break if they follow from damage to the log
(`spark_jobs.rules.membership.references`)."""


def check_rules(kind: SubjectKind, case: Case) -> Iterator[Finding]:
    """Check all rules of a kind of subject, and yield the findings."""
    verdict, expected = case.fact.verdict, case.expected
    follows = case.fact.context.get("follows") is not None
    if expected is not None and verdict not in (expected, NOT_FOLDED, None):
        broken = (
            _BROKEN_BY_ACCEPTING.get(f"{case.form}: {expected}")
            or _BROKEN_BY_ACCEPTING.get(expected)
            if case.is_accepted
            else None
        )
        text = f"{case.what} was {verdict}; the audit expects {expected}"
        yield _finding(RULES[broken or "verdict_differs"], case.fact, Violation(text))
    for each, check in _CHECKS[kind]:
        if follows and each.name in EXPLAINED_BY_DAMAGE:
            continue
        for violation in check(case):
            yield _finding(each, case.fact, violation)


def _finding(broken: Rule, fact: Fact, violation: Violation) -> Finding:
    publisher = (
        (fact.record or {}).get("publisher") if violation.subject is None else violation.publisher
    )
    offsets = (
        *sorted({offset for offset in violation.offsets if offset < fact.offset}),
        fact.offset,
    )
    name = publisher if type(publisher) is str else None
    return broken.finding(
        violation.subject or fact.subject,
        violation.text,
        offsets=offsets,
        at_ms=fact.at_ms,
        publisher=name,
    )


# --- rules about any record, which the verdicts alone show ---

verdict_differs: Final = Rule(
    name="verdict_differs",
    subject="log",
    severity="alarm",
    says="The fold and the audit have the same verdict on each record.",
    means="One of them is wrong: brokers of different versions may disagree about who owns what.",
    remedy=REPORT_A_BUG,
)
wrong_actor: Final = Rule(
    name="wrong_actor",
    subject="bundle",
    severity="alarm",
    says="Only the party that the transition table names proposes a step.",
    means=(
        "Somebody wrote in the name of a broker. That broker may still serve a bundle that it gave"
        " away according to the log."
    ),
    remedy=STOP_THE_WRITER,
    accepted_instead_of=("not_the_actor",),
)
unfit_target: Final = Rule(
    name="unfit_target",
    subject="bundle",
    severity="alarm",
    says=(
        "A bundle is given only to a live broker that does not drain and serves its namespace, and"
        " not while that is being deleted."
    ),
    means=(
        "A bundle waits for a broker that will not open it, or the deletion of a namespace cannot"
        " end."
    ),
    remedy=REPORT_A_BUG,
    accepted_instead_of=("dead_target", "draining_target", "not_served", "namespace_deleting"),
)
stale_accepted: Final = Rule(
    name="stale_accepted",
    subject="bundle",
    severity="alarm",
    says=(
        "A record is accepted only if its key has not changed since the offset that the record"
        " expects."
    ),
    means="A broker's decision was undone by another broker that had not read it.",
    remedy=REPORT_A_BUG,
    accepted_instead_of=("stale",),
)
sequence_fell: Final = Rule(
    name="sequence_fell",
    subject="broker",
    severity="alarm",
    says="A record is accepted only if its number is above all earlier numbers of its incarnation.",
    means="An attempt took effect after its broker had given it up.",
    remedy=REPORT_A_BUG,
    accepted_instead_of=("late",),
)
dead_publisher_accepted: Final = Rule(
    name="dead_publisher_accepted",
    subject="broker",
    severity="alarm",
    says="No record of a dead incarnation is accepted.",
    means=(
        "A broker changed the state after its death. Other brokers may not agree with its decision."
    ),
    remedy=REPORT_A_BUG,
    accepted_instead_of=("dead_publisher",),
)
audit_broken: Final = Rule(
    name="audit_broken",
    subject="log",
    severity="warning",
    says="The audit can check each record.",
    means="A check failed on this record. The audit forgot what it knew of the subject.",
    remedy="Report it as a bug, with the record.",
)


@rule(
    "log",
    "warning",
    on=("log", "broker", "bundle", "namespace"),
    means=(
        "The record refers to something that never existed: it is forged, or meant for another log."
    ),
    remedy=RESTRICT_WRITERS,
)
def baseless(case: Case) -> Violations:
    """A record refers only to what was on the log before it."""
    context, offset = case.fact.context, case.fact.offset
    if case.fact.subject != context.get("checked_by"):
        return
    nothing_at = context.get("nothing_at")
    if context.get("publisher") == "never":
        yield Violation(
            f"{case.what} is signed as incarnation {case.record.get('incarnation')}, which no"
            " broker ever had"
        )
    elif nothing_at is not None and nothing_at >= offset:
        yield Violation(f"{case.what} is based on offset {nothing_at}, which is not below its own")
    elif nothing_at is not None:
        yield Violation(
            f"{case.what} is based on offset {nothing_at}, where no record was accepted: one of the"
            " two is not what was written",
            offsets=(nothing_at,),
        )
