"""The demo from its first process to its last word.

May live here: how the stage is built and taken down, how long the acts go on, and the summary at the end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from brokers.demo.acts import ACTS, begin
from brokers.demo.calling import CallerProcess, Plan
from brokers.demo.chronicle import Chronicle
from brokers.demo.screen import Screen
from brokers.demo.stage import NAMESPACE, Stage
from brokers.demo.verdict import Verdict, judge
from brokers.demo.workload import stubborn, uneven
from brokers.load_bus import open_load_bus
from brokers.local_cluster import ClusterSettings, LocalCluster
from brokers.moves import MoveKind
from channel.open_log import open_log
from channel.table_view import TableView
from channel.verify import Findings, verify

_BROKERS: Final = 3
_BUNDLES: Final = 16
_KEYS: Final = 48
_CALLS_PER_SECOND: Final = 300.0
_STUBBORN_KEYS: Final = 4
_STUBBORN_CALLS_PER_SECOND: Final = 5.0

# Rounds follow each other quickly enough to be watched; the default of 5 s is for clusters that live longer than a minute.
_BALANCE_INTERVAL_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the demo runs: in `directory`, a new one, for about `seconds` (None: until it is interrupted)."""

    directory: Path
    seconds: float | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is left to say at the end. `verdict` is None where there is no judge; `problem` is what ended the acts too early."""

    summary: Sequence[str]
    findings: Findings
    verdict: Verdict | None
    problem: str | None

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found by anybody."""
        return self.problem is None and self.findings.in_order and (self.verdict is None or self.verdict.is_clean)


async def play(options: Options, screen: Screen) -> Ending:
    """Play the demo. SIGINT and SIGTERM end the acts, not the ending. Raises `EquipoiseError` or OSError if it cannot begin."""
    cluster = _cluster(options.directory)
    history = options.directory / "history.jsonl"
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    screen.say(0.0, f"{_BROKERS} brokers start, each a process of its own, on one SQLite log")
    async with _running(cluster), _stage(cluster, history, screen, options.seed) as stage:
        problem = await _play_acts(stage, options.seconds, stopping)
        stage.say("the callers stop, and the brokers leave one by one")
    screen.say(stage.now_s, "the channel is verified, and the judge judges")
    findings = await asyncio.to_thread(_verified, cluster.log_url)
    evidence = sorted(path for directory in cluster.directories for path in directory.glob("accepts-*.jsonl"))
    verdict = await judge([history], store=_store(options.directory), evidence=evidence)
    return Ending(summary=_summary(stage, findings, verdict), findings=findings, verdict=verdict, problem=problem)


def _store(directory: Path) -> Path:
    return directory / "counter.db"


def _cluster(directory: Path) -> LocalCluster:
    settings = ClusterSettings(
        directory=directory,
        brokers=_BROKERS,
        settings={"balance_interval_ms": _BALANCE_INTERVAL_MS},
        environment={"EQUIPOISE_COUNTER_STORE": str(_store(directory))},
        evidence=True,
    )
    return LocalCluster(settings)


@asynccontextmanager
async def _running(cluster: LocalCluster) -> AsyncIterator[None]:
    """The processes of the brokers; whatever happens, none is left at the end."""
    try:
        await asyncio.to_thread(cluster.start)
        yield
    finally:
        await asyncio.to_thread(cluster.stop_all)


@asynccontextmanager
async def _stage(cluster: LocalCluster, history: Path, screen: Screen, seed: int) -> AsyncIterator[Stage]:
    streams = uneven(NAMESPACE, keys=_KEYS, calls_per_second=_CALLS_PER_SECOND)
    streams += stubborn(NAMESPACE, keys=_STUBBORN_KEYS, calls_per_second=_STUBBORN_CALLS_PER_SECOND)
    async with AsyncExitStack() as parts:
        table = await parts.enter_async_context(TableView(lambda: open_log(cluster.log_url), name=cluster.log_url))
        stage = Stage(
            cluster=cluster,
            table=table,
            http=await parts.enter_async_context(aiohttp.ClientSession()),
            callers=CallerProcess(Plan(brokers=cluster.addresses, streams=streams, history=history, seed=seed)),
            loads=open_load_bus(cluster.log_url),
            chronicle=Chronicle(table.view),
            screen=screen,
            random=Random(seed),  # noqa: S311 - which bundle moves next is no secret
            began_s=asyncio.get_running_loop().time(),
        )
        parts.callback(table.listen(stage.chronicle.folded))
        drawing = asyncio.ensure_future(stage.keep_drawing())
        parts.callback(drawing.cancel)
        await begin(stage, bundles=_BUNDLES)
        await parts.enter_async_context(stage.callers)
        yield stage


async def _play_acts(stage: Stage, seconds: float | None, stopping: asyncio.Event) -> str | None:
    """One act after the other until the time is up or `stopping` is set; the problem that ended them, if one did."""
    playing = asyncio.ensure_future(_acts(stage, seconds))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([playing, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, stopped):
        task.cancel()
    (outcome,) = await asyncio.gather(playing, return_exceptions=True)
    if isinstance(outcome, Exception):
        stage.say(f"the acts end too early: {outcome}")
        return f"{type(outcome).__name__}: {outcome}"
    return None


async def _acts(stage: Stage, seconds: float | None) -> None:
    """Every act at least once; from then on only as long as there is time."""
    for number, act in enumerate(cycle(ACTS)):
        if seconds is not None and number >= len(ACTS) and stage.now_s >= seconds:
            return
        await act(stage)


def _verified(log_url: str) -> Findings:
    log = open_log(log_url, create=False)
    try:
        return verify(log)
    finally:
        log.close()


def _summary(stage: Stage, findings: Findings, verdict: Verdict | None) -> Sequence[str]:
    done, tally, chronicle = stage.chronicle.done, stage.callers.tally, stage.chronicle
    moves = ", ".join(f"{kind.value}s {done[kind]}" for kind in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE))
    lines = [
        f"{moves}, deaths {chronicle.deaths}, called off {chronicle.called_off}",
        f"calls {tally.acknowledged}, longest pause {tally.longest_pause_ms:.0f} ms",
        f"of the attempts {tally.redirected} were redirected, {tally.refused} refused, {tally.unknown} left unknown and tried again",
    ]
    if verdict is not None and verdict.problem is None:
        lines.append(f"stale writes that the store refused: {verdict.totals['stale_writes_refused_by_the_store']}")
        lines.append(f"double owners: {verdict.double_owners}")
    order = "all in order" if findings.in_order else f"{findings.findings_count} findings, the first: {findings.findings[0].text}"
    lines.append(f"channel: {findings.records} records, {findings.agreements} digests agree, {order}")
    return lines
