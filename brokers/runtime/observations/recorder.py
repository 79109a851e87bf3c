"""Record when one broker serves each bundle, for an audit that does not trust the fold alone.

* A period begins when the service has opened a bundle under a good lease. It ends when the handle
  closes or the lease runs out.
* After a lapse it ends where the lease did, however late that is noticed: a stopped process served
  nothing.
* Work that passed its second check later extends it, so that an audit finds it.
* Work answered after a reported end is reported as a later end. After a release this may be
  admitted work. After any other end no handle passes, so this shows a defect.
* A namespace that serves on past a lease is served until its handle closes, and marked: only the
  token guards there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from equipoise.brokers.agent.effects import Abandon, Close, Effect, Reshaped
from equipoise.brokers.agent.events import Event, Opened
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.clock import NANOSECONDS_PER_MILLISECOND, Clock
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.observations.writer import (
    Ended,
    EvidenceFile,
    ObservationWriter,
    Served,
)
from equipoise.brokers.runtime.service import Evidence
from equipoise.brokers.side_topics import SERVING
from equipoise.channel.log.open_log import is_in_memory, open_side_log
from equipoise.channel.system.process_lock import this_boot

# Last ended periods that are checked for later answers, and the interval.
_ENDED_MAX: Final = 256
_LOOK_MS: Final = 1_000


class AgentState(Protocol):
    """What is read between steps: see `brokers.agent.agent.Agent`."""

    @property
    def lease(self) -> Lease:
        """The lease of the current incarnation."""
        ...

    def handle(self, bundle: str) -> Handle | None:
        """Return the handle of a bundle that is open or opening; None for any other."""
        ...


@dataclass(slots=True, kw_only=True)
class _Period:
    """A period of serving under one handle. `started_ns` is None while the lease has run out."""

    handle: Handle
    started_ns: int | None


@dataclass(slots=True, kw_only=True)
class _EndedPeriod:
    """A period that was reported as over, and its end."""

    handle: Handle
    started_ns: int
    answered_ns: int
    ended: Ended


class ServingRecorder:
    """Records what one broker serves: at most one period for each bundle that is open here."""

    def __init__(
        self, *, log: str, broker: str, boot: str, clock: Clock, report: Callable[[Served], None]
    ) -> None:
        """`log` is the identity of the log, `boot` that of this run of the machine. `report` takes
        each beginning and each end.
        """
        self._log = log
        self._broker = broker
        self._boot = boot
        self._clock = clock
        self._report_served = report
        self._periods: dict[str, _Period] = {}
        self._has_lease = False
        self._ended: deque[_EndedPeriod] = deque(maxlen=_ENDED_MAX)
        self._look_at_ms = 0

    def carried_out(self, effect: Effect) -> None:
        """Note an effect of the agent that closed handles."""
        if isinstance(effect, Close):
            self._end(effect.handle.bundle, "closed")
        elif isinstance(effect, Abandon):
            self._end(effect.bundle, "abandoned")
        elif isinstance(effect, Reshaped):
            for parent in effect.gone:
                self._end(parent.bundle, "reshaped")
            for child in effect.children:
                self._begin(child)

    def stepped(self, event: Event, agent: AgentState) -> None:
        """Note an event of the agent: a bundle may be open, or the lease over or good again."""
        now = self._clock.now()
        if now.boot_ms >= self._look_at_ms:
            self._look_at_ms = now.boot_ms + _LOOK_MS
            self._look_back()
        has_lease = agent.lease.good(now)
        if has_lease is not self._has_lease:
            self._has_lease = has_lease
            self._lease_changed()
        if isinstance(event, Opened) and event.problem is None:
            handle = agent.handle(event.bundle)
            if handle is not None and handle.is_open:
                self._begin(handle)

    def stopped(self) -> None:
        """End all periods, because the broker has ended."""
        for bundle in list(self._periods):
            self._end(bundle, "stopped")
        self._look_back()

    def _lease_changed(self) -> None:
        """End periods when their lease ends, begin them again when it is good. A lost lease closes
        its handles.
        """
        if self._has_lease:  # Later answers belong to the periods that begin now.
            over = [
                one for one in self._ended if one.ended != "lease_over" or one.handle.lease.lost
            ]
            self._ended = deque(over, maxlen=_ENDED_MAX)
        for period in self._periods.values():
            handle = period.handle
            if handle.lease.lost:
                continue
            if self._has_lease and period.started_ns is None:
                self._start(period)
            elif not self._has_lease and period.started_ns is not None and not handle.serves_on:
                self._report_end(period, "lease_over")
                period.started_ns = None

    def _begin(self, handle: Handle) -> None:
        period = self._periods[handle.bundle] = _Period(handle=handle, started_ns=None)
        if handle.passes(self._clock.now()):
            self._start(period)

    def _start(self, period: _Period) -> None:
        period.started_ns = self._clock.boot_ns()
        self._report(period.handle, period.started_ns, answered_ns=None, ended=None)

    def _end(self, bundle: str, ended: Ended) -> None:
        period = self._periods.pop(bundle, None)
        if period is not None and period.started_ns is not None:
            self._report_end(period, ended)

    def _report_end(self, period: _Period, ended: Ended) -> None:
        handle, now_ns = period.handle, self._clock.boot_ns()
        until_ns = now_ns if handle.serves_on else min(now_ns, _lease_ns(handle))
        assert period.started_ns is not None, "what has not begun does not end"
        over = _EndedPeriod(
            handle=handle,
            started_ns=period.started_ns,
            answered_ns=max(until_ns, handle.answered_ns),
            ended=ended,
        )
        self._report(handle, over.started_ns, answered_ns=over.answered_ns, ended=ended)
        self._ended.append(over)

    def _look_back(self) -> None:
        for over in self._ended:
            if over.handle.answered_ns > over.answered_ns:
                over.answered_ns = over.handle.answered_ns
                self._report(
                    over.handle, over.started_ns, answered_ns=over.answered_ns, ended=over.ended
                )

    def _report(
        self, handle: Handle, started_ns: int, *, answered_ns: int | None, ended: Ended | None
    ) -> None:
        is_past_lease = (
            answered_ns is not None and handle.serves_on and answered_ns > _lease_ns(handle)
        )
        self._report_served(
            Served(
                log=self._log,
                broker=self._broker,
                incarnation=handle.lease.incarnation,
                bundle=handle.bundle,
                token=handle.token,
                boot=self._boot,
                started_ns=started_ns,
                answered_ns=answered_ns,
                lease_deadline_ns=_lease_ns(handle),
                ended=ended,
                by_token=handle.answered_by_token or is_past_lease,
                at_ms=self._clock.now().wall_ms,
                at_ns=self._clock.boot_ns(),
            )
        )


def _lease_ns(handle: Handle) -> int:
    return handle.lease.until_ms * NANOSECONDS_PER_MILLISECOND


class Recorders:
    """The records that one worker keeps of serving, if configured: evidence for tests, observations
    for audits, which `serving` makes.
    """

    def __init__(self, config: WorkerConfig, *, clock: Clock, log: str) -> None:
        """`log` is the identity of the open log. Raise `InvalidConfig` if the evidence file cannot
        be written.
        """
        broker, log_url = config.id, config.log_url
        self._file = (
            None if config.evidence is None else EvidenceFile(config.evidence, broker=broker)
        )
        # Beside a log in memory others could not read them.
        self._writer = (
            ObservationWriter(partial(open_side_log, log_url, SERVING), broker=broker, clock=clock)
            if config.observations and not is_in_memory(log_url)
            else None
        )
        self.serving = ServingRecorder(
            log=log,
            broker=broker,
            boot=this_boot(),
            clock=clock,
            report=(lambda _: None) if self._writer is None else self._writer.served,
        )

    @property
    def record_work(self) -> Callable[[Evidence], None] | None:
        """The callback for work that passed both checks; None without evidence."""
        return None if self._file is None else self._file.write

    def close(self) -> None:
        """Write what is left, in bounded time. Call it in a thread, after `serving.stopped`."""
        for each in (self._file, self._writer):
            if each is not None:
                each.close()
