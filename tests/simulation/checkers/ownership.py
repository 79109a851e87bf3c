"""Check invariant 1: two brokers never start or answer work on one point of the hash space at the
same time.

In a namespace with `on_channel_loss: serve`, handles may pass after their lease has run out. Only
the token guards there. The check is then that a store can distinguish the two brokers by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from equipoise.brokers.agent.effects import Effect, Open, Reshaped
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.channel.core.ranges import bundle_contains
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.host import Process

# Pieces of work kept per point. Calls come every few milliseconds to one of many points, and work
# lasts under a second. Forgotten work has thus ended before any later work begins.
_WORKS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work on one point, with the true times of its start and answer. Its handles
    passed their checks at both.

    With `by_token`, one of these checks passed after the lease had run out.
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

    Each handle is checked on its own host's clocks. A handle can begin to pass:

    * in a step of its own broker, when it is opened or its lease is extended. `stepped` checks that
      at once.
    * when a wall clock is set or a stopped clock resumes. `look_at_all` checks that once a second.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[Handle, Process]] = {}
        self._leases: dict[Process, tuple[int, int]] = {}
        self._works: dict[tuple[str, int], list[Work]] = {}

    def stepped(self, process: Process, effects: Sequence[Effect], now: Instant) -> None:
        """Check the handles that a step opened or revived by its lease."""
        held = process.held
        for effect in effects:
            if type(effect) is Open:
                _check_noted(effect.handle, process)
                held[effect.handle] = False
            elif type(effect) is Reshaped:
                held.update(dict.fromkeys(effect.children, False))
        closed: list[Handle] = []
        lease = process.agent.lease
        known = self._leases.get(process)
        if known != (lease.incarnation, lease.ends_ms):
            self._leases[process] = (lease.incarnation, lease.ends_ms)
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
        """Forget the handles of a process that has ended."""
        for handle, is_open in process.held.items():
            if is_open:
                del self._open[handle.namespace][handle]
        process.held.clear()
        self._leases.pop(process, None)

    def look_at_all(self) -> None:
        """Check every open handle."""
        for handles in self._open.values():
            passing = [
                (handle, process)
                for handle, process in handles.items()
                if _excludes_others(handle, process)
            ]
            passing.sort(key=lambda held: held[0].low)
            for (left, left_process), (right, right_process) in pairwise(passing):
                if right.low < left.high:
                    raise _both_pass(left, left_process, right, right_process)

    def passing(self, process: Process) -> Handle | None:
        """Return a handle of a process that passes now and excludes others; None if there is
        none.
        """
        return next(
            (
                handle
                for handle, is_open in process.held.items()
                if is_open and _excludes_others(handle, process)
            ),
            None,
        )

    def answered(self, work: Work) -> None:
        """Check an answered piece of work against all others on its point."""
        works = self._works.setdefault((work.namespace, work.point), [])
        for other in works:
            if (
                other.process is not work.process
                and other.ended_us > work.began_us
                and other.began_us < work.ended_us
            ):
                if (other.by_token or work.by_token) and other.token != work.token:
                    continue  # A store that checks tokens refuses the older of the two.
                raise _two(
                    f"{other.process.host.name} worked on 0x{work.point:08x} of {work.namespace}"
                    f" under token {other.token} from {other.began_us} to {other.ended_us} us,"
                    f" {work.process.host.name} under token {work.token} from {work.began_us} to"
                    f" {work.ended_us} us"
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
    """Return the open handle that continues work on `point`: `handle` itself, or its child after a
    split or merge.
    """
    while not handle.is_open:
        child = next(
            (child for child in handle.children if bundle_contains(child.low, child.high, point)),
            None,
        )
        if child is None:
            break
        handle = child
    return handle


def _excludes_others(handle: Handle, process: Process) -> bool:
    """Return whether a handle passes now and must be the only one that does over its points."""
    now = process.host.now()
    return handle.passes(now) and (handle.lease.good(now) or not _may_serve_on(handle, process))


def _check_passing(handle: Handle, process: Process, now: Instant) -> None:
    """Check that an open handle passes only by a good lease or by the policies of its namespace,
    and never for a dead incarnation.
    """
    incarnation, is_alive = (
        handle.lease.incarnation,
        handle.lease.incarnation in process.agent.view.live,
    )
    if (is_alive and handle.lease.good(now)) or not handle.passes(now):
        return
    if not is_alive:
        raise InvariantViolated(
            invariant="section 4: a handle ends with its incarnation",
            what=(
                f"{process.host.name} has read the end of #{incarnation}, and {_described(handle)}"
                " passes"
            ),
        )
    if not _may_serve_on(handle, process):
        raise InvariantViolated(
            invariant="section 4: past its lease a broker serves on only where it may",
            what=f"the lease of {process.host.name} has run out, and {_described(handle)} passes",
        )


def _check_noted(handle: Handle, process: Process) -> None:
    """Check that the data directory notes a token before its first use: the next start would not
    refuse a log that issues it again.
    """
    if process.directory.mark < handle.token:
        raise InvariantViolated(
            invariant="section 1: a log that went back is refused",
            what=(
                f"{process.host.name} opens {_described(handle)}, but its data directory notes only"
                f" offset {process.directory.mark}"
            ),
        )


def _may_serve_on(handle: Handle, process: Process) -> bool:
    """Return whether the namespace lets a handle pass after its lease, by the view of the process,
    not by the handle.
    """
    return serves_on(process.agent.view, handle.namespace)


def _both_pass(
    one: Handle, one_process: Process, other: Handle, other_process: Process
) -> InvariantViolated:
    who = f"{one_process.host.name} and {other_process.host.name}"
    return _two(f"{who} both pass the check: {_described(one)} and {_described(other)}")


def _described(handle: Handle) -> str:
    return f"{handle.bundle} under token {handle.token} of #{handle.lease.incarnation}"


def _two(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="1 one owner", what=what)
