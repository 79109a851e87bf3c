"""Invariant 1: no work on a point of the hash space is started or answered by two brokers at once.

May live here: what is asked of the handles that services hold, at true time, and of the work that is done under them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from brokers.agent.effects import Effect, Open, Reshaped
from brokers.agent.events import Instant
from brokers.agent.handle import Handle
from brokers.simulation.checkers.violation import InvariantViolated
from brokers.simulation.host import Process
from channel.ranges import bundle_contains

# Of one point this many pieces of work are remembered: callers come at most once in a few milliseconds, to one of many
# points, and work lasts for less than a second, so that what is forgotten has ended before anything that is still to come.
_WORKS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one caller had done on one point: started and answered under handles that passed their checks, at these true times."""

    process: Process
    namespace: str
    point: int
    token: int
    began_us: int
    ended_us: int


class Ownership:
    """Watches every handle that any service holds.

    A handle passes at an instant on its own host's clocks. Passing can only begin in a step of its own broker (it is opened,
    or its lease is extended), or when a wall clock is set or a stopped one runs on: `stepped` looks at the former at once,
    `look_at_all` once a second at everything.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[Handle, Process]] = {}
        self._leases: dict[Process, tuple[int, int]] = {}
        self._works: dict[tuple[str, int], list[Work]] = {}

    def stepped(self, process: Process, effects: list[Effect], now: Instant) -> None:
        """Check what a step has opened, and what its lease has revived."""
        held = process.held
        for effect in effects:
            if type(effect) is Open:
                held[effect.handle] = False
            elif type(effect) is Reshaped:
                held.update(dict.fromkeys(effect.heirs, False))
        closed: list[Handle] = []
        lease = process.agent.lease
        known = self._leases.get(process)
        if known != (lease.incarnation, lease.deadline_ms):
            self._leases[process] = (lease.incarnation, lease.deadline_ms)
            revived = known is None or now.boot_ms >= known[1]
        else:
            revived = False
        live = process.agent.view.live
        for handle, was_open in held.items():
            if handle.is_open:
                if not was_open:
                    held[handle] = True
                    self._open.setdefault(handle.namespace, {})[handle] = process
                if revived or not was_open:
                    self._look_at(handle, process, now)
                if handle.lease.incarnation not in live and handle.passes(now):
                    raise InvariantViolated(
                        invariant="section 4: a handle ends with its incarnation",
                        what=f"{process.host.name} has read the end of #{handle.lease.incarnation}, and {_spelled(handle)} passes",
                    )
            elif was_open:
                held[handle] = False
                del self._open[handle.namespace][handle]
                closed.append(handle)
        for handle in closed:
            del held[handle]

    def ended(self, process: Process) -> None:
        """A process has ended: it answers nothing any more."""
        for handle, is_open in process.held.items():
            if is_open:
                del self._open[handle.namespace][handle]
        process.held.clear()
        self._leases.pop(process, None)

    def look_at_all(self) -> None:
        """Check every handle that is open anywhere."""
        for handles in self._open.values():
            passing = [(handle, process) for handle, process in handles.items() if handle.passes(process.host.now())]
            passing.sort(key=lambda held: held[0].low)
            for (left, left_process), (right, right_process) in pairwise(passing):
                if right.low < left.high:
                    raise _both_pass(left, left_process, right, right_process)

    def passing(self, process: Process) -> Handle | None:
        """One of the handles of a process that pass now, if there is one."""
        now = process.host.now()
        return next((handle for handle, is_open in process.held.items() if is_open and handle.passes(now)), None)

    def answered(self, work: Work) -> None:
        """Check a piece of work that was answered against all others on its point."""
        works = self._works.setdefault((work.namespace, work.point), [])
        for other in works:
            if other.process is not work.process and other.ended_us > work.began_us and other.began_us < work.ended_us:
                raise _two(
                    f"{other.process.host.name} worked on 0x{work.point:08x} of {work.namespace} under token {other.token} from "
                    f"{other.began_us} to {other.ended_us} us, {work.process.host.name} under token {work.token} from "
                    f"{work.began_us} to {work.ended_us} us"
                )
        works.append(work)
        del works[:-_WORKS_MAX]

    def _look_at(self, handle: Handle, process: Process, now: Instant) -> None:
        if not handle.passes(now):
            return
        for other, other_process in self._open[handle.namespace].items():
            if other is handle or other.low >= handle.high or handle.low >= other.high:
                continue
            if other.passes(other_process.host.now()):
                raise _both_pass(handle, process, other, other_process)


def heir_of(handle: Handle, point: int) -> Handle:
    """The handle under which work on `point` goes on that began under `handle`: itself, or what a split or merge made of it."""
    while not handle.is_open:
        heir = next((heir for heir in handle.heirs if bundle_contains(heir.low, heir.high, point)), None)
        if heir is None:
            break
        handle = heir
    return handle


def _both_pass(one: Handle, one_process: Process, other: Handle, other_process: Process) -> InvariantViolated:
    who = f"{one_process.host.name} and {other_process.host.name}"
    return _two(f"{who} both pass the check: {_spelled(one)} and {_spelled(other)}")


def _spelled(handle: Handle) -> str:
    return f"{handle.bundle} under token {handle.token} of #{handle.lease.incarnation}"


def _two(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="1 one owner", what=what)
