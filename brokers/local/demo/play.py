"""Play the demo from the first process to the final summary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.load.bus import open_load_bus
from equipoise.brokers.local.demo.callers import CallerProcess, Plan, stubborn, uneven
from equipoise.brokers.local.demo.checker import Verdict, check_calls, check_messages, is_shipped
from equipoise.brokers.local.demo.demo import COUNTERS, MESSAGES, Demo
from equipoise.brokers.local.demo.figures import ChannelCounts
from equipoise.brokers.local.demo.operator import CORES
from equipoise.brokers.local.demo.pulsar_clients import MessageTally, PulsarClients, lacking
from equipoise.brokers.local.demo.screen import Screen
from equipoise.brokers.local.demo.steps import STEPS, Step, begin
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.local.local_load_workers import can_run
from equipoise.channel.inspect.findings import Findings
from equipoise.channel.inspect.verify import verify
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.stop_signals import stop_event

_LOAD_WORKERS: Final = 2  # On Kafka: enough to share the work, and to lose one.
_BROKERS: Final = 3
_BUNDLES: Final = {COUNTERS: 16, MESSAGES: 8}
_SERVICES: Final = {COUNTERS: "counter", MESSAGES: "pulsar"}
_KEYS: Final = 48
_CALLS_PER_SECOND: Final = 300.0
_STUBBORN_KEYS: Final = 4
_STUBBORN_CALLS_PER_SECOND: Final = 5.0

# All clients are threads of one Python program, and Python lets a thread wait 5 ms for another. By
# default, brokers wait 2 ms.
_SETTLE_MS: Final = 20

# Quick enough to watch. The default of 5 s suits clusters that live longer than a minute.
_BALANCE_INTERVAL_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the demo runs: in `directory`, a new one, for about `seconds` (None: until it is
    interrupted).

    `log_url` is a new log; None means a file in the directory. `steps` are played in order.
    """

    directory: Path
    seconds: float | None
    seed: int
    log_url: str | None = None
    steps: Sequence[Step] = STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the demo. `verdicts`, by what was checked, is empty if there is no checker.

    `problem` is what ended the steps early, or a problem of the Pulsar clients.
    """

    summary: Sequence[str]
    findings: Findings
    verdicts: Mapping[str, Verdict]
    problem: str | None

    @property
    def is_clean(self) -> bool:
        """Whether no check found anything."""
        return (
            self.problem is None
            and self.findings.in_order
            and all(verdict.is_clean for verdict in self.verdicts.values())
        )


async def play(options: Options, screen: Screen) -> Result:
    """Play the demo.

    SIGINT and SIGTERM end the steps, but not the checks after them. Raises `EquipoiseError` or
    OSError if it cannot start.
    """
    lacks = lacking()
    cluster = _cluster(options, [COUNTERS] if lacks else [COUNTERS, MESSAGES])
    stopping = stop_event()
    screen.say(
        0.0, f"{_BROKERS} brokers start, each a process of its own, on the log {cluster.log_url}"
    )
    if lacks:
        screen.say(0.0, f"the demo runs without Pulsar clients: {lacks}")
    async with _running(cluster), _demo(cluster, screen, options) as demo:
        problem = await _play_steps(demo, options, stopping)
        demo.say("the callers and clients stop, and the brokers leave one by one")
        if demo.pulsar is not None:
            problem = await demo.pulsar.stop() or problem
    screen.say(
        demo.now_s, "the channel is verified, and the independent checkers check calls and messages"
    )
    findings = await asyncio.to_thread(_verified, cluster.log_url)
    verdicts = await asyncio.to_thread(_checked, demo, _store(options.directory))
    return Result(
        summary=_summary(demo, findings, verdicts),
        findings=findings,
        verdicts=verdicts,
        problem=problem,
    )


def _checked(demo: Demo, store: Path) -> Mapping[str, Verdict]:
    """Return the verdicts of the checkers, by what they check; none if this is not a checkout."""
    if not is_shipped():
        return {}
    evidence = demo.cluster.evidence()
    verdicts = {"calls": check_calls([demo.callers.plan.history], store=store, evidence=evidence)}
    if demo.pulsar is not None:
        windows = demo.pulsar.tally.windows(time.monotonic_ns())
        verdicts["messages"] = check_messages(
            demo.pulsar.histories, windows=windows, evidence=evidence
        )
    return verdicts


def _store(directory: Path) -> Path:
    return directory / "counter.db"


def _cluster(options: Options, namespaces: Sequence[str]) -> LocalCluster:
    is_on_kafka = options.log_url is not None and options.log_url.startswith("kafka:")
    settings = ClusterSettings(
        directory=options.directory,
        log_url=options.log_url,
        brokers=_BROKERS,
        pulsar_port=0 if MESSAGES in namespaces else None,
        services=tuple(f"{namespace}={_SERVICES[namespace]}" for namespace in namespaces),
        settings={
            "balance_interval_ms": _BALANCE_INTERVAL_MS,
            "cpu_cores": CORES,
            "pulsar_settle_ms": _SETTLE_MS,
        },
        environment={"EQUIPOISE_COUNTER_STORE": str(_store(options.directory))},
        evidence=True,
        load_workers=_LOAD_WORKERS if is_on_kafka and can_run() else 0,
    )
    return LocalCluster(settings)


@asynccontextmanager
async def _running(cluster: LocalCluster) -> AsyncIterator[None]:
    """Run the broker processes, and stop them all in any case."""
    try:
        await asyncio.to_thread(cluster.start)
        yield
    finally:
        await asyncio.to_thread(cluster.stop_all)


@asynccontextmanager
async def _demo(cluster: LocalCluster, screen: Screen, options: Options) -> AsyncIterator[Demo]:
    streams = uneven(COUNTERS, keys=_KEYS, calls_per_second=_CALLS_PER_SECOND)
    streams += stubborn(COUNTERS, keys=_STUBBORN_KEYS, calls_per_second=_STUBBORN_CALLS_PER_SECOND)
    plan = Plan(
        brokers=cluster.addresses,
        streams=streams,
        history=options.directory / "history.jsonl",
        seed=options.seed,
    )
    pulsar = None
    if cluster.settings.pulsar_port is not None:
        pulsar = PulsarClients(
            url=cluster.pulsar_url, namespace=MESSAGES, folder=options.directory / "messages"
        )
    async with AsyncExitStack() as parts:
        table = await parts.enter_async_context(
            TableView(lambda: open_log(cluster.log_url), name=cluster.log_url)
        )
        demo = Demo(
            bundles=_BUNDLES if pulsar is not None else {COUNTERS: _BUNDLES[COUNTERS]},
            cluster=cluster,
            table=table,
            http=await parts.enter_async_context(aiohttp.ClientSession()),
            callers=CallerProcess(plan),
            pulsar=pulsar,
            loads=open_load_bus(cluster.log_url),
            counts=ChannelCounts(lambda: table.view),
            screen=screen,
            random=Random(options.seed),  # noqa: S311 - which bundle moves next is no secret
            began_s=asyncio.get_running_loop().time(),
        )
        parts.callback(table.listen(demo.counts.folded, resynced=demo.counts.resynced))
        drawing = asyncio.ensure_future(demo.keep_drawing())
        parts.callback(drawing.cancel)
        await begin(demo)
        await parts.enter_async_context(demo.callers)
        if pulsar is not None:
            await parts.enter_async_context(pulsar)
            demo.say(f"Pulsar clients produce and consume on {len(pulsar.topics)} topics")
        yield demo


async def _play_steps(demo: Demo, options: Options, stopping: asyncio.Event) -> str | None:
    """Play steps until the time is up or `stopping` is set. Return the problem that ended them, if
    any.
    """
    playing = asyncio.ensure_future(_steps(demo, options))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([playing, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, stopped):
        task.cancel()
    (outcome,) = await asyncio.gather(playing, return_exceptions=True)
    if isinstance(outcome, Exception):
        demo.say(f"the steps ended early: {outcome}")
        return f"{type(outcome).__name__}: {outcome}"
    return None


async def _steps(demo: Demo, options: Options) -> None:
    """Play every step at least once, and repeat them while there is time."""
    for number, step in enumerate(cycle(options.steps)):
        if (
            options.seconds is not None
            and number >= len(options.steps)
            and demo.now_s >= options.seconds
        ):
            return
        await step(demo)


def _verified(log_url: str) -> Findings:
    with closing(open_log(log_url, create=False)) as log:
        return verify(log)


def _summary(demo: Demo, findings: Findings, verdicts: Mapping[str, Verdict]) -> Sequence[str]:
    done, tally, chronicle = demo.counts.done, demo.callers.tally, demo.counts
    moves = ", ".join(
        f"{kind.value}s {done[kind]}"
        for kind in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE)
    )
    lines = [
        f"{moves}, deaths {chronicle.deaths}, cancelled {chronicle.cancelled}",
        f"calls {tally.acknowledged}, longest pause {tally.longest_pause_ms:.0f} ms",
        (
            f"attempts: {tally.redirected} redirected, {tally.refused} refused, {tally.unknown}"
            " with an unknown outcome and retried"
        ),
    ]
    if demo.pulsar is not None:
        lines += _summary_of_messages(demo.pulsar.tally, verdicts.get("messages"))
    calls = verdicts.get("calls")
    if calls is not None and calls.problem is None:
        lines.append(
            "stale writes refused by the store:"
            f" {calls.totals['stale_writes_refused_by_the_store']}"
        )
    if verdicts and all(verdict.problem is None for verdict in verdicts.values()):
        lines.append(
            f"double owners: {sum(verdict.double_owners for verdict in verdicts.values())}"
        )
    order = (
        "all in order"
        if findings.in_order
        else f"{findings.findings_count} findings, the first: {findings.findings[0].text}"
    )
    lines.append(
        f"channel: {findings.records} records, {findings.agreements} digests agree, {order}"
    )
    return lines


def _summary_of_messages(tally: MessageTally, verdict: Verdict | None) -> Sequence[str]:
    pause_ms, in_kills_ms = tally.longest_pause_ms, tally.longest_pause_in_kills_ms
    lines = [
        (
            f"messages with a receipt {tally.receipted}, longest pause of a producer"
            f" {pause_ms:.0f} ms, in a kill -9 {in_kills_ms:.0f} ms"
        )
    ]
    if verdict is not None and verdict.problem is None:
        lost = verdict.counts.get("receipted_messages_are_delivered", 0)
        disordered = verdict.counts.get("messages_keep_their_order", 0)
        in_kills = verdict.totals["lost"] - lost
        lines += [
            (
                f"messages lost in transfers, splits, merges and drains {lost}, out of order"
                f" {disordered}"
            ),
            f"messages lost in kill -9 {in_kills} (non-persistent topics promise nothing there)",
        ]
    return lines
