"""Fold the records independently into a second view: members, namespaces, policies, and who holds
which bundle.

`spark_jobs.rules.bundle` keeps the states of bundles.

* `context_of` computes a verdict on each record before it sees the fold's.
* `follow` then adopts the fold's verdict, so that one difference is one finding, not a thousand.
* *Awake* time stops while nobody writes to the log: a cluster that was switched off during a
  transfer was not stuck all night.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final, TypedDict

import orjson

from equipoise.spark_jobs.rules import forms
from equipoise.spark_jobs.rules.facts import Raw, SubjectKind, subject
from equipoise.spark_jobs.rules.membership.holdings import Holding, Holdings
from equipoise.spark_jobs.rules.membership.members import (
    APPEND_TIME_ERROR_MS,
    FIRST_LEVEL,
    LIVE,
    PREFIX,
    Incarnations,
    Known,
    Member,
    Namespace,
    Since,
    Whole,
    joined_member,
)
from equipoise.spark_jobs.rules.membership.references import References, Referring
from equipoise.spark_jobs.rules.membership.verdicts import (
    Envelope,
    envelope_of,
    verdict_before_content,
    verdict_on,
)
from equipoise.spark_jobs.rules.memory import StateRow, StateTable
from equipoise.spark_jobs.rules.ranges import whole_space
from equipoise.spark_jobs.rules.rule import ACCEPTED

IN_FLIGHT_MAX_MS: Final = 60_000
"""Default limit of a move, in awake time. Brokers cancel a stuck move after half as long."""

UNSERVED_IN_FLIGHTS: Final = 5
"""How many times as long a bundle may be unserved while a broker is up, and a namespace may be
deleting.

At 220 per second the leader places all 65,536 bundles of a namespace in that time.
"""

SILENCE_MAX_MS: Final = 5_000
"""A longer silence of the log counts only as this much: on a live log each broker renews at least
every 3 s."""

SILENT_MAX_MS: Final = 60_000
SILENT_LEASES_MAX: Final = 10
"""Limit of a live broker's silence in awake time: this many times lease + grace period, and at
least a minute.

Other brokers accuse it after one.
"""

CLOCK_RATE_ERROR_PERCENT: Final = 3
"""How much faster the log's clock may run than a broker's."""

_WHOLE: Final = f"{PREFIX}whole"
_INCARNATIONS: Final = f"{PREFIX}incarnations"
_THE_LOG: Final = subject("log", "")


class Context(TypedDict, total=False):
    """The audit's view of one record, the same on all of its facts. Fields without a value are
    absent.

    * `begun`: the offset from which the audit has read without a gap. State from before it is
      invalid.
    * `checked_by`: the subject whose checker compares `expected` with the fold's verdict; it always
      gets a fact. For an entry that is not a well-formed record it is the log.
    * `publisher`: `live`, `dead`, `left` (dead by its broker's own record), `never` (no broker ever
      had this incarnation), `admin`, or `nobody` (no readable envelope, or none needed: genesis,
      joined).
    * `expected`: the audit's verdict; absent if it depends on the state of bundles.
    * `target`: status of the `owner` that a bundle's record names: up, draining, dead, never (no
      broker ever had it), or not_serving (up, but its program does not serve the namespace).
    * `deleting`: true if the bundle's namespace is being deleted.
    * `dead`: the incarnation that this record ends if it is accepted.
    * `owner`: for a merge, the owner of the left bundle.
    * `unknown`: for a split or merge, those of its bundles that do not exist.
    * `names`: for records about bundles, the broker ids of the live incarnations that the record
      and its bundle name.
    * `member`: for a record of a broker's key other than a renewal, the `Member` before it.
    * `stands`: true if the log's time stands still, because the clock was set back.
    * `timeless`: true if the log's time stood still since that broker's last record, so that its
      silence cannot be measured.
    * `unseen_ms`: how much time passed since then without showing in log time, according to early
      renewals.
    * `accuser_back_ms`: for a `down` by a broker, the log's time when that broker's lease last
      became valid; absent if unknown.
    * `silent`: [broker, last, last_at_ms] of live brokers that are silent for too long. Each
      silence is reported once, with a record of a live publisher, who gets a fact.
    * `deleting_since`: [namespace, offset] of namespaces whose deletion takes too long since that
      offset, reported like `silent`.
    * `nothing_at`, `follows`, `gap`: what the record refers to (`references.Referred`).
    * `overdue`: bundles that are pending or unserved for too long, with the offset since when.
      Reported once; each gets a fact.
    """

    begun: int
    checked_by: str
    publisher: str
    expected: str
    target: str
    deleting: bool
    dead: int
    owner: int
    unknown: Sequence[str]
    names: Mapping[str, str]
    member: Mapping[str, object]
    stands: bool
    timeless: bool
    unseen_ms: int
    accuser_back_ms: int
    silent: list[tuple[str, int, int | None]]
    deleting_since: list[tuple[str, int]]
    nothing_at: int
    follows: int
    gap: Sequence[int]
    overdue: Mapping[str, int]


class Membership:
    """Members, namespaces, policies, format version, and who holds which bundle."""

    def __init__(self, *, in_flight_max_ms: int = IN_FLIGHT_MAX_MS) -> None:
        """Begin empty, at a log's genesis. `begin` and `restore` set another state."""
        self._in_flight_max_ms = in_flight_max_ms
        self._known = Known()
        self._holdings = Holdings()
        self._references = References()
        self._heard: dict[str, int] = {}  # Awake time of live brokers' last records, oldest first.
        self._deleting: dict[str, Since] = {}  # Deletions not yet reported, oldest first.
        self._is_incarnation_new = False  # Whether the row of incarnations changed.
        self._overdue: list[str] = []  # Bundles that the present record reports as overdue, sorted.
        self._is_well_formed = False  # Whether the present entry is well-formed.
        self._envelope: Envelope | None = None  # Of the present entry.
        self._followers: Mapping[str, Callable[[int, Raw], Sequence[str]]] = {
            "genesis": self._follow_genesis,
            "bundle": self._follow_bundle,
            "split": self._follow_split,
            "merge": self._follow_merge,
            "namespace": self._follow_namespace,
            "broker": self._follow_broker,
            "policy": self._follow_policy,
            "level": self._follow_level,
        }

    # --- state ---

    def begin(
        self, known: Known, bundles: Mapping[str, tuple[int | None, int | None, str]]
    ) -> None:
        """Forget everything and continue from this state. Records up to `known.whole.begun` were
        not read.

        `bundles` maps names to owner, source and state as in records. The awake time and the log's
        time continue.
        """
        known.whole.awake_ms, known.whole.at_ms = (
            self._known.whole.awake_ms,
            self._known.whole.at_ms,
        )
        now = known.whole.begun, known.whole.awake_ms
        self._known.whole, self._known.incarnations, self._is_incarnation_new = (
            known.whole,
            known.incarnations,
            True,
        )
        self._known.brokers.replace(known.brokers)
        self._known.policies.replace(known.policies)
        self._known.namespaces.replace(
            {
                name: each._replace(deleting_since=now if each.status == "deleting" else None)
                for name, each in known.namespaces.items()
            }
        )
        self._find_deleting()
        self._known.find_live()
        self._heard = {}
        for name in self._known.live.values():
            self._hear(name)
        self._mark_served()
        self._holdings.begin(bundles, now)
        self._references.begin(known.whole.begun)

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        known = self._known
        rows: list[StateRow] = [(_WHOLE, orjson.dumps(known.whole))]
        if self._is_incarnation_new:
            self._is_incarnation_new = False
            rows.append((_INCARNATIONS, orjson.dumps(known.incarnations)))
        return rows + [row for part in self._parts() for row in part.changed_rows()]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state of a new instance from its rows. Ignore rows of other parts."""
        known = self._known
        known.whole = Whole(**orjson.loads(rows[_WHOLE]))
        known.incarnations = (
            Incarnations(**orjson.loads(rows[_INCARNATIONS]))
            if _INCARNATIONS in rows
            else Incarnations()
        )
        for part in self._parts():
            part.restore(rows)
        self._find_deleting()
        known.find_live()
        self._heard = {
            name: heard_ms
            for heard_ms, name in sorted(
                (known.brokers[name].heard_ms, name) for name in known.live.values()
            )
        }

    def _parts(
        self,
    ) -> tuple[
        StateTable[str, Member],
        StateTable[str, Namespace],
        StateTable[str, int],
        Holdings,
        References,
    ]:
        known = self._known
        return known.brokers, known.namespaces, known.policies, self._holdings, self._references

    def _find_deleting(self) -> None:
        found = (
            (each.deleting_since, name)
            for name, each in self._known.namespaces.items()
            if each.deleting_since is not None
        )
        self._deleting = {name: since for since, name in sorted(found)}

    # --- checking records ---

    def context_of(
        self, offset: int, at_ms: int, raw: Raw | None, *, behind_ms: int = 0
    ) -> Context:
        """Return the audit's view of the next entry (None if it is no JSON object), before the fold
        is asked.

        `behind_ms` is how far the entry's append time is below `at_ms`, the log's time, which never
        falls.
        """
        whole = self._known.whole
        self._pass(at_ms, behind_ms)
        self._envelope = envelope_of(raw)
        context: Context = {
            "begun": whole.begun,
            "checked_by": _THE_LOG,
            "publisher": self._publisher(raw),
        }
        if behind_ms > APPEND_TIME_ERROR_MS:
            context["stands"] = True
        self._is_well_formed = raw is not None and forms.is_well_formed(raw)
        expected = verdict_before_content(
            self._known, offset, raw, self._envelope, is_well_formed=self._is_well_formed
        )
        if raw is not None:
            if self._is_well_formed:
                context["checked_by"] = checked_by(raw)
            if expected is None:
                expected = verdict_on(self._known, raw)
            self._describe(raw, context)
        if expected is not None:
            context["expected"] = expected
        self._report_overdue(context)
        return context

    def _pass(self, at_ms: int, behind_ms: int) -> None:
        """Let time pass until the next entry."""
        whole = self._known.whole
        if at_ms > whole.at_ms:
            whole.awake_ms += min(at_ms - whole.at_ms, SILENCE_MAX_MS) if whole.at_ms else 0
            whole.at_ms = at_ms
        if behind_ms > APPEND_TIME_ERROR_MS:
            # The clock was set back, or another's was ahead. Log time stands still until the clock
            # catches up.
            whole.stood_ms = at_ms

    def _report_overdue(self, context: Context) -> None:
        """Add to the context what takes too long."""
        whole = self._known.whole
        unserved_max_ms = whole.awake_ms - UNSERVED_IN_FLIGHTS * self._in_flight_max_ms
        overdue = self._holdings.overdue(
            whole.awake_ms - self._in_flight_max_ms,
            unserved_max_ms,
            whole.awake_ms,
            is_deleting=self._is_deleting,
            served_since_ms=self._served_since_ms,
        )
        if overdue:
            overdue = {
                name: since
                for name, since in overdue.items()
                if self._references.follows(subject("bundle", name)) is None
            }
        self._overdue = sorted(overdue)
        if overdue:
            context["overdue"] = overdue
        if context["publisher"] == "live":
            silent = self._silent()
            if silent:
                context["silent"] = silent
            deleting = self._lingering(unserved_max_ms) if self._deleting else []
            if deleting:
                context["deleting_since"] = deleting

    def _lingering(self, since_max_ms: int) -> list[tuple[str, int]]:
        found = [
            (name, offset)
            for name, (offset, awake_ms) in self._deleting.items()
            if awake_ms < since_max_ms
        ]
        for name, _ in found:
            del self._deleting[name]
            self._known.namespaces[name] = self._known.namespaces[name]._replace(
                deleting_since=None
            )
        return found

    def _silent(self) -> list[tuple[str, int, int | None]]:
        found: list[tuple[str, int, int | None]] = []
        for name, heard_ms in self._heard.items():
            silent_ms = self._known.whole.awake_ms - heard_ms
            if silent_ms <= SILENT_MAX_MS:
                break
            member = self._known.brokers[name]
            if (
                not member.is_silence_reported
                and silent_ms > SILENT_LEASES_MAX * (member.lease_ms + member.grace_ms)
                and self._references.follows(subject("broker", name)) is None
            ):
                member.is_silence_reported = True
                self._known.brokers.touch(name)
                found.append((name, member.last, member.last_at_ms))
        return sorted(found)

    def _is_deleting(self, namespace: str) -> bool:
        entry = self._known.namespaces.get(namespace)
        return entry is not None and entry.status == "deleting"

    def _now(self, offset: int) -> Since:
        return offset, self._known.whole.awake_ms

    def _served_since_ms(self, namespace: str) -> int | None:
        entry = self._known.namespaces.get(namespace)
        return None if entry is None else entry.served_since_ms

    def _mark_served(self) -> None:
        """Update since when a broker is up that can take bundles of each namespace. Call it after
        the brokers or namespaces changed.
        """
        known = self._known
        live = [known.brokers[name] for name in known.live.values()]
        for name, entry in list(known.namespaces.items()):
            is_served = any(member.takes(name) for member in live)
            if is_served != (entry.served_since_ms is not None):
                since_ms = known.whole.awake_ms if is_served else None
                known.namespaces[name] = entry._replace(served_since_ms=since_ms)

    def _hear(self, name: str) -> None:
        """Record that a live broker wrote just now."""
        member, awake_ms = self._known.brokers[name], self._known.whole.awake_ms
        member.heard_ms, member.is_silence_reported = awake_ms, False
        self._heard.pop(name, None)
        self._heard[name] = awake_ms

    def _publisher(self, raw: Raw | None) -> str:
        if self._envelope is None:
            return (
                "admin"
                if raw is not None and str(raw.get("publisher", "")).startswith(forms.ADMIN)
                else "nobody"
            )
        publisher, incarnation, _ = self._envelope
        if self._known.live.get(incarnation) == publisher:
            return "live"
        member = self._known.brokers.get(publisher)
        if member is not None and (member.status, member.incarnation) == ("left", incarnation):
            return "left"
        return "never" if self._known.incarnations.never_was(incarnation) else "dead"

    def _describe(self, raw: Raw, context: Context) -> None:
        """Add what the context says about the broker or the bundle that a record names."""
        kind, key = raw.get("kind"), raw.get("key")
        if kind == "broker":
            self._describe_broker(raw, context)
        elif type(key) is str and kind in ("bundle", "split", "merge"):
            self._describe_bundle(key, raw, context)

    def _describe_broker(self, raw: Raw, context: Context) -> None:
        status, member = raw.get("status"), self._known.brokers.get(str(raw.get("key")))
        if member is None or status == "renewed":
            return
        context["member"] = asdict(member)
        if member.status in LIVE and status in ("left", "down", "joined"):
            context["dead"] = member.incarnation
        if member.last_at_ms is not None and member.last_at_ms <= self._known.whole.stood_ms:
            context["timeless"] = True
        unseen_ms = self._known.unseen_ms(member)
        if unseen_ms:
            context["unseen_ms"] = unseen_ms
        accuser = self._known.brokers.get(str(raw.get("publisher"))) if status == "down" else None
        if accuser is not None and accuser.back_at_ms is not None:
            context["accuser_back_ms"] = accuser.back_at_ms

    def _describe_bundle(self, name: str, raw: Raw, context: Context) -> None:
        owner, right = raw.get("owner"), raw.get("right")
        if type(owner) is int:
            context["target"] = self._target(owner, name.rpartition("/")[0])
        if self._is_deleting(name.rpartition("/")[0]):
            context["deleting"] = True
        if raw["kind"] != "bundle":
            unknown = [
                each
                for each in (name, right)
                if type(each) is str and self._holdings.get(each) is None
            ]
            if unknown:
                context["unknown"] = unknown
        held = self._holdings.get(name) or Holding(None, None)
        if raw["kind"] == "merge" and held.owner is not None:
            context["owner"] = held.owner
        names = self._names(held.owner, held.source, owner, raw.get("source"))
        if names:
            context["names"] = names

    def _names(self, *incarnations: object) -> dict[str, str]:
        live = self._known.live
        return {str(who): live[who] for who in incarnations if type(who) is int and who in live}

    def _target(self, incarnation: int, namespace: str) -> str:
        name = self._known.live.get(incarnation)
        if name is not None:
            member = self._known.brokers[name]
            return (
                "not_serving"
                if member.status == "up" and not member.serves(namespace)
                else member.status
            )
        return "never" if self._known.incarnations.never_was(incarnation) else "dead"

    # --- following the fold ---

    def refer(self, entry: Referring, raw: Raw | None, context: Context) -> Sequence[Raw]:
        """Check what the present record refers to, and add that to its context. Return events of
        the log. Call it between `context_of` and `follow`.
        """
        subjects: tuple[str, ...] = ()
        if context["checked_by"] != _THE_LOG and raw is not None:
            subjects = (context["checked_by"],)
            if raw["kind"] == "merge":
                subjects = (*subjects, subject("bundle", raw["right"]))
        found = self._references.refer(entry, subjects)
        if found.nothing_at is not None:
            context["nothing_at"] = found.nothing_at
        if found.gap is not None:
            context["gap"] = found.gap
        if found.follows is not None:
            context["follows"] = found.follows
            if context["publisher"] == "live" and raw is not None:
                self._hear(raw["publisher"])  # It lives, though its records are rejected here.
        return found.events

    def damage_of(self, bundle: str, token: object) -> int | None:
        """Return the damaged or missing offset since which the ownership of a bundle with this
        token is not known; None if it is known.
        """
        references = self._references
        return references.differs or references.follows(subject("bundle", bundle), token)

    def follow(self, offset: int, raw: Raw | None, verdict: str) -> Sequence[str]:
        """Apply the fold's `verdict` (`accepted`, or a reason) on the present record.

        Return further bundles that need a fact, sorted: those that a dead incarnation held, and
        overdue ones.
        """
        self._follow_attempt(verdict)
        if raw is None or verdict != ACCEPTED or not self._is_well_formed:
            return self._overdue
        concerned = self._followers[raw["kind"]](offset, raw)
        return sorted({*self._overdue, *concerned}) if self._overdue else concerned

    def _follow_attempt(self, verdict: str) -> None:
        if self._envelope is None or verdict in ("dead_publisher", "late", "no_genesis"):
            return
        publisher, incarnation, sequence = self._envelope
        member = self._known.brokers.get(publisher)
        if member is not None and member.incarnation == incarnation:
            member.sequence = sequence
            self._known.brokers.touch(publisher)

    def _follow_genesis(self, offset: int, raw: Raw) -> Sequence[str]:
        whole = self._known.whole
        if whole.genesis is None:
            whole.cluster, whole.base = raw["cluster"], raw.get("base") or 0
            whole.level, whole.level_last, whole.removed_at = (
                raw.get("level") or FIRST_LEVEL,
                offset,
                offset,
            )
            whole.begun = self._known.incarnations.known_from = offset
            self._is_incarnation_new = True
        whole.genesis = offset
        return ()

    def _follow_level(self, offset: int, raw: Raw) -> Sequence[str]:
        self._known.whole.level, self._known.whole.level_last = raw["raises_to"], offset
        return ()

    def _follow_policy(self, offset: int, raw: Raw) -> Sequence[str]:
        name = raw["key"]
        if raw["status"] == "removed":
            self._known.policies.remove(name)
            self._known.whole.removed_at = offset
        else:
            self._known.policies[name] = offset
        return ()

    def _follow_namespace(self, offset: int, raw: Raw) -> Sequence[str]:
        name, status = raw["key"], raw["status"]
        if status == "deleted":
            self._known.namespaces.remove(name)
            self._known.whole.removed_at = offset
            self._deleting.pop(name, None)
            self._holdings.delete(name)
        else:
            since = self._now(offset) if status == "deleting" else None
            self._known.namespaces[name] = Namespace(
                "created" if since is None else "deleting",
                offset,
                since,
                self._served_since_ms(name),
            )
            self._deleting.pop(name, None)
            if since is not None:
                self._deleting[name] = since
        if status == "created":
            self._mark_served()
            self._holdings.create(
                name, whole_space(raw.get("boundaries") or ()) or (), self._now(offset)
            )
        return ()

    def _follow_broker(self, offset: int, raw: Raw) -> Sequence[str]:
        name, status = raw["key"], raw["status"]
        member = self._known.brokers.get(name)
        if status == "joined":
            concerned = self._declare_dead(member, offset)
            self._known.brokers[name] = joined_member(offset, self._known.whole.at_ms, raw)
            self._known.live[offset] = name
            self._hear(name)
            self._known.incarnations.add(offset)
            self._is_incarnation_new = True
            self._mark_served()
            return concerned
        if member is None:
            return ()  # The fold accepted a record of an unknown broker; `expected` reports that.
        at_ms = self._known.whole.at_ms
        if (
            member.last_at_ms is not None
            and 100 * (at_ms - member.last_at_ms)
            > (100 + CLOCK_RATE_ERROR_PERCENT) * member.lease_ms
        ):
            member.back_at_ms = at_ms
        if status == "renewed":
            if member.last_at_ms == at_ms:
                # No broker renews twice in a millisecond: the log's clock was set back. Log time
                # stands still until the clock catches up.
                self._known.whole.stood_ms = at_ms
            member.renewed(at_ms)
        member.last, member.last_at_ms = offset, at_ms
        self._known.brokers.touch(name)
        if status in ("renewed", "draining"):
            self._hear(name)
        if status == "renewed":
            return ()
        concerned = self._declare_dead(member, offset) if status in ("left", "down") else ()
        if status == "removed":
            self._known.brokers.remove(name)
            self._known.live.pop(member.incarnation, None)
            self._heard.pop(name, None)
            self._known.whole.removed_at = offset
        else:
            member.status = status
        self._mark_served()
        return concerned

    def _declare_dead(self, member: Member | None, offset: int) -> Sequence[str]:
        name = None if member is None else self._known.live.pop(member.incarnation, None)
        if member is None or name is None:
            return ()
        self._heard.pop(name, None)
        return self._holdings.declare_dead(member.incarnation, self._now(offset))

    def _follow_bundle(self, offset: int, raw: Raw) -> Sequence[str]:
        self._holdings.follow(
            raw["key"], raw.get("owner"), raw.get("source"), raw["state"], self._now(offset)
        )
        return ()

    def _follow_split(self, _offset: int, raw: Raw) -> Sequence[str]:
        self._holdings.split(raw["key"], raw["positions"], raw.get("incarnation"))
        return ()

    def _follow_merge(self, _offset: int, raw: Raw) -> Sequence[str]:
        self._holdings.merge(raw["key"], raw["right"])
        return ()


def checked_by(raw: Raw) -> str:
    """Return the subject whose checker compares the verdicts on a well-formed record: its key's
    subject, or the log.
    """
    about = _SUBJECTS.get(raw["kind"])
    return _THE_LOG if about is None else subject(about, raw["key"])


_SUBJECTS: Final[Mapping[str, SubjectKind]] = {
    "bundle": "bundle",
    "split": "bundle",
    "merge": "bundle",
    "namespace": "namespace",
    "broker": "broker",
}
