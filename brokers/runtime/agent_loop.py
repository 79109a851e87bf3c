"""Run one agent: give it its events in order, and each effect to the part that carries it out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.effects import (
    Alarm,
    AlarmName,
    Answered,
    Append,
    AskAssurance,
    AssuranceAnswered,
    Effect,
    ForgetInstanceIds,
    Refold,
    Stop,
    WriteInstanceId,
    WriteMark,
)
from equipoise.brokers.agent.events import AppendFailed, Event, Read, Resynced, Tick, Wanted
from equipoise.brokers.runtime.access import Access
from equipoise.brokers.runtime.assuring import AssuranceMessages
from equipoise.brokers.runtime.bundle_lines import BundleLines
from equipoise.brokers.runtime.callers import Requests, Waiting
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.metrics import Metrics
from equipoise.brokers.runtime.observations.recorder import ServingRecorder
from equipoise.brokers.runtime.service_runner import ServiceEffect, ServiceRunner
from equipoise.brokers.runtime.snapshots import LocalState, ReplayProgress
from equipoise.channel.core.errors import BegunAbove, Bug, EquipoiseError
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.log.append_queue import Appended, AppendOutcome, InDoubt
from equipoise.channel.log.listeners import Listeners
from equipoise.channel.log.subscription import Subscription
from equipoise.channel.system.failures import LoggedFailures

# Programs filter the joins and alarms of a broker by this name: see docs/reference/log-lines.md.
_logger: Final = logging.getLogger("equipoise.brokers.runtime.worker")

# The interval of log lines about failed appends: it shows an outage of the log, and its rate.
_APPEND_LINES_MS: Final = 10_000

_LEASE_LINES: Final = {
    "its lease": (logging.INFO, "serves by its lease again"),
    "assurances": (logging.WARNING, "serves past its lease: no broker reaches the log"),
    "nothing": (logging.WARNING, "has stopped serving: its lease is over"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Who carries out what an agent decides, and who learns of it."""

    access: Access
    clock: Clock
    listeners: Listeners
    local_state: LocalState
    metrics: Metrics
    progress: ReplayProgress
    serving: ServingRecorder
    requests: Requests
    runner: ServiceRunner
    waiting: Waiting


class AgentLoop:
    """The events and effects of one agent, on the running event loop.

    * `has_caught_up`: whether it has read to the end that the log had at its start.
    * `assurances`: the questions to other brokers, and theirs.
    * `append_problem`: the error of the last append to the log.
    """

    def __init__(
        self,
        agent: Agent,
        log: Log,
        parts: Parts,
        *,
        position: int,
        cluster: str,
        address: str | None,
        end: Callable[[EquipoiseError | None], None],
    ) -> None:
        """Read `log` from `position` on, once started. `end` ends the broker. `address` is that of
        its HTTP, for log lines.
        """
        self._agent = agent
        self._parts = parts
        self._traces = parts.requests.traces
        self._end = end
        self._address = address
        self._broker = agent.broker
        # Usually one event. The loop calls `step` for each, and no effect answers within a step.
        # Only code called within one (a listener, a service that learns of a split) can add one, by
        # a drain or a lookup.
        self._events: deque[Event] = deque()
        self._stepping = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._ready_as: int | None = None  # The incarnation whose join was logged.
        self._serves_by = "its lease"
        self._lines = BundleLines(parts.metrics.moves, broker=self._broker)
        about = {
            "broker": self._broker,
            "failed": "append failed",
            "over": "appends succeed again",
        }
        self._append_failures = LoggedFailures(_logger, **about, interval_ms=_APPEND_LINES_MS)
        self.assurances = AssuranceMessages(
            step=self.step,
            cluster=cluster,
            own_token=parts.access.own_token,
            tls=lambda: parts.access.certificates.client,
        )
        self.has_caught_up = False
        self.append_problem: EquipoiseError | None = None
        self.subscription = Subscription(
            lambda: log,
            name=log.name,
            position=position,
            deliver=self._deliver,
            caught_up=self._caught_up_at,
            # Restored after a truncation.
            resynced=lambda reader: self.step(Resynced(reader=reader)),
            failed=end,
            cluster=cluster,
        )

    def stop(self) -> None:
        """Take no more events."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def step(self, event: Event) -> None:
        """Give the agent one event and carry out its effects. Further events follow in order.

        Any exception ends the broker: effects may be lost that the agent considers done.
        """
        if self._is_over:
            return
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                taken = self._events.popleft()
                self._lines.ended(taken)
                effects: Sequence[Effect] = self._agent.step(taken, self._parts.clock.now())
                if self._traces is not None:
                    effects = self._traces.stepped(taken, effects, self._agent.incarnation)
                for effect in effects:
                    self._carry_out(effect)
                self._parts.serving.stepped(taken, self._agent)
                if self._agent.incarnation != self._ready_as:
                    self._note_membership()
                self._note_lease()
                # A mere check must not make all waiting callers check again.
                if effects or not isinstance(taken, Tick | Wanted):
                    self._parts.waiting.changed()
        except EquipoiseError as error:
            # The log's thread handles it. Before a genesis no effect can be lost.
            if isinstance(error, BegunAbove):
                raise
            self._end(error)
        except Exception as error:
            _logger.exception("step failed", extra={"broker": self._broker})
            self._end(
                Bug(f"broker {self._broker} failed in a step: {type(error).__name__}: {error}")
            )
        finally:
            self._stepping = False
        self._arm_timer()

    def _deliver(self, entries: Sequence[Entry]) -> None:
        self.step(Read(entries=entries, caught_up=self.has_caught_up))
        if not self.has_caught_up:
            self._parts.progress.read(
                len(entries), max(self.subscription.lag_entries - len(entries), 0)
            )

    def _caught_up_at(self, _end: int) -> None:
        self.has_caught_up = True
        self._parts.progress.ended()
        self.step(Read(entries=(), caught_up=True))

    def _note_membership(self) -> None:
        """Log each join, also the one after this broker was declared dead."""
        if not self._agent.is_ready:
            return
        self._ready_as = self._agent.incarnation
        fields = {
            "broker": self._broker,
            "incarnation": self._ready_as,
            "address": self._address,
            "serves": self._parts.runner.serves,
            "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        }
        _logger.info("ready", extra=fields)

    def _note_lease(self) -> None:
        """Log the change from a lease to assurances, from either to nothing, and back."""
        lease, now = self._agent.lease, self._parts.clock.now()
        serves_by = (
            "its lease" if lease.holds(now) else "assurances" if lease.good(now) else "nothing"
        )
        if lease.lost or serves_by == self._serves_by:
            return
        self._serves_by = serves_by
        fields: dict[str, object] = {"broker": self._broker, "serves_by": serves_by}
        if serves_by == "nothing":
            fields["unassured_by"] = self._agent.unassured(now)
        _logger.log(*_LEASE_LINES[serves_by], extra=fields)

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_over:
            return
        delay_ms = self._agent.wake_at_ms - self._parts.clock.now().boot_ms
        self._timer = asyncio.get_running_loop().call_later(
            max(delay_ms, 1) / 1_000, self.step, Tick()
        )

    def _carry_out(self, effect: Effect) -> None:
        parts = self._parts
        if isinstance(effect, Folded):
            self._observe(effect)
        elif isinstance(effect, Resync):
            self._observe_resync(effect)
        elif isinstance(effect, Append):
            self.subscription.append(effect.data, partial(self._appended, effect))
        elif isinstance(effect, ServiceEffect):
            self._lines.carried_out(effect, self._agent.view)
            parts.serving.carried_out(effect)
            with nullcontext() if self._traces is None else self._traces.operation(effect):
                parts.runner.carry_out(effect)
        elif isinstance(effect, Answered):
            parts.requests.answer(effect)
        elif isinstance(effect, AskAssurance | AssuranceAnswered):
            self.assurances.carry_out(effect)
        elif isinstance(effect, WriteMark | WriteInstanceId | ForgetInstanceIds):
            parts.local_state.carry_out(effect, self._written)
        elif isinstance(effect, Alarm):
            self._raise_alarm(effect)
        elif isinstance(effect, Refold):
            self._refold(effect)
        elif isinstance(effect, Stop):
            self._end(effect.error)

    def _written(self, error: EquipoiseError | None, *, then: Event | None = None) -> None:
        if error is not None:
            self._raise_alarm(Alarm(name=AlarmName.DATA_DIRECTORY, message=str(error)))
        elif then is not None:
            self.step(then)

    def _raise_alarm(self, alarm: Alarm) -> None:
        self._parts.metrics.count("alarms_total", alarm.name)
        about = {"key": alarm.key, "offset": alarm.offset, "reason": alarm.reason}
        fields = {name: value for name, value in about.items() if value is not None}
        _logger.warning(
            alarm.message, extra={"alarm": alarm.name, "broker": self._broker, **fields}
        )

    def _observe(self, folded: Folded) -> None:
        for move in self._parts.metrics.observe(folded, live=self.has_caught_up):
            self._lines.moved(move, self._agent.view)
        if self.has_caught_up:
            self._parts.local_state.folded(self._agent.view)
        self._parts.listeners.folded(folded)

    def _observe_resync(self, resync: Resync) -> None:
        if resync.before < 0:
            return  # A channel was copied to a log that was empty; nothing was missed.
        fields = {
            "broker": self._broker,
            "before": resync.before,
            "offset": resync.offset,
            "changes": len(resync.changes),
        }
        _logger.warning("resynced: records were truncated before they were read", extra=fields)
        self._parts.metrics.count("reader_resyncs_total")
        self._parts.metrics.moves.resynced(resync)
        # The previous snapshot is useless now.
        self._parts.local_state.save(self._agent.view)
        self._parts.listeners.resynced(resync)

    def _appended(self, append: Append, outcome: AppendOutcome) -> None:
        if isinstance(outcome, Appended):
            self.append_problem = None
            self._append_failures.succeeded()
        else:
            self.append_problem = outcome.error
            self._append_failures.failed(
                outcome.error, self._parts.clock.now().boot_ms, partial(_named, append.data)
            )
            self.step(
                AppendFailed(
                    attempt=append.attempt,
                    error=outcome.error,
                    in_doubt=isinstance(outcome, InDoubt),
                )
            )

    def _refold(self, effect: Refold) -> None:
        """Check this broker's view against the log after views diverged. Stop if ours is wrong."""
        if self.has_caught_up and self._parts.local_state.replay_check.begin(self._agent.view):
            name = AlarmName.VIEWS_DIVERGE
            self._parts.metrics.count("alarms_total", name)
            _logger.error(
                "views diverge",
                extra={
                    "alarm": name,
                    "broker": self._broker,
                    "other": effect.other,
                    "offset": effect.offset,
                },
            )


def _named(data: bytes) -> dict[str, object]:
    """Return the kind and the key of a record, for a log line."""
    record = orjson.loads(data)
    return {"kind": record["kind"], "key": record["key"]}
