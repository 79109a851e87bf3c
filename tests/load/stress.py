"""A cluster of real processes under load, moved about, killed, stopped and cut off from its log;
and what is left of it checked.

The full size is `python -m tests.stress`; tests run a small one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from equipoise.brokers.agent.timing import timing_of
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.ranges import key_hash
from equipoise.channel.core.view import View
from equipoise.channel.inspect.verify import Findings, verify
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline
from tests.load import admin_requests
from tests.load.callers import CallerProcess, Plan, Tally, stubborn, uneven
from tests.load.cluster import counters, running, settle
from tests.load.lock_holder import write_lock_held
from tests.load.log_places import LogPlace, settled_ms
from tests.load.verdicts import Verdict, check_calls

NAMESPACE: Final = "stress/counters"
BUNDLES: Final = 16
KEYS: Final = 32

# Between two moves, and after one that was refused: the view is then about to change.
BETWEEN_MOVES_S: Final = 0.1
AFTER_REFUSAL_S: Final = 0.3

# So long the store holds up every write before a broker is stopped, and so lets it be stopped in
# the middle of many.
STORE_HELD_S: Final = 0.5

# Calls that are caught in a stopped broker, and not made again elsewhere: it is by these that the
# store can be seen to refuse.
STUBBORN_KEYS, STUBBORN_CALLERS, STUBBORN_CALLS_PER_SECOND = 8, 8, 16.0

# An outage that is shorter than a lease, one that is longer, one that is much longer; then the same
# again.
OUTAGES: Final = ((0.5, 0.0), (1.0, 2.0), (1.0, 6.0))
"""So many leases, and so many seconds more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    transfers: int = 200
    splits: int = 20
    merges: int = 20
    kills: int = 10
    stops: int = 5
    stop_past_lease_s: float = 16.5
    outages: int = 3
    brokers: int = 4
    calls_per_second: float = 250.0
    seconds_max: float = 1_200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a run. `made` counts moves, `refused` those that came to nothing, and were
    replaced by others.
    """

    made: dict[str, int]
    refused: int
    seconds: float
    tally: Tally
    findings: Findings
    verdict: Verdict

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and self.findings.in_order


@dataclass(slots=True, kw_only=True)
class Run:
    """A run under way. `out` are the brokers, by number, that are dead or stopped at the moment."""

    size: Size
    cluster: LocalCluster
    log: LogPlace
    table: TableView
    http: aiohttp.ClientSession
    random: Random
    say: Callable[[str], None]
    out: dict[int, None] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    async def settled(self, *, without: int | None = None) -> None:
        """Wait until live brokers own every bundle, and none is owned by incarnation `without`.
        Raises `DeadlineExceeded`.
        """
        await settle(self.cluster, self.table, NAMESPACE, without=without)

    async def until(self, condition: Callable[[View], bool], what: str) -> None:
        """Wait for a condition on the view. Raises `DeadlineExceeded` naming `what`."""
        deadline = Deadline.after(timeout_ms=settled_ms(self.log.url))
        while not condition(self.table.view):
            deadline.check(what)
            await asyncio.sleep(0.02)

    def incarnation(self, number: int) -> int:
        return self.table.view.brokers[self.cluster.broker_ids[number]].incarnation

    def busiest(self) -> int:
        """The broker that owns the key which is called most, or whichever when that one is on the
        move.
        """
        bundle = self.table.view.bundle_at(NAMESPACE, key_hash("key-0"))
        owner = (
            None
            if bundle is None or bundle.owner is None
            else self.table.view.live.get(bundle.owner)
        )
        return 0 if owner is None else self.cluster.broker_ids.index(owner.broker)

    # --- moves ---

    async def make_all_moves(self) -> None:
        """Make every move of the size, in a random order, each until it was made."""
        deeds = (
            [MoveKind.TRANSFER] * self.size.transfers
            + [MoveKind.SPLIT] * self.size.splits
            + [MoveKind.MERGE] * self.size.merges
        )
        self.random.shuffle(deeds)
        for deed in deeds:
            # A merge may need a transfer first, and another one, if the balancer takes that back.
            before = self.made[deed]
            while self.made[deed] == before:
                await self.move(deed)

    async def move(self, deed: MoveKind) -> None:
        """Ask one of the brokers that are there to make one move."""
        move = admin_requests.choose(deed, self.table.view, NAMESPACE, self.random)
        there = [
            address
            for number, address in enumerate(self.cluster.addresses)
            if number not in self.out
        ]
        problem = (
            "nothing to move"
            if move is None
            else await admin_requests.make(self.http, self.random.choice(there), move)
        )
        if move is None or problem is not None:
            self.refused += 1
            await asyncio.sleep(AFTER_REFUSAL_S)
        else:
            self.made[move.kind] += 1
            await asyncio.sleep(BETWEEN_MOVES_S)

    # --- faults ---

    async def have_all_faults(self) -> None:
        """Have every fault of the size, in a random order, one at a time; after each the cluster
        gets whole again.
        """
        faults = (
            ["kill"] * self.size.kills + ["stop"] * self.size.stops + ["outage"] * self.size.outages
        )
        self.random.shuffle(faults)
        outages = self.outages()
        for fault in faults:
            if fault == "outage":
                await self.outage(*next(outages))
            elif fault == "kill":
                number = self.random.randrange(self.size.brokers)
                self.out[number] = None
                await self.kill(number)
                del self.out[number]
            else:
                await self.stop()
            await self.settled()
            self.made[fault] += 1

    def outages(self) -> Iterator[tuple[float, bool]]:
        """How long each outage lasts, and whether its cause is a process that hangs."""
        lease_s = timing_of(self.log.url).lease_ms / 1_000
        for number in range(self.size.outages):
            leases, more_s = OUTAGES[number % len(OUTAGES)]
            yield leases * lease_s + more_s, number % 2 == 1

    async def kill(self, number: int) -> None:
        """Kill -9; start it again at once, or after the others have taken over."""
        incarnation, waits = self.incarnation(number), self.random.random() < 0.5
        self.say(
            f"kill -9 of broker {number}, started again"
            f" {'after its bundles have new owners' if waits else 'at once'}"
        )
        await asyncio.to_thread(self.cluster.kill, number)
        if waits:
            await self.settled(without=incarnation)
        await asyncio.to_thread(self.cluster.restart, number)

    async def stop(self) -> None:
        """SIGSTOP of the broker that is called most, in the middle of writes, long past the lease;
        then SIGCONT.
        """
        timing = timing_of(self.log.url)
        stop_s = (timing.lease_ms + timing.grace_ms) / 1_000 + self.size.stop_past_lease_s
        number = await self.stopped_in_writes()
        incarnation = self.incarnation(number)
        self.say(f"SIGSTOP of broker {number} for {stop_s} s")
        try:
            await asyncio.sleep(stop_s)
        finally:
            self.cluster.resume(number)
        await self.until(
            lambda _: self.incarnation(number) > incarnation,
            f"broker {number} coming back in a new incarnation",
        )
        del self.out[number]

    async def stopped_in_writes(self) -> int:
        """Stop the broker that is called most while its writes wait for the store. If these have
        moved away meanwhile, the next.
        """
        while True:
            number = self.busiest()
            async with write_lock_held(self.cluster.settings.directory / "counter.db"):
                await asyncio.sleep(STORE_HELD_S)
                if number != self.busiest():
                    continue
                self.out[number] = None
                self.cluster.pause(number)
                # Hold the lock until it stands still: else it may take the lock, and keep all
                # others from the store.
                await self.until(
                    partial(self._stands_still, number), f"broker {number} standing still"
                )
            return number

    def _stands_still(self, number: int, _: View) -> bool:
        return stands_still(self.cluster.pid(number))

    async def outage(self, seconds: float, stopped: bool) -> None:
        """Nobody can append to the log."""
        self.say(
            f"outage of the log for {seconds} s" + (", by a process that hangs" if stopped else "")
        )
        incarnations = [self.incarnation(number) for number in range(self.size.brokers)]
        async with self.log.away(stopped=stopped):
            await asyncio.sleep(seconds)
        # Everybody has to renew before anybody could be accused.
        offset = self.table.view.offset
        await self.until(
            lambda view: all(broker.last > offset for broker in view.live_brokers()),
            "renewals after the outage",
        )
        assert incarnations == [self.incarnation(number) for number in range(self.size.brokers)], (
            "an outage of the log costs nobody a bundle"
        )


def stands_still(pid: int | None) -> bool:
    states = [
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return states == ["T"] * len(states)


async def stress(
    size: Size, directory: Path, log: LogPlace, *, seed: int, say: Callable[[str], None]
) -> Result:
    """Run all of it in `directory`, on a new log, and have it checked. Raises what keeps the
    cluster from getting whole again.
    """
    # The run kills brokers every few seconds, too soon for an owner to clear its bundles.
    settings = {"quarantine.deaths": 0}
    prove_deaths = seed % 2 == 0  # Every other run a death shows only by the silence of a lease.
    cluster = LocalCluster(
        counters(
            directory,
            brokers=size.brokers,
            log_url=log.url,
            prove_deaths=prove_deaths,
            evidence=True,
            **settings,
        )
    )
    history = directory / "history.jsonl"
    began_s = asyncio.get_running_loop().time()
    async with (
        asyncio.timeout(size.seconds_max),
        _run(cluster, log, size, history=history, seed=seed, say=say) as (run, callers),
    ):
        await asyncio.gather(run.make_all_moves(), run.have_all_faults())
        await run.settled()
        await callers.stop()
    say("the checker reads what is left")
    verdict = check_calls([history], store=directory / "counter.db", evidence=cluster.evidence())
    return Result(
        made=dict(run.made),
        refused=run.refused,
        seconds=asyncio.get_running_loop().time() - began_s,
        tally=callers.tally,
        findings=await asyncio.to_thread(verified, cluster.log_url),
        verdict=verdict,
    )


@asynccontextmanager
async def _run(
    cluster: LocalCluster,
    log: LogPlace,
    size: Size,
    *,
    history: Path,
    seed: int,
    say: Callable[[str], None],
) -> AsyncIterator[tuple[Run, CallerProcess]]:
    """The cluster, callers, and what an operator needs; whatever happens, no process is left at the
    end.
    """
    streams = uneven(NAMESPACE, keys=KEYS, calls_per_second=size.calls_per_second)
    streams += stubborn(
        NAMESPACE,
        keys=STUBBORN_KEYS,
        callers=STUBBORN_CALLERS,
        calls_per_second=STUBBORN_CALLS_PER_SECOND,
    )
    plan = Plan(brokers=cluster.addresses, streams=streams, history=history, seed=seed)
    async with (
        running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http),
        CallerProcess(plan) as callers,
    ):
        yield (
            Run(
                size=size,
                cluster=cluster,
                log=log,
                table=table,
                http=http,
                random=Random(seed),
                say=say,
            ),
            callers,
        )


def verified(log_url: str) -> Findings:
    with closing(open_log(log_url, create=False)) as log:
        return verify(log)
