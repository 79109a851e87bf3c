"""Fold the records independently into a second view: members, namespaces, policies, and who holds which bundle.

`spark_jobs.rules.bundle` keeps the states of bundles.

* `judge` computes a verdict on each record before it sees the fold's.
* `follow` then adopts the fold's verdict, so that one difference is one finding, not a thousand.
* *Awake* time stops while nobody writes to the log: a cluster that was switched off during a transfer was not stuck all night.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final, TypedDict

import orjson

from equipoise.spark_jobs.rules import forms
from equipoise.spark_jobs.rules.facts import Raw, SubjectKind, subject
from equipoise.spark_jobs.rules.membership.holdings import Holding, Holdings, Since
from equipoise.spark_jobs.rules.membership.members import (
    APPEND_TIME_ERROR_MS,
    FIRST_LEVEL,
    LIVE,
    Incarnations,
    Known,
    Member,
    Standing,
    Whole,
    joined_member,
)
from equipoise.spark_jobs.rules.membership.opinions import envelope_of, opinion, settled_verdict
from equipoise.spark_jobs.rules.ranges import whole_space

PREFIX: Final = "member:"
"""Prefix of the keys of all state rows of this part."""

IN_FLIGHT_MAX_MS: Final = 60_000
"""Default limit of a move, in awake time. Brokers cancel a stuck move after half as long."""

UNSERVED_IN_FLIGHTS: Final = 5
"""How many times as long a bundle may be unserved while a broker is up, and a namespace may be deleting.

At 220 per second the leader places all 65,536 bundles of a namespace in that time.
"""

SILENCE_MAX_MS: Final = 5_000
"""A longer silence of the log counts only as this much: on a live log each broker renews at least every 3 s."""

SILENT_MAX_MS: Final = 60_000
SILENT_LEASES_MAX: Final = 10
"""Limit of a live broker's silence in awake time: this many times lease + grace period, and at least a minute.

Other brokers accuse it after one.
"""

CLOCK_RATE_ERROR_PERCENT: Final = 3
"""How much faster the log's clock may run than a broker's."""

_INCARNATIONS: Final = f"{PREFIX}incarnations"
_ACCEPTED: Final = "accepted"
_THE_LOG: Final = subject("log", "")


class Context(TypedDict, total=False):
    """The second rules' view of one record, the same on all of its facts. Fields without a value are absent.

    * `begun`: the offset from which the audit has read without a gap. State from before it is invalid.
    * `checked_by`: the subject whose checker compares `expected` with the fold's verdict; it always gets a fact. For an entry that is not a
      well-formed record it is the log.
    * `publisher`: `live`, `dead`, `never` (no broker ever had this incarnation), `admin`, or `nobody` (no readable envelope, or none
      needed: genesis, joined).
    * `settled`: true if `expected` does not depend on the content: no_genesis, dead_publisher, late, level, malformed.
    * `expected`: the verdict of the second rules; absent if it depends on the state of bundles.
    * `target`: status of the `owner` that a bundle's record names: up, draining, dead, or never (no broker ever had it).
    * `deleting`: true if the bundle's namespace is being deleted.
    * `dead`: the incarnation that this record ends if it is accepted.
    * `owner`: for a merge, the owner of the left bundle.
    * `unknown`: for a split or merge, those of its bundles that do not exist.
    * `names`: for records about bundles, the broker ids of the live incarnations that the record and its bundle name.
    * `member`: for a record of a broker's key other than a renewal, the `Member` before it.
    * `timeless`: true if the log's time stood still since that broker's last record, so that its silence cannot be measured.
    * `unseen_ms`: how much time passed since then without showing in log time, according to early renewals.
    * `accuser_back_ms`: for a `down` by a broker, the log's time when that broker's lease last became valid; absent if unknown.
    * `silent`: [broker, last, last_at_ms] of live brokers that are silent for too long. Each silence is reported once, with a record of a
      live publisher, who gets a fact.
    * `deleting_since`: [namespace, offset] of namespaces whose deletion takes too long since that offset, reported like `silent`.
    * `overdue`: bundles that are pending or unserved for too long, with the offset since when. Reported once; each gets a fact.
    """

    begun: int
    checked_by: str
    publisher: str
    settled: bool
    expected: str
    target: str
    deleting: bool
    dead: int
    owner: int
    unknown: Sequence[str]
    names: Mapping[str, str]
    member: Mapping[str, object]
    timeless: bool
    unseen_ms: int
    accuser_back_ms: int
    silent: list[tuple[str, int, int | None]]
    deleting_since: list[tuple[str, int]]
    overdue: Mapping[str, int]


class Membership:
    """Members, namespaces, policies, format version, and who holds which bundle."""

    def __init__(self, *, in_flight_max_ms: int = IN_FLIGHT_MAX_MS) -> None:
        """Begin empty, at a log's genesis. `begin` and `restore` set another state."""
        self._in_flight_max_ms = in_flight_max_ms
        self._known = Known()
        self._holdings = Holdings()
        self._heard: dict[str, int] = {}  # Awake time of live brokers' last records, oldest first.
        self._deleting: dict[str, Since] = {}  # Deletions not yet reported, oldest first.
        self._changed: dict[str, None] = {}
        self._is_well_formed = False  # Whether the last judged entry is well-formed.
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

    def begin(self, standing: Standing) -> None:
        """Forget everything and continue from `standing`. Records before it were not read."""
        for name in self._row_names():
            self._changed[name] = None
        whole = self._known.whole
        self._known = Known(
            whole=Whole(
                begun=standing.offset,
                genesis=standing.genesis,
                cluster=standing.cluster,
                base=standing.base,
                level=standing.level,
                level_last=standing.level_last,
                removed_at=standing.removed_at,
                awake_ms=whole.awake_ms,
                at_ms=whole.at_ms,
            ),
            brokers=dict(standing.brokers),
            namespaces=dict(standing.namespaces),
            policies=dict(standing.policies),
            incarnations=Incarnations(
                known_from=standing.offset, offsets=sorted(member.incarnation for member in standing.brokers.values())
            ),
        )
        self._known.find_live()
        self._heard = {}
        for name in self._known.live.values():
            self._hear(name)
        self._mark_up()
        now = self._now(standing.offset)
        self._deleting = {name: now for name, (status, _) in sorted(standing.namespaces.items()) if status == "deleting"}
        self._holdings = Holdings()
        for name, (owner, source, state) in sorted(standing.bundles.items()):
            self._holdings.follow(name, owner, source, state, now)
        for name in self._row_names():
            self._changed[name] = None

    def changed_rows(self) -> list[tuple[str, bytes | None]]:
        """Return the rows of state that changed since the last call; None for removed ones. The last row of a key counts."""
        changed = [*self._changed, *(f"{PREFIX}held:{name}" for name in self._holdings.changed())]
        self._changed.clear()
        return [(f"{PREFIX}whole", orjson.dumps(self._known.whole)), *((name, self._row(name)) for name in changed)]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state from its rows. Ignore rows of other parts."""
        self._known, self._holdings = Known(), Holdings()
        held: dict[str, Holding] = {}
        deleting: list[tuple[Since, str]] = []
        for key, value in rows.items():
            if not key.startswith(PREFIX):
                continue
            _, kind, *rest = key.split(":", 2)
            content = orjson.loads(value)
            if kind == "whole":
                self._known.whole = Whole(**content)
            elif kind == "broker":
                self._known.brokers[rest[0]] = Member(**content)
            elif kind == "namespace":
                self._known.namespaces[rest[0]] = (content[0], content[1])
                if content[2] is not None:
                    deleting.append(((content[2][0], content[2][1]), rest[0]))
            elif kind == "policy":
                self._known.policies[rest[0]] = content
            elif kind == "incarnations":
                self._known.incarnations = Incarnations(**content)
            else:
                owner, source, moving, unserved, releasing, is_told = content
                held[rest[0]] = Holding(owner, source, _since(moving), _since(unserved), releasing, is_told)
        self._holdings.restore(held)
        self._deleting = {name: since for since, name in sorted(deleting)}
        self._changed.clear()
        self._known.find_live()
        live = [(self._known.brokers[name].heard_ms, name) for name in self._known.live.values()]
        self._heard = {name: heard_ms for heard_ms, name in sorted(live)}

    def _row_names(self) -> list[str]:
        kinds: tuple[tuple[str, Iterable[str]], ...] = (
            ("broker", self._known.brokers),
            ("namespace", self._known.namespaces),
            ("policy", self._known.policies),
            ("held", self._holdings.names()),
        )
        return [_INCARNATIONS, *(f"{PREFIX}{kind}:{name}" for kind, names in kinds for name in names)]

    def _row(self, key: str) -> bytes | None:
        if key == _INCARNATIONS:
            return orjson.dumps(self._known.incarnations)
        _, kind, name = key.split(":", 2)
        content: object
        if kind == "held":
            holding = self._holdings.get(name)
            content = None if holding is None else tuple(holding)
        elif kind == "namespace":
            entry = self._known.namespaces.get(name)
            content = None if entry is None else (*entry, self._deleting.get(name))
        else:
            content = self._known.brokers.get(name) if kind == "broker" else self._known.policies.get(name)
        return None if content is None else orjson.dumps(content)

    # --- checking records ---

    def judge(self, offset: int, at_ms: int, raw: Raw | None, *, behind_ms: int = 0) -> Context:
        """Return the second rules' view of the next entry (None if it is no JSON object), before the fold is asked.

        `behind_ms` is how far the entry's append time is below `at_ms`, the log's time, which never falls.
        """
        whole = self._known.whole
        if at_ms > whole.at_ms:
            whole.awake_ms += min(at_ms - whole.at_ms, SILENCE_MAX_MS) if whole.at_ms else 0
            whole.at_ms = at_ms
        if behind_ms > APPEND_TIME_ERROR_MS:
            whole.stood_ms = at_ms  # The clock was set back, or another's was ahead. Log time stands still until the clock catches up.
        context: Context = {"begun": whole.begun, "checked_by": _THE_LOG, "publisher": self._publisher(raw)}
        self._is_well_formed = raw is not None and forms.is_well_formed(raw)
        settled = settled_verdict(self._known, offset, raw, is_well_formed=self._is_well_formed)
        if raw is not None and self._is_well_formed:
            context["checked_by"] = checked_by(raw)
        if settled is not None:
            context["settled"] = True
            context["expected"] = settled
        elif raw is not None:
            expected = opinion(self._known, raw)
            if expected is not None:
                context["expected"] = expected
        if raw is not None:
            self._describe(raw, context)
        moving_max_ms = whole.awake_ms - self._in_flight_max_ms
        unserved_max_ms = whole.awake_ms - UNSERVED_IN_FLIGHTS * self._in_flight_max_ms
        is_up = whole.up_since_ms is not None and whole.up_since_ms < unserved_max_ms
        overdue = self._holdings.overdue(moving_max_ms, unserved_max_ms if is_up else 0, may_lie=self._is_deleting)
        if overdue:
            context["overdue"] = overdue
        if context["publisher"] == "live":
            silent = self._silent()
            if silent:
                context["silent"] = silent
            deleting = self._lingering(unserved_max_ms) if self._deleting else []
            if deleting:
                context["deleting_since"] = deleting
        return context

    def _lingering(self, since_max_ms: int) -> list[tuple[str, int]]:
        found = [(name, offset) for name, (offset, awake_ms) in self._deleting.items() if awake_ms < since_max_ms]
        for name, _ in found:
            del self._deleting[name]
            self._changed[f"{PREFIX}namespace:{name}"] = None
        return found

    def _is_deleting(self, namespace: str) -> bool:
        return self._known.namespaces.get(namespace, ("", 0))[0] == "deleting"

    def _now(self, offset: int) -> Since:
        return offset, self._known.whole.awake_ms

    def _mark_up(self) -> None:
        """Update since when a broker is up that can take bundles. Call it after the brokers changed."""
        whole = self._known.whole
        if not any(self._known.brokers[name].status == "up" for name in self._known.live.values()):
            whole.up_since_ms = None
        elif whole.up_since_ms is None:
            whole.up_since_ms = whole.awake_ms

    def _silent(self) -> list[tuple[str, int, int | None]]:
        found: list[tuple[str, int, int | None]] = []
        for name, heard_ms in self._heard.items():
            silent_ms = self._known.whole.awake_ms - heard_ms
            if silent_ms <= SILENT_MAX_MS:
                break
            member = self._known.brokers[name]
            if not member.is_silence_told and silent_ms > SILENT_LEASES_MAX * (member.lease_ms + member.margin_ms):
                member.is_silence_told = True
                self._changed[f"{PREFIX}broker:{name}"] = None
                found.append((name, member.last, member.last_at_ms))
        return sorted(found)

    def _hear(self, name: str) -> None:
        """Record that a live broker wrote just now."""
        member, awake_ms = self._known.brokers[name], self._known.whole.awake_ms
        member.heard_ms, member.is_silence_told = awake_ms, False
        self._heard.pop(name, None)
        self._heard[name] = awake_ms

    def _publisher(self, raw: Raw | None) -> str:
        envelope = envelope_of(raw)
        if envelope is None:
            return "admin" if raw is not None and str(raw.get("publisher", "")).startswith(forms.ADMIN) else "nobody"
        if self._known.live.get(envelope[1]) == envelope[0]:
            return "live"
        return "never" if self._known.incarnations.never_was(envelope[1]) else "dead"

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
            context["target"] = self._target(owner)
        if self._is_deleting(name.rpartition("/")[0]):
            context["deleting"] = True
        unknown = [each for each in (name, right) if type(each) is str and self._holdings.get(each) is None]
        if unknown and raw["kind"] != "bundle":
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

    def _target(self, incarnation: int) -> str:
        name = self._known.live.get(incarnation)
        if name is not None:
            return self._known.brokers[name].status
        return "never" if self._known.incarnations.never_was(incarnation) else "dead"

    # --- following the fold ---

    def follow(self, offset: int, raw: Raw | None, verdict: str) -> Sequence[str]:
        """Apply the fold's `verdict` (`accepted`, or a reason) on the record just judged.

        Return further bundles that need a fact, sorted: those that a dead incarnation held, and overdue ones.
        """
        self._settle(raw, verdict)
        told = self._holdings.take_told()
        if raw is None or verdict != _ACCEPTED or not self._is_well_formed:
            return told
        concerned = self._followers[raw["kind"]](offset, raw)
        return sorted({*told, *concerned}) if told else concerned

    def _settle(self, raw: Raw | None, verdict: str) -> None:
        envelope = envelope_of(raw)
        if envelope is None or verdict in ("dead_publisher", "late", "no_genesis"):
            return
        publisher, incarnation, sequence = envelope
        member = self._known.brokers.get(publisher)
        if member is not None and member.incarnation == incarnation:
            member.sequence = sequence
            self._changed[f"{PREFIX}broker:{publisher}"] = None

    def _follow_genesis(self, offset: int, raw: Raw) -> Sequence[str]:
        whole = self._known.whole
        if whole.genesis is None:
            whole.cluster, whole.base = raw["cluster"], raw.get("base") or 0
            whole.level, whole.level_last, whole.removed_at = raw.get("level") or FIRST_LEVEL, offset, offset
            whole.begun = self._known.incarnations.known_from = offset
            self._changed[_INCARNATIONS] = None
        whole.genesis = offset
        return ()

    def _follow_level(self, offset: int, raw: Raw) -> Sequence[str]:
        self._known.whole.level, self._known.whole.level_last = raw["raises_to"], offset
        return ()

    def _follow_policy(self, offset: int, raw: Raw) -> Sequence[str]:
        name = raw["key"]
        if raw["status"] == "removed":
            self._known.policies.pop(name, None)
            self._known.whole.removed_at = offset
        else:
            self._known.policies[name] = offset
        self._changed[f"{PREFIX}policy:{name}"] = None
        return ()

    def _follow_namespace(self, offset: int, raw: Raw) -> Sequence[str]:
        name, status = raw["key"], raw["status"]
        if status == "deleted":
            self._known.namespaces.pop(name, None)
            self._known.whole.removed_at = offset
            self._deleting.pop(name, None)
            self._holdings.delete(name)
        else:
            self._known.namespaces[name] = ("deleting" if status == "deleting" else "created", offset)
        if status == "deleting":
            self._deleting[name] = self._now(offset)
        elif status == "created":
            self._holdings.create(name, whole_space(raw.get("boundaries") or ()) or (), self._now(offset))
        self._changed[f"{PREFIX}namespace:{name}"] = None
        return ()

    def _follow_broker(self, offset: int, raw: Raw) -> Sequence[str]:
        name, status = raw["key"], raw["status"]
        self._changed[f"{PREFIX}broker:{name}"] = None
        member = self._known.brokers.get(name)
        if status == "joined":
            concerned = self._declare_dead(member, offset)
            self._known.brokers[name] = joined_member(offset, self._known.whole.at_ms, raw)
            self._known.live[offset] = name
            self._hear(name)
            self._known.incarnations.add(offset)
            self._changed[_INCARNATIONS] = None
            self._mark_up()
            return concerned
        if member is None:
            return ()  # The fold accepted a record of an unknown broker; `expected` reports that.
        at_ms = self._known.whole.at_ms
        if member.last_at_ms is not None and 100 * (at_ms - member.last_at_ms) > (100 + CLOCK_RATE_ERROR_PERCENT) * member.lease_ms:
            member.back_at_ms = at_ms
        if status == "renewed":
            if member.last_at_ms == at_ms:
                # No broker renews twice in a millisecond: the log's clock was set back. Log time stands still until the clock catches up.
                self._known.whole.stood_ms = at_ms
            member.renewed(at_ms)
        member.last, member.last_at_ms = offset, at_ms
        if status in ("renewed", "draining"):
            self._hear(name)
        if status == "renewed":
            return ()
        concerned = self._declare_dead(member, offset) if status in ("left", "down") else ()
        if status == "removed":
            del self._known.brokers[name]
            self._known.live.pop(member.incarnation, None)
            self._heard.pop(name, None)
            self._known.whole.removed_at = offset
        else:
            member.status = status
        self._mark_up()
        return concerned

    def _declare_dead(self, member: Member | None, offset: int) -> Sequence[str]:
        name = None if member is None else self._known.live.pop(member.incarnation, None)
        if member is None or name is None:
            return ()
        self._heard.pop(name, None)
        return self._holdings.declare_dead(member.incarnation, self._now(offset))

    def _follow_bundle(self, offset: int, raw: Raw) -> Sequence[str]:
        self._holdings.follow(raw["key"], raw.get("owner"), raw.get("source"), raw["state"], self._now(offset))
        return ()

    def _follow_split(self, _offset: int, raw: Raw) -> Sequence[str]:
        self._holdings.split(raw["key"], raw["positions"], raw.get("incarnation"))
        return ()

    def _follow_merge(self, _offset: int, raw: Raw) -> Sequence[str]:
        self._holdings.merge(raw["key"], raw["right"])
        return ()


def checked_by(raw: Raw) -> str:
    """Return the subject whose checker compares the verdicts on a well-formed record: its key's subject, or the log."""
    about = _SUBJECTS.get(raw["kind"])
    return _THE_LOG if about is None else subject(about, raw["key"])


_SUBJECTS: Final[Mapping[str, SubjectKind]] = {
    "bundle": "bundle",
    "split": "bundle",
    "merge": "bundle",
    "namespace": "namespace",
    "broker": "broker",
}


def _since(spelled: list[int] | None) -> Since | None:
    return None if spelled is None else (spelled[0], spelled[1])
