"""The checkers of transfers and of operations are silent on what is in order, and raise on the smallest thing that is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from equipoise.brokers.agent.effects import Discard, Effect, Open, Prepare
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.testing.simulation.checkers.transfers import Transfers, one_at_a_time
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.stand_in_service import Running
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from tests.unit.simulation.history import MIDDLE, NAMESPACE, History
from tests.unit.simulation.test_checkers import broker


class Moved:
    """A bundle that a owns and that was transferred to b; the checker has seen all, and both services were asked to prepare."""

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
        folded = self.history.add(make(self.history.author(author, self.history.view.offset), self.bundle))
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
        handle = Handle(bundle=self.name, namespace=NAMESPACE, low=0, high=MIDDLE, token=self.bundle.token, lease=lease)
        entry = None if source is None else self.history.view.brokers[source]
        self.step(name, Open(handle=handle, source=entry, handover=None, deadline_ms=0))


def test_an_answer_for_a_transfer_that_the_service_was_not_asked_about() -> None:
    """A destination is ready for the transfer that its service prepared for, and not for the next one."""
    moved = Moved()
    moved.add("a", partial(propose.cancel, reason="operator"))
    moved.transfer()
    with pytest.raises(InvariantViolated, match="its service was never asked about that one"):
        moved.add("b", propose.let_go)


def test_a_destination_may_cancel_for_others_what_it_was_not_asked_about() -> None:
    """An operator's cancel by way of the destination is no answer; a refusal is one."""
    moved = Moved()
    moved.add("b", partial(propose.cancel, reason="operator"))
    moved.transfer()
    moved.add("b", partial(propose.cancel, reason="operator"))
    moved.transfer()
    with pytest.raises(InvariantViolated, match="its service was never asked about that one"):
        moved.add("b", partial(propose.refuse_transfer, problem="no room"))


def test_a_source_that_did_not_release_the_bundle() -> None:
    """The source of an opening is the broker that handed the bundle over under this token."""
    moved = Moved()
    moved.add("b", propose.let_go)
    moved.add("a", propose.hand_over)
    moved.open("b", source="a")
    moved.open("b", source=None)
    with pytest.raises(InvariantViolated, match="an opening's source released the bundle"):
        moved.open("b", source="b")


def test_two_operations_of_one_bundle_at_once() -> None:
    """An operation that begins while another of its bundle is under way is seen, and one of another bundle is not."""
    process = broker("a", 1).process
    service = process.service
    discard, other = Discard(bundle="one", deadline_ms=0), Discard(bundle="two", deadline_ms=0)
    service.under_way = {"one": [Running(operation=discard)], "two": [Running(operation=other)]}
    one_at_a_time(process, [discard])
    service.under_way["one"].append(Running(operation=discard))
    with pytest.raises(InvariantViolated, match="the service of a at once discards and discards one"):
        one_at_a_time(process, [discard])
