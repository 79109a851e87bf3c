"""Check invariant 5: after faults stop, within a bound, a live broker owns every bundle.

Within the same bound every request is answered (section 8 of docs/protocol.md), and each draining
broker has given away all bundles that other brokers accept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.quarantine import QuarantineRules
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.view import View
from tests.simulation.host import Process

QUARANTINE_MS_MAX: Final = 2 * QuarantineRules().hold_ms
"""How long a first quarantine lasts: at the latest twice its length, if there are others."""


def recovery_bound_ms(timing: Timing, *, brokers: int, late_ms: int) -> int:
    """Return the milliseconds of true time after the last fault within which every bundle is
    served.

    The longest chain of events:

    * Records on their way arrive (`late_ms`).
    * A restarted process whose id still looks alive waits until its dead predecessor counts as
      silent, and joins.
    * It declares another one dead, after one grace period for each broker before it.
    * A freed bundle is placed, refused at its deadlines, cancelled by patience, and placed again.

    Faults look like a bundle that breaks its owners. Its time in quarantine counts apart (see
    `QUARANTINE_MS_MAX`).
    """
    timing = timing.for_members(brokers + 1)
    silence_ms = timing.lease_ms + timing.grace_ms * (1 + brokers)
    service_ms = timing.prepare_ms + timing.open_ms + timing.close_ms
    bound_ms = (
        late_ms
        + 2 * (silence_ms + timing.lease_ms)
        + 2 * (service_ms + timing.patience_ms)
        + 10 * timing.attempt_ms
    )
    return bound_ms + bound_ms * 2 * timing.clock_rate_error_ppm // 1_000_000


def not_recovered(
    view: View,
    processes: Iterable[Process],
    process_of: Callable[[int], Process | None],
    *,
    excused: Collection[str] = (),
) -> str | None:
    """Return a bundle that is not where it should be, and not `excused`, or unanswered requests;
    None if the cluster has recovered.
    """
    processes = list(processes)
    for namespace in view.namespaces.values():
        if namespace.status == "created" and not _is_excused(namespace.name, processes):
            for bundle in view.bundles_of(namespace.name):
                if bundle.name in excused:
                    continue
                problem = _not_served(bundle, process_of) or _not_moved(bundle, process_of)
                if problem is not None:
                    return f"{bundle.name} (offset {bundle.last}) {problem}"
    for process in processes:
        if process.asked:
            return f"{process.host.name} has not answered {len(process.asked)} requests"
    return None


def _is_excused(namespace: str, processes: Iterable[Process]) -> bool:
    """Return whether all brokers that serve and accept a namespace drain. Its free bundles then
    stay free, and owned ones stay. Without such a broker, they stay free.
    """
    return all(process.agent.drains for process in processes if process.serves(namespace))


def _not_served(bundle: BundleEntry, process_of: Callable[[int], Process | None]) -> str | None:
    if bundle.phase != "owned" or bundle.owner is None:
        return f"is {bundle.phase}"
    process = process_of(bundle.owner)
    if process is None or not process.alive:
        return f"is owned by #{bundle.owner}, whose process has ended"
    handle = process.agent.handle(bundle.name)
    if handle is None or handle.token != bundle.token or not handle.passes(process.host.now()):
        return f"is owned by #{bundle.owner} at {process.host.name}, which does not serve it"
    return None


def _not_moved(bundle: BundleEntry, process_of: Callable[[int], Process | None]) -> str | None:
    process = None if bundle.owner is None else process_of(bundle.owner)
    if process is not None and process.agent.drains:
        return f"is still owned by #{bundle.owner} at {process.host.name}, which drains"
    return None
