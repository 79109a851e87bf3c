"""The lines that a broker writes of its own bundles."""

from __future__ import annotations

import logging

import pytest

from equipoise.brokers.agent.effects import Abandon, Close, Open
from equipoise.brokers.agent.events import Closed, Opened
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.balancing.moves import Moves
from equipoise.brokers.runtime.bundle_lines import BundleLines
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from tests.channels.folding import channel_in

FIELDS = ("broker", "bundle", "token", "offset", "source", "destination", "reason", "kind", "result", "took_ms")
WHY = "asked for by an admin"


class Teller:
    """A channel in which `owner` holds a bundle, and the lines of one broker; each record is read 2 ms after the one before."""

    def __init__(self, broker: str) -> None:
        self.channel = channel_in("owned", "target")
        self.now_ns = 0
        self.moves = Moves()
        self.lines = BundleLines(self.moves, broker=broker, now_ns=lambda: self.now_ns)

    @property
    def bundle(self) -> BundleEntry:
        """The bundle as it is now."""
        return self.channel.bundle()

    def put(self, record: AnyRecord) -> None:
        """Append a record, and have it read."""
        verdict = self.channel.put(record)
        assert verdict.accepted, verdict
        self.now_ns += 2_000_000
        for move in self.moves.folded(Folded(offset=self.channel.view.offset, record=record, verdict=verdict), self.now_ns):
            self.lines.moved(move, self.channel.view)

    def handle(self) -> Handle:
        """A handle of the bundle, as the agent makes it."""
        bundle = self.bundle
        lease = Lease(incarnation=1, skew_max_ms=1)
        return Handle(bundle=bundle.name, namespace=bundle.namespace, low=bundle.low, high=bundle.high, token=bundle.token, lease=lease)

    def transfer(self) -> None:
        """Ask for the bundle to go to `target`, which is ready for it."""
        target = self.channel.incarnation("target")
        self.put(propose.transfer(self.channel.author("owner"), self.bundle, destination=target, reason=WHY))
        self.put(propose.prepared(self.channel.author("target"), self.bundle))


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """The lines, each with its event and its fields."""
    return [
        {"event": record.message, **{name: record.__dict__[name] for name in FIELDS if name in record.__dict__}}
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.bundle_lines"
    ]


def test_the_source_tells_of_a_closing_and_of_the_end_of_the_move(caplog: pytest.LogCaptureFixture) -> None:
    """Who gives a bundle away says under which token, to whom, why, and how long each took."""
    teller = Teller("owner")
    name, token = teller.bundle.name, teller.bundle.token
    with caplog.at_level(logging.INFO):
        teller.transfer()
        began = teller.bundle.last
        close = Close(handle=teller.handle(), moved_to=teller.channel.broker("target"), deadline_ms=0)
        teller.lines.carried_out(close, teller.channel.view)
        teller.now_ns += 1_500_000
        teller.lines.ended(Closed(bundle=name))
        teller.put(propose.hand_over(teller.channel.author("owner"), teller.bundle))
    both = {"broker": "owner", "bundle": name, "destination": "target", "reason": WHY}
    last = teller.bundle.last
    assert [
        {"event": "closed", **both, "token": token, "offset": began, "took_ms": 1.5},
        {
            "event": "moved",
            **both,
            "source": "owner",
            "token": last,
            "offset": last,
            "kind": "transfer",
            "result": "done",
            "took_ms": 5.5,
        },
    ] == told(caplog)


def test_the_destination_tells_of_the_move_and_of_the_opening(caplog: pytest.LogCaptureFixture) -> None:
    """Who takes a bundle says from whom, and why it came; an opening that failed or was abandoned has no such line."""
    teller = Teller("target")
    with caplog.at_level(logging.INFO):
        teller.transfer()
        teller.put(propose.hand_over(teller.channel.author("owner"), teller.bundle))
        name, last = teller.bundle.name, teller.bundle.last
        open_it = Open(handle=teller.handle(), source=teller.channel.broker("owner"), handover=None, deadline_ms=0)
        teller.lines.carried_out(open_it, teller.channel.view)
        teller.lines.ended(Opened(bundle=name))
        for failed in (Opened(bundle=name, problem="no"), Abandon(bundle=name, doing="opening")):
            teller.lines.carried_out(open_it, teller.channel.view)
            if isinstance(failed, Opened):
                teller.lines.ended(failed)
            else:
                teller.lines.carried_out(failed, teller.channel.view)
                teller.lines.ended(Opened(bundle=name))
    opened = {"broker": "target", "bundle": name, "token": last, "offset": last, "source": "owner", "reason": WHY, "took_ms": 0.0}
    assert ["moved", "opened"] == [line["event"] for line in told(caplog)]
    assert {"event": "opened", **opened} == told(caplog)[1]


def test_a_call_off_has_its_own_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A move that came to nothing says why that was, not why it began, and both brokers tell of it."""
    for broker in ("owner", "target"):
        teller = Teller(broker)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            target = teller.channel.incarnation("target")
            teller.put(propose.transfer(teller.channel.author("owner"), teller.bundle, destination=target, reason=WHY))
            teller.put(propose.cancel(teller.channel.author("target"), teller.bundle, reason="no room"))
        (line,) = told(caplog)
        assert ("moved", "cancelled", "no room") == (line["event"], line["result"], line["reason"])


def test_a_move_of_others_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand moves are not told of by every broker of the cluster."""
    teller = Teller("stranger")
    with caplog.at_level(logging.INFO):
        teller.transfer()
        teller.put(propose.hand_over(teller.channel.author("owner"), teller.bundle))
    assert [] == told(caplog)


def test_the_dead_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """The broker that a death took a bundle from is named by its id, by whoever took it over."""
    teller = Teller("target")
    with caplog.at_level(logging.INFO):
        owner = teller.channel.broker("owner")
        teller.put(propose.down(teller.channel.admin(), owner, nonce=owner.joined.nonce))
        target = teller.channel.incarnation("target")
        teller.put(propose.assign(teller.channel.author("target"), teller.bundle, owner=target))
        teller.put(propose.opened(teller.channel.author("target"), teller.bundle))
    (line,) = told(caplog)
    assert ("death", "owner", "target") == (line["kind"], line["source"], line["destination"])
