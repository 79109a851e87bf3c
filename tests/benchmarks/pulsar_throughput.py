"""How many messages one core carries from a producer to a consumer: `make bench
BENCH=pulsar_throughput`, in a minute.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from tests.benchmarks.frame import cpu_s, pulsar_brokers, report, summary
from tests.benchmarks.pulsar_wire import Wire, consumer, flow, producer, send
from tests.load.cluster import running

NAMESPACE: Final = "bench/throughput"
MESSAGE_BYTES, BATCH = 100, 100
ROUNDS, ROUND_S, WARM_UP_S = 7, 3.0, 1.0
# What may wait for a receipt: 300 KiB, so that neither buffers nor the consumer's connection
# overflow.
WINDOW_BYTES: Final = 300 * 1024
# Permits are granted anew when half of them are used up, as clients do.
PERMITS: Final = 100_000
_STALL_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What reached the consumer in a round, and what it took. CPU is that of the broker's
    process.
    """

    messages: int
    wall_s: float
    cpu_s: float


class Stream:
    """One producer and one consumer of one topic, each on a connection of its own, that go at full
    speed.
    """

    def __init__(
        self, producing: Wire, consuming: Wire, *, messages: int, message_bytes: int
    ) -> None:
        """Each entry holds so many messages of this size."""
        one = send(messages=messages, message_bytes=message_bytes)
        self._producing, self._consuming = producing, consuming
        self._messages = messages
        self._window = max(WINDOW_BYTES // len(one), 1)
        # A quarter of the window at a time: then there is always something on its way.
        self._at_once = max(self._window // 4, 1)
        self._sends = one * self._at_once
        self._unsent = memoryview(b"")
        self._unreceipted = 0
        self._unused = PERMITS
        self.sent = 0
        self.received = 0
        consuming.socket.sendall(flow(PERMITS))

    def run(self, seconds: float) -> None:
        """Send for so long, and then wait for all that is under way."""
        for wire in (self._producing, self._consuming):
            wire.socket.settimeout(0)
        end = time.monotonic() + seconds
        while (
            time.monotonic() < end or self._unsent or self._unreceipted or self.received < self.sent
        ):
            self._refill(is_over=time.monotonic() >= end)
            writing = [self._producing.socket] if self._unsent else []
            reading = [self._producing.socket, self._consuming.socket]
            ready, writable, _ = select.select(reading, writing, [], _STALL_S)
            assert ready or writable, (
                f"nothing moves: {self.sent} sent, {self._unreceipted} without receipt,"
                f" {self.received} received"
            )
            if writable:
                self._unsent = self._unsent[self._producing.socket.send(self._unsent) :]
            if self._producing.socket in ready:
                self._unreceipted -= self._producing.count(BaseCommand.SEND_RECEIPT)
            if self._consuming.socket in ready:
                self._take()

    def _refill(self, *, is_over: bool) -> None:
        if not self._unsent and not is_over and self._unreceipted + self._at_once <= self._window:
            self._unsent = memoryview(self._sends)
            self._unreceipted += self._at_once
            self.sent += self._at_once

    def _take(self) -> None:
        entries = self._consuming.count(BaseCommand.MESSAGE)
        self.received += entries
        self._unused -= entries * self._messages
        if self._unused < PERMITS // 2:
            self._consuming.socket.send(flow(PERMITS))
            self._unused += PERMITS


def rounds(
    address: tuple[str, int],
    pid: int,
    *,
    messages: int,
    message_bytes: int = MESSAGE_BYTES,
    repeats: int = ROUNDS,
) -> list[Round]:
    """Go at full speed several times, on one topic. Each entry holds so many messages of this
    size.
    """
    topic = f"non-persistent://{NAMESPACE}/{messages}-of-{message_bytes}"
    done: list[Round] = []
    with Wire(address) as producing, Wire(address) as consuming:
        consuming.ask(consumer(topic), BaseCommand.SUCCESS)
        producing.ask(producer(topic), BaseCommand.PRODUCER_SUCCESS)
        stream = Stream(producing, consuming, messages=messages, message_bytes=message_bytes)
        stream.run(WARM_UP_S)
        for _ in range(repeats):
            began, used, before = time.monotonic(), cpu_s(pid), stream.received
            stream.run(ROUND_S)
            took_s = time.monotonic() - began
            done.append(
                Round(
                    messages=(stream.received - before) * messages,
                    wall_s=took_s,
                    cpu_s=cpu_s(pid) - used,
                )
            )
        assert stream.received == stream.sent, (
            f"{stream.sent} entries were sent, and {stream.received} received"
        )
    return done


def pin(pid: int, cpu: int) -> None:
    """Have all threads of a process run on one CPU, and those that they start from now on."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cpu})


async def measure(directory: Path) -> dict[str, object]:
    """One message at a time, and in batches."""
    cluster = LocalCluster(pulsar_brokers(directory, brokers=1))
    results: dict[str, object] = {}
    async with running(cluster, NAMESPACE, bundles=1):
        host, _, port = cluster.pulsar_url.removeprefix("pulsar://").rpartition(":")
        pid = cluster.pid(0)
        assert pid is not None, "it runs"
        ours, its, *_ = sorted(os.sched_getaffinity(0))
        pin(pid, its)
        pin(os.getpid(), ours)
        for name, messages in (("unbatched", 1), ("batched", BATCH)):
            done = await asyncio.to_thread(rounds, (host, int(port)), pid, messages=messages)
            results[f"{name}_rate"] = summary(
                [one.messages / one.wall_s for one in done], "messages/s"
            )
    return results


if __name__ == "__main__":
    report(
        "pulsar_throughput",
        measure,
        f"the broker on one CPU and the client on another one, messages of {MESSAGE_BYTES} bytes,"
        f" batches of {BATCH}, one producer and one Exclusive consumer on a connection each, rounds"
        f" of {ROUND_S} s",
    )
