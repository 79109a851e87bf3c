"""Proof instead of silence: who holds the lock of a broker's data directory knows that the broker is dead, and says so.

May live here: the declaration of death of a broker by its data directory (section 4 of the protocol). The parent of a local cluster does
it, and a service manager's stop hook by `equipoise brokers declare dead`: nobody then waits for a lease to run out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import Access, submit
from equipoise.brokers.runtime.directory.data_directory import nonces_of_dead
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BrokerEntry, BundleChanged
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import BrokerRecord, Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import read_on


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathDeclaration:
    """A broker that was declared dead: its id and incarnation, the offset of the record, and how many bundles it held or was to hold."""

    broker: str
    incarnation: int
    offset: int
    bundles: int


def declare_dead(access: Access, data_directory: Path) -> tuple[DeathDeclaration, ...]:
    """Declare dead whichever live incarnation bears a nonce of `data_directory`; none if there is none.

    So it may be called after every end of a process, also after a graceful one, which leaves nobody to declare dead. First comes
    the proof, and then the reading: what the process appended at last is on the log by then.

    Raises `DataDirectoryInUse` if the process still runs, `DataDirectoryUnusable`, `NetworkFileSystem`, and what `submit`
    raises.
    """
    nonces = nonces_of_dead(data_directory)
    read_on(access.log, access.reader, deadline=access.deadline)
    dead = [broker for broker in access.view.live_brokers() if broker.joined.nonce in nonces]
    return tuple(death_declaration for broker in dead if (death_declaration := _declare_dead(access, broker)) is not None)


def _declare_dead(access: Access, broker: BrokerEntry) -> DeathDeclaration | None:
    """None if somebody else was quicker."""
    incarnation = broker.incarnation
    try:
        accepted = submit(access, partial(_down, incarnation))
    except Rejected:
        if incarnation in access.view.live:
            raise
        return None
    bundles = sum(isinstance(change, BundleChanged) for change in accepted.verdict.changes)
    return DeathDeclaration(broker=broker.broker, incarnation=incarnation, offset=accepted.offset, bundles=bundles)


def _down(incarnation: int, view: View, author: Author) -> BrokerRecord:
    broker = view.live.get(incarnation)
    if broker is None:
        raise Rejected(key=str(incarnation), reason=Reason.ILLEGAL_TRANSITION, problem="it is dead already", offset=None)
    return propose.down(author, broker, nonce=broker.joined.nonce, reason="its data directory is free: the process is gone")
