"""Check section 9: a service runs one operation of a bundle at a time.

Questions (where to split, what is left to fetch) are not operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.brokers.agent.effects import Close, Discard, Effect, Open, Prepare
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process


def one_at_a_time(process: Process, effects: Sequence[Effect]) -> None:
    """Check that no operation that a step began runs beside another of its bundle."""
    for effect in effects:
        match effect:
            case Prepare():
                bundle = effect.bundle.name
            case Open() | Close():
                bundle = effect.handle.bundle
            case Discard():
                bundle = effect.bundle
            case _:
                continue
        under_way = process.service.under_way.get(bundle, [])
        if len(under_way) > 1:
            raise InvariantViolated(
                invariant="section 9: one operation of a bundle at a time",
                what=f"the service of {process.host.name} at once {' and '.join(f'{running.verb}s' for running in under_way)} {bundle}",
            )
