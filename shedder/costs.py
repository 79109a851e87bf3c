"""Turn the loads of bundles into costs: shares of a core that they keep busy.

A cost is the CPU time that was measured, and for what was not, coefficients times what was counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from equipoise.shedder.loads import BundleLoad

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
    """CPU time in seconds: of a call, a byte, and a second of a session or call in progress. The
    defaults are what is assumed of a broker that nobody has measured.
    """

    per_call: float = 1 / CALLS_PER_CPU_SECOND
    per_byte: float = 1 / CALLS_PER_CPU_SECOND / BYTES_PER_CALL
    per_session: float = 1 / CALLS_PER_CPU_SECOND / SESSIONS_PER_CALL


ASSUMED: Final = Coefficients()


def costs_of(loads: Iterable[BundleLoad], coefficients: Coefficients = ASSUMED) -> list[float]:
    """Return the cost of each load, a share of a core."""
    per_call, per_byte, per_session = (
        coefficients.per_call,
        coefficients.per_byte,
        coefficients.per_session,
    )
    return [
        IDLE_COST
        + load.cpu_seconds_per_second
        + load.calls_per_second * per_call
        + load.bytes_per_second * per_byte
        + (load.sessions + load.wall_seconds_per_second) * per_session
        for load in loads
    ]
