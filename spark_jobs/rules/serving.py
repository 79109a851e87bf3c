"""Check serving evidence: compare when brokers served a bundle with the ownerships on the log.

* Ownerships come from the audit's own state (`follow_holder`), never from the fold.
* An *ownership* is the right of one incarnation to serve the bundle under one token, between two
  offsets of the channel.
* A *stretch* is one document of evidence: from when until when an incarnation served.
* Boot times compare only with stretches of the same boot of one machine. Otherwise wall times
  count, within `CLOCKS_APART_MS`, as far as the time fits at which the log's storage received the
  document: a broker's clock may be hours off.
* A stretch that only the token guards (`by_token`) may outlast its lease and overlap another
  server.
* Evidence does not come through the log. It may be early, late or lost, so missing knowledge is no
  finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeGuard

from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.rule import CHECK_THE_BROKER, CaseKind, Finding, checks_on, rule

CLOCKS_APART_MS: Final = 5_000
"""Largest difference to tolerate between the wall clocks of brokers and of the log."""

COMES_LATE_MS: Final = 10_000
"""How far log time must pass a document's time before the ownership that the document names must
have been read."""

GONE_FOR_MS: Final = 3_600_000
"""Log time after which a deleted bundle is forgotten. Evidence arrives within seconds."""

OWNERSHIPS_MAX: Final = 16
"""Ownerships to remember per bundle. Evidence about older ones is not checked."""

STRETCHES_MAX: Final = 16
"""Stretches to compare per bundle. Evidence about older ones arrived long ago."""

_KINDS: Final[tuple[CaseKind, ...]] = ("evidence", "ownership")
_NS_PER_MS: Final = 1_000_000
_INTEGER_MAX: Final = 2**63 - 1

_TIME_MS_MAX: Final = 253_402_300_799_999
"""End of the year 9999. A timer after a document's time must be one that Spark can set."""

Holder = tuple[int, int]
"""The token and incarnation that may serve a bundle."""


@dataclass(slots=True, kw_only=True)
class OwnershipOnLog:
    """An ownership. `since_ms` is the earliest time its record may have been written; `read_ms` is
    the log's time at that record.
    """

    token: int
    incarnation: int
    since_ms: int
    read_ms: int
    is_over: bool = False


@dataclass(slots=True, kw_only=True)
class Stretch:
    """A stretch of serving.

    * `due_ms`: when its ownership must be known; None once that is checked.
    * `reported`: findings already made about it.
    * `late_ms`: how much later its first document was received than it says. It was late, or the
      broker's clock is behind.
    * `is_within`: its token lies in the part of the log that is or will be read. The ownership
      itself may be unknown: a bundle made by a split or merge inherits a token that is older than
      itself.
    """

    broker: str
    incarnation: int
    token: int
    boot: str
    started_ns: int
    answered_ns: int | None
    lease_deadline_ns: int
    started_ms: int
    answered_ms: int | None
    by_token: bool
    late_ms: int = 0
    due_ms: int | None = None
    is_within: bool = False
    reported: list[str] = field(default_factory=list)

    @property
    def identity(self) -> tuple[int, int, str, int]:
        """What two documents of one stretch have in common."""
        return self.incarnation, self.token, self.boot, self.started_ns

    @property
    def begun_ms(self) -> int:
        """The wall time at which it certainly had begun."""
        return self.started_ms + self.late_ms

    @property
    def end_ns(self) -> int:
        """The last boot time at which it certainly served."""
        return self.started_ns if self.answered_ns is None else self.answered_ns

    @property
    def end_ms(self) -> int:
        """The same as a wall time."""
        return self.started_ms if self.answered_ms is None else self.answered_ms

    def __str__(self) -> str:
        """Return the server, for messages."""
        return f"{self.broker} (incarnation {self.incarnation}, token {self.token})"


@dataclass(slots=True, kw_only=True)
class Serving:
    """What is known of who serves one bundle.

    * `known_from`: every ownership from this offset on is known; None if none is.
    * `written_ms`: when the last record of its ownerships was written, as far as its timestamp is
      credible.
    """

    known_from: int | None = None
    written_ms: int = 0
    ownerships: list[OwnershipOnLog] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Serving:
        """Return it from its JSON object."""
        ownerships, stretches = (
            [OwnershipOnLog(**each) for each in raw["ownerships"]],
            [Stretch(**each) for each in raw["stretches"]],
        )
        return cls(**{**raw, "ownerships": ownerships, "stretches": stretches})

    def due_times(self) -> Iterator[int]:
        """Yield the log times at which `expire_serving` has something to do."""
        return (each.due_ms for each in self.stretches if each.due_ms is not None)

    def is_too_old(self, stretch: Stretch) -> bool:
        """Whether the ownership of a stretch was before all known ones."""
        return self.known_from is not None and stretch.token < self.known_from


# --- state ---


def follow_holder(serving: Serving, holder: Holder | None, fact: Fact) -> Iterator[Finding]:
    """Record that from this fact on `holder` (None for nobody) may serve the bundle.

    Call it for every fact of the channel that changes the holder. Yield findings about evidence
    that waited for this.
    """
    last = serving.ownerships[-1] if serving.ownerships else None
    newest = None if last is None or last.is_over else (last.token, last.incarnation)
    is_first = serving.known_from is None
    if not is_first and newest == holder:
        return
    if is_first:
        serving.known_from = fact.offset
    if last is not None:
        last.is_over = True
    since_ms = serving.written_ms = _written_ms(serving, fact)
    if last is not None and (last.token, last.incarnation) == holder:
        last.is_over = False  # For example after a cancelled split.
    elif holder is not None:
        if is_first and fact.before is not None and holder[0] < fact.offset:
            since_ms = 0  # The ownership began before the audit, so the time is unknown.
        serving.ownerships.append(
            OwnershipOnLog(
                token=holder[0],
                incarnation=holder[1],
                since_ms=since_ms,
                # A log's time that stands still does not show when this was.
                read_ms=_TIME_MS_MAX if fact.context.get("stands") else fact.at_ms,
            )
        )
        if len(serving.ownerships) > OWNERSHIPS_MAX:
            del serving.ownerships[0]
            serving.known_from = serving.ownerships[0].token
    for stretch in serving.stretches:
        case = StretchCase(serving, stretch, is_unowned=_is_known_unowned(serving, stretch))
        yield from _check_rules("ownership", case, fact.subject, fact.at_ms)


def _written_ms(serving: Serving, fact: Fact) -> int:
    """Return when the record of `fact` was written: its own timestamp if that is earlier than the
    log's, as for a copied record.

    Ignore a timestamp from before the bundle's previous record: a forger could make an ownership as
    old as it likes.
    """
    written_ms = (fact.record or {}).get("timestamp_ms")
    if not _is_count(written_ms) or written_ms < max(serving.written_ms - CLOCKS_APART_MS, 1):
        return fact.at_ms
    return min(fact.at_ms, written_ms)


def check_serving(serving: Serving, fact: Fact) -> Iterator[Finding]:
    """Yield what is wrong with one document of evidence. Ignore malformed documents and those of
    another log of the same name.
    """
    document, log = fact.record or {}, fact.context.get("log")
    received_ms = fact.context.get("received_ms") or document.get("at_ms", 0)
    stretch = _stretch(document, received_ms) if log in (None, document.get("log")) else None
    if stretch is None:
        return
    noted_ms = min(document["at_ms"], received_ms)
    stretch = _merged(serving, stretch, max(fact.at_ms, noted_ms) + COMES_LATE_MS)
    is_unowned = _is_known_unowned(serving, stretch)
    if stretch.due_ms is not None:
        is_unowned = _is_read_past(serving, stretch, noted_ms, fact)
    for kind in _KINDS:
        yield from _check_rules(
            kind, StretchCase(serving, stretch, is_unowned), fact.subject, fact.at_ms
        )


def expire_serving(serving: Serving, subject: str, now_ms: int) -> Iterator[Finding]:
    """Yield findings for evidence whose ownership is still unknown at `now_ms` of the log's
    time.
    """
    for stretch in serving.stretches:
        if stretch.due_ms is not None and stretch.due_ms <= now_ms:
            stretch.due_ms = None
            if serving.known_from is not None or stretch.is_within:
                yield from _check_rules(
                    "ownership", StretchCase(serving, stretch, is_unowned=True), subject, now_ms
                )


def _stretch(document: Raw, received_ms: int) -> Stretch | None:
    """Return a document as a stretch; None if it is malformed. `received_ms` is when the log's
    storage got it.
    """
    texts = [document.get(name) for name in ("broker", "boot")]
    counts = [
        document.get(name)
        for name in ("incarnation", "token", "started_ns", "lease_deadline_ns", "at_ms", "at_ns")
    ]
    answered_ns, by_token = document.get("answered_ns"), document.get("by_token", False)
    is_whole = (
        all(type(text) is str for text in texts)
        and all(_is_count(count) for count in counts)
        and type(by_token) is bool
    )
    if (
        not is_whole
        or document["at_ms"] > _TIME_MS_MAX
        or not (answered_ns is None or _is_count(answered_ns))
    ):
        return None
    late_ms = received_ms - document["at_ms"]
    # Nothing is received before it is noted: then the broker's clock is ahead.
    ahead_ms = document["at_ms"] - document["at_ns"] // _NS_PER_MS + min(late_ms, 0)
    return Stretch(
        broker=document["broker"],
        incarnation=document["incarnation"],
        token=document["token"],
        boot=document["boot"],
        started_ns=document["started_ns"],
        answered_ns=answered_ns,
        lease_deadline_ns=document["lease_deadline_ns"],
        started_ms=document["started_ns"] // _NS_PER_MS + ahead_ms,
        answered_ms=None if answered_ns is None else answered_ns // _NS_PER_MS + ahead_ms,
        by_token=by_token,
        late_ms=max(late_ms, 0),
    )


def _merged(serving: Serving, stretch: Stretch, due_ms: int) -> Stretch:
    """Return the remembered stretch, updated with that of a document."""
    known = next((each for each in serving.stretches if each.identity == stretch.identity), None)
    if known is None:
        stretch.due_ms = due_ms
        serving.stretches.append(stretch)
        del serving.stretches[: max(len(serving.stretches) - STRETCHES_MAX, 0)]
        return stretch
    if stretch.answered_ns is not None:
        known.answered_ns, known.answered_ms = stretch.answered_ns, stretch.answered_ms
        known.lease_deadline_ns, known.by_token = stretch.lease_deadline_ns, stretch.by_token
    return known


def _is_known_unowned(serving: Serving, stretch: Stretch) -> bool:
    """Return whether the known ownerships settle that nobody gave the bundle to a stretch. If none
    matches yet, one may still be read.
    """
    bearing = [
        ownership.incarnation
        for ownership in serving.ownerships
        if ownership.token == stretch.token
    ]
    is_newer = any(ownership.token > stretch.token for ownership in serving.ownerships)
    if stretch.due_ms is None or not (bearing or is_newer or serving.is_too_old(stretch)):
        return False
    stretch.due_ms = None
    return stretch.incarnation not in bearing and (bool(bearing) or not serving.is_too_old(stretch))


def _is_read_past(serving: Serving, stretch: Stretch, reported_ms: int, fact: Fact) -> bool:
    """Return whether the log was read past a stretch without ownership, reported at `reported_ms`.

    If its ownership can never be known (before the reading, after its end, or of a forgotten
    bundle), drop the check. Otherwise wait.
    """
    begin, reached = fact.context.get("begin"), fact.context.get("reached")
    if not _is_count(begin) or not _is_count(reached):
        return False
    is_forgotten = (
        serving.known_from is None and fact.at_ms - reported_ms > GONE_FOR_MS - COMES_LATE_MS
    )
    if (
        stretch.token <= begin
        or (stretch.token > reached and fact.context.get("stopped"))
        or is_forgotten
    ):
        stretch.due_ms = None
    elif stretch.token <= reached and fact.at_ms - reported_ms >= COMES_LATE_MS:
        stretch.due_ms = None
        return True
    else:
        stretch.is_within = True
    return False


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _INTEGER_MAX


# --- rules ---


class StretchCase(NamedTuple):
    """A stretch, and whether it is certain that the log never gave it the bundle."""

    serving: Serving
    stretch: Stretch
    is_unowned: bool

    @property
    def newer(self) -> OwnershipOnLog | None:
        """The first known ownership with a greater token."""
        return next(
            (each for each in self.serving.ownerships if each.token > self.stretch.token), None
        )


class Fault(NamedTuple):
    """A fault of a stretch. It is reported once for each `other`."""

    stretch: Stretch
    text: str
    offsets: tuple[int, ...]
    other: int | None = None


def _check_rules(kind: CaseKind, case: StretchCase, subject: str, at_ms: int) -> Iterator[Finding]:
    """Check all rules of one kind about a stretch, and yield the new findings."""
    for broken, check in checks_on(kind):
        for fault in check(case):
            key = broken.name if fault.other is None else f"{broken.name} {fault.other}"
            if key not in fault.stretch.reported:
                fault.stretch.reported.append(key)
                yield broken.finding(
                    subject,
                    fault.text,
                    offsets=fault.offsets,
                    at_ms=at_ms,
                    publisher=fault.stretch.broker,
                )


@rule(
    "bundle",
    "alarm",
    on=("ownership",),
    means="A broker served a bundle that it did not own.",
    remedy=CHECK_THE_BROKER,
)
def served_without_ownership(case: StretchCase) -> Iterator[Fault]:
    """A broker serves a bundle only in an ownership that the log gave it."""
    if case.is_unowned:
        text = (
            f"{case.stretch} served the bundle, but the log never gave it to that incarnation under"
            " that token"
        )
        yield Fault(case.stretch, text, offsets=(case.stretch.token,))


@rule(
    "bundle",
    "alarm",
    on=("evidence",),
    means=(
        "One broker may have overwritten what the other wrote, if the store does not check tokens."
    ),
    remedy="Compare what both brokers wrote to their stores at that time.",
)
def served_two_at_once(case: StretchCase) -> Iterator[Fault]:
    """No two brokers serve a bundle at one time."""
    for other in case.serving.stretches:
        if other.incarnation == case.stretch.incarnation or other.by_token or case.stretch.by_token:
            continue
        together_ms = _together_ms(case.stretch, other)
        if together_ms > 0:
            first, second = sorted(
                (case.stretch, other), key=lambda each: (each.token, each.incarnation)
            )
            offsets = (first.token, second.token) if first.token < second.token else (first.token,)
            yield Fault(
                first,
                f"{first} and {second} served at the same time, for at least {together_ms:.0f} ms",
                offsets,
                second.started_ns,
            )


def _together_ms(one: Stretch, other: Stretch) -> float:
    """Return for how many milliseconds two stretches certainly overlap; 0 if unknown. One without
    an end is a moment.
    """
    if one.boot == other.boot and one.boot:
        overlap_ns = min(one.end_ns, other.end_ns) - max(one.started_ns, other.started_ns)
        if overlap_ns > 0:
            return overlap_ns / _NS_PER_MS
        # A stretch without an end that starts inside the other one overlaps it for a moment.
        begun = any(
            a.answered_ns is None and b.started_ns < a.started_ns < b.end_ns
            for a, b in ((one, other), (other, one))
        )
        return 1 / _NS_PER_MS if begun else 0
    return min(one.end_ms, other.end_ms) - max(one.begun_ms, other.begun_ms) - CLOCKS_APART_MS


@rule(
    "bundle",
    "alarm",
    on=("evidence",),
    means="Another broker may have owned the bundle by then.",
    remedy=CHECK_THE_BROKER,
)
def served_past_lease(case: StretchCase) -> Iterator[Fault]:
    """A broker serves nothing after its lease has ended."""
    stretch, answered_ns = case.stretch, case.stretch.answered_ns
    if (
        answered_ns is not None
        and answered_ns > max(stretch.lease_deadline_ns, stretch.started_ns)
        and not stretch.by_token
    ):
        late_ms = (answered_ns - stretch.lease_deadline_ns) / _NS_PER_MS
        yield Fault(
            stretch,
            f"{stretch} answered {late_ms:.0f} ms after the end of its lease",
            offsets=(stretch.token,),
        )


@rule(
    "bundle",
    "alarm",
    on=("ownership",),
    means="A store that checks tokens refuses the broker. In other stores, two brokers write.",
    remedy=CHECK_THE_BROKER,
)
def served_old_token(case: StretchCase) -> Iterator[Fault]:
    """A broker serves with the token of the present ownership."""
    stretch, newer = case.stretch, case.newer
    if (
        newer is not None
        and not stretch.by_token
        and stretch.end_ms > newer.read_ms + CLOCKS_APART_MS
    ):
        text = (
            f"{stretch} still served {stretch.end_ms - newer.read_ms} ms after the bundle got the"
            f" token {newer.token}"
        )
        yield Fault(stretch, text, offsets=(stretch.token, newer.token))


@rule(
    "bundle",
    "alarm",
    on=("ownership",),
    means="The former owner may have served the bundle too.",
    remedy=CHECK_THE_BROKER,
)
def served_before_owned(case: StretchCase) -> Iterator[Fault]:
    """A broker serves a bundle only after the record that gives it the bundle is on the log."""
    stretch, identity = case.stretch, (case.stretch.token, case.stretch.incarnation)
    own = next(
        (each for each in case.serving.ownerships if (each.token, each.incarnation) == identity),
        None,
    )
    if own is not None and stretch.begun_ms < own.since_ms - CLOCKS_APART_MS:
        early_ms = own.since_ms - stretch.begun_ms
        text = (
            f"{stretch} began to serve {early_ms} ms before the record that gave it the bundle was"
            " written"
        )
        yield Fault(stretch, text, offsets=(stretch.token,))
