"""Traces of real brokers, kept in memory: which span is below which, on which broker."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from equipoise.brokers.agent.requests import DeleteNamespace, Transfer
from equipoise.brokers.runtime.broker import Broker as RunningBroker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Ownership
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.ranges import key_hash
from tests.unit.http.cluster import (
    NAMESPACE,
    PATIENCE_MS,
    Broker,
    Cluster,
    Gate,
    cluster,
    path_of,
    until,
)

pytestmark = pytest.mark.integration

CALLER: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The span of a program that asks a broker, from the examples of W3C Trace Context."""


def about(span: ReadableSpan) -> Mapping[str, Any]:
    """The attributes of a span."""
    assert span.attributes is not None
    return span.attributes


class Spans(InMemorySpanExporter):
    """The spans that have ended."""

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name == name]

    def tree(self, root: str) -> str:
        """The spans below the last one of a name, one a line, each with its broker."""
        spans = sorted(self.get_finished_spans(), key=lambda span: span.start_time or 0)

        def lines(span: ReadableSpan, depth: int) -> Iterator[str]:
            failed = "" if span.status.is_ok else f": {span.status.description}"
            yield f"{'  ' * depth}{span.name} @ {about(span)['equipoise.broker']}{failed}"
            for child in spans:
                if child.parent is not None and child.parent.span_id == span.context.span_id:
                    yield from lines(child, depth + 1)

        return "\n".join(lines(self.named(root)[-1], 0))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """What brokers export that start from now on."""
    exporter, provider = Spans(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


KEY: Final = "one"


def roles(made: Cluster) -> tuple[str, Broker, Broker, Broker]:
    """The bundle of a key, its owner, and the two other brokers."""
    bundle = made.view.bundle_at(NAMESPACE, key_hash(KEY))
    assert bundle is not None
    owner = made.owner_of(bundle.name)
    one, other = (broker for broker in made.brokers if broker is not owner)
    return bundle.name, owner, one, other


async def served(broker: Broker) -> None:
    """Have a broker do one piece of work on the bundle of the key."""
    ownership = await broker.worker.route(NAMESPACE, KEY, timeout_ms=PATIENCE_MS)
    assert isinstance(ownership, Ownership)
    for _ in range(2):
        ownership.begin(KEY).finish()


async def test_a_transfer_across_three_brokers_is_one_trace(spans: Spans, tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=3) as made:
        bundle, source, asked, destination = roles(made)
        path = f"{path_of(bundle)}/unload?destinationBroker={destination.id}"
        spans.clear()
        answer = await asked.ask("PUT", path, headers={"traceparent": CALLER})
        assert 204 == answer.status
        await served(destination)
        await until(lambda: bool(spans.named("first request")))
        put = "PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload"
        (request,) = spans.named(put)
        assert f"""\
{put} @ {asked.id}
  request move @ {asked.id}
    record assigning @ {asked.id}
      prepare bundle @ {destination.id}
        record releasing @ {destination.id}
          close bundle @ {source.id}
            record owned @ {source.id}
              open bundle @ {destination.id}
                first request @ {destination.id}""" == spans.tree(put)
    parent = request.parent
    assert parent is not None
    assert CALLER == f"00-{parent.trace_id:032x}-{parent.span_id:016x}-01"
    assert 204 == about(request)["http.response.status_code"]
    trace_id = request.context.trace_id
    whole = [span for span in spans.get_finished_spans() if span.context.trace_id == trace_id]
    (record,) = [span for span in whole if span.name == "record assigning"]
    assert (bundle, "bundle") == (about(record)["equipoise.key"], about(record)["equipoise.kind"])
    assert 0 < about(record)["equipoise.offset"]
    assert 9 == len(whole)


async def test_an_unload_and_the_placement_after_it_are_one_trace(
    spans: Spans, tmp_path: Path
) -> None:
    async with cluster(tmp_path, brokers=2) as made:
        bundle, owner, _ = made.first()
        spans.clear()
        assert 204 == (await owner.put(f"{path_of(bundle)}/unload")).status
        await made.settled()
        names = [line.strip().split(" @ ")[0] for line in spans.tree("request move").splitlines()]
        assert {"record assigning", "open bundle"} <= set(names)
        assert 1 == len({span.context.trace_id for span in spans.named("open bundle")})


async def test_what_refuses_and_what_fails_is_an_error(spans: Spans, tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as made:
        bundle, _, target = made.first()
        target.service.refuses.add(bundle)
        spans.clear()
        intent = Transfer(bundle=bundle, destination=target.id, reason="test")
        await target.worker.request(intent, timeout_ms=PATIENCE_MS)
        await until(lambda: bool(spans.named("record owned")))
        assert f"""\
request move @ {target.id}
  record assigning @ {target.id}
    prepare bundle @ {target.id}: RuntimeError: no room here
      record owned @ {target.id}""" == spans.tree("request move")
        with pytest.raises(EquipoiseError):
            await target.worker.request(DeleteNamespace(name=NAMESPACE), timeout_ms=PATIENCE_MS)
        assert "request delete namespace" in spans.tree("request delete namespace")
        assert not spans.named("request delete namespace")[0].status.is_ok


async def test_what_the_service_does_in_an_operation_is_below_it(
    spans: Spans, tmp_path: Path
) -> None:
    async with cluster(tmp_path, brokers=2) as made:
        bundle, _, target = made.first()
        opened = target.service.open

        async def traced(ownership: Ownership, handover: bytes | None) -> None:
            with trace.get_tracer("service").start_as_current_span("load state"):
                await opened(ownership, handover)

        target.service.open = traced  # type: ignore[method-assign]
        await made.give(bundle, target)
        (load,) = spans.named("load state")
        assert load.parent is not None
        above = load.parent.span_id
        (opening,) = [span for span in spans.named("open bundle") if span.context.span_id == above]
        assert bundle == about(opening)["equipoise.bundle"]


async def test_rounds_load_reports_and_http_requests_begin_traces(
    spans: Spans, tmp_path: Path
) -> None:
    config = WorkerConfig(
        log_url=f"memory:{uuid.uuid4()}", data_dir=tmp_path, http_port=0, balance_interval_ms=200
    )
    async with RunningBroker(config, {"*": Gate()}) as worker, aiohttp.ClientSession() as session:
        await worker.ready(timeout_ms=PATIENCE_MS)
        await session.get(f"{worker.profile.addresses['http']}/nowhere")
        await until(lambda: bool(spans.named("load report") and spans.named("balancing round")))
    for name in ("load report", "balancing round"):
        span = spans.named(name)[0]
        assert (None, worker.broker_id) == (span.parent, about(span)["equipoise.broker"])
    statuses = [about(span).get("http.response.status_code") for span in spans.get_finished_spans()]
    assert 1 == statuses.count(404)


def python(code: str) -> str:
    """What a program of its own prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_nothing_is_imported_before_a_program_traces() -> None:
    """Neither where it is installed, nor where it is not."""
    begun = """
from equipoise.brokers.runtime.tracing import traces_of
from equipoise.brokers.runtime.broker import Broker
traces = traces_of("a", None, {})
print(traces, [name for name in sys.modules if "opentelemetry" in name])
"""
    assert "None []" == python("import sys" + begun)
    absent = "import sys; sys.modules['opentelemetry'] = None" + begun
    assert "None ['opentelemetry']" == python(absent)


def test_a_program_that_only_imports_the_api_does_not_trace() -> None:
    assert "None" == python(
        "import opentelemetry.trace\n"
        "from equipoise.brokers.runtime.tracing import traces_of\n"
        "print(traces_of('a', None, {}))"
    )
