"""Turn the loads of bundles into costs: shares of a core that they keep busy.

A cost is the CPU time that was measured, and for what was not, coefficients times what was counted
(see `shedder.fit`); or what the service declares, in a unit of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from equipoise.shedder.loads import FIGURE_MAX, BundleLoad, Declared, Load, fault_of

# Pulsar's strategies weigh bundles by bytes. So a call of a service that counts none, and CPU time,
# count as bytes, too: as many as a broker moves meanwhile (0.1 ms for 16 KiB, 160 MB/s).
CALLS_PER_CPU_SECOND: Final = 10_000
BYTES_PER_CALL: Final = 16_384

SESSIONS_PER_CALL: Final = 100
"""The sessions that take as long in a second as a call: a ping every minute or two from each. A
call in progress keeps a connection and memory, as a session does."""

IDLE_COST: Final = 5e-6
"""The share of a core that a bundle without load takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """CPU time in seconds: of a call and a byte, and for each second of a session or call in
    progress, a bundle, and the process itself. The defaults are what is assumed of a broker that
    nobody has measured.
    """

    per_call: float = 1 / CALLS_PER_CPU_SECOND
    per_byte: float = 1 / CALLS_PER_CPU_SECOND / BYTES_PER_CALL
    per_session: float = 1 / CALLS_PER_CPU_SECOND / SESSIONS_PER_CALL
    per_bundle: float = IDLE_COST
    process: float = 0.01


ASSUMED: Final = Coefficients()


def costs_of(loads: Iterable[BundleLoad], coefficients: Coefficients = ASSUMED) -> list[float]:
    """Return the cost of each load, a share of a core. What services declare does not count."""
    per_call, per_byte, per_session, idle = (
        coefficients.per_call,
        coefficients.per_byte,
        coefficients.per_session,
        coefficients.per_bundle,
    )
    return [
        idle
        + load.cpu_seconds_per_second
        + load.calls_per_second * per_call
        + load.bytes_per_second * per_byte
        + (load.sessions + load.wall_seconds_per_second) * per_session
        for load in loads
    ]


# --- costs that services declare ---


def with_declared(
    loads: Iterable[BundleLoad], costs: Sequence[float], rates: Mapping[str, float]
) -> Sequence[float]:
    """Return the `costs` of loads, with those that are declared in a unit of `rates`: how much of a
    core one counts as.
    """
    if not rates:
        return costs
    return [
        min(IDLE_COST + load.cost * rates[load.unit], FIGURE_MAX) if load.unit in rates else cost
        for load, cost in zip(loads, costs, strict=True)
    ]


# Of what brokers can do: less CPU time proves nothing about a unit, and more shows what one takes.
_CPU_SHARE_MIN: Final = 0.01
_CPU_SHARE_SURE: Final = 0.1
_UNKNOWN_SHARE: Final = 0.5

Basis = Literal["capacities", "CPU", "little CPU", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The share of a core that one unit of a declared cost counts as, and by what."""

    rate: float
    basis: Basis

    def sentence(self, unit: str) -> str:
        """Return what the unit counts as, and why."""
        if self.basis == "nothing":
            return (
                f"how much of a broker {unit} take is not known, so all together count as half of"
                " what their brokers can do; give the brokers their capacities of it"
            )
        if self.basis == "little CPU":
            return (
                f"{unit} take little CPU, so 1 counts as {self.rate:.3g} of a core, which is more;"
                " give the brokers their capacities of it"
            )
        by = "CPU use" if self.basis == "CPU" else "the capacities of the brokers"
        return f"1 {unit} counts as {self.rate:.3g} of a core, by {by}"


def exchanges_of(loads: Iterable[Load], percents: Mapping[str, float]) -> Mapping[str, Exchange]:
    """Return what each declared unit counts as, by the reports of these brokers. `percents`: the
    capacity of each, in percent of a core.

    * A broker is full at its capacity of the unit. Where brokers differ, the sum of them counts.
    * Without capacities, it counts as the CPU time that bundles with this unit take.
    * If that is nothing, all that is declared in the unit counts as half of what its brokers can
      do: their work is done elsewhere, such as on a graphics card. If it is little, it counts as
      something between the two, so that no small change of it moves load.
    """
    cores = {broker: percent / 100 for broker, percent in percents.items()}
    known = [load for load in loads if load.broker in cores and fault_of(load) is None]
    limits: dict[str, list[tuple[float, float]]] = {}
    declared: dict[str, list[tuple[str, Declared]]] = {}
    for load in known:
        for unit, limit in load.capacities.items():
            limits.setdefault(unit, []).append((cores[load.broker], limit))
        for each in load.declared.values():
            declared.setdefault(each.unit, []).append((load.broker, each))
    found = {unit: _by_use(each, cores) for unit, each in declared.items()}
    for unit, known_limits in limits.items():
        whole, limit = (math.fsum(column) for column in zip(*known_limits, strict=True))
        found[unit] = Exchange(rate=whole / limit, basis="capacities")
    return found


def _by_use(declared: Sequence[tuple[str, Declared]], cores: Mapping[str, float]) -> Exchange:
    amount = math.fsum(each.amount for _, each in declared)
    estimate = math.fsum(each.estimate for _, each in declared)
    whole = math.fsum(cores[broker] for broker in sorted({broker for broker, _ in declared}))
    share = max(estimate / whole, _CPU_SHARE_MIN) if whole else _CPU_SHARE_SURE
    sure = math.log(share / _CPU_SHARE_MIN) / math.log(_CPU_SHARE_SURE / _CPU_SHARE_MIN)
    basis: Basis = "CPU" if sure >= 1 else "little CPU" if sure > 0 else "nothing"
    weight = min(sure, 1.0)
    counted = max(share, _UNKNOWN_SHARE ** (1 - weight) * _CPU_SHARE_SURE**weight)
    return Exchange(rate=counted * whole / amount if amount else 0.0, basis=basis)
