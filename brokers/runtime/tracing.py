"""Trace requests, moves, rounds and load reports with OpenTelemetry, if the program has set it up.

A record carries the span in which it was proposed (`traceparent`). A broker that acts on a record
begins a span below it, and proposes the next record below that one. So a move is one trace, on
whichever brokers its steps happen. An id derived from an offset would need no field, but could not
join the trace of the caller. Agent and fold know nothing of it: this listens to the events
and effects of an agent, and adds the field to the bytes that it appends.

Nothing here imports OpenTelemetry before a program has: that alone takes a tenth of a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from equipoise.brokers.agent.effects import Abandon, Append, Close, Effect, Open, Prepare
from equipoise.brokers.agent.events import (
    AppendFailed,
    Closed,
    DrainRequested,
    Event,
    Opened,
    Prepared,
    Requested,
)
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.service import Evidence, Ownership, note_first
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Unreadable

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

Spanned = Callable[..., AbstractContextManager[object]]
"""Takes the name of a span and attributes of it, and returns the context in which it is current."""

# Bundles that move at a time. The largest namespace loses its broker: 100 bytes each.
_MOVING_MAX: Final = 65_536

# A renewal each second would bury the traces of moves. A reader keeps `joined`, so it carries no
# remarks.
_UNTRACED: Final = frozenset({"genesis", "joined", "renewed"})


def traces_of(broker: str, clock: Clock, ownerships: Mapping[str, Ownership]) -> Traces | None:
    """Return the traces of a broker; None if its program has not set up OpenTelemetry before."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return Traces(broker, clock, ownerships)


def untraced(_name: str, **_attributes: str) -> AbstractContextManager[object]:
    """Trace nothing."""
    return nullcontext()


class Traces:
    """The spans of one broker."""

    def __init__(self, broker: str, clock: Clock, ownerships: Mapping[str, Ownership]) -> None:
        """`ownerships` are those of the bundles that are open at the broker, by name."""
        from opentelemetry import context, propagate, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._tracer = trace.get_tracer("equipoise")
        self._extract = propagate.extract
        self._record_format = TraceContextTextMapPropagator()
        self._root = context.Context()
        self._about = {"equipoise.broker": broker}
        self._broker = broker
        self._clock = clock
        self._ownerships = ownerships
        # The last record about each bundle that moves, as the parent of what follows.
        self._latest: dict[str, Context] = {}
        self._operations: dict[str, Span] = {}
        # By attempt. A renewal that is read back settles those before it.
        self._proposals: dict[int, Span] = {}

    @contextmanager
    def span(self, name: str, **attributes: str) -> Iterator[None]:
        """Make a span current meanwhile. An exception is its error."""
        with self._tracer.start_as_current_span(name, attributes=self._about | attributes):
            yield

    @contextmanager
    def http(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> Iterator[Callable[[int], None]]:
        """Make the span of a request current, below the one that its headers name. Give the status
        of the answer to the function that this yields.
        """
        about = {"http.request.method": method, "http.route": route, **self._about}
        with self._tracer.start_as_current_span(
            f"{method} {route}",
            context=self._extract(headers),
            kind=self._api.SpanKind.SERVER,
            attributes=about,
        ) as span:
            yield lambda status: span.set_attribute("http.response.status_code", status)

    def stepped(
        self, event: Event, effects: Sequence[Effect], incarnation: int | None
    ) -> Sequence[Effect]:
        """Note a step of the agent, which is `incarnation`. Return its effects, in which proposed
        records carry their span.
        """
        within: Context | None = None
        if isinstance(event, Prepared | Opened | Closed):
            within = self._operation_ended(event)
        elif isinstance(event, AppendFailed) and not event.in_doubt:
            self._proposal_ended(event.attempt, str(event.error))
        is_asked = isinstance(event, Requested | DrainRequested)
        traced = []
        for effect in effects:
            carried_out = effect
            if isinstance(effect, Folded):
                self._folded(effect, incarnation)
            elif isinstance(effect, Abandon):
                self._end(self._operations.pop(effect.bundle, None), "it overran its deadline")
            elif isinstance(effect, Append):
                carried_out = self._proposed(effect, within, is_asked=is_asked)
            traced.append(carried_out)
        return traced

    @contextmanager
    def operation(self, effect: Effect) -> Iterator[None]:
        """Begin the span of an operation, and make it current meanwhile, so that what the service
        does is below it.
        """
        if not isinstance(effect, Prepare | Open | Close):
            yield
            return
        bundle = effect.bundle.name if isinstance(effect, Prepare) else effect.handle.bundle
        span = self._tracer.start_span(
            f"{type(effect).__name__.lower()} bundle",
            context=self._below(bundle),
            attributes={"equipoise.bundle": bundle, **self._about},
        )
        self._operations[bundle] = span
        with self._api.use_span(span):
            yield

    # --- operations ---

    def _operation_ended(self, event: Prepared | Opened | Closed) -> Context | None:
        """End the span of an operation. Return the context below it, for the record that reports
        it.
        """
        span = self._operations.pop(event.bundle, None)
        if span is None:
            return None
        within = self._api.set_span_in_context(span)
        if isinstance(event, Opened):
            self._latest.pop(event.bundle, None)
            ownership = self._ownerships.get(event.bundle)
            if ownership is not None:
                note_first(ownership, lambda evidence: self._first_work(evidence, within))
        self._end(span, None if isinstance(event, Closed) else event.problem)
        return within

    def _first_work(self, evidence: Evidence, within: Context) -> None:
        """Write down the first work of an ownership. Its thread may be any."""
        booted_ns = time.time_ns() - self._clock.boot_ns()
        span = self._tracer.start_span(
            "first request",
            context=within,
            start_time=booted_ns + evidence.started_ns,
            attributes={"equipoise.bundle": evidence.bundle, **self._about},
        )
        span.end(booted_ns + evidence.answered_ns)

    # --- records ---

    def _proposed(self, append: Append, within: Context | None, *, is_asked: bool) -> Append:
        """Begin the span of a proposal: below the request that it serves, the operation that it
        reports, or the last record about its bundle.
        """
        record = orjson.loads(append.data)
        change = record.get("state") or record.get("status") or record["kind"]
        if change in _UNTRACED:
            return append
        key: str = record["key"]
        span = self._tracer.start_span(
            f"record {change}",
            context=None if is_asked else within or self._below(key),
            attributes={"equipoise.kind": record["kind"], "equipoise.key": key, **self._about},
        )
        self._proposals[append.attempt] = span
        self._record_format.inject(record, self._api.set_span_in_context(span))
        return replace(append, data=orjson.dumps(record))

    def _folded(self, folded: Folded, incarnation: int | None) -> None:
        record = folded.record
        if isinstance(record, Unreadable):
            return
        if record.publisher == self._broker and record.incarnation == incarnation:
            self._read_back(folded, record.sequence or 0)
        carried = (
            None
            if record.traceparent is None
            else self._record_format.extract({"traceparent": record.traceparent})
        )
        for change in folded.verdict.changes:
            if not isinstance(change, BundleChanged):
                continue
            if _is_settled(change, incarnation):
                self._latest.pop(change.name, None)
            elif carried is not None:
                if len(self._latest) >= _MOVING_MAX:
                    del self._latest[next(iter(self._latest))]
                self._latest[change.name] = carried

    def _read_back(self, folded: Folded, sequence: int) -> None:
        for attempt in [attempt for attempt in self._proposals if attempt < sequence]:
            self._proposal_ended(attempt, "it was lost, or overtaken by a later one")
        span = self._proposals.get(sequence)
        if span is not None:
            span.set_attribute("equipoise.offset", folded.offset)
            self._proposal_ended(sequence, folded.verdict.reason)

    def _proposal_ended(self, attempt: int, problem: str | None) -> None:
        self._end(self._proposals.pop(attempt, None), problem)

    # --- what is below what ---

    def _below(self, bundle: str) -> Context:
        """Return the parent of what a bundle does next. Without one it begins a trace, also if
        the task or timer runs in another.
        """
        return self._latest.get(bundle, self._root)

    def _end(self, span: Span | None, problem: str | None) -> None:
        if span is None:
            return
        if problem is not None:
            span.set_status(self._api.StatusCode.ERROR, problem)
        span.end()


def _is_settled(change: BundleChanged, incarnation: int | None) -> bool:
    """Return whether a bundle rests after a change: it is gone, or owned, and `incarnation` is not
    to open it now.
    """
    before, after = change.before, change.after
    if after is None:
        return True
    opens = after.owner == incarnation and before is not None and before.token != after.token
    return after.phase == "owned" and not opens
