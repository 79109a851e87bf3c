"""Check the log as a whole: unreadable entries, genesis records, format version, log time, lost
records and admins' rejected records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.forms import ADMIN
from equipoise.spark_jobs.rules.memory import Memory
from equipoise.spark_jobs.rules.rejections import RejectionCase, Rejections
from equipoise.spark_jobs.rules.rule import (
    RESTRICT_WRITERS,
    Finding,
    Violation,
    Violations,
    check_rules,
    rule,
)

GENESIS_RACE_MS: Final = 120_000
"""How long after the accepted genesis a broker's own genesis may still arrive.

Brokers that start together on an empty log each write one. It may be late after an interrupted
start; a producer retries for two minutes.
"""

ADMINS_GENESIS_RACE_MS: Final = 10_000
"""The same limit for an admin's genesis: the admin's command has ended with an error by then."""

TIME_FELL_MS_MIN: Final = 1_000
"""Smaller steps back are normal between two writers or two synchronised clocks."""

_CHECK_THE_CLOCK: Final = "Check the clock of the machine that stores the log."
_RESTORE: Final = (
    "Check the storage. Run `equipoise channel verify`, and recover the log from a copy."
)
_TIME_STANDS_STILL: Final = (
    "Until the clock has caught up, the log's time stands still, and rules about durations find"
    " nothing."
)
_NO_RECORD: Final = {
    "garbage": "these bytes are no record",
    "malformed": "it does not have the form of a record",
}
_STOPS: Final = ("log_went_back", "level_too_new", "channel_incomplete", "begun_above")


@dataclass(slots=True, kw_only=True)
class LogMemory(Memory):
    """What is known of the log: offset and time of the genesis, and rejected records of admins."""

    genesis: int | None = None
    genesis_ms: int | None = None
    rejections: Rejections = field(default_factory=Rejections)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """See `Memory`."""
        return cls(**{**raw, "rejections": Rejections(**raw["rejections"])})

    def check(self, fact: Fact) -> Iterator[Finding]:
        """See `Memory`."""
        case = LogCase(fact, self)
        if case.is_by_admin:
            case.count(self.rejections, str(case.publisher))
        yield from check_rules("log", case)
        if case.is_accepted and case.form == "genesis":
            self.genesis, self.genesis_ms = fact.offset, fact.at_ms

    @property
    def forgets_at_gaps(self) -> bool:
        """See `Memory`. A gap does not change how the log began."""
        return False


class LogCase(RejectionCase):
    """An event of the log, or a record. Unknown events break no rule."""

    def __init__(self, fact: Fact, known: LogMemory) -> None:
        # A finding about a note carries the channel's last folded offset, because the note's own
        # offset is not one of the channel.
        self.note = fact if (fact.after or {}).get("event") == "unreadable_note" else None
        super().__init__(
            fact if self.note is None else replace(fact, offset=fact.context["reached"])
        )
        self.known = known
        self.details = fact.after or {}
        self.event = self.details.get("event")
        self.publisher = self.record.get("publisher")
        self.is_by_admin = str(self.publisher).startswith(ADMIN)
        self.earlier_genesis = () if known.genesis is None else (known.genesis,)


# --- entries and events ---


@rule(
    "log",
    "warning",
    instead_of=("malformed",),
    means=("Another program writes to the log, or stored entries were damaged."),
    remedy=RESTRICT_WRITERS,
)
def malformed(case: LogCase) -> Violations:
    """Each entry of the log is a record."""
    if case.event in _NO_RECORD:
        yield Violation(f"{_NO_RECORD[case.event]}: {case.details.get('problem')}")


@rule(
    "log",
    "alarm",
    means=("A broker that reads the entry now cannot go on."),
    remedy=_RESTORE,
)
def entry_damaged(case: LogCase) -> Violations:
    """Each entry is as it was written."""
    if case.event == "damaged":
        yield Violation("the entry does not match its checksum, so what it was is unknown")


@rule(
    "log",
    "alarm",
    means=("Brokers that read the missing entries have another state than the log gives."),
    remedy=_RESTORE,
)
def entries_missing(case: LogCase) -> Violations:
    """No entry disappears from the log."""
    # A log may skip offsets, so a gap alone proves nothing.
    if case.event == "entries_missing":
        first, last = case.details["from"], case.details["to"]
        missing = f"no entry at {first}" if first == last else f"no entry from {first} to {last}"
        yield Violation(
            f"the log has {missing}, but this record refers to it: it was removed, or the record is"
            " forged",
            offsets=(first, last),
        )


@rule(
    "log",
    "notice",
    means=("Brokers accepted records that the audit must reject. It does not report each of them."),
    remedy=_RESTORE,
)
def damage_spreads(case: LogCase) -> Violations:
    """No record depends on a damaged or missing one."""
    if case.event == "damage_spreads":
        damage = case.details["damage"]
        yield Violation(
            f"from here on records are rejected because of what is damaged or missing at {damage};"
            " they are not reported one by one",
            offsets=(damage,),
        )


@rule(
    "log",
    "warning",
    means=(
        "Another program writes there, or stored documents were damaged. The audit ignores them."
    ),
    remedy="Look at that offset of the topic or table that is named, and find out who wrote it.",
)
def unreadable_note(case: LogCase) -> Violations:
    """Each document about decisions, loads and serving can be read."""
    if case.note is not None:
        yield Violation(
            f"the entry at offset {case.note.offset} of {case.note.source} is not a document of"
            " that kind"
        )


@rule(
    "log",
    "notice",
    means="The clock of the log's machine was set back, or had been ahead. Leases are not harmed. "
    + _TIME_STANDS_STILL,
    remedy=_CHECK_THE_CLOCK,
)
def time_fell(case: LogCase) -> Violations:
    """The time of the log does not fall."""
    if case.event == "time_fell" and case.details["by_ms"] >= TIME_FELL_MS_MIN:
        yield Violation(f"the log's time is {case.details['by_ms']} ms less than it was before")


@rule(
    "log",
    "notice",
    means="One entry had a time in the future. " + _TIME_STANDS_STILL,
    remedy=(
        f"{_CHECK_THE_CLOCK} If the time lies too far ahead to wait for it, copy the channel to"
        " another log, and audit that one."
    ),
)
def time_leapt(case: LogCase) -> Violations:
    """The time of the log does not leap ahead of all clocks."""
    if case.event == "time_leapt":
        yield Violation(
            f"the log's time leapt ahead by {case.details['by_ms']} ms, and is"
            f" {case.details['stands_ms']} ms ahead of the newest record: until that time has"
            " passed, the log's time stands still, and rules about durations find nothing"
        )


@rule(
    "log",
    "warning",
    means=("The log was truncated, or lost records, before the audit had read them."),
    remedy="Keep the audit running, or let the channel keep more records.",
)
def records_lost(case: LogCase) -> Violations:
    """The audit reads each record."""
    # A log may skip offsets, and below its beginning it is unknown which of them had a record.
    if case.event == "records_lost":
        yield Violation(
            f"the offsets from {case.details['from']} to {case.details['to'] - 1} are lost: the log"
            " was truncated before the audit had read them"
        )


@rule(
    "log",
    "notice",
    means=("The log was closed when its channel was copied to another one."),
    remedy="Audit the log that the finding names, with an archive of its own.",
)
def log_closed(case: LogCase) -> Violations:
    """The channel continues in the log that is audited."""
    if case.event == "log_closed":
        where = case.details.get("copied_to") or "a log that its last record does not name"
        yield Violation(
            f"it was closed when its channel was copied: the channel continues at {where}"
        )


@rule(
    "log",
    "alarm",
    means=("No later record is audited."),
    remedy=(
        "Read the finding's text. Then audit the right log with an archive of its own, or with a"
        " newer version."
    ),
)
def folding_stopped(case: LogCase) -> Violations:
    """The audit can fold the log to its end."""
    if case.event in _STOPS:
        problem = case.details.get("problem", "the log was put back, or is another one")
        yield Violation(f"no further record can be folded ({case.event}): {problem}")


# --- format version and genesis ---


@rule(
    "log",
    "warning",
    instead_of=("level",),
    means="It was written by a version of Equipoise to which the cluster was not raised.",
    remedy=(
        "Raise the format version when all brokers support it, or bring back the version that wrote"
        " the record."
    ),
)
def above_level(case: LogCase) -> Violations:
    """No record needs a higher format version than the one in force."""
    level = case.record.get("level")
    # If it needs no such level, a broker's record is rejected because the broker supports too few.
    if case.fact.verdict == "level" and type(level) is int and level > 1:
        yield Violation(f"it needs format version {level}, but this channel was not raised to it")


@rule(
    "log",
    "alarm",
    instead_of=("level: level",),
    means="A live broker does not know the rules that are now in force.",
    remedy="Upgrade that broker to a version that supports the format version.",
)
def level_raised_early(case: LogCase) -> Violations:
    """The format version is raised only when every live broker supports it."""
    level = case.record.get("level")
    if (
        case.fact.verdict == "level"
        and case.form == "level"
        and not (type(level) is int and level > 1)
    ):
        text = (
            f"{case.publisher} tried to raise the format version to {case.record.get('raises_to')},"
            " which not every live broker supports"
        )
        yield Violation(text)


@rule(
    "log",
    "alarm",
    instead_of=("foreign_genesis",),
    means="A broker of another cluster was started with this log.",
    remedy="Give the other cluster its own log.",
)
def foreign_genesis(case: LogCase) -> Violations:
    """A log belongs to one cluster."""
    if case.form == "genesis" and case.fact.verdict == "foreign_genesis":
        yield Violation(
            f"{case.publisher} of cluster {case.record.get('cluster')} started with this log",
            offsets=case.earlier_genesis,
        )


@rule(
    "log",
    "warning",
    instead_of=("genesis: stale",),
    means="Somebody wrote a second genesis to a log that existed already.",
    remedy=RESTRICT_WRITERS,
)
def genesis_twice(case: LogCase) -> Violations:
    """A log begins once."""
    if case.form != "genesis" or case.is_accepted or case.fact.verdict == "foreign_genesis":
        return
    race_ms = ADMINS_GENESIS_RACE_MS if case.is_by_admin else GENESIS_RACE_MS
    if case.known.genesis_ms is None or case.fact.at_ms - case.known.genesis_ms > race_ms:
        yield Violation(
            f"{case.publisher} began the log again, which was rejected as {case.fact.verdict}",
            offsets=case.earlier_genesis,
        )
