"""Describe records for people: each record's request, verdict and reason, and the story of one bundle.

Pure functions from folded records, and the view just after them, to text. Callers add colours, columns and times of day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleChanged, BundleEntry, NamespaceChanged, PolicyChanged
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE, ROWS, Phase
from equipoise.channel.core.log import Entry
from equipoise.channel.core.ranges import BundleName, parse_bundle
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import (
    ADMIN_WINDOW_OFFSETS,
    LEVEL_CLOSED,
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    Merge,
    NamespaceRecord,
    PolicyRecord,
    Reason,
    Record,
    Renewed,
    Scalar,
    Split,
    Unreadable,
)
from equipoise.channel.core.view import View

# (phase before, phase after) -> the deed. A rejected one has no phase before.
_DEEDS: Final[Mapping[tuple[Phase | None, Phase], str]] = {
    ("free", "assigning"): "assigns {key} to {owner}",
    ("assigning", "assigning"): "assigns {key} to {owner} instead",
    ("assigning", "owned"): "opens {key}",
    ("assigning", "free"): "refuses {key}",
    ("owned", "transferring"): "transfers {key} from {source} to {owner}",
    ("transferring", "handing_over"): "is ready for {key} and tells {source} to let go",
    ("transferring", "owned"): "cancels the transfer of {key}",
    ("handing_over", "owned"): "hands {key} over to {owner}",
    ("owned", "unloading"): "unloads {key} from {source}",
    ("unloading", "free"): "lets go of {key}",
    ("owned", "splitting"): "asks {owner} to split {key}",
    ("splitting", "owned"): "cancels the split of {key}",
    (None, "free"): "gives up {key}",
    (None, "assigning"): "assigns {key} to {owner}",
    (None, "transferring"): "transfers {key} from {source} to {owner}",
    (None, "owned"): "declares {key} owned by {owner}",
    (None, "handing_over"): "tells {source} to let go of {key}",
    (None, "unloading"): "unloads {key} from {source}",
    (None, "splitting"): "asks {owner} to split {key}",
}

_BROKER_DEEDS: Final = {"draining": "drains", "left": "leaves", "down": "declares {key} down", "removed": "removes {key}"}
_NAMESPACE_DEEDS: Final = {
    "created": "creates namespace {key}",
    "policies": "sets the policies of namespace {key}",
    "deleting": "begins to delete namespace {key}",
    "deleted": "deletes namespace {key}",
}

# What a rejection means, where neither the verdict's `problem` nor the view explains more.
_MEANINGS: Final[Mapping[Reason, str]] = {
    Reason.MALFORMED: "it is no record",
    Reason.STALE: "{subject} has changed since, at {last}",
    Reason.LATE: "{publisher} has been read with a later attempt",
    Reason.ILLEGAL_TRANSITION: "it does not follow from what {subject} is",
    Reason.NOT_THE_ACTOR: "{publisher} may not do this",
    Reason.DEAD_PUBLISHER: "{publisher} is not alive",
    Reason.DEAD_TARGET: "{owner} is not alive",
    Reason.DRAINING_TARGET: "{owner} drains and takes nothing new",
    Reason.UNKNOWN_BUNDLE: "there is no such bundle",
    Reason.UNKNOWN_BROKER: "there is no such broker",
    Reason.UNKNOWN_NAMESPACE: "there is no such namespace",
    Reason.UNKNOWN_POLICY: "there is no such policy",
    Reason.NAMESPACE_DELETING: "its namespace is being deleted",
    Reason.BUNDLES_IN_USE: "some of its bundles are not free",
    Reason.NOT_ADJACENT: "the second does not begin where the first ends",
    Reason.BAD_BOUNDARY: "the cuts must rise strictly inside it",
    Reason.STILL_ALIVE: "{subject} is alive as far as the log says, and nothing proves otherwise",
    Reason.LEVEL: "the log is at level {level}",
    Reason.NO_GENESIS: "the log has not begun",
    Reason.FOREIGN_GENESIS: "the log belongs to cluster {cluster}",
}


ENTRIES_SHOWN_MAX: Final = 16
"""Entries of a policy that one line shows. A document has up to 256."""

# The subject of a record with an absent key: one offset stands for all of them (`View.removed_at`).
_ABSENT: Final = "what is absent"


class Names:
    """The broker id of each incarnation, formatted `ID#INCARNATION`: an id returns with a new incarnation."""

    def __init__(self, view: View) -> None:
        """Add the incarnations of `view`. `learn` adds later ones."""
        self._brokers = {broker.incarnation: broker.broker for broker in view.brokers.values()}

    def learn(self, folded: Folded) -> None:
        """Add the incarnation of a `joined` record just folded."""
        if isinstance(folded.record, Joined) and folded.verdict.accepted:
            self._brokers[folded.offset] = folded.record.key

    def of(self, incarnation: int | None) -> str:
        """Return an incarnation with its broker id, if known."""
        return "nobody" if incarnation is None else f"{self._brokers.get(incarnation, '')}#{incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One record of a story. `lines[0]` describes it; the others are its effects on the story's bundles."""

    folded: Folded
    lines: tuple[str, ...]


def describe(folded: Folded, view: View, names: Names) -> str:
    """Return one line on a record: its offset, author, request, expected offset and verdict.

    `view` and `names` are as just after the fold. They explain a rejection.
    """
    record, verdict = folded.record, folded.verdict
    who = f"{folded.offset} {_publisher(record)}"
    outcome = _acceptance(folded, names) if verdict.reason is None else explain(folded, view, names)
    if isinstance(record, Unreadable):
        return _one_line(f"{who} sends what is no record: {outcome}")
    based_on = "" if isinstance(record, Genesis) else f", based on {record.based_on}"
    if isinstance(record, Merge):
        based_on += f" and {record.based_on_right}"
    reason = getattr(record, "reason", None)
    because = "" if reason is None else f' ("{reason}")'
    return _one_line(f"{who} {_deed(folded, names)}{because}{based_on}: {outcome}")


def explain(folded: Folded, view: View, names: Names) -> str:
    """Return why a record was rejected, such as `rejected as dead_target: b#7 is not alive`. See `describe` for the arguments."""
    record, verdict = folded.record, folded.verdict
    assert verdict.reason is not None, "an accepted record needs no excuse"
    return _one_line(f"rejected as {verdict.reason}: {verdict.problem or _meaning(record, verdict.reason, view, names)}")


def as_document(folded: Folded, lines: Sequence[str]) -> dict[str, object]:
    """Return a folded record and its description as a JSON object, for programs."""
    return {
        "offset": folded.offset,
        "record": None if isinstance(folded.record, Unreadable) else orjson.loads(encode(folded.record)),
        "accepted": folded.verdict.accepted,
        "reason": folded.verdict.reason,
        "problem": folded.verdict.problem,
        "text": list(lines),
    }


def standing(bundle: BundleEntry, names: Names) -> str:
    """Return one line on the state of a bundle."""
    return f"{bundle.name} is {_state(bundle, names)}, token {bundle.token}, last changed at {bundle.last}"


def concerns(folded: Folded, bundle: BundleName) -> bool:
    """Return whether a record changed, or wanted to change, a bundle that shares points with `bundle`.

    So a story follows these points through splits and merges. `bundle` need not exist.
    """
    record, verdict = folded.record, folded.verdict
    if verdict.accepted:
        return any(
            change.name == bundle.namespace if isinstance(change, NamespaceChanged) else _overlaps(change.name, bundle)
            for change in verdict.changes
            if isinstance(change, BundleChanged | NamespaceChanged)
        )
    if isinstance(record, BundleTransition | Split | Merge):
        return _overlaps(record.key, bundle) or (isinstance(record, Merge) and _overlaps(record.right, bundle))
    return isinstance(record, NamespaceRecord) and record.key == bundle.namespace


def story_of(bundle: BundleName, reader: Reader, names: Names, entries: Iterable[Entry]) -> Iterator[Told]:
    """Yield the story of a bundle, record by record, while `reader` folds `entries` and `names` learns who joins.

    Raises what `Reader.feed` raises. `ending_of` returns the end of the story.
    """
    for entry in entries:
        folded = reader.feed(entry)
        names.learn(folded)
        if concerns(folded, bundle):
            yield Told(folded=folded, lines=(describe(folded, reader.view, names), *_effects(folded, bundle, names)))


def ending_of(bundle: BundleName, view: View, names: Names) -> list[str]:
    """Return the end of a story: one line per bundle that shares points with `bundle`, in hash order."""
    children = [child for child in view.bundles_of(bundle.namespace) if max(child.low, bundle.low) < min(child.high, bundle.high)]
    return [standing(child, names) for child in children] or [f"there is no namespace {bundle.namespace}"]


def _one_line(text: str) -> str:
    """Escape what could break the line or control the terminal: records contain untrusted text."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# --- what was done --------------------------------------------------------------------------------------------------------


def _publisher(record: AnyRecord | Unreadable) -> str:
    if record.publisher is None:
        return "somebody"
    return record.publisher if record.incarnation is None else f"{record.publisher}#{record.incarnation}"


def _deed(folded: Folded, names: Names) -> str:
    match folded.record:
        case BundleTransition() as record:
            return _transition(record, folded.verdict.changes, names)
        case Genesis() as record:
            above = f", whose offsets go on above {record.base}" if record.base else ""
            return f"begins the log of cluster {record.cluster}{above}"
        case Joined() as record:
            instead = " in place of its former process" if record.replaces is not None else ""
            silence = " after the silence of its former process" if record.after_silence else ""
            return f"joins with capacity {record.capacity}{instead}{silence}"
        case Renewed():
            return "renews its lease"
        case BrokerRecord() as record:
            return _BROKER_DEEDS[record.status].format(key=record.key)
        case NamespaceRecord() as record:
            bundles = f" of {_count(len(record.boundaries) - 1, 'bundle')}" if record.boundaries else ""
            return _NAMESPACE_DEEDS[record.status].format(key=record.key) + bundles
        case PolicyRecord() as record:
            return f"{'sets' if record.status == 'set' else 'removes'} policy {record.key}"
        case Split() as record:
            return f"splits {record.key} at {_points(record.positions)}"
        case Merge() as record:
            return f"merges {record.key} with {record.right}"
        case LevelRecord() as record:
            if record.raises_to != LEVEL_CLOSED:
                return f"raises the level to {record.raises_to}"
            return "closes the log, whose channel goes on in a copy" + (f" at {record.copied_to}" if record.copied_to else "")
    raise AssertionError("a record of no kind")


def _transition(record: BundleTransition, changes: Sequence[object], names: Names) -> str:
    after = _wanted_phase(record)
    before = next((change.before.phase for change in changes if isinstance(change, BundleChanged) and change.before is not None), None)
    deed = _DEEDS[before, after].format(key=record.key, owner=names.of(record.owner), source=names.of(record.source))
    if after != "splitting":
        return deed
    at = f" at {_points(record.positions)}" if record.positions else ""
    return f"{deed} by {record.algorithm}{at}"


def _wanted_phase(record: BundleTransition) -> Phase:
    return PHASE_OF_SHAPE[record.state, record.owner is not None, record.source is not None]


def _points(positions: Iterable[int]) -> str:
    return ", ".join(f"0x{position:08x}" for position in positions)


# --- what came of it ------------------------------------------------------------------------------------------------------


def _acceptance(folded: Folded, names: Names) -> str:
    if folded.verdict.diverged:
        return "accepted, but its digest is not that of this view: the two have parted"
    changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
    if isinstance(folded.record, PolicyRecord):
        return "accepted" + "".join(f", {told}" for told in _policy_changes(folded.verdict.changes))
    if isinstance(folded.record, BundleTransition):
        [change] = changes
        before, after = change.before, change.after
        token = f", token {after.token}" if before and after and before.token != after.token else ""
        return f"accepted, {_state(before, names)} -> {_state(after, names)}{token}"
    return f"accepted, it changes {_count(len(changes), 'bundle')}" if changes else "accepted"


def _policy_changes(changes: Iterable[object]) -> list[str]:
    """Return the changed entries of a policy by name, such as `min_limit: 1 -> 2`, up to a limit."""
    told = []
    for change in changes:
        if isinstance(change, PolicyChanged):
            was, now = ({} if entry is None else entry.document for entry in (change.before, change.after))
            names = [name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)]
            told += [f"{name}: {_scalar(was.get(name))} -> {_scalar(now.get(name))}" for name in names]
    return told if len(told) <= ENTRIES_SHOWN_MAX else [*told[:ENTRIES_SHOWN_MAX], f"and {len(told) - ENTRIES_SHOWN_MAX} more"]


def _scalar(value: Scalar | None) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _effects(folded: Folded, bundle: BundleName, names: Names) -> list[str]:
    """Return a record's effects on bundles that share points with `bundle`, unless `describe` shows them."""
    changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
    if isinstance(folded.record, BundleTransition):
        return []
    return [
        f"{change.name}: {_state(change.before, names)} -> {_state(change.after, names)}"
        + (f", token {change.after.token}" if change.after else "")
        for change in changes
        if _overlaps(change.name, bundle)
    ]


def _state(bundle: BundleEntry | None, names: Names) -> str:
    """Return a bundle's state and holders as in the protocol: `assigning(b#9, source=a#2)`."""
    if bundle is None:
        return "absent"
    owner = () if bundle.owner is None else (names.of(bundle.owner),)
    source = () if bundle.source is None else (f"source={names.of(bundle.source)}",)
    holders = ", ".join((*owner, *source))
    return f"{bundle.state}({holders})" if holders else bundle.state


def _meaning(record: AnyRecord | Unreadable, reason: Reason, view: View, names: Names) -> str:
    if isinstance(record, BundleTransition | Split | Merge):
        special = _meaning_of_state(record, reason, view, names)
        if special is not None:
            return special
    if reason is Reason.LATE and record.incarnation is None:
        return f"the view that it was made against was more than {ADMIN_WINDOW_OFFSETS} offsets old"
    subject, last = _changed_since(record, view) if isinstance(record, Record) else ("it", 0)
    return _MEANINGS[reason].format(
        subject=subject,
        last=last,
        publisher=_publisher(record),
        owner=names.of(getattr(record, "owner", None)),
        level=view.level,
        cluster=view.cluster,
    )


def _meaning_of_state(record: BundleTransition | Split | Merge, reason: Reason, view: View, names: Names) -> str | None:
    """Explain a rejected change by the bundle's state, where the reason is not enough."""
    bundle = view.bundles.get(record.key)
    if bundle is None:
        return None
    state = _state(bundle, names)
    if reason is Reason.ILLEGAL_TRANSITION:
        right = f", and the other is {_state(view.bundles.get(record.right), names)}" if isinstance(record, Merge) else ""
        return f"it is {state}{right}"
    if reason is Reason.NOT_THE_ACTOR:
        row = ROWS.get((bundle.phase, _wanted_phase(record))) if isinstance(record, BundleTransition) else None
        actors = " or ".join(actor.value for actor in row.actors) if row else "the owner"
        return f"while it is {state} only {actors} may do this"
    return None


def _changed_since(record: Record, view: View) -> tuple[str, int]:
    """Return a record's subject and the offset of its last change; for a merge, of the bundle that has changed."""
    if isinstance(record, Merge):
        left, right = view.bundles.get(record.key), view.bundles.get(record.right)
        if left is not None and right is not None and left.last == record.based_on:
            return record.right, right.last
    if isinstance(record, BundleTransition | Split | Merge):
        bundle = view.bundles.get(record.key)
        return record.key, 0 if bundle is None else bundle.last
    if isinstance(record, NamespaceRecord):
        namespace = view.namespaces.get(record.key)
        return (_ABSENT, view.removed_at) if namespace is None else (record.key, namespace.last)
    if isinstance(record, PolicyRecord):
        policy = view.policies.get(record.key)
        return (_ABSENT, view.removed_at) if policy is None else (record.key, policy.last)
    if isinstance(record, LevelRecord):
        return "the level", view.level_last
    if isinstance(record, Genesis):
        return "the log", view.genesis or 0
    return (record.key if record.key in view.brokers else _ABSENT), view.last_of_broker(record.key)


def _overlaps(name: str, bundle: BundleName) -> bool:
    try:
        other = parse_bundle(name)
    except InvalidName:
        return False
    return other.namespace == bundle.namespace and max(other.low, bundle.low) < min(other.high, bundle.high)
