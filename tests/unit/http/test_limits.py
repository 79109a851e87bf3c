"""What one identity may take of HTTP, and that others are served beside it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import httpx
import pytest
import uvicorn
from aiohttp import web

from equipoise.brokers.http import authentication
from equipoise.brokers.http.caller import CALLED_FROM, address_of
from equipoise.brokers.http.connections import Connection, Connections
from equipoise.brokers.runtime import access
from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.limits import Limit, of_role
from tests.unit.http.cluster import Broker, Gate, told, with_broker
from tests.unit.http.test_connections import Caller
from tests.unit.security.signing import SETTINGS, bearer, token

pytestmark = pytest.mark.integration


@dataclass
class Clock:
    """The time of the limits."""

    now_ms: int = 1_000_000


TENANTS = "/admin/v2/tenants"
GREEDY, MODEST = bearer(token("greedy")), bearer(token("modest"))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time stands still for the limits, unless a test lets it pass."""
    made = Clock()
    monkeypatch.setattr(authentication, "now_ms", lambda: made.now_ms)
    return made


def exceeded(broker: Broker, limit: Limit) -> float:
    """How often HTTP met an excess. No path is not limited."""
    return broker.sample("limits_exceeded_total", surface="http", limit=limit.value)


async def from_address(address: str, broker: Broker, path: str) -> int:
    """The status of a GET from another address of this machine."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(broker.url + path) as answer,
    ):
        return answer.status


@with_broker(identity_requests_per_second_max=2)
async def test_requests_beyond_the_rate_of_an_address_are_answered_429(
    broker: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, access.__name__)
    statuses = [(await broker.get(TENANTS)).status for _ in range(4)]
    assert [200] * 4 == statuses
    refused = await broker.get(TENANTS)
    assert (429, "TooManyRequests") == told(refused)
    assert (
        "address 127.0.0.1 sends more than 2 requests a second (setting"
        " identity_requests_per_second_max)" in refused.reason
    )
    assert "1" == refused.headers["Retry-After"]
    assert {200} == {(await broker.get(path)).status for path in ("/health", "/ready")}
    # A header of the client does not change its address.
    assert 429 == (await broker.ask("GET", TENANTS, headers={CALLED_FROM: "10.0.0.7"})).status
    assert 200 == await from_address("127.0.0.2", broker, TENANTS)
    assert 2 == exceeded(broker, Limit.REQUESTS)
    clock.now_ms += 1_000 * int(refused.headers["Retry-After"])
    assert 200 == (await broker.get(TENANTS)).status
    (line,) = [
        record.__dict__
        for record in caplog.records
        if record.name == access.__name__ and "limit" in record.__dict__
    ]
    assert ("http", "requests", 1) == (line["port"], line["limit"], line["times"])


@with_broker(identity_requests_per_second_max=1, **SETTINGS)
async def test_roles_have_limits_of_their_own_and_brokers_none(broker: Broker) -> None:
    async def statuses(headers: Mapping[str, str]) -> list[int]:
        return [(await broker.ask("GET", TENANTS, headers=headers)).status for _ in range(3)]

    assert [200, 200, 429] == await statuses(GREEDY)
    assert [200, 200, 429] == await statuses(MODEST)
    assert [200, 200, 200] == await statuses(bearer(token("broker")))
    assert [401, 401, 401] == await statuses({})
    assert {of_role("broker")} == broker.worker.access.limits.unlimited


@with_broker(identity_connections_max=1)
async def test_a_connection_that_is_lost_counts_for_no_role_and_keeps_its_address(
    broker: Broker,
) -> None:
    """A client may go away while its password is checked."""
    connection = Connections(web.Server(MagicMock()), broker.worker).made()
    assert isinstance(connection, Connection)
    of_client = {"peername": ("127.0.0.9", 7), "sockname": ("127.0.0.1", 8)}
    connection.connection_made(
        MagicMock(get_extra_info=lambda name, default=None: of_client.get(name, default))
    )
    connection.connection_lost(None)
    assert all(connection.is_used_by("role x", broker.worker.access.limits) for _ in range(2))
    assert broker.worker.access.limits.connect(Surface.HTTP, "role x")
    request = MagicMock(protocol=connection, transport=None, headers={CALLED_FROM: "10.0.0.7"})
    assert "127.0.0.9" == address_of(request)


@with_broker(identity_connections_max=2, **SETTINGS)
async def test_the_connections_of_a_role_are_limited_wherever_they_come_from(
    broker: Broker,
) -> None:
    """A connection counts for a role from its first request on."""

    async def asked(connector: aiohttp.TCPConnector, headers: Mapping[str, str]) -> tuple[int, str]:
        session = aiohttp.ClientSession(connector=connector, connector_owner=False, headers=headers)
        async with session, session.get(broker.url + TENANTS) as answer:
            return answer.status, await answer.text()

    connectors = [aiohttp.TCPConnector(local_addr=(f"127.0.0.{host}", 0)) for host in (2, 3, 4)]
    first, second, third = connectors
    assert [200] * 4 == [(await asked(each, GREEDY))[0] for each in (first, second, first, second)]
    status, answer = await asked(third, GREEDY)
    assert (429, "TooManyRequests") == (status, json.loads(answer)["error"])
    assert "role 'greedy' has 2 connections open (setting identity_connections_max)" in answer
    assert 200 == (await asked(third, MODEST))[0]
    await first.close()
    while (await asked(third, GREEDY))[0] != 200:
        pass
    for each in connectors:
        await each.close()


@with_broker(identity_connections_max=2, **SETTINGS)
async def test_the_connections_of_an_address_are_limited_before_authentication(
    broker: Broker,
) -> None:
    open_ = [await Caller.to(broker) for _ in range(2)]
    third = await Caller.to(broker)
    third.say("/health")
    status, answer = await third.answer()
    assert (429, "TooManyRequests") == (status, answer["error"])
    assert "address 127.0.0.1 has 2 connections open (setting identity_connections_max)" in str(
        answer["reason"]
    )
    assert b"" == await third.is_over()
    assert 200 == await from_address("127.0.0.2", broker, "/health")
    assert 200 == (await open_[0].ask("/ready"))[0], "other clients can connect"
    assert 1 == exceeded(broker, Limit.CONNECTIONS)
    open_[0].close()
    late = await Caller.to(broker)
    while (await late.ask("/health"))[0] != 200:
        late.close()
        late = await Caller.to(broker)
    for caller in (*open_, third, late):
        caller.close()


@with_broker(identity_bytes_per_second_max=1024)
async def test_bodies_beyond_the_rate_are_answered_429(broker: Broker) -> None:
    body = json.dumps({"allowedClusters": ["x" * 4_000]}).encode()
    first = await broker.ask("PUT", f"{TENANTS}/new", data=body)
    assert 429 != first.status
    refused = await broker.ask("PUT", f"{TENANTS}/new", data=body)
    assert (429, "TooManyRequests") == told(refused)
    assert (
        "sends more than 1024 bytes a second (setting identity_bytes_per_second_max)"
        in refused.reason
    )
    assert 1 == exceeded(broker, Limit.BYTES)


async def test_clients_of_a_mount_have_limits_by_the_address_that_the_program_reports() -> None:
    advertised = {"http": "http://127.0.0.1:8000"}
    settings: dict[str, Any] = {"identity_requests_per_second_max": 1, "insecure": True}
    made = Worker("memory:limits-of-a-mount", Gate(), advertised_addresses=advertised, **settings)
    app = made.asgi()
    async with made:
        found = {}
        for address in ("10.0.0.7", "10.0.0.8"):
            transport = httpx.ASGITransport(app, client=(address, 1_234))
            async with httpx.AsyncClient(
                transport=transport, base_url=advertised["http"]
            ) as client:
                # The program's own report counts, not that of its client.
                answers = [
                    await client.get(TENANTS, headers={CALLED_FROM: f"10.1.0.{number}"})
                    for number in range(3)
                ]
                found[address] = [answer.status_code for answer in answers]
    assert {"10.0.0.7": [200, 200, 429], "10.0.0.8": [200, 200, 429]} == found


async def test_a_body_that_comes_byte_by_byte_ends_behind_a_mount_too() -> None:
    """The head and the reading of answers are bounded by the program's server, or by nothing: see
    the reference.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    made = Worker(
        "memory:a-slow-body", Gate(), advertised_addresses={"http": url}, http_body_ms=100
    )
    server = uvicorn.Server(uvicorn.Config(made.asgi(), log_config=None, lifespan="off"))
    async with made:
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            caller = Caller(*await asyncio.open_connection(*listening.getsockname()))
            caller.writer.write(
                f"PUT {TENANTS}/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n".encode()  # noqa: E501
            )
            caller.writer.write(b"Content-Type: application/json\r\n\r\n")
            answering = asyncio.ensure_future(caller.answer())
            while not answering.done():
                caller.writer.write(b" ")
                await asyncio.sleep(0.005)
            status, answer = answering.result()
            assert (408, "BodyTooSlow") == (status, answer["error"])
            caller.close()
        finally:
            server.should_exit = True
            await serving
