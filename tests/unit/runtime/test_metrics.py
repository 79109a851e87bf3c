"""The metrics of a worker, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from equipoise.brokers.agent.effects import AlarmName
from equipoise.brokers.runtime.metrics import LookupOutcome, Metrics
from equipoise.channel.core import propose
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Reason
from tests.channels.folding import MIDDLE, Channel, channel_in, channel_with


class Watched:
    """A channel whose records are counted, by a broker called `owner`; a clock that the test moves."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.now_ns = 0
        self.metrics = Metrics(broker="owner", now_ns=lambda: self.now_ns)

    def put(self, record: AnyRecord, *, live: bool = True) -> None:
        """Append a record and have it counted."""
        verdict = self.channel.put(record)
        folded = Folded(offset=self.channel.view.offset, record=record, verdict=verdict)
        self.metrics.observe(folded, live=live)

    def sample(self, name: str, **labels: str) -> float:
        """The value of one series at this moment."""
        text = self.metrics.scrape(
            self.channel.view, incarnation=self.channel.incarnation("owner"), lease_left_ms=1_500, lag_records=7, log_is_available=True
        ).decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        (value,) = [sample.value for sample in samples if sample.name == name and {"broker": "owner", **labels} == sample.labels]
        return value


def test_every_series_is_there_from_the_start() -> None:
    """What can be known beforehand is shown as 0, because a rate needs two points."""
    watched = Watched(channel_with("owner"))
    assert 0 == watched.sample("equipoise_records_accepted_total")
    assert [0] * len(Reason) == [watched.sample("equipoise_records_rejected_total", reason=reason) for reason in Reason]
    assert 0 == watched.sample("equipoise_move_duration_seconds_count", kind="transfer", result="done")
    assert 0 == watched.sample("equipoise_lookup_duration_seconds_count", outcome="timed_out")


def test_records_are_counted_by_verdict() -> None:
    """Accepted records are counted, and rejected ones by their reason."""
    watched = Watched(channel_with("owner"))
    create = propose.create_namespace(watched.channel.admin(), watched.channel.view, name="tenant/other", boundaries=(0, 0xFFFFFFFF))
    watched.put(create)
    watched.put(create)
    assert 1 == watched.sample("equipoise_records_accepted_total")
    assert 1 == watched.sample("equipoise_records_rejected_total", reason="stale")


def test_history_is_no_news() -> None:
    """What is replayed at a start is not counted, nor taken for the beginning of a move."""
    watched = Watched(channel_in("owned"))
    watched.put(propose.unload(watched.channel.admin(), watched.channel.bundle()), live=False)
    watched.put(propose.released(watched.channel.author("owner"), watched.channel.bundle()))
    watched.put(
        propose.assign(watched.channel.author("owner"), watched.channel.bundle(), owner=watched.channel.incarnation("owner")),
    )
    watched.put(propose.opened(watched.channel.author("owner"), watched.channel.bundle()))
    assert 3 == watched.sample("equipoise_records_accepted_total")
    assert 0 == watched.sample("equipoise_move_duration_seconds_count", kind="unload", result="done")


def test_moves_have_a_duration() -> None:
    """A move is counted with the time between its first and its last record."""
    watched = Watched(channel_in("owned"))
    watched.put(propose.start_split(watched.channel.admin(), watched.channel.bundle(), algorithm="range_equally_divide"))
    watched.now_ns += 250_000_000
    watched.put(propose.split(watched.channel.author("owner"), watched.channel.bundle(), cuts=(MIDDLE,)))
    assert 0.25 == watched.sample("equipoise_move_duration_seconds_sum", kind="split", result="done")
    assert 0 == watched.sample("equipoise_move_duration_seconds_bucket", kind="split", result="done", le="0.1")
    assert 1 == watched.sample("equipoise_move_duration_seconds_bucket", kind="split", result="done", le="0.25")


def test_lookups_are_counted_by_outcome() -> None:
    """A lookup is counted with its outcome and its duration."""
    watched = Watched(channel_with("owner"))
    watched.now_ns = 1_000_000_000
    watched.metrics.lookup(LookupOutcome.HELD, started_ns=0)
    assert 1.0 == watched.sample("equipoise_lookup_duration_seconds_sum", outcome="held")


def test_the_state_of_the_moment_is_shown() -> None:
    """Gauges show what is in flight, what this broker owns, its lease, its lag and its log."""
    watched = Watched(channel_with("owner", "other", bundles=4))
    channel = watched.channel
    for point in (0, MIDDLE):
        channel.own("owner", point)
    channel.own("other", 0x40000000)
    watched.put(propose.unload(channel.admin(), channel.bundle(MIDDLE)))
    in_flight = {
        state: watched.sample("equipoise_bundles_in_flight", state=state) for state in ("free", "assigning", "releasing", "splitting")
    }
    assert {"free": 1, "assigning": 0, "releasing": 1, "splitting": 0} == in_flight
    assert 1 == watched.sample("equipoise_bundles_owned")
    assert 1.5 == watched.sample("equipoise_lease_left_seconds")
    assert 7 == watched.sample("equipoise_reader_lag_records")
    assert 1 == watched.sample("equipoise_log_available")


def test_a_broker_that_is_no_member_is_shown_too() -> None:
    """Before a broker has joined it owns nothing, and its metrics say so."""
    channel = channel_in("owned")
    scrape = Metrics(broker="owner").scrape(channel.view, incarnation=None, lease_left_ms=0, lag_records=0, log_is_available=False)
    assert b'equipoise_bundles_owned{broker="owner"} 0.0' in scrape
    assert b'equipoise_log_available{broker="owner"} 0.0' in scrape


def test_alarms_are_counted_by_name() -> None:
    """Each name of an alarm has a series of its own."""
    watched = Watched(channel_with("owner"))
    watched.metrics.alarm(AlarmName.OWN_DEATH)
    watched.metrics.alarm(AlarmName.OWN_DEATH)
    assert 2 == watched.sample("equipoise_alarms_total", alarm="own_death")


def test_two_workers_of_one_process_do_not_mix() -> None:
    """Each worker has a registry of its own."""
    one, other = Watched(channel_with("owner")), Watched(channel_with("owner"))
    one.metrics.lookup(LookupOutcome.ANSWERED, started_ns=0)
    assert 0 == other.sample("equipoise_lookup_duration_seconds_count", outcome="answered")
