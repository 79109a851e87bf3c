"""Run the demo on a real Kafka of this machine that is killed and restarted: `python -m compose.demo`.

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
from equipoise.brokers.local.demo.acts import ACTS, Act
from equipoise.brokers.local.demo.load_acts import comes_true, evenness
from equipoise.brokers.local.demo.stage import Stage
from equipoise.channel.system.deadline import Deadline

# Longer than the lease on Kafka (15 s): every broker stops serving, and none may be declared dead afterwards.
_AWAY_S: Final = 20.0

# A restarted node reads its topics, and waits until its former session has expired (9 s).
_BACK_MS: Final = 60_000

# Longer than load reports are valid, so that the leader has no valid report.
_UNKNOWN_S: Final = 6.0

# A load worker first joins its group and reads its tables, which takes some seconds.
_WORKERS_BACK_MS: Final = 40_000


class Outage:
    """The act in which Kafka is killed and later restarted."""

    def __init__(self, kafka: Cluster) -> None:
        self._kafka = kafka

    async def __call__(self, stage: Stage) -> None:
        """Kill Kafka, restart it, and wait until every broker has renewed its lease and every bundle is served."""
        view, deaths = stage.table.view, stage.chronicle.deaths
        lasts = {broker.broker: broker.last for broker in view.live_brokers()}
        stage.say(
            f"kill -9 of Kafka: for {_AWAY_S:.0f} s nobody can decide anything; who has a lease serves until it ends, after at most 15 s"
        )
        began_s = stage.now_s
        with stage.killing():
            await asyncio.to_thread(self._kafka.kill)
            await asyncio.sleep(_AWAY_S)
            await asyncio.to_thread(self._kafka.start)
            stage.say(f"Kafka is back after {stage.now_s - began_s:.1f} s")
            deadline = Deadline.after(timeout_ms=_BACK_MS)
            for broker, last in lasts.items():
                await stage.renewed(broker, last, deadline)
            await stage.settled()
            await stage.flow_again()
        died = stage.chronicle.deaths - deaths
        verdict = "nobody was taken for dead" if not died else f"{died} brokers were taken for dead, WHICH MUST NOT BE"
        stage.say(f"all go on {stage.now_s - began_s:.1f} s after the kill; {verdict}")


async def kill_load_workers(stage: Stage) -> None:
    """Kill all load workers, check that nothing moves without load reports, and that the averages continue after the restart."""
    workers = stage.cluster.load_workers
    if not workers.pids:
        stage.say("no load workers run: the extra `load` is not installed")
        return
    moves = stage.chronicle.done[MoveKind.TRANSFER]
    stage.say(f"kill -9 of all {len(workers.pids)} load workers: nobody keeps averages for {_UNKNOWN_S:.0f} s")
    stage.say(f"until then brokers used {evenness(stage).text}")
    await asyncio.to_thread(workers.kill)
    await asyncio.sleep(_UNKNOWN_S)
    moved = stage.chronicle.done[MoveKind.TRANSFER] - moves
    stage.say(f"balancing waited for fresh figures: {moved} bundles were moved meanwhile; the load workers are started again")
    began_s, newest_ms = stage.now_s, _newest_ms(stage)
    await asyncio.to_thread(workers.start)
    is_back = await comes_true(lambda: _newest_ms(stage) > newest_ms, _WORKERS_BACK_MS)
    told = f"are back after {stage.now_s - began_s:.1f} s" if is_back else "are NOT BACK"
    stage.say(f"they {told}, and go on with their averages: brokers use {evenness(stage).text}")


def _newest_ms(stage: Stage) -> int:
    """Return the time of the newest report on the load bus."""
    return max((summary.load.taken_ms for summary in stage.summaries), default=0)


def main() -> int:
    """Start a Kafka, run the demo on it, and stop it. Return the exit code of `brokers.local.demo`, or 4 if there is no Kafka."""
    arguments = parser("python -m compose.demo")
    parsed = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="equipoise-kafka-") as folder:
        try:
            kafka = Cluster.lay_out(Path(folder), nodes=1)
            kafka.start()
        except LocalKafkaError as error:
            print(f"error: {error}", file=sys.stderr)
            return 4
        try:
            acts: Sequence[Act] = (*ACTS[:2], kill_load_workers, *ACTS[2:4], Outage(kafka), *ACTS[4:])
            return run(arguments, parsed, log_url=f"kafka://{kafka.address}/equipoise-demo", log_stays=False, acts=acts)
        finally:
            kafka.kill()


if __name__ == "__main__":
    sys.exit(main())
