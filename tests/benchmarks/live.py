"""Whether three FastAPI programs share what their calls cost: `make bench BENCH=live`, in twelve
minutes, with costs by measured CPU time and beside it by number of calls.

Scenes:

* `unequal`: calls cost 0.1 to 50 ms by shard, and the shards are spread by number.
* `dearer`: then the calls of one shard cost 100 times as much.
* `hot`: half of all calls go to one of 64 shards whose calls cost the same.
* `joining`: a fourth program joins three under load, half a minute after the first calls.

Time-lines and their plot are in `build/live`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp
import uvloop
from fastapi import FastAPI
from matplotlib.figure import Figure

from equipoise import Equipoise, Keyed
from equipoise.brokers.decision_log import document_of, newest_decisions
from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core.ranges import key_hash
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline
from tests.benchmarks.frame import Results, cpu_s, machine, report, summary
from tests.house.house_rules import ROOT
from tests.load.fastapi_programs import UVICORN, Program

PROGRAMS, SHARDS, KEYS_EACH, CALLS_PER_SECOND = 3, 64, 4, 200.0
CHEAP_MS, TIMES_DEARER, EQUAL_MS = 1.0, 100, 2.0
LOOK_S: Final = 0.5
WINDOW_S: Final = 5.0
"""Each block of calls has every shard, and lasts up to 0.64 s. So chance changes the figures of a
window little."""

UNANSWERED_MAX: Final = 400
"""The calls of 2 s. Later ones fail, so that a program that is too slow shows."""

READY_MS: Final = 60_000
FOLDER: Final = ROOT / "build" / "live"
SERVER: Final = (
    "uvicorn",
    "tests.benchmarks.live:program",
    "--factory",
    "--port",
    "PORT",
    "--no-access-log",
)
COSTS_BY_CALLS: Final = "EQUIPOISE_LIVE_BY_CALLS"
_DECISIONS_MAX: Final = 1_000
_WINDOWS_MIN: Final = 10

Distance = tuple[Callable[[Sequence[float]], float], float]
"""How far shares are from what they should be, and how far they may be."""


# --- the programs ---


@dataclass
class Page:
    """A small state."""

    visits: int = 0


def program() -> FastAPI:
    """Return a program whose calls take as much CPU time as they say."""
    app = FastAPI()
    pages = Keyed("web/pages", Page, shards=SHARDS)

    @app.post("/visits/{name}")
    @pages.route("name")
    async def visit(name: str, page: Page, us: int) -> int:
        end_ns = time.thread_time_ns() + 1_000 * us
        page.visits += 1
        while time.thread_time_ns() < end_ns:
            pass
        return page.visits

    measures = COSTS_BY_CALLS not in os.environ
    Equipoise(os.environ["EQUIPOISE_LOG"], pages, cluster="live", measure_cpu=measures).install(app)
    return app


# --- the calls ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often each shard is called in a block of calls, and what a call costs."""

    times: Sequence[int] = (1,) * SHARDS
    call_ms: Sequence[float]


def unequal() -> Mix:
    """Costs from 0.1 to 50 ms, 2.8 ms on average, in an order by chance."""
    costs = [0.1 * 500 ** ((place / (SHARDS - 1)) ** 4) for place in range(SHARDS)]
    Random(7).shuffle(costs)
    return Mix(call_ms=costs)


def dearer(mix: Mix) -> Mix:
    """The same with one cheap shard that has become 100 times as expensive."""
    costs = list(mix.call_ms)
    chosen = min(range(SHARDS), key=lambda shard: abs(costs[shard] - CHEAP_MS))
    costs[chosen] *= TIMES_DEARER
    return replace(mix, call_ms=costs)


EQUAL: Final = Mix(call_ms=(EQUAL_MS,) * SHARDS)
HOT: Final = replace(EQUAL, times=(SHARDS - 1,) + (1,) * (SHARDS - 1))


def _shard_of(key: str) -> int:
    return key_hash(key) * SHARDS >> 32


def keys_by_shard() -> Mapping[int, Sequence[str]]:
    """Some keys of each shard."""
    found: dict[int, list[str]] = {shard: [] for shard in range(SHARDS)}
    for number in count():
        keys = found[_shard_of(key := f"page-{number}")]
        if len(keys) < KEYS_EACH:
            keys.append(key)
        elif min(map(len, found.values())) == KEYS_EACH:
            break
    return found


class Callers:
    """Calls at a steady rate, whatever the programs do. Each key is called where it was served
    last.
    """

    def __init__(self, session: aiohttp.ClientSession, addresses: list[str]) -> None:
        self.addresses = addresses
        self.mix: Mix | None = None
        self.served = Counter[str]()
        self.lengths_ms: list[float] = []
        self.failures = 0
        self._session = session
        self._at: dict[str, str] = {}
        self._keys = keys_by_shard()
        self._random = Random(1)

    async def run(self) -> None:
        """Call until cancelled."""
        async with asyncio.TaskGroup() as calls:
            due_s, block, unanswered = time.perf_counter(), list[int](), set[asyncio.Task[None]]()
            while True:
                due_s += 1 / CALLS_PER_SECOND
                await asyncio.sleep(due_s - time.perf_counter())
                if self.mix is None:
                    continue
                if not block:
                    times = enumerate(self.mix.times)
                    block = [shard for shard, times_called in times for _ in range(times_called)]
                    self._random.shuffle(block)
                shard = block.pop()
                if len(unanswered) >= UNANSWERED_MAX:
                    self.failures += 1
                    continue
                key = self._random.choice(self._keys[shard])
                call = calls.create_task(self._call(key, us=round(1e3 * self.mix.call_ms[shard])))
                unanswered.add(call)
                call.add_done_callback(unanswered.discard)

    async def _call(self, key: str, *, us: int) -> None:
        at, began_s = self._at.get(key, self.addresses[0]), time.perf_counter()
        try:
            async with self._session.post(f"{at}/visits/{key}?us={us}") as answer:
                await answer.read()
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError):
            self.failures += 1
            self._at.pop(key, None)
            return
        self._at[key] = str(answer.url.origin())
        self.served[self._at[key]] += 1
        self.lengths_ms.append(1e3 * (time.perf_counter() - began_s))


# --- what is seen ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is seen at a time: CPU time and calls of each program since its start, the program that
    serves each shard, and the reported cost and CPU use of each broker.
    """

    at_s: float
    cpu_s: Sequence[float]
    calls: Sequence[int]
    owners: Mapping[str, int | None]
    reports: Mapping[str, tuple[float, float | None, float | None]]


@dataclass(slots=True, kw_only=True)
class Timeline:
    """A run: what was seen, when scenes began and ended, and what the leader decided."""

    name: str
    looks: list[Look] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    decisions: list[dict[str, object]] = field(default_factory=list)

    def moves(self) -> list[tuple[float, str, int | None]]:
        """The time, the bundle and the new program of each move, and of each part of a split."""
        return [
            (now.at_s, bundle, owner)
            for before, now in pairwise(self.looks)
            for bundle, owner in now.owners.items()
            if before.owners and before.owners.get(bundle) != owner and owner is not None
        ]

    def windows(self, name: str, since_s: float, until_s: float) -> list[tuple[float, list[float]]]:
        """The share of each program in each window of `WINDOW_S`, by the time when it begins.
        `name`: `cpu_s` or `calls`.
        """
        looks = [look for look in self.looks if since_s <= look.at_s <= until_s]
        size = round(WINDOW_S / LOOK_S)
        return [
            (one.at_s, _shares(getattr(one, name), getattr(other, name)))
            for one, other in zip(looks, looks[size:], strict=False)
        ]

    def figures(self, name: str, scene: str, *, due_s: float, distance: Distance) -> Results:
        """What was reached in a scene, and when; from `due_s` on it should be.

        It is reached when nine of ten windows are within the distance, for good.
        """
        measure, most = distance
        since_s, until_s = self.marks[scene], self.ends[scene]
        windows = self.windows(name, since_s, until_s)
        are_good = [measure(shares) <= most for _, shares in windows]
        reached_s = next(
            (
                round(at_s - since_s, 1)
                for place, (at_s, _) in enumerate(windows[:-_WINDOWS_MIN])
                if are_good[place] and sum(are_good[place:]) >= 0.9 * len(are_good[place:])
            ),
            None,
        )
        moved_s = (at_s - since_s for at_s, _, _ in self.moves() if since_s < at_s <= until_s)
        shares = self._shares_in(name, since_s + due_s, until_s)
        return {
            "first_10_s": self._shares_in(name, since_s, since_s + 10),
            f"after_{due_s:.0f}_s": shares,
            "furthest": round(measure(shares), 3),
            "reached_s": reached_s,
            "moved_s": [round(each, 1) for each in moved_s],
        }

    def _shares_in(self, name: str, since_s: float, until_s: float) -> list[float]:
        looks = [look for look in self.looks if since_s <= look.at_s <= until_s]
        shares = _shares(getattr(looks[0], name), getattr(looks[-1], name))
        return [round(share, 3) for share in shares]


def _shares(before: Sequence[float], after: Sequence[float]) -> list[float]:
    used = [now - one for one, now in zip([*before, *(0.0,) * len(after)], after, strict=False)]
    return [each / sum(used) for each in used] if sum(used) else [0.0 for _ in used]


def uneven(shares: Sequence[float]) -> float:
    """The distance of a program from the mean, relative to the mean."""
    return max(abs(share * len(shares) - 1) for share in shares)


def off_half(shares: Sequence[float]) -> float:
    """The distance of a program from its part of one half and two quarters."""
    parts = zip(sorted(shares), (0.25, 0.25, 0.5), strict=True)
    return max(abs(share - part) for share, part in parts)


EVEN: Final[Distance] = uneven, 0.10
HALF_AND_QUARTERS: Final[Distance] = off_half, 0.05


class Cluster:
    """Programs under load, and what is seen of them."""

    def __init__(
        self,
        name: str,
        folder: Path,
        session: aiohttp.ClientSession,
        *,
        environment: Mapping[str, str] | None = None,
        server: Sequence[str] = SERVER,
    ) -> None:
        self.timeline = Timeline(name=name)
        self.programs: list[Program] = []
        self._log_url = f"sqlite:{folder}/visits.db"
        self._folder = folder
        self._session = session
        self._server = server
        self._environment = environment
        self.callers = Callers(session, [])
        self._bus = LoadBus(self._log_url)
        self._table = TableView(lambda: open_log(self._log_url), name=self._log_url)
        self._began_s = 0.0

    @contextlib.asynccontextmanager
    async def running(self, number: int) -> AsyncIterator[None]:
        """Start programs, and wait until each has its number of shards. Look at them meanwhile."""
        async with AsyncExitStack() as life:
            life.push_async_callback(self._kill)
            for _ in range(number):
                await self.start()
            await life.enter_async_context(self._table)
            deadline = Deadline.after(timeout_ms=READY_MS)
            while not self._are_spread():
                deadline.check("as many shards in each program")
                await asyncio.sleep(LOOK_S)
            self._began_s = time.monotonic()
            tasks = await life.enter_async_context(asyncio.TaskGroup())
            for work in (self.callers.run(), self._look()):
                life.callback(tasks.create_task(work).cancel)
            yield
            self.timeline.decisions = [
                document_of(each) for each in newest_decisions(self._log_url, _DECISIONS_MAX)
            ]
            FOLDER.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**asdict(self.timeline), "moves": self.timeline.moves()})
            (FOLDER / f"{self.timeline.name}.json").write_text(text)

    async def start(self) -> None:
        """Start one more program."""
        added = Program(
            self._log_url, self._folder, server=self._server, environment=self._environment
        )
        self.programs.append(added)
        await added.start(self._session)
        self.callers.addresses.append(added.address)

    async def scene(self, name: str, mix: Mix, seconds: float) -> None:
        """Change the calls, and wait."""
        self.callers.mix = mix
        self.timeline.marks[name] = time.monotonic() - self._began_s
        await asyncio.sleep(seconds)
        self.timeline.ends[name] = time.monotonic() - self._began_s

    def calls(self) -> Results:
        """How the calls went."""
        return {
            **summary(self.callers.lengths_ms, "ms"),
            "failed": self.callers.failures,
            "machine": machine(),
        }

    async def _kill(self) -> None:
        for each in self.programs:
            await each.kill()

    def _are_spread(self) -> bool:
        held = Counter(self._owners().values())
        fair = SHARDS / len(self.programs)
        return held.total() == SHARDS and all(
            abs(held[place] - fair) <= 1.5 for place in range(len(self.programs))
        )

    def _owners(self) -> Mapping[str, int | None]:
        """The program of each bundle; None while it moves."""
        view, addresses = self._table.view, [each.address for each in self.programs]
        of = {
            incarnation: addresses.index(broker.joined.addresses["http"])
            for incarnation, broker in view.live.items()
            if broker.joined.addresses.get("http") in addresses
        }
        return {
            bundle.name: None if bundle.server is None else of.get(bundle.server)
            for bundle in view.bundles_of("web/pages")
        }

    async def _look(self) -> None:
        for number in count():
            await asyncio.sleep(self._began_s + number * LOOK_S - time.monotonic())
            loads = await asyncio.to_thread(self._bus.latest)
            started = [each for each in self.programs if each.process is not None]
            self.timeline.looks.append(
                Look(
                    at_s=time.monotonic() - self._began_s,
                    cpu_s=[cpu_s(each.process.pid) for each in started if each.process],
                    calls=[self.callers.served[each.address] for each in started],
                    owners=self._owners(),
                    reports={
                        load.broker: (load.cost, load.noise, load.other_work) for load in loads
                    },
                )
            )


# --- the scenes ---


async def unequal_then_dearer(cluster: Cluster) -> Results:
    """From a start by number; then one shard becomes expensive."""
    mix, line = unequal(), cluster.timeline
    async with cluster.running(PROGRAMS):
        await cluster.scene("unequal", mix, 90)
        await cluster.scene("dearer", dearer(mix), 90)
    return {
        "unequal": line.figures("cpu_s", "unequal", due_s=60, distance=EVEN),
        "dearer": line.figures("cpu_s", "dearer", due_s=30, distance=EVEN),
        "calls": cluster.calls(),
    }


async def hot(cluster: Cluster) -> Results:
    """Half of all calls go to one shard."""
    async with cluster.running(PROGRAMS):
        await cluster.scene("equal", EQUAL, 40)
        await cluster.scene("hot", HOT, 60)
    figures = cluster.timeline.figures("calls", "hot", due_s=30, distance=HALF_AND_QUARTERS)
    return {"hot": figures, "calls": cluster.calls()}


async def joining(cluster: Cluster) -> Results:
    """A fourth program joins three."""
    async with cluster.running(PROGRAMS):
        await cluster.scene("unequal", unequal(), 30)
        await cluster.start()
        await cluster.scene("joined", unequal(), 60)
    figures = cluster.timeline.figures("cpu_s", "joined", due_s=10, distance=EVEN)
    return {"joined": figures, "calls": cluster.calls()}


_BY_CALLS: Final = {"environment": {COSTS_BY_CALLS: "1"}}
SCENES: Final[Mapping[str, tuple[Callable[[Cluster], Awaitable[Results]], dict[str, Any]]]] = {
    "unequal, by calls": (unequal_then_dearer, _BY_CALLS),
    "unequal, measured": (unequal_then_dearer, {}),
    "hot, by calls": (hot, _BY_CALLS),
    "hot, measured": (hot, {}),
    "hot, equipoise.examples.visits": (hot, {"server": UVICORN}),
    "joining, measured": (joining, {}),
}


async def measure(folder: Path) -> dict[str, object]:
    """Each scene with both kinds of costs, on new logs."""
    results, lines = dict[str, object](), list[Timeline]()
    timeout = aiohttp.ClientTimeout(total=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for name, (scene, options) in SCENES.items():
            place = folder / name.replace(" ", "-")
            place.mkdir()
            cluster = Cluster(name, place, session, **options)
            results[name] = await scene(cluster)
            lines.append(cluster.timeline)
    plot(lines, FOLDER / "live.svg")
    return results


def plot(lines: Sequence[Timeline], path: Path) -> None:
    """Draw the share of each program in the CPU time (in the calls, if these cost the same), and
    the moves.
    """
    figure = Figure(figsize=(12, 2.4 * len(lines)), layout="constrained")
    for axis, line in zip(figure.subplots(len(lines), squeeze=False)[:, 0], lines, strict=True):
        figure_of = "calls" if "hot" in line.marks else "cpu_s"
        windows = line.windows(figure_of, min(line.marks.values()), line.looks[-1].at_s)
        for place in range(len(line.looks[-1].cpu_s)):
            points = [
                (at_s + WINDOW_S / 2, 100 * shares[place])
                for at_s, shares in windows
                if place < len(shares)
            ]
            axis.plot(*zip(*points, strict=True), label=f"program {place + 1}")
        for at_s, _, _ in line.moves():
            axis.axvline(at_s, color="#8C8C8C", linewidth=0.4, zorder=0)
        for name, at_s in line.marks.items():
            axis.annotate(f" {name}", (at_s, 0.97), xycoords=("data", "axes fraction"), va="top")
            axis.axvline(at_s, color="black", linewidth=0.8)
        title = "calls" if figure_of == "calls" else "CPU time"
        axis.set_title(f"{line.name}: share of {title}, %", loc="left", fontsize=10)
        axis.set_ylim(0, 100)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=PROGRAMS + 1)
    figure.savefig(path)


if __name__ == "__main__":
    report(
        "live",
        lambda folder: uvloop.run(measure(folder)),
        f"{PROGRAMS} processes of uvicorn and their callers on the same CPUs, {SHARDS} shards,"
        f" {CALLS_PER_SECOND:.0f} calls/s, the log in SQLite",
    )
