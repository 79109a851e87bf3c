"""Intentions to records: what one wants done, spelled against what one has read.

May live here: functions that make one record each, with its `based_on` taken from the entry that it is about. They decide
nothing: whether a proposal is accepted is the fold's business, whether it is wise its author's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.records import (
    LEVEL_CLOSED,
    TEXT_CHARACTERS_MAX,
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Document,
    Genesis,
    LevelRecord,
    Merge,
    NamespaceRecord,
    PolicyRecord,
    Renewed,
    Split,
    Unreadable,
)
from equipoise.channel.core.table import View

# How the reason begins of a record by which a broker says that its service does not take a bundle: of an owner's unload, and
# of a destination's end of a transfer. For placement, never for the fold: nobody's verdict depends on it.
_COULD_NOT_OPEN: Final = "could not open it: "
_COULD_NOT_PREPARE: Final = "could not prepare it: "


class _Signature(TypedDict):
    publisher: str
    incarnation: int | None
    sequence: int | None
    as_of: int | None
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who proposes. A broker has an `incarnation` and a `sequence` of this one attempt, an admin the offset of its view, `as_of`.

    `timestamp_ms` is Unix time, for people and audits.
    """

    publisher: str
    incarnation: int | None = None
    sequence: int | None = None
    as_of: int | None = None
    timestamp_ms: int = 0

    @property
    def signature(self) -> _Signature:
        """The fields of the envelope that tell who speaks."""
        return {
            "publisher": self.publisher,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "as_of": self.as_of,
            "timestamp_ms": self.timestamp_ms,
        }


def genesis(author: Author, *, cluster: str, base: int = 0, level: int = 1) -> Genesis:
    """The first record of a log. Its author needs no incarnation and no view.

    The genesis of a copy names the base and the level of the view that the copy begins with.
    """
    return Genesis(
        key="genesis", based_on=0, publisher=author.publisher, level=level, timestamp_ms=author.timestamp_ms, cluster=cluster, base=base
    )


def close_log(author: Author, view: View, *, copied_to: str | None = None, identity: str | None = None) -> LevelRecord:
    """The last record of a log whose channel goes on in a copy: accepted once no broker of it is alive.

    `copied_to` is the URL of the log with the copy, and `identity` tells it from every other.
    """
    # For people, so that a path which is no text is spelled as far as it can be.
    spelled = None if copied_to is None else copied_to.encode("utf-8", "replace").decode()[:TEXT_CHARACTERS_MAX]
    return LevelRecord(
        key="level",
        based_on=view.level_last,
        **author.signature,
        raises_to=LEVEL_CLOSED,
        copied_to=spelled,
        copied_to_identity=identity,
    )


# --- bundles ---


def assign(author: Author, bundle: BundleEntry, *, owner: int, reason: str | None = None) -> BundleTransition:
    """Give a free bundle to incarnation `owner`, or one whose owner is silent to another."""
    return BundleTransition(key=bundle.name, based_on=bundle.last, **author.signature, state="assigning", owner=owner, reason=reason)


def opened(author: Author, bundle: BundleEntry) -> BundleTransition:
    """Its owner has opened an assigned bundle."""
    return BundleTransition(key=bundle.name, based_on=bundle.last, **author.signature, state="owned", owner=bundle.owner)


def refuse(author: Author, bundle: BundleEntry, *, reason: str) -> BundleTransition:
    """The broker that it was assigned to cannot open it."""
    return BundleTransition(key=bundle.name, based_on=bundle.last, **author.signature, state="free", reason=reason)


def transfer(author: Author, bundle: BundleEntry, *, destination: int, reason: str | None = None) -> BundleTransition:
    """Move an owned bundle to incarnation `destination`; its owner serves until that one is ready."""
    return BundleTransition(
        key=bundle.name,
        based_on=bundle.last,
        **author.signature,
        state="assigning",
        owner=destination,
        source=bundle.owner,
        reason=reason,
    )


def let_go(author: Author, bundle: BundleEntry) -> BundleTransition:
    """The destination of a transfer is warm: the source may let go."""
    return BundleTransition(
        key=bundle.name, based_on=bundle.last, **author.signature, state="releasing", owner=bundle.owner, source=bundle.source
    )


def hand_over(author: Author, bundle: BundleEntry, *, handover: bytes | None = None) -> BundleTransition:
    """The source of a transfer has closed the bundle: the destination owns it when it reads this."""
    return BundleTransition(key=bundle.name, based_on=bundle.last, **author.signature, state="owned", owner=bundle.owner, handover=handover)


def cancel(author: Author, bundle: BundleEntry, *, reason: str) -> BundleTransition:
    """End a transfer or a split that has not happened; who served goes on with the same token."""
    owner = bundle.source if bundle.phase == "transferring" else bundle.owner
    return BundleTransition(key=bundle.name, based_on=bundle.last, **author.signature, state="owned", owner=owner, reason=reason)


def unload(author: Author, bundle: BundleEntry, *, reason: str | None = None) -> BundleTransition:
    """Take an owned bundle from its owner without naming another."""
    return BundleTransition(
        key=bundle.name, based_on=bundle.last, **author.signature, state="releasing", source=bundle.owner, reason=reason
    )


def give_up(author: Author, bundle: BundleEntry, *, problem: str) -> BundleTransition:
    """Its owner's service failed to open it: an unload by which others know (`is_refusal`) that it would fail again."""
    return unload(author, bundle, reason=f"{_COULD_NOT_OPEN}{problem}"[:TEXT_CHARACTERS_MAX])


def refuse_transfer(author: Author, bundle: BundleEntry, *, problem: str) -> BundleTransition:
    """Cancel a transfer because the destination's service refuses it; `is_refusal` tells this from an operator's cancel."""
    return cancel(author, bundle, reason=f"{_COULD_NOT_PREPARE}{problem}"[:TEXT_CHARACTERS_MAX])


def is_refusal(record: AnyRecord | Unreadable, before: BundleEntry) -> bool:
    """Return whether the owner of `before` says, by this accepted record, that its service does not take the bundle.

    It refuses an assignment, or writes what `give_up` or `refuse_transfer` makes. It also writes the unloads and the cancels that
    others ask it for: only the reason tells them apart.
    """
    if not isinstance(record, BundleTransition) or record.incarnation is None or record.incarnation != before.owner:
        return False
    if (before.phase, record.state) == ("assigning", "free"):
        return True
    mark = {"releasing": _COULD_NOT_OPEN, "owned": _COULD_NOT_PREPARE}.get(record.state)
    return mark is not None and (record.reason or "").startswith(mark)


def released(author: Author, bundle: BundleEntry) -> BundleTransition:
    """The source of an unload has closed the bundle."""
    return BundleTransition(key=bundle.name, based_on=bundle.last, **author.signature, state="free")


def start_split(
    author: Author, bundle: BundleEntry, *, algorithm: str, positions: Sequence[int] | None = None, reason: str | None = None
) -> BundleTransition:
    """Ask the owner to cut its bundle by `algorithm`, at `positions` (hash points) where the algorithm wants them given."""
    return BundleTransition(
        key=bundle.name,
        based_on=bundle.last,
        **author.signature,
        state="splitting",
        owner=bundle.owner,
        algorithm=algorithm,
        positions=None if positions is None else tuple(positions),
        reason=reason,
    )


def split(author: Author, bundle: BundleEntry, *, cuts: Sequence[int], reason: str | None = None) -> Split:
    """The owner cuts its splitting bundle at `cuts`, hash points strictly inside it."""
    return Split(key=bundle.name, based_on=bundle.last, **author.signature, positions=tuple(cuts), reason=reason)


def merge(author: Author, left: BundleEntry, right: BundleEntry, *, reason: str | None = None) -> Merge:
    """Make one bundle of two neighbours of one owner."""
    return Merge(key=left.name, based_on=left.last, **author.signature, right=right.name, based_on_right=right.last, reason=reason)


# --- namespaces, policies ---


def create_namespace(
    author: Author, view: View, *, name: str, boundaries: Sequence[int], policies: Document | None = None
) -> NamespaceRecord:
    """Create a namespace with bundles between each two of `boundaries`, which rise from 0 to `HASH_MAX`."""
    before = view.namespaces.get(name)
    return NamespaceRecord(
        key=name,
        based_on=view.removed_at if before is None else before.last,
        **author.signature,
        status="created",
        boundaries=tuple(boundaries),
        policies=policies,
    )


def set_namespace_policies(author: Author, view: View, *, name: str, policies: Document) -> NamespaceRecord:
    """Replace the policies of a namespace. Raises KeyError if the view has none of this name."""
    return NamespaceRecord(key=name, based_on=view.namespaces[name].last, **author.signature, status="policies", policies=policies)


def start_deleting_namespace(author: Author, view: View, *, name: str) -> NamespaceRecord:
    """Let nothing of a namespace be assigned any more. Raises KeyError if the view has none of this name."""
    return NamespaceRecord(key=name, based_on=view.namespaces[name].last, **author.signature, status="deleting")


def delete_namespace(author: Author, view: View, *, name: str) -> NamespaceRecord:
    """Remove a deleting namespace whose bundles are all free. Raises KeyError if the view has none of this name."""
    return NamespaceRecord(key=name, based_on=view.namespaces[name].last, **author.signature, status="deleted")


def set_policy(author: Author, view: View, *, name: str, document: Document) -> PolicyRecord:
    """Set a cluster-wide document."""
    return PolicyRecord(key=name, based_on=_last_of_policy(view, name), **author.signature, status="set", document=document)


def remove_policy(author: Author, view: View, *, name: str) -> PolicyRecord:
    """Remove a cluster-wide document."""
    return PolicyRecord(key=name, based_on=_last_of_policy(view, name), **author.signature, status="removed")


def _last_of_policy(view: View, name: str) -> int:
    before = view.policies.get(name)
    return view.removed_at if before is None else before.last


# --- brokers ---


def renewed(author: Author, broker: BrokerEntry) -> Renewed:
    """Renew the lease of the author's own incarnation."""
    return Renewed(key=broker.broker, based_on=broker.last, **author.signature, digest=broker.digest_after)


def draining(author: Author, broker: BrokerEntry, *, reason: str | None = None) -> BrokerRecord:
    """The author takes nothing new from now on."""
    return BrokerRecord(key=broker.broker, based_on=broker.last, **author.signature, status="draining", reason=reason)


def left(author: Author, broker: BrokerEntry, *, reason: str | None = None) -> BrokerRecord:
    """The author has stopped serving, and ends its incarnation."""
    return BrokerRecord(key=broker.broker, based_on=broker.last, **author.signature, status="left", reason=reason)


def down(author: Author, broker: BrokerEntry, *, nonce: str | None = None, reason: str | None = None) -> BrokerRecord:
    """Another broker is dead: it was silent for too long, or an admin proves it by the `nonce` from its locked directory."""
    return BrokerRecord(key=broker.broker, based_on=broker.last, **author.signature, status="down", nonce=nonce, reason=reason)


def remove_broker(author: Author, broker: BrokerEntry) -> BrokerRecord:
    """Forget a broker id that has long left or is long down."""
    return BrokerRecord(key=broker.broker, based_on=broker.last, **author.signature, status="removed")
