"""Check the log as a whole: unreadable entries, genesis records, format version, log time, lost records and admins' rejected records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from equipoise.spark_jobs.rules.catalogue import finding
from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Memory, due_alarms, load, save
from equipoise.spark_jobs.rules.rejections import Rejections, check_rejection
from equipoise.spark_jobs.rules.telling import ALARM, Marks, bounded, tell_held_back, told, wake_for_held_back
from equipoise.spark_jobs.rules.verdicts import ACCEPTED, NOT_FOLDED, compare_opinions

NAME: Final = "log"

GENESIS_RACE_MS: Final = 120_000
"""How long after the accepted genesis a broker's own genesis may still arrive.

Brokers that start together on an empty log each write one. It may be late after an interrupted start; a producer retries for two minutes.
"""

ADMINS_GENESIS_RACE_MS: Final = 10_000
"""The same limit for an admin's genesis: the admin's command has ended with an error by then."""

TIME_FELL_MS_MIN: Final = 1_000
"""Smaller steps back are normal between two writers or two synchronised clocks."""

ADMIN: Final = "admin:"

_NO_RECORD: Final = {
    "garbage": "these bytes are no record",
    "malformed": "it is spelled as no record is",
    "null": "an entry without a value stands where records do",
}


@dataclass(slots=True, kw_only=True)
class Record:
    """What the audit remembers of the log."""

    genesis: int | None = None
    genesis_ms: int | None = None
    rejections: Rejections = field(default_factory=Rejections)
    told: Marks = field(default_factory=dict)


class LogChecker:
    """Check the facts of the log, in order of their offsets."""

    def check(self, memory: Memory, fact: Fact) -> Iterator[Finding]:
        """Yield what is wrong with the log at this fact."""
        known = _recall(memory)
        yield from _check_event(known, fact)
        yield from bounded(known.told, fact, compare_opinions(fact))
        record = fact.record
        if record is not None:
            yield from _check_record(known, fact, record)
        wake_for_held_back(memory, known.told)
        save(memory, NAME, known)

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterator[Finding]:
        """Report how many findings were held back."""
        if ALARM in due_alarms(memory, now_ms):
            known = _recall(memory)
            yield from tell_held_back(known.told, subject, now_ms)
            wake_for_held_back(memory, known.told)
            save(memory, NAME, known)


def _recall(memory: Memory) -> Record:
    raw = load(memory, NAME)
    return Record() if raw is None else Record(**{**raw, "rejections": Rejections(**raw["rejections"])})


# --- events of the log -----------------------------------------------------------------------------------------------------


def _check_event(known: Record, fact: Fact) -> Iterator[Finding]:
    """Check an event of the log. Ignore unknown events.

    A finding about a note carries the channel's last folded offset, because the note's own offset is not one of the channel.
    """
    event = fact.after or {}
    match event.get("event"):
        case "garbage" | "malformed" | "null" as what:
            yield from told(known.told, fact, "malformed", f"{_NO_RECORD[what]}: {event.get('problem')}")
        case "unreadable_note":
            text = f"what stands at offset {fact.offset} of {fact.source} is no document of those that are kept there"
            yield from told(known.told, replace(fact, offset=fact.context["reached"]), "unreadable_note", text)
        case "time_fell" if event["by_ms"] >= TIME_FELL_MS_MIN:
            yield from told(known.told, fact, "time_fell", f"the log's time is {event['by_ms']} ms less than it was before")
        case "time_leapt":
            text = (
                f"the log's time had leapt ahead by {event['by_ms']} ms, and is {event['stands_ms']} ms ahead of what is written now: "
                "until that is made up for it stands still, and nothing is found that takes time"
            )
            yield from told(known.told, fact, "time_leapt", text)
        case "records_lost":
            # A log may skip offsets. Below its beginning it holds nothing, so the audit cannot know which of these offsets had a record.
            text = (
                f"the audit had not read the offsets from {event['from']} on, below {event['to']}, when the log was truncated there: "
                "what records they had was lost to it"
            )
            yield finding("records_lost", fact, text)
        case "log_closed":
            where = event.get("copied_to") or "a log that its last record leaves out"
            text = f"it was closed when its channel was copied: that goes on at {where}"
            yield from told(known.told, fact, "log_closed", text)
        case "log_went_back" | "level_too_new" | "channel_incomplete" | "begun_above" as what:
            text = f"nothing more can be folded ({what}): {event.get('problem', 'the log was put back, or is another one')}"
            yield from told(known.told, fact, "folding_stopped", text)
        case _:
            pass


# --- records ---------------------------------------------------------------------------------------------------------------


def _check_record(known: Record, fact: Fact, record: Raw) -> Iterator[Finding]:
    kind, publisher = record.get("kind"), record.get("publisher")
    if fact.verdict == "level" and _is_above_level(record):
        text = f"it needs level {record['level']}, to which this channel was not raised: its writer cannot know that this level is in force"
        yield from told(known.told, fact, "above_level", text)
    elif fact.verdict == "level" and kind == "level":
        text = f"{publisher} tried to raise the level to {record.get('raises_to')}, which not every live broker supports"
        yield from told(known.told, fact, "level_raised_early", text)
    if kind == "genesis":
        yield from _check_genesis(known, fact, record)
    rejected = fact.verdict not in (None, ACCEPTED, NOT_FOLDED)
    if rejected and isinstance(publisher, str) and publisher.startswith(ADMIN):
        yield from check_rejection(known.rejections, known.told, fact, publisher)


def _is_above_level(record: Raw) -> bool:
    """Return whether the record needs a higher format version. Else its broker supports too few versions."""
    level = record.get("level")
    return type(level) is int and level > 1


def _race_ms(record: Raw) -> int:
    return ADMINS_GENESIS_RACE_MS if str(record.get("publisher")).startswith(ADMIN) else GENESIS_RACE_MS


def _check_genesis(known: Record, fact: Fact, record: Raw) -> Iterator[Finding]:
    earlier = () if known.genesis is None else (known.genesis,)
    if fact.verdict == "foreign_genesis":
        text = f"{record.get('publisher')} of cluster {record.get('cluster')} took this log for its own"
        yield from told(known.told, fact, "foreign_genesis", text, offsets=earlier)
    elif fact.verdict == ACCEPTED:
        known.genesis, known.genesis_ms = fact.offset, fact.at_ms
    elif known.genesis_ms is None or fact.at_ms - known.genesis_ms > _race_ms(record):
        text = f"{record.get('publisher')} began the log again, which was rejected as {fact.verdict}"
        yield from told(known.told, fact, "genesis_twice", text, offsets=earlier)
