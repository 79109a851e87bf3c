"""What the checkers see that no mutant of the product shows; here it is made by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest

from equipoise.brokers.agent.effects import Open
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.testing.agent_host import Directory
from equipoise.channel.core.entries import (
    BrokerEntry,
    BundleChanged,
    Verdict,
)
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition
from equipoise.channel.core.view import View
from tests.channels.folding import MIDDLE, NAMESPACE
from tests.simulation.checkers.ownership import Ownership, Work
from tests.simulation.checkers.transfers import (
    Handovers,
)
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.host import Process


class Fake:
    """What a checker looks at, and no more; compared by identity, as processes are."""

    alive: bool

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


NOW = Instant(1_000, 1_000)


@dataclass(slots=True, kw_only=True)
class Broker:
    """A process as the checkers see one; all clocks show `NOW`."""

    process: Process
    lease: Lease
    view: View

    def open(
        self, ownership: Ownership, *, low: int = 0, high: int = MIDDLE, token: int = 7
    ) -> Handle:
        handle = Handle(
            bundle=f"{low}_{high}",
            namespace=NAMESPACE,
            low=low,
            high=high,
            token=token,
            lease=self.lease,
        )
        ownership.stepped(
            self.process, [Open(handle=handle, source=None, handover=None, deadline_ms=0)], NOW
        )
        handle.is_open = True
        ownership.stepped(self.process, [], NOW)
        return handle


def broker(name: str, incarnation: int) -> Broker:
    view = View()
    view.live[incarnation] = cast("BrokerEntry", Fake())
    lease = Lease(incarnation=incarnation, skew_max_ms=250, deadline_ms=4_000)
    agent = Fake(lease=lease, view=view, incarnation=incarnation)
    host = Fake(name=name, now=lambda: NOW)
    service = Fake(left={})
    process = Fake(
        agent=agent, host=host, held={}, alive=True, service=service, directory=Directory(mark=7)
    )
    return Broker(process=cast("Process", process), lease=lease, view=view)


def folded(*changes: BundleChanged, offset: int = 50) -> Folded:
    record = BundleTransition(
        key="a bundle", expected_offset=0, publisher="b", incarnation=1, sequence=1, state="free"
    )
    return Folded(offset=offset, record=record, verdict=Verdict(changes=changes))


def test_what_no_step_shows_is_seen_by_the_look_at_all() -> None:
    """A clock that is set lets a lease pass again without any step."""
    ownership = Ownership()
    late = broker("a", 1)
    late.lease.skew_ms = -1_000
    late.open(ownership)
    broker("b", 2).open(ownership)
    late.lease.skew_ms = 0
    with pytest.raises(InvariantViolated, match="1 one owner"):
        ownership.look_at_all()


def test_work_that_only_a_token_guards() -> None:
    """It may overlap that of the next owner, whose token is another; under one token no store could
    tell the two apart.
    """
    ownership = Ownership()
    one, other = broker("a", 1).process, broker("b", 2).process
    work = Work(
        process=one,
        namespace=NAMESPACE,
        point=5,
        token=7,
        began_us=100,
        ended_us=200,
        by_token=True,
    )
    ownership.answered(work)
    ownership.answered(replace(work, process=other, token=8, by_token=False))
    with pytest.raises(InvariantViolated, match="1 one owner: a worked on"):
        ownership.answered(replace(work, process=broker("c", 3).process, by_token=False))


def test_a_handover_of_another_ownership() -> None:
    """A service opens with what the record of its own token handed over, or what it left in the
    same ownership itself.
    """
    handovers, owner = Handovers(), broker("a", 1)
    handle = Handle(
        bundle="a bundle", namespace=NAMESPACE, low=0, high=1, token=50, lease=owner.lease
    )
    record = folded()
    assert isinstance(record.record, BundleTransition)
    handovers.folded(replace(record, record=replace(record.record, handover=b"the state")))
    effect = Open(handle=handle, source=None, handover=b"the state", deadline_ms=0)
    handovers.stepped(owner.process, [effect, replace(effect, handover=None)])
    owner.process.service.left["a bundle", 50] = b"my own"
    handovers.stepped(owner.process, [replace(effect, handover=b"my own")])
    with pytest.raises(
        InvariantViolated,
        match=r"section 9: .* goes on with a bundle under token 50 with None, and left b'my own'",
    ):
        handovers.stepped(owner.process, [replace(effect, handover=None)])
    owner.process.service.left.clear()
    with pytest.raises(
        InvariantViolated, match=r"section 9: .* opens a bundle under token 50 with b'older'"
    ):
        handovers.stepped(owner.process, [replace(effect, handover=b"older")])
