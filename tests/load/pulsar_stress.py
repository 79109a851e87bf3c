"""Real Pulsar clients of all languages at once, while their bundles are moved, cut and joined and
their brokers killed; then checked.

The full size is `python -m tests.stress --pulsar`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Final

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.channel.core.view import View
from equipoise.channel.inspect.verify import Findings
from tests.load.cluster import READY_MS, running
from tests.load.log_places import LogPlace
from tests.load.stress import BUNDLES, NAMESPACE, Run, Size, verified
from tests.load.verdicts import Verdict
from tests.pulsar.clients import Consuming, Producing, Type
from tests.pulsar.fleet import Crew, Fleet
from tests.pulsar.programs import EVERYDAY, Language

TOPICS: Final = tuple(f"non-persistent://{NAMESPACE}/topic-{number}" for number in range(12))
# Of each producer to each topic: all in all some 200 messages a second, each of which goes to four
# subscriptions.
RATE: Final = 5.0
FULL: Final = Size(transfers=100, splits=10, merges=10, kills=5, stops=0, outages=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a run. `made` counts all moves, also those made while losses were excused;
    `pauses_ms` are of each producer.
    """

    made: dict[str, int]
    refused: int
    seconds: float
    excused_s: float
    pauses_ms: dict[str, float]
    findings: Findings
    verdict: Verdict

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and self.findings.in_order


def crew(url: str, languages: Sequence[Language]) -> Crew:
    """A producer of each language, and consumers: one alone, one alone on standby, two that share,
    two that share keys.
    """
    first, second, third = islice(cycle(languages), len(EVERYDAY))
    consumers = [
        (first, "alone", "exclusive", Type.EXCLUSIVE),
        (second, "shared-0", "shared", Type.SHARED),
        (third, "shared-1", "shared", Type.SHARED),
        (third, "keys-0", "keys", Type.KEY_SHARED),
        (first, "keys-1", "keys", Type.KEY_SHARED),
        (third, "failover-0", "failover", Type.FAILOVER),
        (first, "failover-1", "failover", Type.FAILOVER),
    ]
    return [
        *(
            (language, Consuming(url=url, name=name, subscription=of, topics=TOPICS, type=kind))
            for language, name, of, kind in consumers
        ),
        *(
            (language, Producing(url=url, name=language, topics=TOPICS, rate=RATE))
            for language in languages
        ),
    ]


async def pulsar_stress(
    size: Size,
    directory: Path,
    log: LogPlace,
    *,
    seed: int,
    languages: Sequence[Language],
    say: Callable[[str], None],
) -> Result:
    """Run all of it in `directory`, on a new log, and have it checked. Raises what keeps the
    cluster or a client from getting on again.
    """
    settings = ClusterSettings(
        directory=directory / "cluster",
        brokers=size.brokers,
        log_url=log.url,
        services=("pulsar",),
        pulsar_port=0,
        settings={"quarantine.deaths": 0, "prove_deaths": str(seed % 2 == 0).lower()},
        evidence=True,
        ready_ms=READY_MS,
    )
    cluster = LocalCluster(settings)
    began_s = asyncio.get_running_loop().time()
    fleet = Fleet(directory, crew(cluster.pulsar_url, languages))
    async with (
        asyncio.timeout(size.seconds_max),
        running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http),
    ):
        run = Run(
            size=size,
            cluster=cluster,
            log=log,
            table=table,
            http=http,
            random=Random(seed),
            say=say,
        )
        try:
            await asyncio.to_thread(fleet.start)
            say("messages flow")
            counted: Counter[MoveKind] = Counter()
            await asyncio.gather(
                make_all_moves(run, fleet, counted), have_all_deaths(run, fleet, counted)
            )
            await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
            verdict = await asyncio.to_thread(fleet.finish, evidence=cluster.evidence)
        finally:
            await asyncio.to_thread(fleet.kill)
    return Result(
        made=dict(run.made),
        refused=run.refused,
        seconds=asyncio.get_running_loop().time() - began_s,
        excused_s=sum(end - start for start, end in fleet.windows) / 1e9,
        pauses_ms=fleet.longest_pauses_ms(),
        findings=await asyncio.to_thread(verified, cluster.log_url),
        verdict=verdict,
    )


async def make_all_moves(run: Run, fleet: Fleet, counted: Counter[MoveKind]) -> None:
    """Make every move of the size, in a random order, each until it was made, and counted, while no
    loss was excused.
    """
    deeds = (
        [MoveKind.TRANSFER] * run.size.transfers
        + [MoveKind.SPLIT] * run.size.splits
        + [MoveKind.MERGE] * run.size.merges
    )
    run.random.shuffle(deeds)
    for deed in deeds:
        wanted = counted[deed] + 1
        while counted[deed] < wanted:
            before, is_excused = run.made[deed], fleet.is_excused
            await run.move(deed)
            counted[deed] += run.made[deed] > before and not is_excused and not fleet.is_excused


async def have_all_deaths(run: Run, fleet: Fleet, counted: Counter[MoveKind]) -> None:
    """Kill a broker now and then, spread over the moves that count; each time all clients must get
    over it.
    """
    moves = run.size.transfers + run.size.splits + run.size.merges
    for death in range(run.size.kills):
        wanted = moves * (death + 1) // (run.size.kills + 1)
        await run.until(partial(have_moved, counted, wanted), f"{wanted} moves")
        number, at_once = run.random.randrange(run.size.brokers), run.random.random() < 0.5
        run.say(
            f"kill -9 of broker {number}, started again"
            f" {'at once' if at_once else 'when all clients have got over it'}"
        )
        run.out[number] = None
        await asyncio.to_thread(kill, run, fleet, number, at_once=at_once)
        del run.out[number]
        await run.settled()
        run.made["kill"] += 1


def have_moved(counted: Counter[MoveKind], wanted: int, _: View) -> bool:
    return counted.total() >= wanted


def kill(run: Run, fleet: Fleet, number: int, *, at_once: bool) -> None:
    """Kill a broker, and start it again; losses are excused until all clients get on."""
    with fleet.excused():
        run.cluster.kill(number)
        if at_once:
            run.cluster.restart(number)
    if not at_once:
        run.cluster.restart(number)
