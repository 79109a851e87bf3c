"""Objects with a store, in three processes, one of which ends under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from equipoise import SqliteStore
from tests.contract.store_adapters import EACH_STORE
from tests.load.fastapi_programs import UVICORN, Program, programs

pytestmark = pytest.mark.integration

STORED = tuple("tests.integration.stored_visits:app" if ":" in word else word for word in UVICORN)
PAGES = [f"page-{number}" for number in range(20)]
PAUSE_S = 0.02


class Visitors:
    """One caller for each page, who goes to any process, and to the next one after a failure."""

    def __init__(self, started: Sequence[Program]) -> None:
        self._started = started
        self.answers: dict[str, list[int]] = {page: [] for page in PAGES}

    async def call(self, session: aiohttp.ClientSession, page: str) -> None:
        for program in itertools.cycle(self._started):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(f"{program.address}/visits/{page}") as answer:
                    if answer.status == 200:
                        self.answers[page].append((await answer.json())["visits"])
            await asyncio.sleep(PAUSE_S)

    async def until_all_were_answered(self) -> None:
        before = Counter({page: len(answers) for page, answers in self.answers.items()})
        while any(len(self.answers[page]) == before[page] for page in PAGES):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)


@pytest.mark.parametrize(
    ("kind", "end", "unsaved_ms"),
    [
        ("sqlite", "kill", 0),
        ("postgres", "kill", 0),
        ("redis", "kill", 0),
        ("sqlite", "terminate", 3_600_000),
    ],
)
async def test_a_process_that_ends_loses_nothing_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, end: str, unsaved_ms: int
) -> None:
    """Each answer is greater than the last one, and the store has the last one or more. A process
    that is not killed saves what is unsaved.
    """
    monkeypatch.setenv("EQUIPOISE_UNSAVED_MS", str(unsaved_ms))
    with EACH_STORE[kind]() as server:
        monkeypatch.setenv("EQUIPOISE_STORE", server.url)
        async with (
            aiohttp.ClientSession() as session,
            programs(tmp_path, 3, session, STORED) as started,
        ):
            visitors = Visitors(started)
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                callers = [group.create_task(visitors.call(session, page)) for page in PAGES]
                await visitors.until_all_were_answered()
                await (started[1].kill() if end == "kill" else started[1].terminate())
                await visitors.until_all_were_answered()
                await started[1].start(session)
                await visitors.until_all_were_answered()
                for each in callers:
                    each.cancel()
            if end == "terminate":
                for program in started:
                    await program.terminate()
        store = server.open()
        for page, answers in visitors.answers.items():
            assert sorted(set(answers)) == answers
            stored = await store.load("web/pages", page)
            assert stored is not None
            assert json.loads(stored)["visits"] >= answers[-1]
        if not isinstance(store, SqliteStore):
            await store.aclose()
