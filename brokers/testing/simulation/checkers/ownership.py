"""Invariant 1: no work on a point of the hash space is started or answered by two brokers at once.

May live here: what is asked of the handles that services hold, at true time, and of the work that is done under them. Where a
namespace says `on_channel_loss: serve`, what passes past the end of its lease is left out of it: there only the token guards,
and what is asked instead is that a store can tell two brokers apart by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from equipoise.brokers.agent.effects import Effect, Open, Reshaped
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core.ranges import bundle_contains

# Of one point this many pieces of work are remembered: callers come at most once in a few milliseconds, to one of many
# points, and work lasts for less than a second, so that what is forgotten has ended before anything that is still to come.
_WORKS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one caller had done on one point: started and answered under handles that passed their checks, at these true times.

    With `by_token` one of these checks passed past the end of a lease.
    """

    process: Process
    namespace: str
    point: int
    token: int
    began_us: int
    ended_us: int
    by_token: bool = False


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
                held.update(dict.fromkeys(effect.children, False))
        closed: list[Handle] = []
        lease = process.agent.lease
        known = self._leases.get(process)
        if known != (lease.incarnation, lease.deadline_ms):
            self._leases[process] = (lease.incarnation, lease.deadline_ms)
            revived = known is None or now.boot_ms >= known[1]
        else:
            revived = False
        for handle, was_open in held.items():
            if handle.is_open:
                if not was_open:
                    held[handle] = True
                    self._open.setdefault(handle.namespace, {})[handle] = process
                if revived or not was_open:
                    self._look_at(handle, process)
                _check_passing(handle, process, now)
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
            passing = [(handle, process) for handle, process in handles.items() if _excludes_others(handle, process)]
            passing.sort(key=lambda held: held[0].low)
            for (left, left_process), (right, right_process) in pairwise(passing):
                if right.low < left.high:
                    raise _both_pass(left, left_process, right, right_process)

    def passing(self, process: Process) -> Handle | None:
        """One of the handles of a process that pass now, and let nobody else pass; None if there is none."""
        return next((handle for handle, is_open in process.held.items() if is_open and _excludes_others(handle, process)), None)

    def answered(self, work: Work) -> None:
        """Check a piece of work that was answered against all others on its point."""
        works = self._works.setdefault((work.namespace, work.point), [])
        for other in works:
            if other.process is not work.process and other.ended_us > work.began_us and other.began_us < work.ended_us:
                if (other.by_token or work.by_token) and other.token != work.token:
                    continue  # A store that checks tokens refuses the older one of the two.
                raise _two(
                    f"{other.process.host.name} worked on 0x{work.point:08x} of {work.namespace} under token {other.token} from "
                    f"{other.began_us} to {other.ended_us} us, {work.process.host.name} under token {work.token} from "
                    f"{work.began_us} to {work.ended_us} us"
                )
        works.append(work)
        del works[:-_WORKS_MAX]

    def _look_at(self, handle: Handle, process: Process) -> None:
        if not _excludes_others(handle, process):
            return
        for other, other_process in self._open[handle.namespace].items():
            if other is handle or other.low >= handle.high or handle.low >= other.high:
                continue
            if _excludes_others(other, other_process):
                raise _both_pass(handle, process, other, other_process)


def child_of(handle: Handle, point: int) -> Handle:
    """The handle under which work on `point` goes on that began under `handle`: itself, or what a split or merge made of it."""
    while not handle.is_open:
        child = next((child for child in handle.children if bundle_contains(child.low, child.high, point)), None)
        if child is None:
            break
        handle = child
    return handle


def _excludes_others(handle: Handle, process: Process) -> bool:
    """Whether a handle passes now, and is to be the only one over its points that does."""
    now = process.host.now()
    return handle.passes(now) and (handle.lease.good(now) or not _may_serve_on(handle, process))


def _check_passing(handle: Handle, process: Process, now: Instant) -> None:
    """An open handle passes by a lease that is good, or by the policies of its namespace, and never for the dead."""
    incarnation, is_alive = handle.lease.incarnation, handle.lease.incarnation in process.agent.view.live
    if (is_alive and handle.lease.good(now)) or not handle.passes(now):
        return
    if not is_alive:
        raise InvariantViolated(
            invariant="section 4: a handle ends with its incarnation",
            what=f"{process.host.name} has read the end of #{incarnation}, and {_spelled(handle)} passes",
        )
    if not _may_serve_on(handle, process):
        raise InvariantViolated(
            invariant="section 4: past its lease a broker serves on only where it may",
            what=f"the lease of {process.host.name} has run out, and {_spelled(handle)} passes",
        )


def _may_serve_on(handle: Handle, process: Process) -> bool:
    """Whether its namespace lets a handle pass past its lease: by what the process has read, not by what its handle says."""
    return serves_on(process.agent.view, handle.namespace)


def _both_pass(one: Handle, one_process: Process, other: Handle, other_process: Process) -> InvariantViolated:
    who = f"{one_process.host.name} and {other_process.host.name}"
    return _two(f"{who} both pass the check: {_spelled(one)} and {_spelled(other)}")


def _spelled(handle: Handle) -> str:
    return f"{handle.bundle} under token {handle.token} of #{handle.lease.incarnation}"


def _two(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="1 one owner", what=what)
