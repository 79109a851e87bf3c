"""Make a trace of what a running cluster reports: at each step, the cost of each bundle and the use
of each broker.

Costs are the long averages of the brokers' reports, so short noise is missing from the trace. See
`shedder.snapshot` for the cost of a bundle that no report names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from equipoise.channel.core.errors import CallerError
from equipoise.lab.traces import Trace, TraceBroker
from equipoise.shedder.snapshot import IDLE_COST, Snapshot

_USE = 0.5  # The assumed mean use of brokers that report none.


@dataclass(slots=True)
class Recording:
    """The steps recorded so far, `step_s` seconds each. Add each step with `note`, then make the
    `trace`.
    """

    step_s: float
    _loads: list[dict[str, float]] = field(default_factory=list)
    _members: dict[str, list[int]] = field(default_factory=dict)
    _capacities: dict[str, int] = field(default_factory=dict)
    _used: float = 0.0
    _cost: float = 0.0

    @property
    def steps(self) -> int:
        """The number of steps recorded so far."""
        return len(self._loads)

    def note(self, snapshot: Snapshot, used: Mapping[str, float]) -> None:
        """Add a step. `used` is the reported use of brokers (1.0 = 100 %).

        Brokers whose report does not count weigh their bundles by the reports of others.
        """
        step, loads = len(self._loads), dict[str, float]()
        for broker in snapshot.brokers:
            self._members.setdefault(broker.broker, []).append(step)
            self._capacities[broker.broker] = broker.capacity
            costs = {bundle.name: max(0.0, bundle.cost - IDLE_COST) for bundle in broker.bundles}
            loads.update(costs)
            if broker.barred is None and broker.broker in used:
                self._cost += sum(costs.values())
                self._used += used[broker.broker] * broker.capacity
        self._loads.append(loads)

    def trace(self, name: str) -> Trace:
        """Return the trace. A bundle that does not exist in a step has no load there.

        The capacity of brokers is chosen so that they are used in the trace as much as they
        reported. Raises `CallerError` if there is nothing to record.
        """
        bundles = sorted({bundle for loads in self._loads for bundle in loads})
        if not bundles or not self._members:
            raise CallerError(
                "there is nothing to record: no broker owns a bundle; start brokers, and create a"
                " namespace"
            )
        loads = np.array([[each.get(bundle, 0.0) for bundle in bundles] for each in self._loads])
        declared = sum(self._capacities.values())
        mean = float(loads.sum(axis=1).mean()) or 1.0
        unit = self._cost / self._used if self._used and self._cost else mean / declared / _USE
        last = len(self._loads) - 1
        brokers = tuple(
            TraceBroker(
                broker=broker,
                capacity=self._capacities[broker] * unit,
                joins_s=steps[0] * self.step_s,
                leaves_s=None if steps[-1] == last else (steps[-1] + 1) * self.step_s,
            )
            for broker, steps in sorted(self._members.items())
        )
        return Trace(
            name=name, step_s=self.step_s, bundles=tuple(bundles), brokers=brokers, loads=loads
        )
