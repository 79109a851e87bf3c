"""What a load report costs a broker of 5,000 bundles: `make bench BENCH=load_report` prints one
JSON line, in a few seconds.

Milliseconds are of this process' own CPU time. `alike` are bundles among which only names decide
who is busiest, which is what choosing takes longest for; of `odd` ones a tenth is new at each
report.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.load.documents import SAMPLE_BYTES_MAX, encode_sample, light
from equipoise.brokers.load.process_use import ProcessUse
from equipoise.brokers.load.sampling import BundleAverages, carried_bytes, sampled
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.load_sampler import LoadSampler
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.bundle_load import BundleLoad, Messaging
from equipoise.shedder.loads import Resources
from tests.benchmarks.figures import machine, print_line, summary

BUNDLES, REPEATS, SEED = 5_000, 60, 1
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


def loads_of(rates: Sequence[float], *, first: int = 0) -> Loads:
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
        for number, rate in enumerate(rates, start=first)
    }


def uneven(turn: int) -> Loads:
    """Some bundles carry a hundred times what most do."""
    chance = random.Random(SEED + turn)
    return loads_of([chance.paretovariate(1.2) * 100 for _ in range(BUNDLES)])


def alike(turn: int) -> Loads:
    """Every bundle carries little, and about as much as all others."""
    chance = random.Random(SEED + turn)
    return loads_of([chance.uniform(1, 2) for _ in range(BUNDLES)])


def odd(turn: int) -> Loads:
    """As uneven ones, and a tenth of the bundles is gone when the next report comes."""
    chance = random.Random(SEED + turn)
    return loads_of(
        [chance.paretovariate(1.2) * 100 for _ in range(BUNDLES)], first=turn * BUNDLES // 10
    )


def measure(make: Callable[[int], Loads]) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of each report, and of each check of what is said; and the bytes of each
    report.
    """
    service, settings = Hosting(), BalancingSettings()
    sampler = LoadSampler([service], broker="broker", clock=SystemClock(), fresh_ms=0)
    averages, took_ms, check_ms, lengths = BundleAverages(), [], [], []
    for turn in range(REPEATS):
        service.loads = make(turn)
        names = sorted(service.loads)
        asked = time.process_time()
        loads = sampler.latest().loads
        began = time.process_time()
        check_ms.append((began - asked) * 1_000)
        carried = averages.update(
            names, loads, elapsed_ms=2_500, cost_window_ms=settings.reports.cost_window_ms
        )
        carried_bytes(loads)
        sample = sampled(
            carried, broker="broker:8080", at_ms=turn, resources=Resources(), settings=settings
        )
        data = encode_sample(light(sample))
        took_ms.append((time.process_time() - began) * 1_000)
        lengths.append(float(len(data)))
    return took_ms[1:], check_ms[1:], lengths  # The first has no averages before it.


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
    return len(encode_sample(light(sample)))


def looks() -> list[float]:
    """Milliseconds of each look at processes and network."""
    use, found = ProcessUse(broker="broker"), []
    for turn in range(REPEATS):
        began = time.process_time()
        use.look(at_ms=turn)
        found.append((time.process_time() - began) * 1_000)
    return found


def main() -> None:
    """Measure in turns and print."""
    results: dict[str, object] = {}
    for make in (uneven, alike, odd):
        took_ms, check_ms, lengths = measure(make)
        results[f"{make.__name__}"] = summary(took_ms, "ms")
        results[f"{make.__name__}: check of what is said"] = summary(check_ms, "ms")
        results[f"{make.__name__} bytes"] = summary(lengths, "bytes")
    results["longest names bytes"] = largest()
    results["look at processes and network"] = summary(looks(), "ms")
    print_line(
        "load_report",
        results,
        f"{BUNDLES} bundles; a report may have {SAMPLE_BYTES_MAX} bytes; one core of {machine()}",
    )


if __name__ == "__main__":
    main()
