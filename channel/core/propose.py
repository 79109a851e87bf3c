"""Build one record per intention, with the expected offset of the entry that it changes.

The fold decides whether a proposal is accepted; its author decides whether it is wise.
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

# Starts the reason of a record that reports a refusal by the broker's service: an owner's unload,
# or a destination's end of a transfer. For placement only; no verdict depends on it.
_COULD_NOT_OPEN: Final = "could not open it: "
_COULD_NOT_PREPARE: Final = "could not prepare it: "


class _Signature(TypedDict):
    publisher: str
    incarnation: int | None
    sequence: int | None
    as_of: int | None
    timestamp_ms: int
    requested_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of a proposal.

    A broker has an `incarnation` and the `sequence` of this attempt; an admin has `as_of`, the
    offset of its view. `timestamp_ms` is Unix time, for people and audits. So is `requested_by`:
    the admin for whom a broker proposes.
    """

    publisher: str
    incarnation: int | None = None
    sequence: int | None = None
    as_of: int | None = None
    timestamp_ms: int = 0
    requested_by: str | None = None

    @property
    def signature(self) -> _Signature:
        """The envelope fields that identify the author."""
        return {
            "publisher": self.publisher,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "as_of": self.as_of,
            "timestamp_ms": self.timestamp_ms,
            "requested_by": self.requested_by,
        }


def genesis(author: Author, *, cluster: str, base: int = 0, level: int = 1) -> Genesis:
    """Return the first record of a log. Its author needs no incarnation and no view.

    A copy's genesis has the base and format version of the copied view.
    """
    return Genesis(
        key="genesis",
        expected_offset=0,
        publisher=author.publisher,
        level=level,
        timestamp_ms=author.timestamp_ms,
        cluster=cluster,
        base=base,
    )


def close_log(
    author: Author, view: View, *, copied_to: str | None = None, identity: str | None = None
) -> LevelRecord:
    """Return the record that closes a log whose channel goes on in a copy. It is accepted once no
    broker is alive.

    `copied_to` is the URL of the copy's log, `identity` its id.
    """
    # For people: keep as much as possible of a path that is not valid text.
    shown = (
        None
        if copied_to is None
        else copied_to.encode("utf-8", "replace").decode()[:TEXT_CHARACTERS_MAX]
    )
    return LevelRecord(
        key="level",
        expected_offset=view.level_last,
        **author.signature,
        raises_to=LEVEL_CLOSED,
        copied_to=shown,
        copied_to_identity=identity,
    )


# --- bundles ---


def assign(
    author: Author, bundle: BundleEntry, *, owner: int, reason: str | None = None
) -> BundleTransition:
    """Assign a bundle that is free, or whose owner is silent, to incarnation `owner`."""
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="assigning",
        owner=owner,
        reason=reason,
    )


def opened(author: Author, bundle: BundleEntry) -> BundleTransition:
    """Record that the owner has opened its assigned bundle."""
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="owned",
        owner=bundle.owner,
    )


def refuse(author: Author, bundle: BundleEntry, *, reason: str) -> BundleTransition:
    """Record that the owner cannot open its assigned bundle."""
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="free",
        reason=reason,
    )


def transfer(
    author: Author, bundle: BundleEntry, *, destination: int, reason: str | None = None
) -> BundleTransition:
    """Move an owned bundle to incarnation `destination`. The owner serves until the destination is
    ready.
    """
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="assigning",
        owner=destination,
        source=bundle.owner,
        reason=reason,
    )


def prepared(author: Author, bundle: BundleEntry) -> BundleTransition:
    """Record that the destination is warm: the source may release the bundle."""
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="releasing",
        owner=bundle.owner,
        source=bundle.source,
    )


def hand_over(
    author: Author, bundle: BundleEntry, *, handover: bytes | None = None
) -> BundleTransition:
    """Record that the source has closed the bundle. The destination owns it when it reads this."""
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="owned",
        owner=bundle.owner,
        handover=handover,
    )


def cancel(author: Author, bundle: BundleEntry, *, reason: str) -> BundleTransition:
    """Cancel a transfer or split that has not happened. The bundle keeps its server and token."""
    owner = bundle.source if bundle.phase == "transferring" else bundle.owner
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="owned",
        owner=owner,
        reason=reason,
    )


def unload(author: Author, bundle: BundleEntry, *, reason: str | None = None) -> BundleTransition:
    """Take an owned bundle from its owner, without a destination."""
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="releasing",
        source=bundle.owner,
        reason=reason,
    )


def give_up(author: Author, bundle: BundleEntry, *, problem: str) -> BundleTransition:
    """Unload a bundle that the owner's service failed to open. `is_refusal` recognises it: that
    owner would fail again.
    """
    return unload(author, bundle, reason=f"{_COULD_NOT_OPEN}{problem}"[:TEXT_CHARACTERS_MAX])


def refuse_transfer(author: Author, bundle: BundleEntry, *, problem: str) -> BundleTransition:
    """Cancel a transfer that the destination's service refuses. `is_refusal` distinguishes it from
    an operator's cancel.
    """
    return cancel(author, bundle, reason=f"{_COULD_NOT_PREPARE}{problem}"[:TEXT_CHARACTERS_MAX])


def is_refusal(record: AnyRecord | Unreadable, before: BundleEntry) -> bool:
    """Return whether the owner of `before` reports, by this accepted record, that its service does
    not take the bundle.

    It refuses an assignment, or writes what `give_up` or `refuse_transfer` makes. Only the reason
    distinguishes these from the unloads and cancels that others request.
    """
    if (
        not isinstance(record, BundleTransition)
        or record.incarnation is None
        or record.incarnation != before.owner
    ):
        return False
    if (before.phase, record.state) == ("assigning", "free"):
        return True
    mark = {"releasing": _COULD_NOT_OPEN, "owned": _COULD_NOT_PREPARE}.get(record.state)
    return mark is not None and (record.reason or "").startswith(mark)


def released(author: Author, bundle: BundleEntry) -> BundleTransition:
    """Record that the source has closed the unloaded bundle."""
    return BundleTransition(
        key=bundle.name, expected_offset=bundle.last, **author.signature, state="free"
    )


def start_split(
    author: Author,
    bundle: BundleEntry,
    *,
    algorithm: str,
    positions: Sequence[int] | None = None,
    reason: str | None = None,
) -> BundleTransition:
    """Ask the owner to split its bundle by `algorithm`, at `positions` (hash points) if the
    algorithm needs them.
    """
    return BundleTransition(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        state="splitting",
        owner=bundle.owner,
        algorithm=algorithm,
        positions=None if positions is None else tuple(positions),
        reason=reason,
    )


def split(
    author: Author, bundle: BundleEntry, *, cuts: Sequence[int], reason: str | None = None
) -> Split:
    """Split the author's own splitting bundle at `cuts`, hash points strictly inside it."""
    return Split(
        key=bundle.name,
        expected_offset=bundle.last,
        **author.signature,
        positions=tuple(cuts),
        reason=reason,
    )


def merge(
    author: Author, left: BundleEntry, right: BundleEntry, *, reason: str | None = None
) -> Merge:
    """Merge two neighbours of one owner."""
    return Merge(
        key=left.name,
        expected_offset=left.last,
        **author.signature,
        right=right.name,
        expected_offset_right=right.last,
        reason=reason,
    )


# --- namespaces, policies ---


def create_namespace(
    author: Author,
    view: View,
    *,
    name: str,
    boundaries: Sequence[int],
    policies: Document | None = None,
) -> NamespaceRecord:
    """Create a namespace. `boundaries` rise from 0 to `HASH_MAX`, with a bundle between each
    two.
    """
    before = view.namespaces.get(name)
    return NamespaceRecord(
        key=name,
        expected_offset=view.removed_at if before is None else before.last,
        **author.signature,
        status="created",
        boundaries=tuple(boundaries),
        policies=policies,
    )


def set_namespace_policies(
    author: Author, view: View, *, name: str, policies: Document
) -> NamespaceRecord:
    """Replace the policies of a namespace. Raises KeyError if it does not exist."""
    return NamespaceRecord(
        key=name,
        expected_offset=view.namespaces[name].last,
        **author.signature,
        status="policies",
        policies=policies,
    )


def start_deleting_namespace(author: Author, view: View, *, name: str) -> NamespaceRecord:
    """Forbid further assignments in a namespace. Raises KeyError if it does not exist."""
    return NamespaceRecord(
        key=name, expected_offset=view.namespaces[name].last, **author.signature, status="deleting"
    )


def delete_namespace(author: Author, view: View, *, name: str) -> NamespaceRecord:
    """Remove a deleting namespace whose bundles are all free. Raises KeyError if it does not
    exist.
    """
    return NamespaceRecord(
        key=name, expected_offset=view.namespaces[name].last, **author.signature, status="deleted"
    )


def set_policy(author: Author, view: View, *, name: str, document: Document) -> PolicyRecord:
    """Set a cluster-wide document."""
    return PolicyRecord(
        key=name,
        expected_offset=_last_of_policy(view, name),
        **author.signature,
        status="set",
        document=document,
    )


def remove_policy(author: Author, view: View, *, name: str) -> PolicyRecord:
    """Remove a cluster-wide document."""
    return PolicyRecord(
        key=name, expected_offset=_last_of_policy(view, name), **author.signature, status="removed"
    )


def _last_of_policy(view: View, name: str) -> int:
    before = view.policies.get(name)
    return view.removed_at if before is None else before.last


# --- brokers ---


def renewed(author: Author, broker: BrokerEntry) -> Renewed:
    """Renew the lease of the author's own incarnation."""
    return Renewed(
        key=broker.broker,
        expected_offset=broker.last,
        **author.signature,
        digest=broker.digest_after,
    )


def draining(author: Author, broker: BrokerEntry, *, reason: str | None = None) -> BrokerRecord:
    """Stop taking new bundles: the author drains."""
    return BrokerRecord(
        key=broker.broker,
        expected_offset=broker.last,
        **author.signature,
        status="draining",
        reason=reason,
    )


def left(author: Author, broker: BrokerEntry, *, reason: str | None = None) -> BrokerRecord:
    """End the author's incarnation, which has stopped serving."""
    return BrokerRecord(
        key=broker.broker,
        expected_offset=broker.last,
        **author.signature,
        status="left",
        reason=reason,
    )


def down(
    author: Author,
    broker: BrokerEntry,
    *,
    instance_id: str | None = None,
    reason: str | None = None,
) -> BrokerRecord:
    """Declare another broker dead.

    It was silent for too long, or its `instance_id` proves that its process has ended.
    """
    return BrokerRecord(
        key=broker.broker,
        expected_offset=broker.last,
        **author.signature,
        status="down",
        instance_id=instance_id,
        reason=reason,
    )


def remove_broker(author: Author, broker: BrokerEntry) -> BrokerRecord:
    """Forget a broker id that has left or has been declared dead."""
    return BrokerRecord(
        key=broker.broker, expected_offset=broker.last, **author.signature, status="removed"
    )
