"""What a rolling restart of three FastAPI programs costs, one after another by SIGTERM: changes of
owner, the time to the end of each process, and the shares of shards: `make bench BENCH=rolling`, in
seven minutes.

Kinds of load: `idle`, no calls; `remembering`, callers that call each key where it was served last;
`scattered`, callers that ask any program, also one that drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import uvloop
from fastapi import FastAPI

from equipoise import Equipoise, Keyed
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from tests.benchmarks.frame import Results, report, single, summary
from tests.benchmarks.live import SHARDS, keys_by_shard
from tests.load.fastapi_programs import PatientCallers, Program

PROGRAMS, CALLS_PER_SECOND = 3, 200.0
PAGES: Final = [page for pages in keys_by_shard().values() for page in pages]
ROUNDS: Final = 3
SETTLE_S: Final = 10.0
"""How soon after a start or an end the shares of shards should be fair."""

LOADS: Final = ("idle", "remembering", "scattered")
SERVER: Final = (
    "uvicorn",
    "tests.benchmarks.rolling:program",
    "--factory",
    "--port",
    "PORT",
    "--no-access-log",
)


@dataclass
class Page:
    """A small state."""

    visits: int = 0


def program() -> FastAPI:
    """Return a program that counts calls by key."""
    app, pages = FastAPI(), Keyed("web/pages", Page, shards=SHARDS)

    @app.post("/visits/{name}")
    @pages.route("name")
    async def visit(name: str, page: Page) -> int:
        page.visits += 1
        return page.visits

    Equipoise(os.environ["EQUIPOISE_LOG"], pages, cluster="rolling").install(app)
    return app


class Restarts:
    """Programs, what their restarts took, and how often shards changed their owner."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession) -> None:
        self._log_url = f"sqlite:{folder}/visits.db"
        self._folder = folder
        self.programs = [self._program() for _ in range(PROGRAMS)]
        self.ends_s: list[float] = []
        self.changes: list[tuple[int, int]] = []
        self.shares: list[Sequence[int]] = []
        self._session = session
        self._table = TableView(lambda: open_log(self._log_url), name=self._log_url)
        self._changed = 0

    def _program(self) -> Program:
        return Program(self._log_url, self._folder, server=SERVER)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the programs, and wait until shares have settled."""
        try:
            for each in self.programs:
                await each.start(self._session)
            async with self._table:
                self._table.listen(self._note)
                await self._settle()
                yield
        finally:
            for each in self.programs:
                await each.kill()

    async def roll(self) -> None:
        """Restart each program once, the next as soon as the last is ready."""
        before = self._changed
        for each in self.programs:
            await self._end(each)
            await each.start(self._session)
        restarted = self._changed - before
        await self._settle()
        self.changes.append((restarted, self._changed - before))

    async def grow(self) -> None:
        """Start a fourth program, and end it."""
        self.programs.append(self._program())
        await self.programs[-1].start(self._session)
        await self._settle()
        await self._end(self.programs.pop())
        await self._settle()

    async def _end(self, program: Program) -> None:
        began_s = time.perf_counter()
        await program.terminate()
        self.ends_s.append(time.perf_counter() - began_s)

    async def _settle(self) -> None:
        await asyncio.sleep(SETTLE_S)
        view = self._table.view
        held = Counter(bundle.server for bundle in view.bundles_of("web/pages"))
        self.shares.append(sorted(held[incarnation] for incarnation in view.live))

    def _note(self, folded: Folded) -> None:
        self._changed += sum(
            isinstance(change, BundleChanged)
            and change.before is not None
            and change.after is not None
            and change.before.phase in ("assigning", "handing_over")
            and change.after.phase == "owned"
            for change in folded.verdict.changes
        )

    def figures(self) -> Results:
        """What was seen."""
        restarting, settled = zip(*self.changes, strict=True)
        return {
            "changes_until_restarted": {**summary(restarting, "changes"), "all": restarting},
            "changes_until_settled": {**summary(settled, "changes"), "all": settled},
            "to_the_end": {
                **summary(self.ends_s, "s"),
                "all": [round(each, 2) for each in self.ends_s],
            },
            "shares_apart": {
                **summary([max(held) - min(held) for held in self.shares], "shards"),
                "all": self.shares,
            },
        }


async def measure(folder: Path) -> Mapping[str, object]:
    """Restart all programs some times under each load."""
    results = dict[str, object]()
    for name in LOADS:
        place = folder / name
        place.mkdir()
        async with aiohttp.ClientSession() as session:
            restarts = Restarts(place, session)
            callers = PatientCallers(
                [each.address for each in restarts.programs],
                pages=PAGES,
                rate=CALLS_PER_SECOND / len(PAGES),
                remembers=name == "remembering",
            )
            async with restarts.running():
                calling = contextlib.nullcontext() if name == "idle" else callers.calling()
                async with calling:
                    for _ in range(ROUNDS):
                        await restarts.roll()
                    await restarts.grow()
        lengths_ms = [1e3 * length_s for _, length_s in callers.calls]
        results[name] = {
            **restarts.figures(),
            **({"call": summary(lengths_ms, "ms")} if lengths_ms else {}),
            "broken": single(len(callers.broken), f"calls of {len(lengths_ms):,}"),
        }
    return results


if __name__ == "__main__":
    report(
        "rolling",
        lambda folder: uvloop.run(measure(folder)),
        f"{PROGRAMS} processes of uvicorn and their callers on the same CPUs, {SHARDS} shards,"
        f" {CALLS_PER_SECOND:.0f} calls/s for {len(PAGES)} keys, as many of each shard, the"
        f" log in SQLite, {ROUNDS} rolling restarts by SIGTERM under each load",
    )
