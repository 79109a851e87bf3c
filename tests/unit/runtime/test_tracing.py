"""What is below what, and how long the spans of a move are open, by the events and effects of an
agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from equipoise.brokers.agent.effects import Abandon, Append, Prepare
from equipoise.brokers.agent.events import AppendFailed, Event, Tick
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.tracing import Traces
from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.errors import LogStorageFull
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Unreadable
from tests.channels.folding import Channel, channel_in, channel_with, joined

FULL = LogStorageFull(log="memory:x")


class Observed:
    """The traces of one broker of a channel, and the spans that have ended."""

    def __init__(self, channel: Channel, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
        provider, self._exporter = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        self.traces = Traces(broker, SystemClock(), {})
        self.channel = channel
        self.incarnation = channel.incarnation(broker)

    def step(self, event: Event, *effects: object) -> Sequence[object]:
        return self.traces.stepped(event, effects, self.incarnation)  # type: ignore[arg-type]

    def proposed(self, record: AnyRecord) -> AnyRecord:
        """Propose a record, and return it as it is appended."""
        append = Append(attempt=record.sequence or 0, data=encode(record))
        (carried_out,) = self.step(Tick(), append)
        assert isinstance(carried_out, Append)
        read = decode(carried_out.data)
        assert not isinstance(read, Unreadable)
        assert record == replace(read, traceparent=None)
        return read

    def read(self, record: AnyRecord) -> None:
        """Read a record from the log."""
        verdict = self.channel.put(record)
        self.step(Tick(), Folded(offset=self.channel.view.offset, record=record, verdict=verdict))

    def ended(self) -> list[ReadableSpan]:
        """The spans that have ended since the last call."""
        spans = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return spans


def problems(spans: Sequence[ReadableSpan]) -> list[tuple[str, str | None]]:
    return [(span.name, span.status.description) for span in spans]


def test_what_follows_a_death_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = channel_in("owned")
    source = Observed(channel, "source", monkeypatch)
    dead = channel.view.brokers["owner"]
    source.read(
        source.proposed(
            propose.down(channel.author("source"), dead, instance_id="instance_id of owner")
        )
    )
    assign = propose.assign(
        channel.author("source"), channel.bundle(), owner=channel.incarnation("source")
    )
    source.read(source.proposed(assign))
    down, assigning = source.ended()
    assert ("record down", "record assigning") == (down.name, assigning.name)
    assert down.parent is None
    assert down.context.span_id == (assigning.parent and assigning.parent.span_id)


def test_a_bundle_that_rests_begins_a_new_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each move would be below the one before it."""
    channel = channel_in("assigning")
    owner = Observed(channel, "owner", monkeypatch)
    leader = Observed(channel, "source", monkeypatch)
    opened = owner.proposed(propose.opened(channel.author("owner"), channel.bundle()))
    leader.read(opened)
    leader.proposed(propose.unload(channel.author("source"), channel.bundle()))
    leader.step(AppendFailed(attempt=1, error=FULL, in_doubt=False))
    (unload,) = leader.ended()
    assert unload.parent is None


def test_a_proposal_ends_when_its_verdict_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in doubt waits for a later record of its broker, which settles it."""
    channel = channel_in("owned", "c")
    source = Observed(channel, "source", monkeypatch)
    for _ in range(3):
        source.proposed(propose.unload(channel.author("source"), channel.bundle()))
    source.step(AppendFailed(attempt=1, error=FULL, in_doubt=True))
    assert not source.ended()
    source.step(AppendFailed(attempt=2, error=FULL, in_doubt=False))
    assert [("record releasing", str(FULL))] == problems(source.ended())
    source.read(propose.renewed(channel.author("source"), channel.broker("source")))
    lost = "it was lost, or overtaken by a later one"
    assert [("record releasing", lost)] * 2 == problems(source.ended())
    stale = source.proposed(propose.unload(channel.author("source"), channel.bundle()))
    channel.accept(propose.unload(channel.author("c"), channel.bundle()))
    source.read(stale)
    assert [("record releasing", "stale")] == problems(source.ended())


def test_an_operation_that_overruns_its_deadline_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = channel_in("transferring")
    owner = Observed(channel, "owner", monkeypatch)
    bundle = channel.bundle()
    with owner.traces.operation(Prepare(bundle=bundle, source=None, deadline_ms=0)):
        assert trace.get_current_span().get_span_context().is_valid
    assert not trace.get_current_span().get_span_context().is_valid
    abandon = Abandon(bundle=bundle.name, doing="preparing")
    assert [abandon] == owner.step(Tick(), abandon)
    assert [("prepare bundle", "it overran its deadline")] == problems(owner.ended())


def test_renewals_and_joins_carry_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first would bury all other traces, and views keep the second."""
    channel = channel_with("a")
    broker = Observed(channel, "a", monkeypatch)
    for record in (
        propose.renewed(channel.author("a"), channel.broker("a")),
        joined("b", channel.view, instance_id="b"),
    ):
        assert record == broker.proposed(record)
