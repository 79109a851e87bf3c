"""Implement the fold a second time, slowly and simply from the tables of docs/protocol.md, to
compare it with `channel.core.view`.

It shares no rule, table or index with the first fold. It takes decoded records, because bytes are
the codec's concern, and gives reasons in the order that the head of `channel.core.view` promises.
Bundles are a list that is searched from end to end each time.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import check_broker_id, check_recorded_namespace
from equipoise.channel.core.records import (
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
    Renewed,
    Split,
    Unreadable,
)
from equipoise.channel.core.view import View

HASH_END = 0xFFFFFFFF
ADMIN_WINDOW = 10_000


# The two tables as in the contract: from, to, who, and whether an ownership begins. A letter is an
# incarnation. One that only `to` has is the target: it must be alive, not draining, and different
# from those in `from`.
MOVES = [
    tuple(cell.strip() for cell in line.split("|"))
    for line in """
    free                   | assigning(d)           | any |
    assigning(d)           | owned(d)               | d   | new
    assigning(d)           | free                   | d   |
    assigning(d)           | assigning(e)           | any |
    owned(o)               | assigning(d, source=o) | any |
    assigning(d, source=o) | releasing(d, source=o) | d   |
    assigning(d, source=o) | owned(o)               | any |
    releasing(d, source=o) | owned(d)               | o   | new
    owned(o)               | releasing(source=o)    | any |
    releasing(source=o)    | free                   | o   |
    owned(o)               | splitting(o)           | any |
    splitting(o)           | owned(o)               | any |
    """.strip().splitlines()
]
# The new state of each bundle when `x` dies.
DEATHS = [
    tuple(cell.strip() for cell in line.split("|"))
    for line in """
    owned(x)               | free                   |
    splitting(x)           | free                   |
    assigning(x)           | free                   |
    releasing(source=x)    | free                   |
    assigning(x, source=o) | owned(o)               |
    releasing(x, source=o) | owned(o)               |
    assigning(d, source=x) | assigning(d)           |
    releasing(d, source=x) | owned(d)               | new
    """.strip().splitlines()
]


def spelled(cell: str) -> tuple[str, str | None, str | None]:
    """Parse a cell of the tables into state, owner and source, each a letter or None."""
    match = re.fullmatch(r"(\w+)(?:\((\w)?(?:, )?(?:source=(\w))?\))?", cell)
    assert match is not None, cell
    return match[1], match[2], match[3]


def bind(
    cell: str, state: str, owner: int | None, source: int | None, known: dict[str, int]
) -> dict[str, int] | None:
    """Return what the letters of a cell stand for if it matches this bundle, given the known ones;
    None if it does not match.
    """
    expected, *letters = spelled(cell)
    names = dict(known)
    for letter, incarnation in zip(letters, (owner, source), strict=True):
        if letter is None or incarnation is None:
            if letter is not None or incarnation is not None:
                return None
        elif names.setdefault(letter, incarnation) != incarnation:
            return None
    return names if state == expected else None


@dataclass(kw_only=True)
class Member:
    incarnation: int
    status: str
    last: int
    sequence: int
    instance_id: str
    supports: int
    serves: tuple[str, ...] | None = None

    def live(self) -> bool:
        return self.status in ("up", "draining")


@dataclass(kw_only=True)
class Bundle:
    namespace: str
    low: int
    high: int
    state: str
    owner: int | None
    source: int | None
    last: int
    token: int

    def name(self) -> str:
        return f"{self.namespace}/0x{self.low:08x}_0x{self.high:08x}"


@dataclass(kw_only=True)
class Named:
    status: str
    last: int
    document: dict[str, object]


@dataclass(kw_only=True)
class Model:
    """The state after a prefix of the log."""

    offset: int = -1
    cluster: str | None = None
    base: int = 0
    genesis: int | None = None
    level: int = 0
    level_last: int = 0
    removed_at: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    namespaces: dict[str, Named] = field(default_factory=dict)
    policies: dict[str, Named] = field(default_factory=dict)
    bundles: list[Bundle] = field(default_factory=list)


class RefusedError(Exception):
    """A condition of the fold does not hold."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(reason)


def need(condition: bool, reason: Reason) -> None:
    """Raise `RefusedError` unless the condition holds."""
    if not condition:
        raise RefusedError(reason)


def facts(model: Model) -> dict[str, object]:
    """Return everything in a model as a document, with bundles by name."""
    return asdict(model) | {"bundles": {bundle.name(): asdict(bundle) for bundle in model.bundles}}


def facts_of(view: View) -> dict[str, object]:
    """Return everything in a view, in the form of `facts`."""
    return facts(
        Model(
            offset=view.offset,
            cluster=view.cluster,
            base=view.base,
            genesis=view.genesis,
            level=view.level,
            level_last=view.level_last,
            removed_at=view.removed_at,
            members={
                name: Member(
                    incarnation=entry.incarnation,
                    status=entry.status,
                    last=entry.last,
                    sequence=entry.sequence,
                    instance_id=entry.joined.instance_id,
                    supports=entry.joined.supported_level,
                    serves=entry.joined.namespaces,
                )
                for name, entry in view.brokers.items()
            },
            namespaces={
                name: Named(status=n.status, last=n.last, document=dict(n.policies))
                for name, n in view.namespaces.items()
            },
            policies={
                name: Named(status="set", last=p.last, document=dict(p.document))
                for name, p in view.policies.items()
            },
            bundles=[
                Bundle(
                    namespace=entry.namespace,
                    low=entry.low,
                    high=entry.high,
                    state=entry.state,
                    owner=entry.owner,
                    source=entry.source,
                    last=entry.last,
                    token=entry.token,
                )
                for entry in view.bundles.values()
            ],
        )
    )


def judge(model: Model, offset: int, record: AnyRecord | Unreadable) -> Reason | None:
    """Fold one record into the model. Return the reason if it is refused."""
    model.offset = offset
    try:
        _judge(model, offset, record)
    except RefusedError as refused:
        return refused.reason
    return None


def is_named(patterns: tuple[str, ...] | None, namespace: str) -> bool:
    """Return whether one of a program's patterns names a namespace. Without patterns it serves
    all.
    """
    return patterns is None or any(fits(pattern, namespace) for pattern in patterns)


def fits(pattern: str, text: str) -> bool:
    """Return whether a pattern matches all of a text: follow every way through the pattern."""
    ways = {0}
    for letter in pattern:
        ways = {
            end
            for way in ways
            for end in (range(way, len(text) + 1) if letter == "*" else (way + 1,))
            if letter == "*" or text[way : way + 1] == letter
        }
    return len(text) in ways


def member_of(model: Model, incarnation: int | None) -> Member | None:
    """Return the live member with this incarnation."""
    for member in model.members.values():
        if member.live() and member.incarnation == incarnation:
            return member
    return None


def _judge(model: Model, offset: int, record: AnyRecord | Unreadable) -> None:
    if isinstance(record, Genesis):
        _genesis(model, offset, record)
        return
    need(model.genesis is not None, Reason.NO_GENESIS)
    if isinstance(record, Joined):
        _joined(model, offset, record)
        return

    # Check the publisher and the number of the attempt first, whatever the record is.
    if record.publisher is not None and not record.publisher.startswith("admin:"):
        speaker = model.members.get(record.publisher)
        need(
            speaker is not None and speaker.live() and speaker.incarnation == record.incarnation,
            Reason.DEAD_PUBLISHER,
        )
        assert speaker is not None
        assert record.sequence is not None
        need(record.sequence > speaker.sequence, Reason.LATE)
        speaker.sequence = record.sequence
    elif not isinstance(record, Unreadable):
        assert record.as_of is not None
        need(offset - record.as_of <= ADMIN_WINDOW, Reason.LATE)
        need(record.as_of < offset, Reason.MALFORMED)

    need(record.level <= model.level, Reason.LEVEL)
    if isinstance(record, Unreadable):
        raise RefusedError(Reason.MALFORMED)
    if isinstance(record, BundleTransition):
        _transition(model, offset, record)
    elif isinstance(record, Split):
        _split(model, offset, record)
    elif isinstance(record, Merge):
        _merge(model, offset, record)
    elif isinstance(record, Renewed | BrokerRecord):
        _member(model, offset, record)
    elif isinstance(record, NamespaceRecord):
        _namespace(model, offset, record)
    elif isinstance(record, PolicyRecord):
        _policy(model, offset, record)
    else:
        _level(model, offset, record)


def _genesis(model: Model, offset: int, record: Genesis) -> None:
    if model.genesis is not None:
        need(record.cluster == model.cluster, Reason.FOREIGN_GENESIS)
        need((record.base, record.level) == (model.base, model.level), Reason.STALE)
        need(model.genesis <= model.base, Reason.STALE)
        model.genesis = offset
        return
    model.cluster = record.cluster
    model.base = record.base
    model.genesis = model.level_last = model.removed_at = offset
    model.level = record.level


def _level(model: Model, offset: int, record: LevelRecord) -> None:
    need(record.expected_offset == model.level_last, Reason.STALE)
    need(record.raises_to > model.level, Reason.ILLEGAL_TRANSITION)
    for member in model.members.values():
        need(not member.live() or member.supports >= record.raises_to, Reason.LEVEL)
    model.level = record.raises_to
    model.level_last = offset


def _joined(model: Model, offset: int, record: Joined) -> None:
    need(record.level <= model.level <= record.supported_level, Reason.LEVEL)
    old = model.members.get(record.key)
    if old is not None and old.live():
        need(record.after_silence or record.replaces == old.instance_id, Reason.STILL_ALIVE)
    need(record.expected_offset == (model.removed_at if old is None else old.last), Reason.STALE)
    try:
        check_broker_id(record.key)
    except InvalidName as error:
        raise RefusedError(Reason.MALFORMED) from error
    if old is not None and old.live():
        _death(model, offset, old.incarnation)
    model.members[record.key] = Member(
        incarnation=offset,
        status="up",
        last=offset,
        sequence=0,
        instance_id=record.instance_id,
        supports=record.supported_level,
        serves=record.namespaces,
    )


def _member(model: Model, offset: int, record: Renewed | BrokerRecord) -> None:
    member = model.members.get(record.key)
    need(
        record.expected_offset == (model.removed_at if member is None else member.last),
        Reason.STALE,
    )
    if member is None:
        raise RefusedError(Reason.UNKNOWN_BROKER)
    status = "renewed" if isinstance(record, Renewed) else record.status
    itself = record.publisher == record.key
    admin = record.publisher.startswith("admin:")
    if status in ("renewed", "draining", "left"):
        need(itself, Reason.NOT_THE_ACTOR)
        need(not (status == "draining" and member.status == "draining"), Reason.ILLEGAL_TRANSITION)
    elif status == "down":
        need(member.live(), Reason.ILLEGAL_TRANSITION)
        need(not itself, Reason.NOT_THE_ACTOR)
        proof = record.instance_id if isinstance(record, BrokerRecord) else None
        need(proof == member.instance_id or (proof is None and not admin), Reason.STILL_ALIVE)
    else:
        need(not admin, Reason.NOT_THE_ACTOR)
        need(not member.live(), Reason.STILL_ALIVE)

    if status == "removed":
        del model.members[record.key]
        model.removed_at = offset
        return
    member.last = offset
    if status == "draining":
        member.status = "draining"
    if status in ("left", "down"):
        _death(model, offset, member.incarnation)
        member.status = status
        member.sequence = 0


def _death(model: Model, offset: int, x: int) -> None:
    for bundle in model.bundles:
        for before, after, ownership in DEATHS:
            names = bind(before, bundle.state, bundle.owner, bundle.source, {"x": x})
            if names is not None:
                state, owner, source = spelled(after)
                bundle.state, bundle.last = state, offset
                bundle.owner, bundle.source = names.get(owner or ""), names.get(source or "")
                bundle.token = offset if ownership == "new" else bundle.token
                break


def _namespace(model: Model, offset: int, record: NamespaceRecord) -> None:
    old = model.namespaces.get(record.key)
    need(record.expected_offset == (model.removed_at if old is None else old.last), Reason.STALE)
    if record.status == "created":
        need(old is None, Reason.ILLEGAL_TRANSITION)
        try:
            check_recorded_namespace(record.key)
        except InvalidName as error:
            raise RefusedError(Reason.MALFORMED) from error
        cuts = list(record.boundaries or ())
        whole = (
            len(cuts) >= 2 and cuts[0] == 0 and cuts[-1] == HASH_END and cuts == sorted(set(cuts))
        )
        need(whole, Reason.BAD_BOUNDARY)
        model.namespaces[record.key] = Named(
            status="created", last=offset, document=dict(record.policies or {})
        )
        for low, high in pairwise(cuts):
            model.bundles.append(
                Bundle(
                    namespace=record.key,
                    low=low,
                    high=high,
                    state="free",
                    owner=None,
                    source=None,
                    last=offset,
                    token=offset,
                )
            )
        return
    if old is None:
        raise RefusedError(Reason.UNKNOWN_NAMESPACE)
    if record.status == "deleted":
        need(old.status == "deleting", Reason.ILLEGAL_TRANSITION)
        mine = [bundle for bundle in model.bundles if bundle.namespace == record.key]
        need(all(bundle.state == "free" for bundle in mine), Reason.BUNDLES_IN_USE)
        model.bundles = [bundle for bundle in model.bundles if bundle.namespace != record.key]
        del model.namespaces[record.key]
        model.removed_at = offset
        return
    need(old.status == "created", Reason.ILLEGAL_TRANSITION)
    old.last = offset
    if record.status == "deleting":
        old.status = "deleting"
    else:
        old.document = dict(record.policies or {})


def _policy(model: Model, offset: int, record: PolicyRecord) -> None:
    old = model.policies.get(record.key)
    need(record.expected_offset == (model.removed_at if old is None else old.last), Reason.STALE)
    if record.status == "set":
        model.policies[record.key] = Named(
            status="set", last=offset, document=dict(record.document or {})
        )
        return
    need(old is not None, Reason.UNKNOWN_POLICY)
    del model.policies[record.key]
    model.removed_at = offset


def _find(model: Model, name: str, expected_offset: int) -> Bundle:
    for bundle in model.bundles:
        if bundle.name() == name:
            need(bundle.last == expected_offset, Reason.STALE)
            return bundle
    raise RefusedError(Reason.UNKNOWN_BUNDLE)


def _transition(model: Model, offset: int, record: BundleTransition) -> None:
    bundle = _find(model, record.key, record.expected_offset)
    for before, after, who, ownership in MOVES:
        names = bind(before, bundle.state, bundle.owner, bundle.source, {})
        if names is None:
            continue
        all_names = bind(after, record.state, record.owner, record.source, names)
        if all_names is None:
            continue
        targets = [incarnation for letter, incarnation in all_names.items() if letter not in names]
        need(
            who == "any" or (record.incarnation is not None and record.incarnation == names[who]),
            Reason.NOT_THE_ACTOR,
        )
        refused_while_deleting = record.state == "splitting" or (
            record.state == "assigning" and record.source is None
        )
        need(
            not refused_while_deleting or model.namespaces[bundle.namespace].status != "deleting",
            Reason.NAMESPACE_DELETING,
        )
        for incarnation in targets:
            need(incarnation not in names.values(), Reason.ILLEGAL_TRANSITION)
            member = member_of(model, incarnation)
            need(member is not None, Reason.DEAD_TARGET)
            need(member is not None and member.status == "up", Reason.DRAINING_TARGET)
            need(
                member is not None and is_named(member.serves, bundle.namespace),
                Reason.NOT_SERVED,
            )
        bundle.state, bundle.owner, bundle.source, bundle.last = (
            record.state,
            record.owner,
            record.source,
            offset,
        )
        bundle.token = offset if ownership == "new" else bundle.token
        return
    raise RefusedError(Reason.ILLEGAL_TRANSITION)


def _split(model: Model, offset: int, record: Split) -> None:
    parent = _find(model, record.key, record.expected_offset)
    need(parent.state == "splitting", Reason.ILLEGAL_TRANSITION)
    need(
        record.incarnation is not None and record.incarnation == parent.owner, Reason.NOT_THE_ACTOR
    )
    cuts = list(record.positions)
    inside = (
        bool(cuts) and cuts == sorted(set(cuts)) and parent.low < cuts[0] and cuts[-1] < parent.high
    )
    need(inside, Reason.BAD_BOUNDARY)
    model.bundles.remove(parent)
    edges = [parent.low, *cuts, parent.high]
    for low, high in pairwise(edges):
        model.bundles.append(
            Bundle(
                namespace=parent.namespace,
                low=low,
                high=high,
                state="owned",
                owner=parent.owner,
                source=None,
                last=offset,
                token=parent.token,
            )
        )


def _merge(model: Model, offset: int, record: Merge) -> None:
    names = [bundle.name() for bundle in model.bundles]
    need(record.key in names and record.right in names, Reason.UNKNOWN_BUNDLE)
    left, right = (
        _find(model, record.key, record.expected_offset),
        _find(model, record.right, record.expected_offset_right),
    )
    need(left.namespace == right.namespace and left.high == right.low, Reason.NOT_ADJACENT)
    need(
        left.state == right.state == "owned" and left.owner == right.owner,
        Reason.ILLEGAL_TRANSITION,
    )
    model.bundles.remove(left)
    model.bundles.remove(right)
    model.bundles.append(
        Bundle(
            namespace=left.namespace,
            low=left.low,
            high=right.high,
            state="owned",
            owner=left.owner,
            source=None,
            last=offset,
            token=max(left.token, right.token),
        )
    )
