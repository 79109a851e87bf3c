"""The log lines that a broker writes about its own bundles."""

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

FIELDS = (
    "broker",
    "bundle",
    "token",
    "offset",
    "source",
    "destination",
    "reason",
    "kind",
    "result",
    "took_ms",
)
WHY = "asked for by an admin"


class LoggedChannel:
    """A channel on which `owner` holds a bundle, and the lines of one broker. Each record is read 2
    ms after the previous one.
    """

    def __init__(self, broker: str) -> None:
        self.channel = channel_in("owned", "target")
        self.now_ns = 0
        self.moves = Moves()
        self.lines = BundleLines(self.moves, broker=broker, now_ns=lambda: self.now_ns)

    @property
    def bundle(self) -> BundleEntry:
        """Return the bundle as it is now."""
        return self.channel.bundle()

    def put(self, record: AnyRecord) -> None:
        """Append a record, and read it."""
        verdict = self.channel.put(record)
        assert verdict.accepted, verdict
        self.now_ns += 2_000_000
        for move in self.moves.folded(
            Folded(offset=self.channel.view.offset, record=record, verdict=verdict), self.now_ns
        ):
            self.lines.moved(move, self.channel.view)

    def handle(self) -> Handle:
        """Return a handle of the bundle, as the agent makes it."""
        bundle = self.bundle
        lease = Lease(incarnation=1, skew_max_ms=1)
        return Handle(
            bundle=bundle.name,
            namespace=bundle.namespace,
            low=bundle.low,
            high=bundle.high,
            token=bundle.token,
            lease=lease,
        )

    def transfer(self) -> None:
        """Request a transfer to `target`, which reports ready."""
        target = self.channel.incarnation("target")
        self.put(
            propose.transfer(
                self.channel.author("owner"), self.bundle, destination=target, reason=WHY
            )
        )
        self.put(propose.prepared(self.channel.author("target"), self.bundle))


def written(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the lines, each with its event and its fields."""
    return [
        {
            "event": record.message,
            **{name: record.__dict__[name] for name in FIELDS if name in record.__dict__},
        }
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.bundle_lines"
    ]


def test_the_source_writes_a_line_for_the_closing_and_one_for_the_move(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logged = LoggedChannel("owner")
    name, token = logged.bundle.name, logged.bundle.token
    with caplog.at_level(logging.INFO):
        logged.transfer()
        began = logged.bundle.last
        close = Close(
            handle=logged.handle(), moved_to=logged.channel.broker("target"), deadline_ms=0
        )
        logged.lines.carried_out(close, logged.channel.view)
        logged.now_ns += 1_500_000
        logged.lines.ended(Closed(bundle=name))
        logged.put(propose.hand_over(logged.channel.author("owner"), logged.bundle))
    both = {"broker": "owner", "bundle": name, "destination": "target", "reason": WHY}
    last = logged.bundle.last
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
    ] == written(caplog)


def test_the_destination_writes_a_line_for_the_move_and_one_for_the_opening(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An opening that failed or was abandoned has no line."""
    logged = LoggedChannel("target")
    with caplog.at_level(logging.INFO):
        logged.transfer()
        logged.put(propose.hand_over(logged.channel.author("owner"), logged.bundle))
        name, last = logged.bundle.name, logged.bundle.last
        open_it = Open(
            handle=logged.handle(),
            source=logged.channel.broker("owner"),
            handover=None,
            deadline_ms=0,
        )
        logged.lines.carried_out(open_it, logged.channel.view)
        logged.lines.ended(Opened(bundle=name))
        logged.lines.carried_out(open_it, logged.channel.view)
        logged.lines.ended(Opened(bundle=name, problem="no"))
        logged.lines.carried_out(open_it, logged.channel.view)
        logged.lines.carried_out(Abandon(bundle=name, doing="opening"), logged.channel.view)
        logged.lines.ended(Opened(bundle=name))
    opened = {
        "broker": "target",
        "bundle": name,
        "token": last,
        "offset": last,
        "source": "owner",
        "reason": WHY,
        "took_ms": 0.0,
    }
    assert ["moved", "opened"] == [line["event"] for line in written(caplog)]
    assert {"event": "opened", **opened} == written(caplog)[1]


def test_a_cancelled_move_has_the_reason_of_the_cancel(caplog: pytest.LogCaptureFixture) -> None:
    """Both brokers write its line."""
    for broker in ("owner", "target"):
        logged = LoggedChannel(broker)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            target = logged.channel.incarnation("target")
            logged.put(
                propose.transfer(
                    logged.channel.author("owner"), logged.bundle, destination=target, reason=WHY
                )
            )
            logged.put(
                propose.cancel(logged.channel.author("target"), logged.bundle, reason="no room")
            )
        (line,) = written(caplog)
        assert ("moved", "cancelled", "no room") == (line["event"], line["result"], line["reason"])


def test_a_move_of_other_brokers_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    logged = LoggedChannel("stranger")
    with caplog.at_level(logging.INFO):
        logged.transfer()
        logged.put(propose.hand_over(logged.channel.author("owner"), logged.bundle))
    assert [] == written(caplog)


def test_a_dead_source_is_named(caplog: pytest.LogCaptureFixture) -> None:
    logged = LoggedChannel("target")
    with caplog.at_level(logging.INFO):
        owner = logged.channel.broker("owner")
        logged.put(
            propose.down(logged.channel.admin(), owner, instance_id=owner.joined.instance_id)
        )
        target = logged.channel.incarnation("target")
        logged.put(propose.assign(logged.channel.author("target"), logged.bundle, owner=target))
        logged.put(propose.opened(logged.channel.author("target"), logged.bundle))
    (line,) = written(caplog)
    assert ("death", "owner", "target") == (line["kind"], line["source"], line["destination"])
