"""Play the demo from the first process to the verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from compose.demo.acts import COUNTERS, MESSAGES, Act
from compose.demo.demo import Demo, Screen
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.channel.core.errors import PeerError
from equipoise.channel.inspect.verify import Findings
from equipoise.channel.system.stop_signals import stop_event
from tests.load import admin_requests
from tests.load.callers import CallerProcess, Plan, stubborn, uneven
from tests.load.cluster import create_namespace, running
from tests.load.stress import verified
from tests.load.verdicts import Verdict, check_calls
from tests.pulsar.clients import ClientFailedError, Consuming, Producing, Type
from tests.pulsar.fleet import Fleet
from tests.pulsar.programs import Language

_BROKERS: Final = 3
_BUNDLES: Final = {COUNTERS: 16, MESSAGES: 8}
_SERVICES: Final = {COUNTERS: "counter", MESSAGES: "pulsar"}
_SETTINGS: Final[Mapping[str, str | int]] = {
    # Quick enough to watch. The default of 5 s suits clusters that live longer than a minute.
    "balance_interval_ms": 2_000,
    "cpu_cores": admin_requests.CORES,
    # All clients are threads of one Python program, and Python lets a thread wait 5 ms for another.
    # By default, brokers wait 2 ms.
    "pulsar_settle_ms": 20,
}
_CALLS_PER_SECOND: Final = 300.0
_TOPICS: Final = 8  # Of each kind. Eight bundles hold about two topics each.
_MESSAGES_PER_SECOND_AND_TOPIC: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdicts by what was checked, and the problems of the acts and of the clients."""

    summary: Sequence[str]
    findings: Findings
    verdicts: dict[str, Verdict]
    problems: Sequence[str]

    @property
    def is_clean(self) -> bool:
        """Whether no check found anything."""
        clean = all(verdict.is_clean for verdict in self.verdicts.values())
        return clean and self.findings.in_order and not self.problems


async def play(directory: Path, acts: Sequence[Act], *, log_url: str | None = None) -> Result:
    """Play the acts in a new directory, on a new log: a file in the directory by default.

    SIGINT and SIGTERM end the acts, but not the checks after them. Raises `EquipoiseError` or
    OSError if it cannot start.
    """
    stopping, screen = stop_event(), Screen()
    problems, verdicts = list[str](), dict[str, Verdict]()
    bundles = _BUNDLES if find_spec("pulsar") else {COUNTERS: _BUNDLES[COUNTERS]}
    settings = ClusterSettings(
        directory=directory,
        log_url=log_url,
        brokers=_BROKERS,
        pulsar_port=0 if MESSAGES in bundles else None,
        services=tuple(f"{namespace}={_SERVICES[namespace]}" for namespace in bundles),
        settings=_SETTINGS,
        environment={"EQUIPOISE_COUNTER_STORE": str(directory / "counter.db")},
        evidence=True,
    )
    cluster = LocalCluster(settings)
    screen.say(f"{_BROKERS} brokers start, each a process of its own, on the log {cluster.log_url}")
    if MESSAGES not in bundles:
        screen.say("the demo runs without Pulsar clients: pulsar-client is not installed")
    async with _demo(cluster, screen, bundles) as demo:
        playing = asyncio.ensure_future(_play_acts(demo, acts))
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([playing, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in (playing, stopped):
            task.cancel()
        (outcome,) = await asyncio.gather(playing, return_exceptions=True)
        if isinstance(outcome, Exception):
            demo.say(f"the acts ended early: {outcome}")
            problems.append(f"{type(outcome).__name__}: {outcome}")
        demo.say("the callers and clients stop, and the brokers leave one by one")
        await demo.callers.stop()
        if demo.fleet is not None:
            try:
                verdicts["messages"] = await asyncio.to_thread(
                    demo.fleet.finish, evidence=cluster.evidence
                )
            except ClientFailedError as error:
                problems.append(str(error))
    screen.say("the channel is verified, and the independent checkers check calls and messages")
    findings = await asyncio.to_thread(verified, cluster.log_url)
    history, store = demo.callers.plan.history, directory / "counter.db"
    verdicts["calls"] = await asyncio.to_thread(
        check_calls, [history], store=store, evidence=cluster.evidence()
    )
    summary = _summary(demo, findings, verdicts)
    return Result(summary=summary, findings=findings, verdicts=verdicts, problems=problems)


@asynccontextmanager
async def _demo(
    cluster: LocalCluster, screen: Screen, bundles: dict[str, int]
) -> AsyncIterator[Demo]:
    """Start everything, and leave no process at the end."""
    directory = cluster.settings.directory
    streams = uneven(COUNTERS, keys=48, calls_per_second=_CALLS_PER_SECOND)
    streams += stubborn(COUNTERS, keys=4, calls_per_second=5.0)
    plan = Plan(brokers=cluster.addresses, streams=streams, history=directory / "history.jsonl")
    async with AsyncExitStack() as parts:
        table, http = await parts.enter_async_context(
            running(cluster, COUNTERS, bundles=bundles[COUNTERS])
        )
        for namespace in bundles.keys() - {COUNTERS}:
            await create_namespace(http, cluster, namespace, bundles=bundles[namespace])
        demo = Demo(
            bundles=bundles,
            cluster=cluster,
            table=table,
            http=http,
            callers=CallerProcess(plan),
            fleet=_fleet(cluster) if MESSAGES in bundles else None,
            loads=LoadBus(cluster.log_url),
            screen=screen,
        )
        created = [f"{namespace} with {count} bundles" for namespace, count in bundles.items()]
        demo.say(f"the brokers share {' and '.join(created)}")
        await demo.settled()
        await asyncio.to_thread(admin_requests.tune, cluster.log_url, admin_requests.QUICK)
        parts.callback(table.listen(demo.folded))
        parts.callback(asyncio.ensure_future(demo.keep_drawing()).cancel)
        await parts.enter_async_context(demo.callers)
        if demo.fleet is not None:
            parts.push_async_callback(asyncio.to_thread, demo.fleet.kill)
            try:
                await asyncio.to_thread(demo.fleet.start)
            except ClientFailedError as error:
                raise PeerError(str(error)) from error
            demo.say(f"Pulsar clients produce and consume on {2 * _TOPICS} topics")
        parts.enter_context(screen.live)
        yield demo


def _fleet(cluster: LocalCluster) -> Fleet:
    """Return a producer and consumers of two kinds: half of the topics have an Exclusive
    subscription, the other half a Shared one with two consumers.
    """
    url, folder = cluster.pulsar_url, cluster.settings.directory / "messages"
    orders, events = (
        tuple(f"non-persistent://{MESSAGES}/{kind}-{number}" for number in range(_TOPICS))
        for kind in ("orders", "events")
    )
    tasks: list[Consuming | Producing] = [
        Consuming(url=url, name="ledger", subscription="ledger", topics=orders),
        *(
            Consuming(url=url, name=name, subscription="work", type=Type.SHARED, topics=events)
            for name in ("worker-1", "worker-2")
        ),
        Producing(
            url=url,
            name="producer",
            topics=(*orders, *events),
            rate=_MESSAGES_PER_SECOND_AND_TOPIC,
        ),
    ]
    folder.mkdir(mode=0o700)
    return Fleet(folder, [(Language.PYTHON, task) for task in tasks])


async def _play_acts(demo: Demo, acts: Sequence[Act]) -> None:
    for act in acts:
        await act(demo)


def _summary(demo: Demo, findings: Findings, verdicts: dict[str, Verdict]) -> Sequence[str]:
    calls, messages, store = demo.callers.tally, verdicts.get("messages"), verdicts["calls"].totals
    made = ", ".join(
        f"{kind}s {demo.done[kind]}" for kind in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE)
    )
    unknown = f"{calls.unknown} with an unknown outcome and retried"
    lines = [
        f"{made}, deaths {demo.deaths}, cancelled {demo.cancelled}",
        f"calls {calls.acknowledged}, longest pause {calls.longest_pause_ms:.0f} ms",
        f"attempts: {calls.redirected} redirected, {calls.refused} refused, {unknown}",
        f"stale writes refused by the store: {store.get('stale_writes_refused_by_the_store', '?')}",
    ]
    if demo.fleet is not None and messages is not None and messages.problem is None:
        lost = messages.counts.get("receipted_messages_are_delivered", 0)
        disordered = messages.counts.get("messages_keep_their_order", 0)
        pause_ms = demo.fleet.longest_pauses_ms()["producer"]
        moves, excuse = "transfers, splits, merges and drains", "as non-persistent topics may"
        lines += [
            f"messages {messages.totals['receipted']}, longest pause {pause_ms:.0f} ms",
            f"messages lost in {moves} {lost}, out of order {disordered}",
            f"messages lost in kill -9 {messages.totals['lost'] - lost}, {excuse}",
        ]
    order = "all in order" if findings.in_order else f"{findings.findings_count} findings"
    return [
        *lines,
        f"double owners: {sum(verdict.double_owners for verdict in verdicts.values())}",
        f"channel: {findings.records} records, {findings.agreements} digests agree, {order}",
    ]
