"""How much `pulsar-perf` gets through a topic at full speed, and at which rate nothing is dropped:
`make bench BENCH=pulsar_perf`.

It needs the folder `bin` of Apache Pulsar's distribution on the `PATH`. `python -m
tests.benchmarks.pulsar_perf --url pulsar://HOST:PORT` measures brokers that run already, for
instance `bin/pulsar standalone -nfw -nss`. It takes eight minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from equipoise.brokers.local.local_cluster import LocalCluster
from tests.benchmarks.frame import Figures, pulsar_brokers, report, single
from tests.load.cluster import running

NAMESPACE: Final = "public/default"
BROKERS, BUNDLES, MESSAGE_BYTES = 3, 4, 1024
FULL_SPEED = 1_000_000
FULL_SPEED_S, STEADY_S = 25, 8
# The search doubles the rate until something is dropped, and then halves the distance so often: the
# result is within 7 %.
RATE_MIN, RATE_MAX, HALVINGS = 2_000, 512_000, 4
REACHED_SHARE: Final = 0.95
MODES: Final = {"batched": (), "unbatched": ("--disable-batching",)}
# Messages without a receipt. Unbounded, the producer's own heap grows until its collector takes
# both cores.
BOUNDS: Final = {
    "": (),
    "_of_10000": ("--max-outstanding", "10000"),
    "_of_1000": ("--max-outstanding", "1000"),
}
_CONSUMER_IS_READY: Final = "Start receiving from"
_TOTAL: Final = re.compile(r"Aggregated throughput stats --- (\d+) records (?:sent|received)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The messages with a receipt and those that the consumer got, and how long the producer sent.

    The rates that `pulsar-perf` prints are lower: they include up to ten seconds in which it ends.
    """

    produced: int
    delivered: int
    seconds: int

    @property
    def dropped(self) -> int:
        """Messages with a receipt that did not come; a few more than have a receipt may come at the
        end.
        """
        return max(self.produced - self.delivered, 0)

    def figures(self) -> dict[str, Figures]:
        """Both rates, and the share that was dropped."""
        return {
            "produced": single(self.produced / self.seconds, "messages/s"),
            "delivered": single(self.delivered / self.seconds, "messages/s"),
            "dropped": single(100 * self.dropped / max(self.produced, 1), "%"),
        }


@contextmanager
def perf(url: str, topic: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `pulsar-perf`, and kill it at the end if it still runs."""
    tool = shutil.which("pulsar-perf")
    assert tool is not None, (
        "pulsar-perf is not on the PATH: add the folder bin of Apache Pulsar's distribution"
    )
    command = [tool, words[0], "--service-url", url, *words[1:], topic]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def total(output: IO[str] | None) -> int:
    """Read to the end: the number of messages."""
    assert output is not None
    text = output.read()
    found = _TOTAL.search(text)
    assert found is not None, f"pulsar-perf printed no total:\n{text}"
    return int(found[1])


def carried(url: str, topic: str, *, rate: int, seconds: int, options: Sequence[str]) -> Carried:
    """Send for so long at this rate to one Exclusive consumer that keeps up as it can."""
    with perf(url, topic, "consume", "--subscriptions", "perf") as consumer:
        assert consumer.stdout is not None
        assert any(_CONSUMER_IS_READY in line for line in consumer.stdout), (
            "the consumer of pulsar-perf ended before it was ready"
        )
        words = (
            "--rate",
            str(rate),
            "--size",
            str(MESSAGE_BYTES),
            "--test-duration",
            str(seconds),
            *options,
        )
        with perf(url, topic, "produce", *words) as producer:
            produced = total(producer.stdout)
        time.sleep(1.0)  # What is on its way to the consumer: it says nothing about the end.
        consumer.terminate()
        delivered = total(consumer.stdout)
    return Carried(produced=produced, delivered=delivered, seconds=seconds)


def highest_undropped(url: str, topic: str, options: Sequence[str]) -> int:
    """The highest rate a second of those tried that the producer reaches and at which nothing is
    dropped.
    """

    def is_good(rate: int) -> bool:
        done = carried(url, topic, rate=rate, seconds=STEADY_S, options=options)
        print(f"{topic}: {rate}/s asked, {done}", file=sys.stderr)
        # A server that slows the producer down drops nothing at any rate that is asked for.
        return not done.dropped and done.produced >= REACHED_SHARE * rate * STEADY_S

    good, bad = 0, RATE_MIN
    while bad <= RATE_MAX and is_good(bad):
        good, bad = bad, bad * 2
    for _ in range(HALVINGS if good else 0):
        rate = (good + bad) // 2
        good, bad = (rate, bad) if is_good(rate) else (good, rate)
    return good


def measured(url: str) -> dict[str, object]:
    """Batched and unbatched, each on a topic of its own."""
    results: dict[str, object] = {}
    for mode, options in MODES.items():
        topic = f"non-persistent://{NAMESPACE}/perf-{mode}-{time.monotonic_ns()}"
        for bound, bounding in BOUNDS.items():
            done = carried(
                url, topic, rate=FULL_SPEED, seconds=FULL_SPEED_S, options=(*options, *bounding)
            )
            for what, figures in done.figures().items():
                results[f"{mode}{bound}_{what}"] = figures
        results[f"{mode}_highest_without_a_drop"] = single(
            highest_undropped(url, topic, options), "messages/s"
        )
    return results


async def of_our_brokers(directory: Path) -> dict[str, object]:
    """Start the brokers for the measurement. The balancer is switched off: it would move the busy
    bundle.
    """
    cluster = LocalCluster(pulsar_brokers(directory, brokers=BROKERS))
    async with running(cluster, NAMESPACE, bundles=BUNDLES):
        return await asyncio.to_thread(measured, cluster.pulsar_url)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="Measure the brokers at this service URL.")
    given: str = parser.parse_args().url or ""
    report(
        "pulsar_perf",
        (lambda _: measured(given)) if given else of_our_brokers,
        f"{given or f'{BROKERS} brokers'}, messages of {MESSAGE_BYTES} bytes, one producer for"
        f" {FULL_SPEED_S} s, one Exclusive consumer",
    )
