"""Fold Pulsar's channel into the table that each of its brokers holds: bundle to its last accepted record."""

from __future__ import annotations

from typing import Final, NamedTuple

from equipoise.pulsar_cluster.conflicts import Rejection, Storage, rejection_of
from equipoise.pulsar_cluster.records import OWNED, RELEASING, SPLITTING, SYSTEM_NAMESPACE, Message, StateRecord

_SERVED_BY_SOURCE: Final = frozenset({RELEASING, SPLITTING})


class Change(NamedTuple):
    """What one message did to its bundle.

    * `before`: the message that the bundle's record came from; None if it had none.
    * `rejection`: why the brokers ignore the message; None if they take it.
    """

    message: Message
    before: Message | None
    rejection: Rejection | None


class Table:
    """The bundles of a cluster, as its brokers see them after the messages that were folded.

    `bundles` maps each bundle to the message of its record. `offset` is that of the last message, -1 before the first.
    """

    def __init__(self, storage: Storage = Storage.SYSTEM_TOPIC) -> None:
        """Begin without bundles. `storage` chooses the rule for conflicts."""
        self.storage = storage
        self.bundles: dict[str, Message] = {}
        self.offset = -1

    def fold(self, message: Message) -> Change:
        """Take or reject the next message. One at or below `offset` is a fault of the caller."""
        assert message.offset > self.offset, "messages are folded in order, and once"
        self.offset = message.offset
        if message.begins_anew:
            self.bundles.clear()
        before = self.bundles.get(message.bundle)
        if message.problem:
            return Change(message, before, Rejection.UNREADABLE)
        held = None if before is None else before.record
        rejection = rejection_of(held, message.record, self.storage)
        if rejection is None:
            if message.record is None:
                self.bundles.pop(message.bundle, None)
            else:
                self.bundles[message.bundle] = message
        return Change(message, before, rejection)


def server_of(record: StateRecord | None) -> str | None:
    """Return the broker that serves a bundle in this state, or None. From assigning on, the source of a transfer serves no more."""
    if record is None:
        return None
    if record.state == OWNED:
        return record.destination
    return record.source if record.state in _SERVED_BY_SOURCE else None


def is_of_system(bundle: str) -> bool:
    """Return whether a bundle belongs to Pulsar's own namespace, whose bundles no policy moves."""
    return bundle.startswith(f"{SYSTEM_NAMESPACE}/")
