"""What the checkers see that no mutant of the product shows; here it is made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import pytest

from equipoise.brokers.agent.effects import Effect, Open, Prepare
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.testing.agent_host import Directory
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import (
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    Verdict,
)
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord, BundleTransition
from equipoise.channel.core.view import View
from tests.channels.folding import MIDDLE, NAMESPACE, joined
from tests.simulation.checkers.agreement import (
    Agreement,
)
from tests.simulation.checkers.ownership import Ownership, Work
from tests.simulation.checkers.transfers import (
    Handovers,
    Transfers,
)
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.host import Process


class History:
    """A log of records, and what a reader made of each."""

    def __init__(self) -> None:
        self.reader = Reader(log="test")
        self.folded: list[Folded] = []
        self.add(propose.genesis(Author(publisher="admin:test"), cluster="test"))

    @property
    def view(self) -> View:
        return self.reader.view

    def add(self, record: AnyRecord) -> Folded:
        self.folded.append(self.reader.feed(Entry(self.reader.position, encode(record))))
        return self.folded[-1]

    def join(self, broker: str) -> int:
        return self.add(joined(broker, self.view, instance_id=f"{broker}:1")).offset

    def create(self) -> BundleEntry:
        author = Author(publisher="admin:test", as_of=self.view.offset)
        self.add(
            propose.create_namespace(
                author, self.view, name=NAMESPACE, boundaries=(0, MIDDLE, HASH_MAX)
            )
        )
        return self.view.bundles_of(NAMESPACE)[0]

    def author(self, broker: str, sequence: int) -> Author:
        return Author(
            publisher=broker, incarnation=self.view.brokers[broker].incarnation, sequence=sequence
        )


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


def test_work_of_two_brokers_overlaps() -> None:
    """Work on one point by two brokers must not overlap, work by one may."""
    ownership = Ownership()
    one, other = broker("a", 1).process, broker("b", 2).process
    work = Work(process=one, namespace=NAMESPACE, point=5, token=7, began_us=100, ended_us=200)
    ownership.answered(work)
    ownership.answered(replace(work, began_us=150, ended_us=250))
    ownership.answered(replace(work, process=other, point=6, began_us=150, ended_us=260))
    ownership.answered(replace(work, process=other, began_us=250, ended_us=270))
    with pytest.raises(InvariantViolated, match="1 one owner: a worked on"):
        ownership.answered(replace(work, process=other, began_us=240, ended_us=280))


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


def test_a_reader_with_another_digest() -> None:
    history, agreement = History(), Agreement()
    agreement.folded(history.folded[-1], history.view)
    agreement.read("a", history.view)
    history.view.level = 7
    history.view.scalars_changed()
    with pytest.raises(
        InvariantViolated, match="3 same offset, same digest: at offset 1 a has digest"
    ):
        agreement.read("a", history.view)


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


class Moved:
    """A bundle that a owns and that was transferred to b; the checker has seen all, and both
    services were asked to prepare.
    """

    def __init__(self) -> None:
        self.history, self.transfers = History(), Transfers()
        self.ids = {name: self.history.join(name) for name in ("a", "b")}
        self.name = self.history.create().name
        self.add("a", partial(propose.assign, owner=self.ids["a"]))
        self.prepare("a")
        self.add("a", propose.opened)
        self.transfer()
        self.prepare("b")

    @property
    def bundle(self) -> BundleEntry:
        return self.history.view.bundles[self.name]

    def add(self, author: str, make: Callable[[Author, BundleEntry], AnyRecord]) -> Folded:
        folded = self.history.add(
            make(self.history.author(author, self.history.view.offset), self.bundle)
        )
        assert folded.verdict.accepted
        self.transfers.folded(folded)
        return folded

    def transfer(self) -> None:
        self.add("a", partial(propose.transfer, destination=self.ids["b"]))

    def step(self, name: str, effect: Effect) -> None:
        self.transfers.stepped(broker(name, self.ids[name]).process, [effect])

    def prepare(self, name: str) -> None:
        self.step(name, Prepare(bundle=self.bundle, source=None, deadline_ms=0))

    def open(self, name: str, *, source: str | None) -> None:
        lease = Lease(incarnation=self.ids[name], skew_max_ms=250)
        handle = Handle(
            bundle=self.name,
            namespace=NAMESPACE,
            low=0,
            high=MIDDLE,
            token=self.bundle.token,
            lease=lease,
        )
        entry = None if source is None else self.history.view.brokers[source]
        self.step(name, Open(handle=handle, source=entry, handover=None, deadline_ms=0))


def test_a_source_that_did_not_release_the_bundle() -> None:
    """The source of an opening is the broker that handed the bundle over under this token."""
    moved = Moved()
    moved.add("b", propose.prepared)
    moved.add("a", propose.hand_over)
    moved.open("b", source="a")
    moved.open("b", source=None)
    with pytest.raises(InvariantViolated, match="an opening's source released the bundle"):
        moved.open("b", source="b")
