"""Simulate callers: each finds the owner of a point and requests work that takes a while.

Each piece of work checks its handle when it starts and again before it is answered, as the
product's services do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from equipoise.brokers.agent.events import Wanted
from equipoise.brokers.agent.handle import Handle
from equipoise.channel.core.ranges import HASH_MAX
from tests.simulation.checkers.all_checkers import Checkers
from tests.simulation.checkers.ownership import Work, child_of
from tests.simulation.clock import MICROSECONDS_PER_MS
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.host import Host, Process
from tests.simulation.parts import Parts

# A small number, so that two brokers at work on one point would be noticed.
_POINTS: Final = 64

# A paused process answers its unfinished work this soon after it resumes.
_RETRY_US: Final = 20 * MICROSECONDS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The start of a piece of work. `by_token`: the lease had run out, so only the token guards the
    work.
    """

    at_us: int
    by_token: bool


class Callers:
    """All callers of a run."""

    def __init__(self, parts: Parts, log: FaultyLog, hosts: list[Host], checkers: Checkers) -> None:
        self._parts = parts
        self._log = log
        self._hosts = hosts
        self._checkers = checkers
        self._points = [parts.chance.within((0, HASH_MAX)) for _ in range(_POINTS)]
        self.answered = 0
        self.answered_by_token = 0
        self.answered_extended = 0
        self.refused = 0

    def begin(self) -> None:
        """Make a call now, and go on making calls."""
        self._call()
        parts = self._parts
        parts.schedule.after(
            parts.chance.about(parts.scenario.call_every_ms) * MICROSECONDS_PER_MS, self.begin
        )

    def _call(self) -> None:
        """Call the owner by the log, and another broker that may still believe it owns the
        point.
        """
        chance, view = self._parts.chance, self._log.view
        namespaces = list(view.namespaces)
        if not namespaces:
            return
        namespace, point = chance.one_of(namespaces), chance.one_of(self._points)
        bundle = view.bundle_at(namespace, point)
        server = (
            None
            if bundle is None or bundle.server is None
            else self._checkers.membership.process_of(bundle.server)
        )
        stubborn = chance.one_of(self._hosts).process
        for process in (server, stubborn if stubborn is not server else None):
            if process is not None and process.alive and not process.host.paused:
                self._start(process, namespace, point)

    def _start(self, process: Process, namespace: str, point: int) -> None:
        bundle = process.agent.view.bundle_at(namespace, point)
        if bundle is None:
            return
        handle = process.agent.handle(bundle.name)
        if handle is None or not handle.passes(process.host.now()):
            if bundle.phase == "free":
                process.deliver(Wanted(bundle=bundle.name))
            return
        schedule, chance = self._parts.schedule, self._parts.chance
        took_us = chance.microseconds(self._parts.scenario.call_ms)
        begun = Begun(at_us=schedule.now_us, by_token=not handle.lease.good(process.host.now()))
        schedule.after(took_us, partial(self._answer, process, handle, namespace, point, begun))

    def _answer(
        self, process: Process, handle: Handle, namespace: str, point: int, begun: Begun
    ) -> None:
        if not process.alive:
            return
        schedule = self._parts.schedule
        if process.host.paused:
            schedule.after(
                _RETRY_US, partial(self._answer, process, handle, namespace, point, begun)
            )
            return
        child = child_of(handle, point)
        now = process.host.now()
        if not (child.passes(now) or child.settles(now)):
            self.refused += 1
            return
        self.answered += 1
        by_token = begun.by_token or not child.lease.good(now)
        self.answered_by_token += by_token
        self.answered_extended += not by_token and not child.lease.holds(now)
        self._checkers.ownership.answered(
            Work(
                process=process,
                namespace=namespace,
                point=point,
                token=child.token,
                began_us=begun.at_us,
                ended_us=schedule.now_us,
                by_token=by_token,
            )
        )
