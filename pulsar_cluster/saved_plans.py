"""Save a plan for a Pulsar cluster with the facts that it depends on, and say what has changed
since.

The file holds the exact moves: an operator applies what was shown, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from equipoise.brokers.balancing.saved_plans import (
    check_whole,
    digest_of,
    named,
    reading_plan,
    text_of,
)
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import parse_bundle
from equipoise.pulsar_cluster.planning import command_of
from equipoise.pulsar_cluster.records import OWNED, Message
from equipoise.shedder.plan import Move

_SAVED: Final = ("bundle", "source", "destination", "reason", "cause")
"""The fields of a move in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """The moves of a plan in their order, all with a destination, and the facts on which it was
    made.

    * `source`: the service URL of the cluster, or the archive. `made_ms`: Unix time. `leader`: the
      leading broker then, if known.
    * `versions`: the version of the record of each bundle that moves. `members`: the live brokers
      then.
    * `whole`: the id of the plan that this is the rest of; None if it is whole itself.
    """

    source: str
    made_ms: int
    leader: str | None
    members: tuple[str, ...]
    moves: tuple[Move, ...]
    versions: Mapping[str, int]
    whole: str | None = None

    @property
    def id(self) -> str:
        """The digest of the whole plan's content: 12 hexadecimal digits."""
        return self.whole or digest_of(self._content())

    def text(self) -> str:
        """Return the content of the plan's file."""
        return text_of(self.id, self._content())

    def _content(self) -> dict[str, object]:
        return {
            "source": self.source,
            "made_ms": self.made_ms,
            "leader": self.leader,
            "members": list(self.members),
            "moves": [
                {
                    **{field: getattr(move, field) for field in _SAVED},
                    "version": self.versions[move.bundle],
                    "command": command_of(move),
                }
                for move in self.moves
            ],
        }


def read_plan(content: bytes) -> SavedPlan:
    """Return the plan in the content of its file. Raise `ValueError` if it is no plan, or was
    changed by hand.
    """
    with reading_plan("equipoise pulsar plan --output"):
        document = json.loads(content)
        moves = tuple(
            Move(**{field: move[field] for field in _SAVED}) for move in document["moves"]
        )
        plan = SavedPlan(
            source=document["source"],
            made_ms=document["made_ms"],
            leader=document["leader"],
            members=tuple(document["members"]),
            moves=moves,
            versions={move["bundle"]: move["version"] for move in document["moves"]},
        )
        is_whole = plan.id == document["id"]
        for move in moves:
            parse_bundle(move.bundle)
    check_whole(is_whole=is_whole)
    return plan


def why_changed(move: Move, version: int, message: Message | None) -> str | None:
    """Return what has happened to the bundle of a move since the plan saw its record with
    `version`; None if nothing has.
    """
    record = None if message is None else message.record
    if record is None:
        return f"{move.bundle} has no record any more: it was split or deleted"
    if record.version == version and record.state == OWNED and record.destination == move.source:
        return None
    now = f"{record.state} at {record.destination or record.source}, version {record.version}"
    return f"{move.bundle} is {now} (in the plan: Owned at {move.source}, version {version})"


def changes(
    plan: SavedPlan, bundles: Mapping[str, Message], members: Iterable[str], leader: str | None
) -> str | None:
    """Return what has changed since the plan, in a sentence without an end; None if nothing has
    that concerns it.
    """
    live = frozenset(members)
    found = [
        why
        for move in plan.moves
        if (why := why_changed(move, plan.versions[move.bundle], bundles.get(move.bundle)))
        is not None
    ]
    found += [f"the broker {broker} is gone" for broker in plan.members if broker not in live]
    found += [f"the broker {broker} has joined" for broker in sorted(live.difference(plan.members))]
    if plan.leader is not None and leader != plan.leader:
        found.append(f"the leader is {leader or 'nobody'} (in the plan: {plan.leader})")
    return named(found, "more changes")


class Now(NamedTuple):
    """A cluster at one moment (`at_ms`, Unix time): the message of each bundle's record, the live
    brokers, and the leader.
    """

    bundles: Mapping[str, Message]
    members: tuple[str, ...]
    leader: str | None
    at_ms: int

    def owned(self, bundle: str) -> tuple[str | None, int]:
        """Return the broker that owns a bundle, None if nobody does, and the version of its
        record.
        """
        message = self.bundles.get(bundle)
        record = None if message is None else message.record
        return (
            (None, 0)
            if record is None
            else (record.destination if record.state == OWNED else None, record.version)
        )


def rest_of(plan: SavedPlan, entries: Iterable[Mapping[str, object]], now: Now) -> SavedPlan:
    """Return what is left of a plan that stopped: without the moves that were requested and have
    arrived. Its brokers are those of now.
    """
    requested = {
        str(entry["bundle"])
        for entry in entries
        if entry.get("event") == "request" and entry.get("plan") == plan.id
    }
    left = tuple(
        move
        for move in plan.moves
        if move.bundle not in requested or now.owned(move.bundle)[0] != move.destination
    )
    return replace(plan, moves=left, members=now.members, leader=now.leader, whole=plan.id)


def undoing(
    entries: Sequence[Mapping[str, object]], now: Now, source: str
) -> tuple[SavedPlan, list[str]]:
    """Return the plan that moves back what the last plan of an audit file moved, newest first, and
    what it leaves out, one sentence each.

    Raises `CallerError` if no plan of the file has requested a move.
    """
    requests = [entry for entry in entries if entry.get("event") == "request"]
    if not requests:
        raise CallerError(
            "the audit file has no request of a move, so there is nothing to undo; name that of the"
            " plan to undo"
        )
    last = requests[-1]["plan"]
    moves, versions, notes = list[Move](), dict[str, int](), list[str]()
    for entry in reversed([entry for entry in requests if entry["plan"] == last]):
        bundle, begin, end = (str(entry[field]) for field in ("bundle", "source", "destination"))
        owner, version = now.owned(bundle)
        if owner == end and begin in now.members and bundle not in versions:
            moves.append(
                Move(bundle=bundle, source=end, destination=begin, reason=f"it undoes plan {last}")
            )
            versions[bundle] = version
        elif owner not in {begin, end}:
            notes.append(
                f"{bundle} is left out: plan {last} moved it to {end}, and now"
                f" {owner or 'no broker'} owns it"
            )
        elif owner == end and begin not in now.members:
            notes.append(
                f"{bundle} is left out: {begin}, from which plan {last} moved it, is no broker of"
                " the cluster any more"
            )
    plan = SavedPlan(
        source=source,
        made_ms=now.at_ms,
        leader=now.leader,
        members=now.members,
        moves=tuple(moves),
        versions=versions,
    )
    return plan, notes
