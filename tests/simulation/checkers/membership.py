"""Check invariant 7 and sections 4 and 5: deaths are safe, the dead hold nothing, and the oldest
broker leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from equipoise.brokers.agent.effects import Append, Effect, Open, Prepare
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, BundleEntry
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord, BundleTransition, Joined
from equipoise.channel.core.view import View
from tests.channels.model import is_named
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.courier import DOWN
from tests.simulation.host import Process

_PROOF: Final = b'"instance_id":'


class Membership:
    """Knows which process made which incarnation, by the instance id of its `joined` record.

    `passing` returns a handle of a process that passes its check now, if there is one.
    """

    def __init__(
        self,
        made_instance_ids: Mapping[str, Process],
        *,
        passing: Callable[[Process], Handle | None],
        nobody_dies: bool,
        nobody_fences: bool,
    ) -> None:
        self._made_instance_ids = made_instance_ids
        self._passing = passing
        self._nobody_dies = nobody_dies
        self._nobody_fences = nobody_fences
        self._ended: set[int] = set()
        self._processes: dict[int, Process] = {}
        self._left: dict[int, None] = {}

    def process_of(self, incarnation: int) -> Process | None:
        """Return the process that runs, or ran, in an incarnation."""
        return self._processes.get(incarnation)

    def folded(self, folded: Folded, view: View) -> None:
        """Check the changes of brokers by a record, and the bundles that it gives them."""
        record = folded.record
        if (
            isinstance(record, Joined)
            and folded.verdict.accepted
            and record.instance_id in self._made_instance_ids
        ):
            self._processes[folded.offset] = self._made_instance_ids[record.instance_id]
        for change in folded.verdict.changes:
            if isinstance(change, BrokerChanged) and change.dead is not None:
                self._check_death(folded, change.dead, view)
            elif isinstance(change, BundleChanged):
                self._check_holders(folded, change, view)

    def stepped(self, process: Process, effects: Sequence[Effect], now: Instant) -> None:
        """Check that a process acts only in its own incarnation, and declares others dead only
        while its lease is good, or by proof.
        """
        incarnation, lease = process.agent.incarnation, process.agent.lease
        # A leaving broker gives up its lease at the end of a step. Earlier in that step it may
        # declare another one dead.
        leaves = lease.lost and lease.incarnation == incarnation and incarnation not in self._left
        if leaves and incarnation is not None:
            self._left[incarnation] = None
        for effect in effects:
            if (
                type(effect) is Append
                and DOWN in effect.data
                and _PROOF not in effect.data
                and not leaves
                and not lease.holds(now)
            ):
                raise InvariantViolated(
                    invariant="section 4: an accuser has a lease",
                    what=(
                        f"{process.host.name} declares another dead while its own lease has run"
                        f" out: {effect.data.decode()}"
                    ),
                )
        if incarnation in self._ended and lease.good(now):
            raise _dead(
                f"#{incarnation} has ended, and {process.host.name} believes that it may serve"
            )
        if self._nobody_fences and incarnation is not None and not (lease.lost or lease.good(now)):
            raise InvariantViolated(
                invariant="7 an outage costs nobody a bundle",
                what=f"{process.host.name} may serve nothing in #{incarnation}",
            )
        if incarnation is not None and self._processes.get(incarnation) is not process:
            raise InvariantViolated(
                invariant="section 4: an incarnation is one process's",
                what=f"{process.host.name} lives in #{incarnation}, which another process began",
            )

    def stopped(self, process: Process, error: EquipoiseError | None) -> None:
        """Check that a broker stops with an error only because a second process has its id."""
        host = process.host
        rivals = (
            other.host
            for other in self._made_instance_ids.values()
            if other.host.broker == host.broker and other.host is not host
        )
        if error is not None and (
            "is in use by a live broker" not in str(error) or next(rivals, None) is None
        ):
            raise InvariantViolated(
                invariant="section 4: nobody gives up without need",
                what=f"{host.name} stops: {error}",
            )

    def _check_death(self, folded: Folded, dead: int, view: View) -> None:
        process, record = self._processes.get(dead), folded.record
        self._ended.add(dead)
        has_left = isinstance(record, BrokerRecord) and record.status == "left"
        if process is not None and process.alive:
            if isinstance(record, BrokerRecord) and record.instance_id is not None:
                raise InvariantViolated(
                    invariant="section 4: a proof of death is of a process that has ended",
                    what=(
                        f"{record.publisher} proves at offset {folded.offset} that #{dead} ended,"
                        f" and {process.host.name} lives"
                    ),
                )
            passing = self._passing(process)
            lease = process.agent.lease
            if passing is not None:
                raise _dead(
                    f"at offset {folded.offset} #{dead} ends, and {process.host.name} still serves"
                    f" {passing.bundle} in it"
                )
            if lease.incarnation == dead and lease.good(process.host.now()):
                raise _dead(
                    f"at offset {folded.offset} #{dead} ends, and the lease of {process.host.name}"
                    " is good"
                )
            if self._nobody_dies and not has_left:
                raise InvariantViolated(
                    invariant="7 an outage costs nobody a bundle",
                    what=(
                        f"{record.publisher} ends #{dead} at offset {folded.offset}, and"
                        f" {process.host.name} lives"
                    ),
                )
        for bundle in view.bundles.values():
            if dead in (bundle.owner, bundle.source):
                raise InvariantViolated(
                    invariant="section 3: a death is one record",
                    what=(
                        f"#{dead} ends at offset {folded.offset}, and {bundle.name} is still"
                        f" {bundle.state} with it"
                    ),
                )

    def _check_holders(self, folded: Folded, change: BundleChanged, view: View) -> None:
        after, record = change.after, folded.record
        if after is None:
            return
        for holder in (after.owner, after.source):
            if holder is not None and holder not in view.live:
                raise InvariantViolated(
                    invariant="section 3: the dead hold nothing",
                    what=(
                        f"at offset {folded.offset} {after.name} is given to #{holder}, which is"
                        " dead"
                    ),
                )
        receives = (
            isinstance(record, BundleTransition)
            and record.state == "assigning"
            and after.owner is not None
        )
        if receives and view.live[after.owner or 0].status != "up":
            raise InvariantViolated(
                invariant="section 4: a draining broker gets nothing new",
                what=(
                    f"at offset {folded.offset} {after.name} is given to #{after.owner}, which"
                    " drains"
                ),
            )


def _dead(what: str) -> InvariantViolated:
    return InvariantViolated(
        invariant="section 4: nobody is declared dead while its lease is good", what=what
    )


class Leadership:
    """Keeps the status of each live incarnation, and the resulting leader at each offset."""

    def __init__(self) -> None:
        self._statuses: dict[int, str] = {}
        self._leaders: dict[int, int | None] = {View().offset: None}

    def folded(self, folded: Folded, view: View) -> None:
        """Note the leader after a record, and check that the view names the same."""
        for change in folded.verdict.changes:
            if isinstance(change, BrokerChanged):
                self._note(change)
        up = [incarnation for incarnation, status in self._statuses.items() if status == "up"]
        leader = self._leaders[folded.offset] = min(up or self._statuses, default=None)
        named = view.leader()
        if leader != (None if named is None else named.incarnation):
            raise _wrong(
                f"at offset {folded.offset} the view names {named and named.incarnation} as the"
                f" leader, which is #{leader}"
            )

    def stepped(self, process: Process) -> None:
        """Check that a broker acts as the leader if and only if it leads at the offset that it has
        read.
        """
        agent = process.agent
        leader = self._leaders[agent.view.offset]
        if agent.leads != (leader is not None and leader == agent.incarnation):
            acts = "acts as the leader" if agent.leads else "does not act as the leader"
            raise _wrong(
                f"{process.host.name} (#{agent.incarnation}) {acts} at offset {agent.view.offset},"
                f" where #{leader} leads"
            )

    def _note(self, change: BrokerChanged) -> None:
        if change.dead is not None:
            self._statuses.pop(change.dead, None)
        if change.after is not None and change.after.live:
            self._statuses[change.after.incarnation] = change.after.status


def _wrong(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="section 5: the oldest that does not drain leads", what=what)


class Programs:
    """Knows which namespaces the program of each incarnation serves, as its `joined` states."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[str, ...] | None] = {}

    def folded(self, folded: Folded) -> None:
        """Check that the bundles that a record changed name only brokers that serve them."""
        if isinstance(folded.record, Joined):
            self._named[folded.offset] = folded.record.namespaces
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.after is not None:
                for holder in (change.after.owner, change.after.source):
                    if holder is not None:
                        self._check(change.after, holder, folded.offset)

    def _check(self, bundle: BundleEntry, holder: int, offset: int) -> None:
        if not is_named(self._named[holder], bundle.namespace):
            raise InvariantViolated(
                invariant="9 a bundle names only brokers that serve its namespace",
                what=(
                    f"at offset {offset} {bundle.name} names #{holder}, whose program serves"
                    f" {self._named[holder]}"
                ),
            )

    @staticmethod
    def stepped(process: Process, effects: Sequence[Effect]) -> None:
        """Check that a service is given only bundles that its program serves."""
        for effect in effects:
            namespace = (
                effect.bundle.namespace
                if isinstance(effect, Prepare)
                else effect.handle.namespace
                if isinstance(effect, Open)
                else None
            )
            if namespace is not None and not is_named(process.namespaces, namespace):
                raise InvariantViolated(
                    invariant="9 a bundle names only brokers that serve its namespace",
                    what=(
                        f"the service of {process.host.name} is given a bundle of {namespace}, and"
                        f" its program serves {process.namespaces}"
                    ),
                )
