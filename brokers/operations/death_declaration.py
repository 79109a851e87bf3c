"""Declare a broker dead (section 4 of the protocol), so that its bundles move before its lease
expires.

The proof of death is the lock of the broker's data directory: a caller that can take the lock knows
that the process has ended. The parent of a local cluster uses this, and so does a service manager's
stop hook with `equipoise brokers declare-dead`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import Access
from equipoise.brokers.operations.on_channel import submit
from equipoise.brokers.runtime.data_directory import nonces_of_dead
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BrokerEntry, BundleChanged
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import BrokerRecord, Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import read_on


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathDeclaration:
    """A broker that was declared dead. `offset` is that of the record; `bundles` counts the bundles
    that it had or was to get.
    """

    broker: str
    incarnation: int
    offset: int
    bundles: int


def declare_dead(access: Access, data_directory: Path) -> tuple[DeathDeclaration, ...]:
    """Declare each live incarnation dead whose instance id is in `data_directory`. Return none if
    there is none.

    Callers may run this after every end of a process. After a graceful stop there is nothing to
    declare. The lock is taken before the channel is read, so the last records of the process are on
    the log by then.

    Raises `OperatorError` if the process still runs or its lock proves nothing,
    `DataDirectoryUnusable`, and what `submit` raises.
    """
    nonces = nonces_of_dead(data_directory)
    read_on(access.log, access.reader, deadline=access.deadline)
    dead = [broker for broker in access.view.live_brokers() if broker.joined.nonce in nonces]
    return tuple(
        death_declaration
        for broker in dead
        if (death_declaration := _declare_dead(access, broker)) is not None
    )


def _declare_dead(access: Access, broker: BrokerEntry) -> DeathDeclaration | None:
    """Return None if somebody else declared it dead first."""
    incarnation = broker.incarnation
    try:
        accepted = submit(access, partial(_down, incarnation))
    except Rejected:
        if incarnation in access.view.live:
            raise
        return None
    bundles = sum(isinstance(change, BundleChanged) for change in accepted.verdict.changes)
    return DeathDeclaration(
        broker=broker.broker, incarnation=incarnation, offset=accepted.offset, bundles=bundles
    )


def _down(incarnation: int, view: View, author: Author) -> BrokerRecord:
    broker = view.live.get(incarnation)
    if broker is None:
        raise Rejected(
            key=f"#{incarnation}",
            reason=Reason.ILLEGAL_TRANSITION,
            problem="it is dead already",
            offset=None,
            action="declare dead",
        )
    return propose.down(
        author,
        broker,
        nonce=broker.joined.nonce,
        reason="its data directory is free: the process is gone",
    )
