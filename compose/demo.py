"""Run the demo on a real Kafka of this machine that is killed and restarted: `python -m
compose.demo`.

Everything that does not concern Kafka or its load workers is in `brokers.local.demo`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from compose.local_kafka.cluster import Cluster
from compose.local_kafka.errors import LocalKafkaError
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.demo.__main__ import parser, run
from equipoise.brokers.local.demo.demo import Demo, comes_true
from equipoise.brokers.local.demo.steps import STEPS, Step
from equipoise.channel.system.deadline import Deadline

# Longer than the lease on Kafka (15 s): every broker stops serving, and none may be declared dead
# afterwards.
_AWAY_S: Final = 20.0

# A restarted node waits until its former session has expired. Kafka's default of 9 s would be half
# of the outage again.
_SESSION: Final = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}

# How long a restarted node and its clients may take on a busy machine.
_BACK_MS: Final = 60_000
_LOOK_S: Final = 0.25

# Longer than load reports are valid, so that the leader has no valid report.
_UNKNOWN_S: Final = 6.0

# A load worker first joins its group and reads its tables, which takes some seconds.
_WORKERS_BACK_MS: Final = 40_000


class Outage:
    """The step in which Kafka is killed and later restarted."""

    def __init__(self, kafka: Cluster) -> None:
        self._kafka = kafka

    async def __call__(self, demo: Demo) -> None:
        """Kill Kafka, restart it, and wait until every broker has renewed its lease and every
        bundle is served.
        """
        deaths = demo.counts.deaths
        lasts = {broker.broker: broker.last for broker in demo.table.view.live_brokers()}
        demo.say(
            f"kill -9 of Kafka for {_AWAY_S:.0f} s: no broker can decide anything; each serves"
            " until its lease ends, at most 15 s"
        )
        began_s = demo.now_s
        with demo.killing():
            await asyncio.to_thread(self._kafka.kill)
            await asyncio.sleep(_AWAY_S)
            starts_s = demo.now_s
            await asyncio.to_thread(self._kafka.start)
            demo.say(
                f"Kafka is back after {demo.now_s - began_s:.1f} s: its start took"
                f" {demo.now_s - starts_s:.1f} s on this machine"
            )
            deadline = Deadline.after(timeout_ms=_BACK_MS)
            for broker, last in lasts.items():
                while (
                    entry := demo.table.view.brokers.get(broker)
                ) is not None and entry.last <= last:
                    deadline.check(f"a renewal of {broker}")
                    await asyncio.sleep(_LOOK_S)
            await demo.settled()
            await demo.messages_flow()
        died = demo.counts.deaths - deaths
        verdict = (
            "no broker was declared dead"
            if not died
            else f"{died} BROKERS WERE DECLARED DEAD, which is wrong"
        )
        demo.say(f"all brokers serve {demo.now_s - began_s:.1f} s after the kill; {verdict}")


async def kill_load_workers(demo: Demo) -> None:
    """Kill all load workers, check that nothing moves without load reports, and that the averages
    continue after the restart.
    """
    workers = demo.cluster.load_workers
    if not workers.pids:
        demo.say("no load workers run: the extra `load` is not installed")
        return
    moves = demo.counts.done[MoveKind.TRANSFER]
    demo.say(
        f"kill -9 of all {len(workers.pids)} load workers: for {_UNKNOWN_S:.0f} s there are no load"
        " reports"
    )
    demo.say(f"before, brokers used {demo.utilization.text}")
    await asyncio.to_thread(workers.kill)
    await asyncio.sleep(_UNKNOWN_S)
    moved = demo.counts.done[MoveKind.TRANSFER] - moves
    demo.say(
        f"balancing waited for fresh reports and moved {moved} bundles meanwhile; the load workers"
        " are restarted"
    )
    began_s, newest_ms = demo.now_s, _newest_ms(demo)
    await asyncio.to_thread(workers.start)
    is_back = await comes_true(lambda: _newest_ms(demo) > newest_ms, _WORKERS_BACK_MS)
    state = f"are back after {demo.now_s - began_s:.1f} s" if is_back else "are NOT BACK"
    demo.say(f"they {state}, and continue their averages: brokers use {demo.utilization.text}")


def _newest_ms(demo: Demo) -> int:
    """Return the time of the newest report on the load bus."""
    return max((summary.load.taken_ms for summary in demo.summaries), default=0)


def main() -> int:
    """Start a Kafka, run the demo on it, and stop it. Return the exit code of `brokers.local.demo`,
    or 4 if there is no Kafka.
    """
    arguments = parser("python -m compose.demo")
    parsed = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="equipoise-kafka-") as folder:
        try:
            kafka = Cluster.lay_out(Path(folder), nodes=1, extra=_SESSION)
            kafka.start()
        except LocalKafkaError as error:
            print(f"error: {error}", file=sys.stderr)
            return 4
        try:
            steps: Sequence[Step] = (
                *STEPS[:2],
                kill_load_workers,
                *STEPS[2:4],
                Outage(kafka),
                *STEPS[4:],
            )
            return run(
                arguments,
                parsed,
                log_url=f"kafka://{kafka.address}/equipoise-demo",
                log_stays=False,
                steps=steps,
            )
        finally:
            kafka.kill()


if __name__ == "__main__":
    sys.exit(main())
