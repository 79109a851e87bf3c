"""`python -m compose.demo`: the demo on a real Kafka of this machine, which is killed in its midst and comes back.

May live here: the Kafka of the demo and its load workers, and the acts in which these are away. All else is `brokers.local.demo`.
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

# Longer than the lease on Kafka (15 s): every broker stops serving in it, and none may be taken for dead after it.
_AWAY_S: Final = 20.0

# A node that comes back reads its topics, and waits until its former session has run out (9 s).
_BACK_MS: Final = 60_000

# Longer than reports count for, so that the leader knows that it knows nothing.
_UNKNOWN_S: Final = 6.0

# A load worker joins its group and reads its tables first, which takes it some seconds.
_WORKERS_BACK_MS: Final = 40_000


class Outage:
    """The act in which Kafka is killed, and started again after a while."""

    def __init__(self, kafka: Cluster) -> None:
        self._kafka = kafka

    async def __call__(self, stage: Stage) -> None:
        """Kill Kafka, start it again, and wait until every broker has renewed its lease and every bundle is served."""
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
    """Kill all load workers, see that nothing moves for want of knowledge, and that the averages go on when they are back."""
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
    """The time of the newest report that has gone through the load plane."""
    return max((summary.load.taken_ms for summary in stage.summaries), default=0)


def main() -> int:
    """Start a Kafka, play the demo on it, and stop it; the exit code, as of `brokers.local.demo`, and 4 if there is no Kafka."""
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
