"""What a load report costs a broker of 5,000 bundles: `make bench BENCH=load_report` prints one
JSON line, in a few seconds.

Milliseconds are of this process' own CPU time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.load.documents import REPORT_BYTES_MAX, encode_load, light
from equipoise.brokers.load.load_sampler import LoadSampler
from equipoise.brokers.load.sampling import BundleAverages, carried_bytes, sampled
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.fit import Amounts, fit, with_observation
from equipoise.shedder.loads import BundleLoad, Messaging, Resources
from tests.benchmarks.frame import report, single, summary

BUNDLES, REPEATS, SEED = 5_000, 60, 1
BROKERS, FITS = 1_000, 10
Loads = Mapping[str, BundleLoad]


class Hosting(Service):
    """A service that says what it is told to say."""

    def __init__(self) -> None:
        self.loads: Loads = {}

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing."""

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Nothing."""

    def load(self) -> Loads:
        return self.loads


def loads_of(rates: Sequence[float]) -> Loads:
    """One bundle of topics for each rate, in messages of 1,000 bytes."""
    return {
        f"tenant/namespace/0x{number * 65_536:08x}_0x{(number + 1) * 65_536:08x}": BundleLoad(
            calls_per_second=rate,
            bytes_per_second=rate * 1_000,
            sessions=5,
            messaging=Messaging(
                messages_in_per_second=rate / 2,
                bytes_in_per_second=rate * 500,
                messages_out_per_second=rate / 2,
                bytes_out_per_second=rate * 500,
                producers=2,
                consumers=3,
                topics=4,
            ),
        )
        for number, rate in enumerate(rates)
    }


def uneven(turn: int) -> Loads:
    """Some bundles carry a hundred times what most do."""
    chance = random.Random(SEED + turn)
    return loads_of([chance.paretovariate(1.2) * 100 for _ in range(BUNDLES)])


def measured() -> tuple[list[float], list[float]]:
    """Milliseconds and bytes of each report."""
    service, settings = Hosting(), BalancingSettings()
    sampler = LoadSampler([service], broker="broker", now_ms=lambda: 0, fresh_ms=0)
    averages, took_ms, lengths = BundleAverages(), list[float](), list[float]()
    for turn in range(REPEATS):
        service.loads = uneven(turn)
        names = sorted(service.loads)
        loads = sampler.latest().loads
        began = time.process_time()
        carried = averages.update(
            names, loads, elapsed_ms=2_500, cost_window_ms=settings.reports.cost_window_ms
        )
        carried_bytes(loads)
        sample = sampled(
            carried, broker="broker:8080", at_ms=turn, resources=Resources(), settings=settings
        )
        data = encode_load(light(sample))
        took_ms.append((time.process_time() - began) * 1_000)
        lengths.append(float(len(data)))
    return took_ms[1:], lengths  # The first has no averages before it.


def largest() -> int:
    """The bytes of a report whose bundles have names as long as may be."""
    settings = BalancingSettings()
    carried = BundleAverages().update(
        names := [
            f"{'t' * 255}/{'n' * 244}{number:011}/0x00000000_0x80000000"
            for number in range(BUNDLES)
        ],
        dict(zip(names, uneven(0).values(), strict=True)),
        elapsed_ms=0,
        cost_window_ms=settings.reports.cost_window_ms,
    )
    everything = replace(settings, reports=replace(settings.reports, bundles_max=None))
    sample = sampled(
        carried, broker="b" * 255, at_ms=2**62, resources=Resources(), settings=everything
    )
    return len(encode_load(light(sample)))


def fitted() -> list[float]:
    """Milliseconds of the fit of costs to the reports of a large cluster, once a minute."""
    chance, took_ms = random.Random(SEED), list[float]()
    brokers = [tuple[float, ...]()] * BROKERS
    for _ in range(FITS):
        brokers = [
            with_observation(
                sums,
                Amounts(calls=chance.uniform(0, 500), bytes=chance.uniform(0, 1e7), bundles=64),
                chance.random(),
                elapsed_s=10.0,
            )
            for sums in brokers
        ]
        began = time.process_time()
        fit(brokers)
        took_ms.append((time.process_time() - began) * 1_000)
    return took_ms


def measure(_: Path) -> dict[str, object]:
    """Reports of uneven bundles, and the largest report."""
    took_ms, lengths = measured()
    return {
        "report": summary(took_ms, "ms"),
        "bytes": summary(lengths, "bytes"),
        "fit": summary(fitted(), "ms"),
        "longest names": single(largest(), "bytes"),
    }


if __name__ == "__main__":
    report(
        "load_report",
        measure,
        f"{BUNDLES} bundles; a report may have {REPORT_BYTES_MAX} bytes; the fit is of {BROKERS}"
        " brokers; one core",
    )
