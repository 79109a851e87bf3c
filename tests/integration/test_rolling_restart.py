"""The FastAPI example as three processes under uvicorn, with callers at a steady rate, while
SIGTERM restarts each process in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from equipoise import Client
from equipoise.brokers.operations.access import opened
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from tests.house.house_rules import ROOT
from tests.load.fastapi_programs import DEADLINE_S, UVICORN, PatientCallers, Program, programs
from tests.visits import NAMESPACE

pytestmark = pytest.mark.integration

PAGES = [f"page-{number}" for number in range(20)]
MORE_PAGES = [f"more-{number}" for number in range(20)]
PAUSE_S = 0.1
GUNICORN = (
    *(
        "gunicorn",
        "--worker-class",
        "uvicorn_worker.UvicornWorker",
        "--no-control-socket",
        "--graceful-timeout",
        "60",
        "--bind",
        "127.0.0.1:PORT",
    ),
    "equipoise.examples.visits:app",
)
WORKERS = ("uvicorn", "tests.integration.shared_port:app", "--workers", "2", "--port", "PORT")
AIOHTTP = ("equipoise.examples.aiohttp_app",)


class Callers:
    """One caller for each page or key. Each call uses a new connection, goes to where the last one
    was served, and follows redirects.

    A program that starts is a member slightly before uvicorn listens. Its ports are in `starting`,
    and calls that it refuses are repeated. Any other refused connection is a failure.
    """

    def __init__(
        self,
        address: str,
        path: str = "/visits/",
        field: str = "visits",
        pages: Sequence[str] = PAGES,
    ) -> None:
        """`path` is that of a page, without its name; `field` is the one of the answer that has the
        count.
        """
        self._pages = pages
        self._path = path
        self._field = field
        self.counts = Counter[str]()
        self.calls = Counter[str]()
        self.failures: list[str] = []
        self.starting: set[int] = set()
        self._served_at = dict.fromkeys(pages, address)
        self._stopping = asyncio.Event()

    async def call(self, session: aiohttp.ClientSession, page: str) -> None:
        """Visit a page once. Note a failure unless a program that starts refuses the connection.

        The counter answers 500 where it does not know whether it counted. The caller repeats that
        request, which counts once.
        """
        starting, request = set(self.starting), {"X-Request-Id": uuid.uuid4().hex}
        status = 500
        try:
            while status == 500:
                async with session.post(
                    f"{self._served_at[page]}{self._path}{page}", headers=request
                ) as answer:
                    status = answer.status
                    if status == 200:
                        self.calls[page] += 1
                        self.counts[page] = (await answer.json())[self._field]
                        self._served_at[page] = str(answer.url.origin())
                    elif status != 500 or self._field != "value":
                        self.failures.append(f"{answer.url}: {answer.status} {await answer.text()}")
                        return
        except aiohttp.ClientError as error:
            if not (isinstance(error, aiohttp.ClientConnectorError) and error.port in starting):
                self.failures.append(f"{self._served_at[page]}: {error!r}")

    async def _call_on(self, session: aiohttp.ClientSession, page: str) -> None:
        while not self._stopping.is_set():
            await self.call(session, page)
            await asyncio.sleep(PAUSE_S)

    async def restart(self, program: Program, session: aiohttp.ClientSession) -> None:
        """End a program and start it again. Until it listens, it may refuse connections."""
        await program.terminate()
        self.starting.add(program.port)
        await program.start(session)
        self.starting.clear()

    def check(self) -> None:
        """Check that no call has failed, and no visit was lost or counted twice."""
        assert [] == self.failures
        assert self.calls == self.counts
        assert min(self.calls.values()) > 3

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Call meanwhile, and finish the last calls at the end."""
        connector = aiohttp.TCPConnector(force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            asyncio.TaskGroup() as callers,
        ):
            for page in self._pages:
                callers.create_task(self._call_on(session, page))
            yield
            self._stopping.set()


@contextlib.asynccontextmanager
async def calling_by_key(
    log_url: str, counts: Counter[str], calls: Counter[str]
) -> AsyncIterator[None]:
    """Call `MORE_PAGES` meanwhile with the client of Equipoise. No call may fail, not even at a
    program that is starting.
    """
    stopping = asyncio.Event()

    async def call_on(client: Client, page: str) -> None:
        while not stopping.is_set():
            answer = await client.request("POST", NAMESPACE, page, f"/visits/{page}")
            assert 200 == answer.status_code, answer.text
            calls[page] += 1
            counts[page] = answer.json()["visits"]
            await asyncio.sleep(PAUSE_S)

    async with Client(log_url) as client, asyncio.TaskGroup() as callers:
        for page in MORE_PAGES:
            callers.create_task(call_on(client, page))
        yield
        stopping.set()


@pytest.mark.slow
async def test_a_rolling_restart_costs_callers_nothing(tmp_path: Path) -> None:
    """No call fails, no program that ends refuses one, and no visit is lost or counted twice."""
    async with aiohttp.ClientSession() as session, programs(tmp_path, 3, session) as started:
        callers = Callers(started[0].address)
        counts, calls = Counter[str](), Counter[str]()
        async with (
            callers.calling(),
            calling_by_key(f"sqlite:{tmp_path}/visits.db", counts, calls),
        ):
            for each in started:
                await callers.restart(each, session)
        callers.check()
        assert calls == counts
        assert min(calls.values()) > 3
        assert "Traceback" not in "".join(each.output.read_text() for each in started)


@pytest.mark.slow
async def test_a_rolling_restart_moves_little_and_ends_even(tmp_path: Path) -> None:
    """What is back is filled at the end. So most bundles move once, and those of the first program
    twice: no other program has been restarted yet when it ends.
    """
    log = f"sqlite:{tmp_path}/visits.db"
    changed = Counter[str]()

    def note(folded: Folded) -> None:
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before and change.after:
                phases = change.before.phase, change.after.phase
                changed["owners"] += phases in {("handing_over", "owned"), ("assigning", "owned")}

    async with (
        aiohttp.ClientSession() as session,
        programs(tmp_path, 3, session) as started,
        TableView(lambda: open_log(log), name=log) as table,
    ):

        def held() -> list[int]:
            owners = Counter(each.server for each in table.view.bundles_of(NAMESPACE))
            return [owners[incarnation] for incarnation in table.view.live]

        async def until_even() -> None:
            async with asyncio.timeout(DEADLINE_S):
                while sorted(held()) != [21, 21, 22]:  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(PAUSE_S)

        await until_even()
        table.listen(note)
        for each in started:
            await each.terminate()
            await each.start(session)
        await until_even()
        # 21, then 32 of each of the others, then 21 for the last one. If each were filled: 128.
        assert changed["owners"] <= 110


@pytest.mark.slow
async def test_callers_of_a_program_that_drains_get_no_reset(tmp_path: Path) -> None:
    """Also those that ignore readiness, on either event loop. A program that has ended may refuse a
    connection. A reset would leave open whether the visit was counted.
    """
    servers = [(*UVICORN, "--loop", loop) for loop in ("asyncio", "uvloop")]
    async with (
        aiohttp.ClientSession() as session,
        programs(tmp_path, 2, session, *servers) as started,
    ):
        pages = [*PAGES, *MORE_PAGES]
        callers = PatientCallers([each.address for each in started], pages=pages, rate=10.0)
        async with callers.calling():
            for each in started:
                await asyncio.sleep(1)
                await each.terminate()
                await each.start(session)
        assert [] == callers.broken
        assert len(callers.calls) > 100


@pytest.mark.parametrize(
    ("server", "path", "field"),
    [(GUNICORN, "/visits/", "visits"), (AIOHTTP, "/counter/shop/orders/", "value")],
)
async def test_under_other_servers_an_end_costs_callers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Sequence[str], path: str, field: str
) -> None:
    """Under gunicorn, which binds its port first, a start costs nothing either."""
    monkeypatch.setenv("EQUIPOISE_COUNTER_STORE", str(tmp_path / "counter.db"))
    async with (
        aiohttp.ClientSession() as session,
        programs(tmp_path, 2, session, server) as (goes, stays),
    ):
        callers = Callers(goes.address, path, field)
        async with callers.calling():
            await asyncio.sleep(1)
            await goes.terminate()
            if server == GUNICORN:
                await goes.start(session)
        assert [] == callers.failures
        assert callers.calls == callers.counts
        assert min(callers.calls.values()) > 3
        assert "Traceback" not in "".join(each.output.read_text() for each in (goes, stays))


async def test_processes_that_share_a_port_have_each_a_port_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers reach any process, which redirects them to the owner."""
    monkeypatch.setenv("EQUIPOISE_COUNTER_STORE", str(tmp_path / "counter.db"))
    program = Program(f"sqlite:{tmp_path}/visits.db", tmp_path, server=WORKERS)
    connector = aiohttp.TCPConnector(force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            await program.start(session, "/docs")
            async with asyncio.timeout(DEADLINE_S):
                # It is another process.
                while program.output.read_text().count("startup complete") < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            for expected in (1, 2, 3):
                for page in PAGES:
                    assert expected == await counted(
                        session, f"{program.address}/counter/shop/orders/{page}"
                    )
        with opened(f"sqlite:{tmp_path}/visits.db", timeout_ms=10_000) as access:
            assert 2 == len(access.view.live_brokers())
    finally:
        await program.terminate()


async def counted(session: aiohttp.ClientSession, url: str) -> int:
    """The count after one call, which is repeated with its request id while its outcome is not
    known: the machine may have stalled.
    """
    request_id = uuid.uuid4().hex
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with session.post(url, headers={"X-Request-Id": request_id}) as answer:
                if answer.status == 200:
                    return int((await answer.json())["value"])
                assert answer.status in {500, 503}, await answer.text()
            await asyncio.sleep(PAUSE_S)


async def test_open_streams_and_polls_do_not_keep_a_program(tmp_path: Path) -> None:
    """Uvicorn waits for all answers, and these would take minutes."""
    async with aiohttp.ClientSession() as session, programs(tmp_path, 2, session) as (goes, _):
        table = f"{goes.address}/equipoise/v1/assignment/web/pages"
        poll = asyncio.ensure_future(session.get(f"{table}?after=1000000&timeout_ms=300000"))
        async with session.get(table, headers={"Accept": "text/event-stream"}) as stream:
            assert (200, "text/event-stream") == (stream.status, stream.content_type)
            await goes.terminate()
            assert b"event: table" in await stream.read()
        async with await poll as answer:
            assert 204 == answer.status


async def test_commands_work_at_the_mount(tmp_path: Path) -> None:
    """Those that ask a broker by its address on the log, and those that are given the address."""

    async def command(*words: str) -> str:
        ran = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "equipoise.brokers.cli", *words),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output = (await ran.communicate())[0].decode()
        assert 0 == ran.returncode, output
        return output

    log = f"sqlite:{tmp_path}/visits.db"
    async with aiohttp.ClientSession() as session, programs(tmp_path, 2, session) as (goes, stays):
        assert "ready" in await command("brokers", "status", "--url", f"{goes.address}/equipoise")
        async with session.get(f"{goes.address}/equipoise/ready") as answer:
            broker = (await answer.json())["broker"]
        await command("namespaces", "unload", "web/pages", "--log", log)
        assert f"{broker} is drained" in await command("brokers", "drain", broker, "--log", log)
        for page in PAGES:
            async with session.post(f"{goes.address}/visits/{page}") as answer:
                assert (200, stays.port) == (answer.status, answer.url.port)


async def test_a_program_whose_broker_has_ended_answers_503(tmp_path: Path) -> None:
    """With the reason, and what to do."""
    async with aiohttp.ClientSession() as session, programs(tmp_path, 1, session) as (at,):
        (tmp_path / "visits.db").rename(tmp_path / "elsewhere.db")
        health = f"{at.address}/equipoise/health"
        async with asyncio.timeout(DEADLINE_S):
            while (await session.get(health)).status == 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(PAUSE_S)
        for answer in await session.get(health), await session.post(f"{at.address}/visits/home"):
            assert 503 == answer.status
            reason = (await answer.json())["reason"]
            assert "was replaced" in reason
            assert "start this program again" in reason
