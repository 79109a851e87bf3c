"""Keep what a broker's CPU time goes into: sums for `shedder.fit`, and what is other work.

Counters of services and of the process are read at different moments, so a part of the window lasts
longer than a sample. A part that cannot be, because a clock has jumped, does not count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median_low
from typing import Final

from equipoise.shedder.costs import ASSUMED, Coefficients
from equipoise.shedder.fit import Amounts, cpu_of, with_observation
from equipoise.shedder.loads import BundleLoad

_PART_MS: Final = 10_000
_KNOWN: Final = 0.5  # Of a window. A broker that has just started works hard at first.
_ROOM_CORES: Final = 0.1  # What clocks may differ by.
_CORES_MAX: Final = 10_000.0  # No broker has so many.


class CpuWindow:
    """The CPU use of one broker, in parts of `_PART_MS`, and what its bundles did. `sums`: see
    `shedder.fit.with_observation`. `problem`: why the last part does not count.
    """

    def __init__(self, *, cores: int) -> None:
        """`cores` are those of the machine."""
        self.sums: tuple[float, ...] = ()
        self.problem: str | None = None
        self._cores = cores
        # Of the part that has not ended, times milliseconds: amounts, CPU use, what was measured.
        self._totals = [0.0] * (len(Amounts._fields) + 2)
        self._part_ms = 0
        # Milliseconds, amounts, and the CPU use that was not measured of bundles.
        self._parts: deque[tuple[int, Amounts, float]] = deque()

    def update(
        self,
        loads: Collection[BundleLoad],
        *,
        bundles: int,
        used_cores: float,
        elapsed_ms: int,
        window_ms: int,
    ) -> None:
        """Add what was used in the last `elapsed_ms`, and forget what is older than `window_ms`.
        `bundles`: how many are open.
        """
        measured = math.fsum(load.cpu_seconds_per_second for load in loads)
        now = (*_amounts(loads, bundles), used_cores, measured)
        self._totals = [
            total + elapsed_ms * each for total, each in zip(self._totals, now, strict=True)
        ]
        self._part_ms += elapsed_ms
        if self._part_ms < _PART_MS:
            return
        *amounts, used, of_bundles = (total / self._part_ms for total in self._totals)
        part_ms, self._part_ms, self._totals = self._part_ms, 0, [0.0] * len(self._totals)
        done = Amounts(*amounts)
        self.problem = self._problem(done, used, of_bundles)
        if self.problem is not None:
            if self._parts:  # Old parts say nothing of this time, either.
                self._parts.popleft()
            return
        rest = max(0.0, used - of_bundles)
        self.sums = with_observation(self.sums, done, rest, elapsed_s=part_ms / 1_000)
        self._parts.append((part_ms, done, rest))
        while len(self._parts) > 1 and sum(each[0] for each in self._parts) > window_ms:
            self._parts.popleft()

    def other_work(self, coefficients: Coefficients, *, window_ms: int) -> float | None:
        """Return the share of a core that neither bundles nor the process itself take by these
        coefficients; None while too little is known. A burst does not count.
        """
        if sum(each[0] for each in self._parts) < _KNOWN * window_ms:
            return None
        return max(
            0.0, median_low(rest - cpu_of(done, coefficients) for _, done, rest in self._parts)
        )

    def _problem(self, amounts: Amounts, used: float, measured: float) -> str | None:
        # NaN fails each comparison.
        if not used <= self._cores + _ROOM_CORES:
            return f"its process has used {used:.3g} cores of {self._cores}: its clock has jumped"
        if not measured <= used + _ROOM_CORES:
            return (
                f"its bundles report {measured:.3g} cores, and its process has used {used:.3g}:"
                " its services report too much CPU time"
            )
        if not cpu_of(amounts, ASSUMED) <= _CORES_MAX:
            return "its services report more calls, bytes or sessions than can be"
        return None


def _amounts(loads: Collection[BundleLoad], bundles: int) -> Amounts:
    return Amounts(
        calls=math.fsum(load.calls_per_second for load in loads),
        bytes=math.fsum(load.bytes_per_second for load in loads),
        sessions=math.fsum(load.sessions + load.wall_seconds_per_second for load in loads),
        bundles=bundles,
    )
