"""A program joins once it is reached at the address that it advertises."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from equipoise import Equipoise, Keyed
from equipoise.brokers.runtime.loops import addresses
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.free_ports import free_ports
from tests.unit.security.signing import SETTINGS
from tests.unit.sharded.test_program import running

NAMESPACE = "web/pages"


@dataclass
class Page:
    visits: int = 0


def program(log: str, address: str, **settings: Any) -> tuple[Keyed[Page], FastAPI]:  # noqa: ANN401
    app, pages = FastAPI(), Keyed(NAMESPACE, Page, shards=4)

    @app.post("/visits/{name}")
    @pages.route("name")
    async def visit(name: str, page: Page) -> int:
        page.visits += 1
        return page.visits

    Equipoise(log, pages, cluster="test", address=address, **settings).install(app)
    return pages, app


@asynccontextmanager
async def listening(app: Any, port: int, *, lifespan: str = "on") -> AsyncIterator[None]:  # noqa: ANN401
    config = uvicorn.Config(app, port=port, log_config=None, lifespan=lifespan)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await serving


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server listens within 0.1 s here."""
    monkeypatch.setattr(addresses, "_LISTENS_AFTER_MS", 100)


def has(pages: Keyed[Page], *, bundles: int) -> bool:
    return f", {bundles} open bundles>" in repr(pages)


async def test_a_program_joins_once_it_is_reached_at_its_own_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until then it takes no bundles, says why, and its callers wait. It creates its namespaces
    afterwards.
    """
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    pages, app = program(f"memory:{uuid.uuid4()}", address)
    async with running(app) as client:
        waiting = asyncio.create_task(client.post("/visits/home"))
        await until(lambda: "not reachable" in caplog.text)
        ready = await client.get("/equipoise/ready")
        assert 503 == ready.status_code
        problem = f"it takes no bundles: {address}/equipoise/health does not lead to this broker: "
        assert any(each.startswith(problem) for each in ready.json()["problems"])
        assert 1 == caplog.text.count(problem)
        assert 'whose="own"} 1.0' in (await client.get("/equipoise/metrics")).text
        assert has(pages, bundles=0)
        async with listening(app, port, lifespan="off"):
            assert 1 == (await waiting).json()
            assert (await client.get("/equipoise/ready")).is_success
            assert 'whose="own"} 0.0' in (await client.get("/equipoise/metrics")).text


async def test_a_program_at_the_address_of_another_takes_no_bundles(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = f"memory:{uuid.uuid4()}"
    port, other = free_ports(2)
    good, app = program(log, f"http://127.0.0.1:{port}", broker_id="good", data_dir=tmp_path)
    wrong, misled = program(log, f"http://localhost:{port}")
    async with listening(app, port):
        await until(lambda: has(good, bundles=4))
        async with listening(misled, other):
            await until(lambda: "not reachable" in caplog.text)
            assert "does not lead to this broker: good answers" in caplog.text
            assert has(wrong, bundles=0)
    assert 1 == caplog.text.count("not reachable")


async def test_a_program_with_authentication_knows_itself() -> None:
    """Nobody else learns anything by the answer."""
    (port,) = free_ports(1)
    pages, app = program(
        f"memory:{uuid.uuid4()}",
        f"http://127.0.0.1:{port}",
        **SETTINGS,
    )
    async with listening(app, port):
        await until(lambda: has(pages, bundles=4))
        async with httpx.AsyncClient() as client:
            health = await client.get(f"http://127.0.0.1:{port}/equipoise/health")
        assert {"status": "ok"} == health.json()


async def test_the_start_of_a_program_refuses_the_log_of_another_cluster() -> None:
    log, port = f"memory:{uuid.uuid4()}", free_ports(1)[0]
    pages, app = program(log, f"http://127.0.0.1:{port}")
    async with listening(app, port):
        await until(lambda: has(pages, bundles=4))
        other = FastAPI()
        Equipoise(log, cluster="crawler", address="http://127.0.0.1:9").install(other)
        with pytest.raises(OperatorError, match="belongs to cluster 'test', not 'crawler'"):
            async with running(other):
                pass


async def test_a_program_joins_unasked_if_the_setting_says_so() -> None:
    (port,) = free_ports(1)
    pages, app = program(f"memory:{uuid.uuid4()}", f"http://127.0.0.1:{port}", check_address=False)
    async with running(app):
        await until(lambda: has(pages, bundles=4))
