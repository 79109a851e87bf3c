"""Check the facts of one broker: the records that it signs, the records of its key, and its leases.

Lease times are log times, from append to append. The accuser reads the last renewal, waits for
lease and grace period, and appends. So the two appends are at least that far apart, less the error
of the accuser's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Literal, Self

import orjson

from equipoise.spark_jobs.rules.bundle import state_differs
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject
from equipoise.spark_jobs.rules.membership.members import APPEND_TIME_ERROR_MS, LIVE
from equipoise.spark_jobs.rules.memory import Memory
from equipoise.spark_jobs.rules.rejections import RejectionCase, Rejections
from equipoise.spark_jobs.rules.rule import (
    NOT_FOLDED,
    RESTRICT_WRITERS,
    Finding,
    Violation,
    Violations,
    baseless,
    check_rules,
    rule,
)

LASTS_MAX: Final = 64
"""Accepted offsets of the key to keep. At one renewal per second that is a minute, and no proposal
is that late."""
INCARNATIONS_MAX: Final = 16
"""Incarnations to keep. Records from sixteen incarnations ago no longer arrive."""
ATTEMPTS_MAX: Final = 64
"""Sequences whose attempts to keep. A broker has far fewer in flight, except when it places many
bundles at once."""
FORGOTTEN_AFTER_MS: Final = 3_600_000
"""Log time after which a removed or invented broker id is forgotten. Anyone can invent ids."""
CLOCK_RATE_ERROR_PERCENT: Final = 3
"""Largest error of the accuser's clock rate. A broker's default grace period allows for as much."""

Status = Literal["unknown", "up", "draining", "left", "down", "gone"]
_STATUS_AFTER: Final[dict[str, Status]] = {
    "joined": "up",
    "draining": "draining",
    "left": "left",
    "down": "down",
    "removed": "gone",
}


@dataclass(slots=True, kw_only=True)
class BrokerMemory(Memory):
    """What is known of one broker id.

    What is before `begun` is unknown (None, or `status` `unknown`), and no rule uses it.

    * `incarnation`: the newest one, alive or not.
    * `lasts`, `incarnations`: the newest accepted offsets of the key, and of its `joined` records.
    * `attempts`: by sequence, [hash, offset] of each of the newest attempts of the incarnation
      `attempts_of`.
    """

    status: Status = "unknown"
    incarnation: int | None = None
    lasts: list[int] = field(default_factory=list)
    incarnations: list[int] = field(default_factory=list)
    attempts_of: int | None = None
    attempts: dict[str, list[list[int]]] = field(default_factory=dict)
    rejections: Rejections = field(default_factory=Rejections)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """See `Memory`."""
        return cls(**{**raw, "rejections": Rejections(**raw["rejections"])})

    def check(self, fact: Fact) -> Iterator[Finding]:
        """See `Memory`."""
        if fact.record is None or fact.verdict in (None, NOT_FOLDED):
            return
        if self.status == "unknown" and fact.before is not None:
            self.adopt(fact.before)
        case = BrokerCase(fact, self)
        if case.is_publisher:
            case.count(self.rejections, case.name)
        yield from check_rules("broker", case)
        if case.is_attempt:
            self.add_attempt(
                case.record["incarnation"], case.record["sequence"], case.digest, fact.offset
            )
        if case.is_of_key and case.is_accepted:
            self.follow(fact.offset, fact.record)
        self.forget_ms = (
            fact.at_ms + FORGOTTEN_AFTER_MS if self.status in ("unknown", "gone") else None
        )

    def adopt(self, before: Raw) -> None:
        """Take over the fold's state of a broker that is older than the audit's reading."""
        self.status, self.incarnation = before["status"], before["incarnation"]
        self.incarnations = [before["incarnation"]]
        self.lasts = [] if before.get("last") is None else [before["last"]]

    def follow(self, offset: int, record: Raw) -> None:
        """Apply an accepted record of this broker's key."""
        status = record["status"]
        self.status, self.incarnation = self.after(offset, record)
        if status == "joined":
            self.incarnations = [*self.incarnations, offset][-INCARNATIONS_MAX:]
        # A record after a removal expects the offset of the last removal of any key. This broker's
        # facts do not show that.
        self.lasts = [] if status == "removed" else [*self.lasts, offset][-LASTS_MAX:]

    def after(self, offset: int, record: Raw) -> tuple[Status, int | None]:
        """Return the status and incarnation after an accepted record of this broker's key."""
        return _STATUS_AFTER.get(record["status"], self.status), (
            offset if record["status"] == "joined" else self.incarnation
        )

    def add_attempt(self, incarnation: int, sequence: int, digest: int, offset: int) -> None:
        """Remember an attempt."""
        if incarnation != self.attempts_of:
            self.attempts_of, self.attempts = incarnation, {}
        self.attempts.setdefault(str(sequence), []).append([digest, offset])
        if len(self.attempts) > ATTEMPTS_MAX:
            del self.attempts[next(iter(self.attempts))]


class BrokerCase(RejectionCase):
    """A record that a broker published, or one of its key, and what was known before it."""

    def __init__(self, fact: Fact, known: BrokerMemory) -> None:
        super().__init__(fact)
        self.known = known
        self.is_publisher = self.record.get("publisher") == self.name
        self.is_of_key = self.record.get("kind") == "broker" and self.record.get("key") == self.name
        self.incarnation, self.sequence = (
            self.record.get("incarnation"),
            self.record.get("sequence"),
        )
        self.is_signed = (
            self.is_publisher and type(self.incarnation) is int and type(self.sequence) is int
        )

    @property
    def is_attempt(self) -> bool:
        """Whether it is signed with this broker's name by an incarnation that may have existed."""
        return self.is_signed and self.fact.verdict != "dead_publisher"

    @cached_property
    def digest(self) -> int:
        """A hash of the record. 56 bits fit in a JSON number without loss."""
        return int.from_bytes(
            blake2b(orjson.dumps(self.record, option=orjson.OPT_SORT_KEYS), digest_size=7).digest(),
            "little",
        )


# --- attempts ---


@rule(
    "broker",
    "alarm",
    means="Two processes write as one incarnation, or one record is forged.",
    remedy=RESTRICT_WRITERS,
)
def sequence_reused(case: BrokerCase) -> Violations:
    """An incarnation gives each of its attempts its own number."""
    # Late, repeated or reordered records are normal, and the fold rejects them. Two different
    # records with one number are not.
    known = (
        case.known.attempts.get(str(case.sequence), ())
        if case.is_attempt and case.known.attempts_of == case.incarnation
        else ()
    )
    for digest, offset in known:
        if digest != case.digest:
            yield Violation(
                f"two different records are signed as attempt {case.sequence} of {case.name}"
                f" (incarnation {case.incarnation}), at {offset} and here: one of them is forged,"
                " or two processes write in this name",
                offsets=(offset,),
            )
            return


@baseless.also("broker")
def incarnation_existed(case: BrokerCase) -> Violations:
    """Check the incarnation of a dead publisher: a broker uses it only after it has read its
    accepted `joined` record.
    """
    incarnation, known = case.record.get("incarnation"), case.known.incarnations
    if not case.is_signed or case.is_attempt or type(incarnation) is not int:
        return
    if incarnation >= case.fact.offset or (
        known and incarnation > known[0] and incarnation not in known
    ):
        yield Violation(f"it is signed as incarnation {incarnation}, which this broker never was")


@baseless.also("broker")
def expected_offset_existed(case: BrokerCase) -> Violations:
    """Check that a record of this broker's key expects an offset of the key, not of another one."""
    expected_offset, lasts = case.record.get("expected_offset"), case.known.lasts
    if (
        not case.is_of_key
        or type(expected_offset) is not int
        or case.fact.context.get("nothing_at") == expected_offset
    ):
        return
    if lasts and lasts[0] < expected_offset < lasts[-1] and expected_offset not in lasts:
        yield Violation(
            f"it expects offset {expected_offset}, where no record of its key was accepted",
            offsets=(expected_offset,),
        )


@rule(
    "broker",
    "warning",
    means="A broker that has left still works, or somebody writes in its name.",
    remedy="Find out whether a process runs with this broker's id, and restrict who can write.",
)
def writes_after_leaving(case: BrokerCase) -> Violations:
    """The record with which a broker leaves is its last."""
    if case.is_signed and case.is_publisher and case.fact.context.get("publisher") == "left":
        yield Violation(f"{case.what} is signed as incarnation {case.incarnation}, which had left")


# --- leases ---


@rule(
    "broker",
    "alarm",
    means=("Two brokers may have served its bundles at once."),
    remedy="Look at the log lines and the clock of the broker that wrote the record.",
)
def premature_down(case: BrokerCase) -> Violations:
    """A broker is declared dead only after its lease and grace period have passed without a
    renewal.
    """
    # A record with an instance id needs no silence.
    if (
        case.is_of_key
        and case.is_accepted
        and case.record["status"] == "down"
        and case.record.get("instance_id") is None
    ):
        yield from _too_early(case, f"{case.record['publisher']} declared it dead")


@rule(
    "broker",
    "alarm",
    instead_of=("broker joined: still_alive",),
    means="Two processes of one broker id may serve at once.",
    remedy="Find out whether two processes run with this broker's id, and stop one.",
)
def premature_join(case: BrokerCase) -> Violations:
    """A broker replaces its own live incarnation only with that one's instance id, or after its
    lease, or its extension if that is longer, and the grace period in proportion.
    """
    member, record = case.fact.context.get("member"), case.record
    if member is None or not (case.is_of_key and case.is_accepted and record["status"] == "joined"):
        return
    # A process that found the instance id in its data directory need not wait.
    if record.get("after_silence") is True and record.get("replaces") != member["instance_id"]:
        what = "it joined anew after silence"
        yield from _too_early(case, what, extend_ms=member.get("extend_ms", 0))


def _too_early(case: BrokerCase, what: str, *, extend_ms: int = 0) -> Violations:
    """Check that an accepted record which ends a silent incarnation came late enough. A broker that
    gives no assurances waits for the end of the extension, if `extend_ms` exceeds the lease.

    A lease from before the audit, or one during which the log's time stood still, cannot be
    checked.
    """
    context = case.fact.context
    member = context.get("member")
    if (
        member is None
        or member["status"] not in LIVE
        or member["last_at_ms"] is None
        or context.get("timeless")
    ):
        return
    # An accuser that was away, or has just joined, missed renewals. It counts silence from its own
    # return.
    since_ms: int = member["last_at_ms"]
    back_ms: int = context.get("accuser_back_ms", since_ms)
    silence_ms = case.fact.at_ms - max(since_ms, back_ms) + context.get("unseen_ms", 0)
    patience_ms = member["lease_ms"] + member["grace_ms"]
    waits_ms = max(patience_ms, extend_ms * patience_ms // member["lease_ms"])
    least_ms = waits_ms * (100 - CLOCK_RATE_ERROR_PERCENT) // 100 - APPEND_TIME_ERROR_MS
    if silence_ms < least_ms:
        since = (
            f"its last record is at offset {member['last']}"
            if since_ms >= back_ms
            else "counted from the accuser's own return"
        )
        yield Violation(
            f"{what} {least_ms - silence_ms} ms before the lease and grace period of incarnation"
            f" {member['incarnation']} ended ({since})",
            offsets=(member["last"],),
        )


@rule(
    "broker",
    "alarm",
    instead_of=("broker down: still_alive",),
    means=("The broker may still serve."),
    remedy=RESTRICT_WRITERS,
)
def false_proof(case: BrokerCase) -> Violations:
    """A proof of death is the instance id of the live incarnation."""
    if (
        case.is_of_key
        and case.record.get("status") == "down"
        and case.fact.verdict == "still_alive"
    ):
        yield Violation(
            f"{case.record.get('publisher')} tried to declare it dead with an instance id that is"
            " not the live incarnation's"
        )


@rule(
    "broker",
    "warning",
    means="Nobody serves its bundles, and the other brokers do not notice.",
    remedy="Check whether any broker is alive, and look at its log lines.",
)
def silent_too_long(case: BrokerCase) -> Violations:
    """A broker that has fallen silent is declared dead by another one, as long as any broker
    writes. Time is the log's time.
    """
    # The membership finds these: a silent broker gets no facts of its own, so the facts of live
    # publishers carry them.
    for name, last, last_at_ms in case.fact.context.get("silent", ()) if case.is_publisher else ():
        when = (
            ""
            if last_at_ms is None
            else f", {(case.fact.at_ms - last_at_ms) // 1_000} s ago in the log's time"
        )
        text = (
            f"its last renewal is at offset {last}{when}, and nobody declared it dead: its bundles"
            " may be unserved"
        )
        yield Violation(text, offsets=(last,), subject=subject("broker", name), publisher=name)


# --- views ---


@rule(
    "broker",
    "alarm",
    means=("The broker's view is damaged, or its version has other rules."),
    remedy=(
        "Restart the broker, so that it reads the log again. If it differs again, compare versions."
    ),
)
def digest_differs(case: BrokerCase) -> Violations:
    """The digest that a broker writes with its renewal is that of the view which the log gives."""
    if case.is_of_key and case.is_accepted and (case.fact.after or {}).get("diverged"):
        gap = case.fact.context.get("gap")
        missing = (
            ""
            if gap is None
            else f"; the log has no entry from {gap[0]} to {gap[1]}, which may be why"
        )
        yield Violation(
            "the digest of this renewal is not that of the view: this broker has another state than"
            f" the log gives{missing}"
        )


@state_differs.also("broker")
def broker_state_differs(case: BrokerCase) -> Violations:
    """Compare the fold's status and incarnation of the broker with those that its records give."""
    after = case.fact.after
    if after is None or not (case.is_of_key and case.is_accepted):
        return
    status, incarnation = case.known.after(case.fact.offset, case.record)
    if status != "unknown" and (status, incarnation) != (after["status"], after["incarnation"]):
        fold = f"{after['status']} as {after['incarnation']}"
        yield Violation(
            f"by its records it is {status} as incarnation {incarnation}, by the fold {fold}"
        )
