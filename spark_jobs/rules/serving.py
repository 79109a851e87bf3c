"""Check serving evidence: compare when brokers served a bundle with the ownerships on the log.

* Ownerships come from the second rules (`follow_holder`), never from the fold.
* An *ownership* is the right of one incarnation to serve the bundle under one token, between two offsets of the channel.
* A *stretch* is one document of evidence: from when until when an incarnation served.
* Boot times compare only with stretches of the same boot of one machine. Otherwise wall times count, within `CLOCKS_APART_MS`.
* A stretch that only the token guards (`by_token`) may outlast its lease and overlap another server.
* Evidence does not come through the log. It may be early, late or lost, so missing knowledge is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeGuard

import orjson

from equipoise.spark_jobs.rules.catalogue import found
from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Memory, load, set_alarm

ALARM: Final = "serving"
"""Name of the alarm that calls `expire_serving`."""

CLOCKS_APART_MS: Final = 5_000
"""Largest difference to tolerate between the wall clocks of brokers and of the log."""

COMES_LATE_MS: Final = 10_000
"""How far log time must pass a document's time before the ownership that the document names must have been read."""

GONE_FOR_MS: Final = 3_600_000
"""Log time after which a deleted bundle is forgotten. Evidence arrives within seconds."""

OWNERSHIPS_MAX: Final = 16
"""Ownerships to remember per bundle. Evidence about older ones is not checked."""

STRETCHES_MAX: Final = 16
"""Stretches to compare per bundle. Evidence about older ones arrived long ago."""

_NAME: Final = "serving"
_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_INTEGER_MAX: Final = 2**63 - 1

_TIME_MS_MAX: Final = 253_402_300_799_999
"""End of the year 9999. An alarm after a document's time must be one that Spark can set."""

Holder = tuple[int, int]
"""The token and incarnation that may serve a bundle."""


@dataclass(slots=True, kw_only=True)
class _Ownership:
    """An ownership. `since_ms` is the earliest time its record may have been written; `read_ms` is the log's time at that record."""

    token: int
    incarnation: int
    since_ms: int
    read_ms: int
    is_over: bool = False


@dataclass(slots=True, kw_only=True)
class _Stretch:
    """A stretch of serving.

    * `due_ms`: when its ownership must be known; None once that is checked.
    * `told`: findings already made about it.
    * `is_within`: its token lies in the part of the log that is or will be read. The ownership itself may be unknown: a bundle made by a
      split or merge inherits a token that is older than itself.
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
    due_ms: int | None = None
    is_within: bool = False
    told: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _State:
    """What is remembered of one bundle.

    * `known_from`: every ownership from this offset on is known; None if none is.
    * `written_ms`: when the last record of its ownerships was written, as far as its timestamp is credible.
    """

    known_from: int | None = None
    written_ms: int = 0
    ownerships: list[_Ownership] = field(default_factory=list)
    stretches: list[_Stretch] = field(default_factory=list)


def follow_holder(memory: Memory, holder: Holder | None, fact: Fact) -> Iterable[Finding]:
    """Record that from this fact on `holder` (None for nobody) may serve the bundle.

    Call it for every fact of the channel that shows the bundle's state. Return findings about evidence that waited for this.
    """
    state = _loaded(memory)
    newest = state.ownerships[-1] if state.ownerships and not state.ownerships[-1].is_over else None
    if state.known_from is not None and (None if newest is None else (newest.token, newest.incarnation)) == holder:
        return ()
    is_first = state.known_from is None
    if state.known_from is None:
        state.known_from = fact.offset
    if newest is not None:
        newest.is_over = True
    since_ms = state.written_ms = _written_ms(state, fact)
    last = state.ownerships[-1] if state.ownerships else None
    if last is not None and (last.token, last.incarnation) == holder:
        last.is_over = False  # For example after a cancelled split.
    elif holder is not None:
        if is_first and fact.before is not None and holder[0] < fact.offset:
            since_ms = 0  # The ownership began before the audit, so the time is unknown.
        state.ownerships.append(_Ownership(token=holder[0], incarnation=holder[1], since_ms=since_ms, read_ms=fact.at_ms))
        if len(state.ownerships) > OWNERSHIPS_MAX:
            del state.ownerships[0]
            state.known_from = state.ownerships[0].token
    findings = [one for stretch in state.stretches for one in _of_ownerships(state, stretch, fact.subject, fact.at_ms)]
    _keep(memory, state)
    return findings


def _written_ms(state: _State, fact: Fact) -> int:
    """Return when the record of `fact` was written: its own timestamp if that is earlier than the log's, as for a copied record.

    Ignore a timestamp from before the bundle's previous record: a forger could make an ownership as old as it likes.
    """
    said_ms = (fact.record or {}).get("timestamp_ms")
    if not _is_count(said_ms) or said_ms < max(state.written_ms - CLOCKS_APART_MS, 1):
        return fact.at_ms
    return min(fact.at_ms, said_ms)


def forget_serving(memory: Memory) -> None:
    """Forget the bundle's ownerships and stretches after a gap in the reading."""
    memory.remove(_NAME)
    set_alarm(memory, ALARM, None)


def check_serving(memory: Memory, fact: Fact) -> Iterable[Finding]:
    """Return what is wrong with one document of evidence. Ignore malformed documents and those of another log."""
    said = None if _is_of_another_log(fact) else _stretch(fact.record or {})
    if said is None:
        return ()
    state = _loaded(memory)
    stretch = _taken(state, said, fact)
    findings = [
        *_of_lease(stretch, fact.subject, fact.at_ms),
        *_of_others(state, stretch, fact.subject, fact.at_ms),
        *_of_ownerships(state, stretch, fact.subject, fact.at_ms),
    ]
    if stretch.due_ms is not None:
        findings += _if_read_past(state, stretch, (fact.record or {})["at_ms"], fact)
    _keep(memory, state)
    return findings


def expire_serving(memory: Memory, subject: str, now_ms: int) -> Iterable[Finding]:
    """Return findings for evidence whose ownership is still unknown at `now_ms` of the log's time."""
    state = _loaded(memory)
    findings: list[Finding] = []
    for stretch in state.stretches:
        if stretch.due_ms is not None and stretch.due_ms <= now_ms:
            stretch.due_ms = None
            if state.known_from is not None or stretch.is_within:
                findings += _never_owned(stretch, subject, now_ms)
    _keep(memory, state)
    return findings


# --- state ---


def _loaded(memory: Memory) -> _State:
    raw = load(memory, _NAME)
    if raw is None:
        return _State()
    return _State(
        known_from=raw["known_from"],
        written_ms=raw["written_ms"],
        ownerships=[_Ownership(**each) for each in raw["ownerships"]],
        stretches=[_Stretch(**each) for each in raw["stretches"]],
    )


def _keep(memory: Memory, state: _State) -> None:
    memory.put(_NAME, orjson.dumps(state))
    set_alarm(memory, ALARM, min((each.due_ms for each in state.stretches if each.due_ms is not None), default=None))


def _is_of_another_log(fact: Fact) -> bool:
    """Return whether the evidence belongs to an earlier log of the same name."""
    known, said = fact.context.get("log"), (fact.record or {}).get("log")
    return known is not None and said != known


def _stretch(said: Raw) -> _Stretch | None:
    """Return a document as a stretch; None if it is malformed."""
    texts = [said.get(name) for name in ("broker", "boot")]
    counts = [said.get(name) for name in ("incarnation", "token", "started_ns", "lease_deadline_ns", "at_ms", "at_ns")]
    answered_ns, by_token = said.get("answered_ns"), said.get("by_token", False)
    is_whole = all(type(text) is str for text in texts) and all(_is_count(count) for count in counts) and type(by_token) is bool
    if not is_whole or said["at_ms"] > _TIME_MS_MAX or not (answered_ns is None or _is_count(answered_ns)):
        return None
    ahead_ms = said["at_ms"] - said["at_ns"] // _NANOSECONDS_PER_MILLISECOND
    return _Stretch(
        broker=said["broker"],
        incarnation=said["incarnation"],
        token=said["token"],
        boot=said["boot"],
        started_ns=said["started_ns"],
        answered_ns=answered_ns,
        lease_deadline_ns=said["lease_deadline_ns"],
        started_ms=said["started_ns"] // _NANOSECONDS_PER_MILLISECOND + ahead_ms,
        answered_ms=None if answered_ns is None else answered_ns // _NANOSECONDS_PER_MILLISECOND + ahead_ms,
        by_token=by_token,
    )


def _taken(state: _State, said: _Stretch, fact: Fact) -> _Stretch:
    """Return the remembered stretch, updated with the document."""
    key = (said.incarnation, said.token, said.boot, said.started_ns)
    known = next((one for one in state.stretches if (one.incarnation, one.token, one.boot, one.started_ns) == key), None)
    if known is None:
        known = said
        known.due_ms = max(fact.at_ms, fact.record["at_ms"] if fact.record else 0) + COMES_LATE_MS
        state.stretches.append(known)
        del state.stretches[: max(len(state.stretches) - STRETCHES_MAX, 0)]
    elif said.answered_ns is not None:
        known.answered_ns, known.answered_ms = said.answered_ns, said.answered_ms
        known.lease_deadline_ns, known.by_token = said.lease_deadline_ns, said.by_token
    return known


# --- rules ---


def _of_lease(stretch: _Stretch, subject: str, at_ms: int) -> Iterator[Finding]:
    answered_ns = stretch.answered_ns
    if answered_ns is not None and answered_ns > max(stretch.lease_deadline_ns, stretch.started_ns) and not stretch.by_token:
        late_ms = (answered_ns - stretch.lease_deadline_ns) / _NANOSECONDS_PER_MILLISECOND
        text = f"{_who(stretch)} answered {late_ms:.0f} ms after its lease had run out"
        yield from _told(stretch, "served_past_lease", subject, text, offsets=(stretch.token,), at_ms=at_ms)


def _of_others(state: _State, stretch: _Stretch, subject: str, at_ms: int) -> Iterator[Finding]:
    for other in state.stretches:
        if other.incarnation != stretch.incarnation and not (other.by_token or stretch.by_token):
            together_ms = _together_ms(stretch, other)
            if together_ms > 0:
                first, second = sorted((stretch, other), key=lambda one: (one.token, one.incarnation))
                text = f"{_who(first)} and {_who(second)} served at the same time, for {together_ms:.0f} ms at least"
                offsets = (first.token, second.token) if first.token < second.token else (first.token,)
                yield from _told(first, f"served_two_at_once {second.started_ns}", subject, text, offsets=offsets, at_ms=at_ms)


def _together_ms(one: _Stretch, other: _Stretch) -> float:
    """Return for how many milliseconds two stretches certainly overlap; 0 if unknown. One without an end is a moment."""
    if one.boot == other.boot and one.boot:
        overlap_ns = min(_end_ns(one), _end_ns(other)) - max(one.started_ns, other.started_ns)
        if overlap_ns > 0:
            return overlap_ns / _NANOSECONDS_PER_MILLISECOND
        # A stretch without an end that starts inside the other one overlaps it for a moment.
        begun = any(a.answered_ns is None and b.started_ns < a.started_ns < _end_ns(b) for a, b in ((one, other), (other, one)))
        return 1 / _NANOSECONDS_PER_MILLISECOND if begun else 0
    end_ms = min(_end_ms(one), _end_ms(other))
    return end_ms - max(one.started_ms, other.started_ms) - CLOCKS_APART_MS


def _of_ownerships(state: _State, stretch: _Stretch, subject: str, at_ms: int) -> Iterator[Finding]:
    """Check a stretch against the known ownerships. If none matches yet, one may still be read later."""
    bearing = [ownership for ownership in state.ownerships if ownership.token == stretch.token]
    own = next((ownership for ownership in bearing if ownership.incarnation == stretch.incarnation), None)
    newer = next((ownership for ownership in state.ownerships if ownership.token > stretch.token), None)
    if stretch.due_ms is not None and (bearing or newer is not None or _is_too_old(state, stretch)):
        stretch.due_ms = None
        if own is None and (bearing or not _is_too_old(state, stretch)):
            yield from _never_owned(stretch, subject, at_ms)
    if own is not None and stretch.started_ms < own.since_ms - CLOCKS_APART_MS:
        early_ms = own.since_ms - stretch.started_ms
        text = f"{_who(stretch)} began {early_ms} ms before the record that gave it the bundle was written"
        yield from _told(stretch, "served_before_owned", subject, text, offsets=(own.token,), at_ms=at_ms)
    if newer is not None and not stretch.by_token and _end_ms(stretch) > newer.read_ms + CLOCKS_APART_MS:
        late_ms = _end_ms(stretch) - newer.read_ms
        text = f"{_who(stretch)} still served {late_ms} ms after the bundle had got the token {newer.token}"
        yield from _told(stretch, "served_old_token", subject, text, offsets=(stretch.token, newer.token), at_ms=at_ms)


def _is_too_old(state: _State, stretch: _Stretch) -> bool:
    return state.known_from is not None and stretch.token < state.known_from


def _if_read_past(state: _State, stretch: _Stretch, said_ms: int, fact: Fact) -> Iterator[Finding]:
    """Check a stretch without ownership, reported at `said_ms`, against how far the log was read.

    * The log was read past it: yield a finding.
    * Its ownership can never be known (before the reading, after its end, or of a forgotten bundle): drop the check.
    * Otherwise wait.
    """
    begin, reached = fact.context.get("begin"), fact.context.get("reached")
    if not _is_count(begin) or not _is_count(reached):
        return
    is_forgotten = state.known_from is None and fact.at_ms - said_ms > GONE_FOR_MS - COMES_LATE_MS
    if stretch.token <= begin or (stretch.token > reached and fact.context.get("stopped")) or is_forgotten:
        stretch.due_ms = None
    elif stretch.token <= reached and fact.at_ms - said_ms >= COMES_LATE_MS:
        stretch.due_ms = None
        yield from _never_owned(stretch, fact.subject, fact.at_ms)
    else:
        stretch.is_within = True


def _never_owned(stretch: _Stretch, subject: str, at_ms: int) -> Iterator[Finding]:
    text = f"{_who(stretch)} served the bundle, which the log never gave to it under that token"
    return _told(stretch, "served_without_ownership", subject, text, offsets=(stretch.token,), at_ms=at_ms)


def _told(stretch: _Stretch, rule: str, subject: str, text: str, *, offsets: tuple[int, ...], at_ms: int) -> Iterator[Finding]:
    """Yield a finding once per stretch. The first word of `rule` is its name; the rest distinguishes repetitions."""
    if rule not in stretch.told:
        stretch.told.append(rule)
        yield found(rule.partition(" ")[0], subject, text, offsets=offsets, at_ms=at_ms, publisher=stretch.broker)


def _who(stretch: _Stretch) -> str:
    return f"{stretch.broker} (incarnation {stretch.incarnation}, token {stretch.token})"


def _end_ns(stretch: _Stretch) -> int:
    return stretch.started_ns if stretch.answered_ns is None else stretch.answered_ns


def _end_ms(stretch: _Stretch) -> int:
    return stretch.started_ms if stretch.answered_ms is None else stretch.answered_ms


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _INTEGER_MAX
