"""Describe records for people: each record's request, verdict and reason, and the story of one
bundle.

Pure functions from folded records, and the view just after them, to text. Callers add colours,
columns and times of day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import orjson

from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import (
    BundleChanged,
    BundleEntry,
    NamespaceChanged,
    PolicyChanged,
)
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

# (phase before, phase after) -> what the record does. A rejected one has no phase before.
_VERBS: Final[Mapping[tuple[Phase | None, Phase], str]] = {
    ("free", "assigning"): "assign",
    ("assigning", "assigning"): "assign",
    ("assigning", "owned"): "open",
    ("assigning", "free"): "refuse",
    ("owned", "transferring"): "transfer",
    ("transferring", "handing_over"): "ready",
    ("transferring", "owned"): "cancel",
    ("handing_over", "owned"): "handover",
    ("owned", "unloading"): "unload",
    ("unloading", "free"): "release",
    ("owned", "splitting"): "splitting",
    ("splitting", "owned"): "cancel",
    (None, "free"): "release",
    (None, "assigning"): "assign",
    (None, "transferring"): "transfer",
    (None, "owned"): "own",
    (None, "handing_over"): "ready",
    (None, "unloading"): "unload",
    (None, "splitting"): "splitting",
}

_BROKER_VERBS: Final = {"draining": "drain", "left": "leave", "down": "down", "removed": "remove"}
_NAMESPACE_VERBS: Final = {
    "created": "create",
    "policies": "set",
    "deleting": "deleting",
    "deleted": "delete",
}
_VERB_CHARACTERS: Final = len("splitting")
_QUARANTINE: Final = "quarantine/"  # As `brokers.balancing.policies` names it.
_LOOPBACK: Final = ("127.0.0.1:", "localhost:", "[::1]:")

# What a rejection means, where neither the verdict's `problem` nor the view explains more.
_MEANINGS: Final[Mapping[Reason, str]] = {
    Reason.MALFORMED: "it is not a valid record",
    Reason.STALE: "{subject} changed at offset {last}; the record expected offset {expected}",
    Reason.LATE: "a later attempt of {publisher} has been read",
    Reason.ILLEGAL_TRANSITION: "the state of {subject} does not allow this",
    Reason.NOT_THE_ACTOR: "{publisher} may not do this",
    Reason.DEAD_PUBLISHER: "{publisher} is not alive",
    Reason.DEAD_TARGET: "{owner} is not alive",
    Reason.DRAINING_TARGET: "{owner} is draining and takes no new bundles",
    Reason.NOT_SERVED: "the program of {owner} does not serve {namespace}",
    Reason.UNKNOWN_BUNDLE: "there is no such bundle",
    Reason.UNKNOWN_BROKER: "there is no such broker",
    Reason.UNKNOWN_NAMESPACE: "there is no such namespace",
    Reason.UNKNOWN_POLICY: "there is no such policy",
    Reason.NAMESPACE_DELETING: "the namespace is being deleted",
    Reason.BUNDLES_IN_USE: "some bundles of the namespace are not free",
    Reason.NOT_ADJACENT: "the second bundle does not begin where the first ends",
    Reason.BAD_BOUNDARY: "the cuts must rise strictly inside the bundle",
    Reason.STILL_ALIVE: (
        "{subject} is alive according to the log, and the record does not prove otherwise"
    ),
    Reason.LEVEL: "the log has format version {level}",
    Reason.NO_GENESIS: "the log has no genesis record yet",
    Reason.FOREIGN_GENESIS: "the log belongs to cluster {cluster}",
}


ENTRIES_SHOWN_MAX: Final = 16
"""Entries of a policy, and patterns of namespaces, shown per record. It has up to 256."""

# The subject of a record with an absent key: one offset stands for all of them (`View.removed_at`).
_ABSENT: Final = "an absent key"


class Names:
    """The broker id of each incarnation. An id returns with a new incarnation when its broker
    restarts.
    """

    def __init__(self, view: View, *, short: bool = False) -> None:
        """Add the incarnations of `view`. `learn` adds later ones. `short` leaves out loopback
        hosts: `127.0.0.1:8081` is `:8081`.
        """
        self._is_short = short
        self._brokers = {broker.incarnation: broker.broker for broker in view.brokers.values()}
        self._newest = {broker: incarnation for incarnation, broker in self._brokers.items()}

    def learn(self, folded: Folded) -> None:
        """Add the incarnation of a `joined` record just folded."""
        if isinstance(folded.record, Joined) and folded.verdict.accepted:
            self._brokers[folded.offset] = folded.record.key
            self._newest[folded.record.key] = folded.offset

    def of(self, incarnation: int | None) -> str:
        """Return the broker id of an incarnation. A former or unknown incarnation has its number
        added: `a#2`, `#9`.
        """
        if incarnation is None:
            return "nobody"
        broker = self._brokers.get(incarnation, "")
        return (
            self.broker(broker)
            if self._newest.get(broker) == incarnation
            else f"{self.broker(broker)}#{incarnation}"
        )

    def publisher_of(self, record: AnyRecord | Unreadable) -> str:
        """Return the author of a record."""
        if record.publisher is None:
            return "nobody known"
        is_newest = (
            record.incarnation is None or self._newest.get(record.publisher) == record.incarnation
        )
        return (
            self.broker(record.publisher)
            if is_newest
            else f"{self.broker(record.publisher)}#{record.incarnation}"
        )

    def requester_of(self, record: AnyRecord | Unreadable) -> str:
        """Return who wanted a record: its author, or `ADMIN via AUTHOR` if a broker wrote it for an
        admin.
        """
        author = self.publisher_of(record)
        asked = None if isinstance(record, Unreadable) else record.requested_by
        return author if asked is None else f"{asked} via {author}"

    def broker(self, broker: str) -> str:
        """Return a broker id as this object writes it."""
        return next(
            (
                broker[len(host) - 1 :]
                for host in _LOOPBACK
                if self._is_short and broker.startswith(host)
            ),
            broker,
        )


def describe(folded: Folded, view: View, names: Names) -> list[str]:
    """Return a folded record as text: `VERB KEY DETAIL by AUTHOR VERDICT`, and further lines with
    its reason and its rejection.

    An accepted record has no verdict in the text. `view` and `names` are as just after the fold.
    They explain a rejection.
    """
    record, verdict = folded.record, folded.verdict
    verb, key, detail, more = _action(folded, names)
    reason = getattr(record, "reason", None)
    if reason is not None:
        more.insert(0, f"reason: {reason}")
    outcome = ""
    if verdict.reason is not None:
        outcome = f"rejected as {verdict.reason}"
        more.append(f"{verdict.reason}: {explain(folded, view, names)}")
    elif verdict.diverged:
        outcome = "diverged"
        more.append("diverged: the publisher's view has another digest than this view")
    columns = (
        f"{verb:{_VERB_CHARACTERS}}",
        key,
        detail,
        f"by {names.requester_of(record)}",
        outcome,
    )
    return [one_line(line) for line in ("  ".join(column for column in columns if column), *more)]


def explain(folded: Folded, view: View, names: Names) -> str:
    """Return why a record was rejected, such as `b is not alive`. See `describe` for the
    arguments.
    """
    record, verdict = folded.record, folded.verdict
    assert verdict.reason is not None, "an accepted record needs no excuse"
    return one_line(verdict.problem or _meaning(record, verdict.reason, view, names))


def as_document(folded: Folded, lines: Sequence[str]) -> dict[str, object]:
    """Return a folded record and its description as a JSON object, for programs."""
    return {
        "offset": folded.offset,
        "record": (
            None if isinstance(folded.record, Unreadable) else orjson.loads(encode(folded.record))
        ),
        "accepted": folded.verdict.accepted,
        "reason": folded.verdict.reason,
        "problem": folded.verdict.problem,
        "text": list(lines),
    }


def standing(bundle: BundleEntry, names: Names) -> str:
    """Return one line on the state of a bundle."""
    return (
        f"{bundle.name} is {_state(bundle, names)}, token {bundle.token}, last changed at offset"
        f" {bundle.last}"
    )


def concerns(folded: Folded, bundle: BundleName) -> bool:
    """Return whether a record changed, or wanted to change, a bundle that shares points with
    `bundle`.

    So a story follows these points through splits and merges. `bundle` need not exist.
    """
    record, verdict = folded.record, folded.verdict
    if isinstance(record, PolicyRecord):
        return _is_quarantine_of(record.key, bundle)
    if verdict.accepted:
        return any(
            (
                change.name == bundle.namespace
                if isinstance(change, NamespaceChanged)
                else overlaps(change.name, bundle)
            )
            for change in verdict.changes
            if isinstance(change, BundleChanged | NamespaceChanged)
        )
    if isinstance(record, BundleTransition | Split | Merge):
        return overlaps(record.key, bundle) or (
            isinstance(record, Merge) and overlaps(record.right, bundle)
        )
    return isinstance(record, NamespaceRecord) and record.key == bundle.namespace


def story_of(
    bundle: BundleName, reader: Reader, names: Names, entries: Iterable[Entry]
) -> Iterator[tuple[Folded, list[str]]]:
    """Yield each record of a bundle's story with its text, while `reader` folds `entries` and
    `names` learns who joins.

    Raises what `Reader.feed` raises. `ending_of` returns the end of the story.
    """
    for entry in entries:
        folded = reader.feed(entry)
        names.learn(folded)
        if concerns(folded, bundle):
            yield folded, [*describe(folded, reader.view, names), *_effects(folded, bundle, names)]


def ending_of(bundle: BundleName, view: View, names: Names) -> list[str]:
    """Return the end of a story: one line per bundle that shares points with `bundle`, in hash
    order.
    """
    children = [
        child
        for child in view.bundles_of(bundle.namespace)
        if max(child.low, bundle.low) < min(child.high, bundle.high)
    ]
    if not children:
        return [f"there is no namespace {bundle.namespace}"]
    unserved = why_unserved(view, bundle.namespace)
    return [*(standing(child, names) for child in children), *([unserved] if unserved else ())]


def why_unserved(view: View, namespace: str) -> str | None:
    """Return why no broker may be given bundles of a namespace although some broker is up; None if
    one may, or none is up.
    """
    is_up = any(broker.status == "up" for broker in view.live_brokers())
    is_unserved = is_up and not view.takers(namespace)
    return f"no broker that is up serves {namespace}" if is_unserved else None


def _is_quarantine_of(key: str, bundle: BundleName) -> bool:
    """Return whether a policy keeps a bundle that shares points with `bundle` from every broker."""
    name = key.removeprefix(_QUARANTINE)
    return name != key and overlaps(name, bundle)


def one_line(text: str) -> str:
    """Escape what could break the line or control the terminal: records contain untrusted text."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    )


# --- what a record does ---


def _action(folded: Folded, names: Names) -> tuple[str, str, str, list[str]]:
    """Return the verb, key and detail of a record, and further lines."""
    changed = _bundle_changes(folded)
    bundles = _count(len(changed), "bundle") if changed else ""
    match folded.record:
        case BundleTransition() as record:
            return _transition(record, changed[0] if changed else None, names)
        case Genesis() as record:
            return (
                "genesis",
                record.cluster,
                f"offsets continue above {record.base}" if record.base else "",
                [],
            )
        case Joined() | Renewed() | BrokerRecord() as record:
            return *_broker(record, names, bundles), []
        case NamespaceRecord() as record:
            return _NAMESPACE_VERBS[record.status], record.key, _namespace(record), []
        case PolicyRecord() as record:
            return (
                "set" if record.status == "set" else "remove",
                record.key,
                "",
                _policy_changes(folded.verdict.changes),
            )
        case Split() as record:
            return "split", record.key, f"at {_points(record.positions)}", []
        case Merge() as record:
            return "merge", record.key, f"+ {record.right.rpartition('/')[2]}", []
        case LevelRecord(raises_to=level) as record if level == LEVEL_CLOSED:
            return (
                "close",
                "log",
                "",
                [
                    "the channel continues in a copy"
                    + (f": {record.copied_to}" if record.copied_to else "")
                ],
            )
        case LevelRecord() as record:
            return "raise", "format version", f"to {record.raises_to}", []
        case Unreadable():
            return "unknown", "", "", []
    raise AssertionError("a record of no kind")


def _bundle_changes(folded: Folded) -> list[BundleChanged]:
    return [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]


def _broker(
    record: Joined | Renewed | BrokerRecord, names: Names, bundles: str
) -> tuple[str, str, str]:
    key = names.broker(record.key)
    if isinstance(record, Renewed):
        return "renew", key, ""
    if isinstance(record, BrokerRecord):
        return _BROKER_VERBS[record.status], key, bundles and f"changes {bundles}"
    instead = "replaces its former process" if record.replaces is not None else ""
    silence = "after the silence of its former process" if record.after_silence else ""
    return (
        "join",
        key,
        _listed(
            f"capacity {record.capacity}",
            _served(record),
            instead,
            silence,
            bundles and f"frees {bundles}",
        ),
    )


def _served(record: Joined) -> str:
    if record.namespaces is None:
        return ""
    more = len(record.namespaces) - ENTRIES_SHOWN_MAX
    shown = (*record.namespaces[:ENTRIES_SHOWN_MAX], *([f"{more} more"] if more > 0 else ()))
    return f"serves {', '.join(shown) or 'no namespace'}"


def _namespace(record: NamespaceRecord) -> str:
    if record.status == "policies":
        return "namespace policies"
    return _count(len(record.boundaries) - 1, "bundle") if record.boundaries else ""


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _transition(
    record: BundleTransition, change: BundleChanged | None, names: Names
) -> tuple[str, str, str, list[str]]:
    after, before = _wanted_phase(record), None if change is None else change.before
    verb = _VERBS[None if before is None else before.phase, after]
    owner, source = names.of(record.owner), names.of(record.source)
    token = (
        f"token {change.after.token}"
        if before and change and change.after and before.token != change.after.token
        else ""
    )
    more: list[str] = []
    match verb:
        case "assign":
            detail = (
                f"to {owner}"
                if before is None or before.owner is None
                else f"{names.of(before.owner)} -> {owner}"
            )
        case "transfer" | "ready":
            detail = f"{source} -> {owner}"
        case "handover" if before is not None:
            detail = _listed(f"{names.of(before.source)} -> {owner}", token)
        case "cancel" if before is not None:
            detail = (
                "split" if before.phase == "splitting" else f"transfer to {names.of(before.owner)}"
            )
        case "unload":
            detail = f"from {source}"
        case "splitting":
            detail = f"on {owner}"
            more.append(
                f"{record.algorithm}"
                + (f" at {_points(record.positions)}" if record.positions else "")
            )
        case _:
            detail = token
    return verb, record.key, detail, more


def _wanted_phase(record: BundleTransition) -> Phase:
    return PHASE_OF_SHAPE[record.state, record.owner is not None, record.source is not None]


def _points(positions: Iterable[int]) -> str:
    return ", ".join(f"0x{position:08x}" for position in positions)


def _policy_changes(changes: Iterable[object]) -> list[str]:
    """Return the changed entries of a policy by name, such as `min_limit: 1 -> 2`, up to a
    limit.
    """
    lines: list[str] = []
    for change in changes:
        if isinstance(change, PolicyChanged):
            was, now = (
                {} if entry is None else entry.document for entry in (change.before, change.after)
            )
            names = [
                name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)
            ]
            lines += [
                f"{name}: {_scalar(was.get(name))} -> {_scalar(now.get(name))}" for name in names
            ]
    more = len(lines) - ENTRIES_SHOWN_MAX
    return lines if more <= 0 else [*lines[:ENTRIES_SHOWN_MAX], f"and {more} more"]


def _scalar(value: Scalar | None) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _effects(folded: Folded, bundle: BundleName, names: Names) -> list[str]:
    """Return a record's effects on bundles that share points with `bundle`, unless `describe` shows
    them.
    """
    if isinstance(folded.record, BundleTransition):
        return []
    return [
        f"{change.name}: {_state(change.before, names)} -> {_state(change.after, names)}"
        + (f", token {change.after.token}" if change.after else "")
        for change in _bundle_changes(folded)
        if overlaps(change.name, bundle)
    ]


def _state(bundle: BundleEntry | None, names: Names) -> str:
    """Return a bundle's state with its brokers, such as `assigning to b from a`."""
    if bundle is None:
        return "absent"
    relation = {"owned": "by", "splitting": "on"}.get(bundle.state, "to")
    owner = "" if bundle.owner is None else f" {relation} {names.of(bundle.owner)}"
    return f"{bundle.state}{owner}" + (
        "" if bundle.source is None else f" from {names.of(bundle.source)}"
    )


def _meaning(record: AnyRecord | Unreadable, reason: Reason, view: View, names: Names) -> str:
    if isinstance(record, BundleTransition | Split | Merge):
        special = _meaning_of_state(record, reason, view, names)
        if special is not None:
            return special
    if (
        reason is Reason.ILLEGAL_TRANSITION
        and isinstance(record, NamespaceRecord)
        and record.key in view.namespaces
    ):
        namespace = view.namespaces[record.key]
        return (
            f"it already exists (created at offset {namespace.created})"
            if record.status == "created"
            else "it is being deleted"
        )
    if reason is Reason.LATE and record.incarnation is None:
        return f"the author's view was more than {ADMIN_WINDOW_OFFSETS} offsets old"
    subject, last, expected = (
        _changed_since(record, view, names) if isinstance(record, Record) else ("it", 0, 0)
    )
    return _MEANINGS[reason].format(
        subject=subject,
        last=last,
        expected=expected,
        publisher=names.publisher_of(record),
        owner=names.of(getattr(record, "owner", None)),
        namespace=record.key.rpartition("/")[0] if isinstance(record, BundleTransition) else "",
        level=view.level,
        cluster=view.cluster,
    )


def _meaning_of_state(
    record: BundleTransition | Split | Merge, reason: Reason, view: View, names: Names
) -> str | None:
    """Explain a rejected change by the bundle's state, where the reason is not enough."""
    bundle = view.bundles.get(record.key)
    if bundle is None:
        return None
    state = _state(bundle, names)
    if reason is Reason.ILLEGAL_TRANSITION:
        right = (
            f", and the other bundle is {_state(view.bundles.get(record.right), names)}"
            if isinstance(record, Merge)
            else ""
        )
        return f"the bundle is {state}{right}"
    if reason is Reason.NOT_THE_ACTOR:
        row = (
            ROWS.get((bundle.phase, _wanted_phase(record)))
            if isinstance(record, BundleTransition)
            else None
        )
        actors = " or ".join(actor.value for actor in row.actors) if row else "the owner"
        return f"the bundle is {state}, and only {actors} may do this"
    return None


def _changed_since(record: Record, view: View, names: Names) -> tuple[str, int, int]:
    """Return a record's subject, the offset of its last change and the expected one; for a merge,
    of the bundle that has changed.
    """
    if isinstance(record, Merge):
        left, right = view.bundles.get(record.key), view.bundles.get(record.right)
        if left is not None and right is not None and left.last == record.expected_offset:
            return record.right, right.last, record.expected_offset_right
    subject, last = _subject_of(record, view, names)
    return subject, last, record.expected_offset


def _subject_of(record: Record, view: View, names: Names) -> tuple[str, int]:
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
        return "the format version", view.level_last
    if isinstance(record, Genesis):
        return "the log", view.genesis or 0
    return (
        names.broker(record.key) if record.key in view.brokers else _ABSENT
    ), view.last_of_broker(record.key)


def overlaps(name: str, bundle: BundleName) -> bool:
    """Return whether the bundle `name` shares points with `bundle`. A name of another form shares
    none.
    """
    try:
        other = parse_bundle(name)
    except InvalidName:
        return False
    return other.namespace == bundle.namespace and max(other.low, bundle.low) < min(
        other.high, bundle.high
    )
