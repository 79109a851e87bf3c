"""The metrics of a worker, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from equipoise.brokers.agent.effects import AlarmName
from equipoise.brokers.runtime.metrics import LookupOutcome, Metrics
from equipoise.channel.core import propose
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Reason
from tests.channels.folding import MIDDLE, Channel, channel_in, channel_with


class Counted:
    """A channel whose records a broker called `owner` counts, and a clock that the test sets."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.now_ns = 0
        self.metrics = Metrics(broker="owner", now_ns=lambda: self.now_ns)

    def put(self, record: AnyRecord, *, live: bool = True) -> None:
        """Append a record, and count it."""
        verdict = self.channel.put(record)
        folded = Folded(offset=self.channel.view.offset, record=record, verdict=verdict)
        self.metrics.observe(folded, live=live)

    def sample(self, name: str, **labels: str) -> float:
        """Return the present value of one series."""
        text = self.metrics.scrape(
            self.channel.view,
            incarnation=self.channel.incarnation("owner"),
            lease_left_ms=1_500,
            lag_records=7,
            log_is_available=True,
        ).decode()
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        (value,) = [
            sample.value
            for sample in samples
            if sample.name == name and {"broker": "owner", **labels} == sample.labels
        ]
        return value


COUNTERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("equipoise_records_accepted_total", {}),
    ("equipoise_records_rejected_total", {"reason": "stale"}),
    ("equipoise_lookup_duration_seconds_sum", {"outcome": "held"}),
    ("equipoise_alarms_total", {"alarm": "own_death"}),
)


def test_every_series_is_there_from_the_start_and_counts() -> None:
    """A rate needs two points. Records are counted by verdict."""
    counted = Counted(channel_with("owner"))
    assert {0} == {
        counted.sample("equipoise_move_duration_seconds_count", kind="transfer", result="done"),
        counted.sample("equipoise_lookup_duration_seconds_count", outcome="timed_out"),
        *(counted.sample("equipoise_records_rejected_total", reason=reason) for reason in Reason),
        *(counted.sample(name, **labels) for name, labels in COUNTERS),
    }
    admin, view = counted.channel.admin(), counted.channel.view
    create = propose.create_namespace(admin, view, name="tenant/other", boundaries=(0, 0xFFFFFFFF))
    counted.now_ns = 1_000_000_000
    for _ in range(2):
        counted.put(create)
        counted.metrics.count("alarms_total", AlarmName.OWN_DEATH)
    counted.metrics.lookup(LookupOutcome.HELD, started_ns=0)
    assert [1, 1, 1.0, 2] == [counted.sample(name, **labels) for name, labels in COUNTERS]


def test_replayed_records_are_not_counted() -> None:
    """They do not begin moves either."""
    counted = Counted(channel_in("owned"))
    counted.put(propose.unload(counted.channel.admin(), counted.channel.bundle()), live=False)
    counted.put(propose.released(counted.channel.author("owner"), counted.channel.bundle()))
    counted.put(
        propose.assign(
            counted.channel.author("owner"),
            counted.channel.bundle(),
            owner=counted.channel.incarnation("owner"),
        ),
    )
    counted.put(propose.opened(counted.channel.author("owner"), counted.channel.bundle()))
    assert 3 == counted.sample("equipoise_records_accepted_total")
    assert 0 == counted.sample(
        "equipoise_move_duration_seconds_count", kind="unload", result="done"
    )


def test_moves_have_a_duration() -> None:
    """From the first record to the last."""
    counted = Counted(channel_in("owned"))
    counted.put(
        propose.start_split(
            counted.channel.admin(), counted.channel.bundle(), algorithm="range_equally_divide"
        )
    )
    counted.now_ns += 250_000_000
    counted.put(
        propose.split(counted.channel.author("owner"), counted.channel.bundle(), cuts=(MIDDLE,))
    )
    assert 0.25 == counted.sample(
        "equipoise_move_duration_seconds_sum", kind="split", result="done"
    )
    assert 0 == counted.sample(
        "equipoise_move_duration_seconds_bucket", kind="split", result="done", le="0.1"
    )
    assert 1 == counted.sample(
        "equipoise_move_duration_seconds_bucket", kind="split", result="done", le="0.25"
    )


def test_gauges_show_the_present_state() -> None:
    counted = Counted(channel_with("owner", "other", bundles=4))
    channel = counted.channel
    for point in (0, MIDDLE):
        channel.own("owner", point)
    channel.own("other", 0x40000000)
    counted.put(propose.unload(channel.admin(), channel.bundle(MIDDLE)))
    in_flight = {
        state: counted.sample("equipoise_bundles_in_flight", state=state)
        for state in ("free", "assigning", "releasing", "splitting")
    }
    assert {"free": 1, "assigning": 0, "releasing": 1, "splitting": 0} == in_flight
    assert 1 == counted.sample("equipoise_bundles_owned")
    assert 1.5 == counted.sample("equipoise_lease_left_seconds")
    assert 7 == counted.sample("equipoise_reader_lag_records")
    assert 1 == counted.sample("equipoise_log_available")


def test_gauges_of_a_broker_that_is_no_member() -> None:
    channel = channel_in("owned")
    scrape = Metrics(broker="owner").scrape(
        channel.view, incarnation=None, lease_left_ms=0, lag_records=0, log_is_available=False
    )
    assert b'equipoise_bundles_owned{broker="owner"} 0.0' in scrape
    assert b'equipoise_log_available{broker="owner"} 0.0' in scrape


def test_free_bundles_that_no_broker_serves_are_counted() -> None:
    counted = Counted(channel_with("owner", bundles=2))
    assert 0 == counted.sample("equipoise_bundles_unserved")
    counted.channel.join("other", serves=["shop/*"])
    counted.channel.accept(
        propose.draining(counted.channel.author("owner"), counted.channel.broker("owner"))
    )
    assert 2 == counted.sample("equipoise_bundles_unserved")
