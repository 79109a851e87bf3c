"""Brokers with authentication: scripted clients and the Python client, and the questions of brokers
to each other.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from equipoise.brokers.http.app import served
from equipoise.brokers.http.authentication import OPEN_PATHS
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, ServerError
from tests.pulsar.pulsar_speech import auth_response, connect, lookup
from tests.unit.pulsar.test_fetching import HASTY, delivered, waiting
from tests.unit.pulsar.wire_client import TOPIC, Member, brokers
from tests.unit.security.signing import SETTINGS, token

pytestmark = pytest.mark.integration

T = BaseCommand.Type
ME = token("a test")

# Sends a message to a topic and receives it. The arguments: URL, topic, time limit of an operation,
# and the token's file, if any.
PROGRAM = """
import sys
import pulsar
url, topic, timeout_s, *file = sys.argv[1:]
authentication = pulsar.AuthenticationToken(lambda: open(file[0]).read()) if file else None
client = pulsar.Client(url, authentication=authentication, operation_timeout_seconds=int(timeout_s))
try:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"hello")
    print(consumer.receive(60_000).data().decode())
    client.close()
except pulsar.PulsarException as error:
    print(type(error).__name__)
"""


async def refused(member: Member, reason: str, surface: str) -> float:
    """How many credentials a broker refused for a reason."""
    metrics = str(await member.get("/metrics"))
    line = next(
        each for each in metrics.splitlines() if f'reason="{reason}",surface="{surface}"' in each
    )
    return float(line.rpartition(" ")[2])


async def test_every_path_but_the_probes_and_the_page_needs_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths are those of the application with all its services, so that a new one is tested,
    too. The page's files hold no data.
    """
    apps: list[web.Application] = []

    # As `served` takes them.
    def noting(app: web.Application, *others: Any) -> AbstractAsyncContextManager[None]:  # noqa: ANN401
        apps.append(app)
        return served(app, *others)

    monkeypatch.setattr("equipoise.brokers.runtime.broker.served", noting)
    async with (
        brokers(tmp_path, config=SETTINGS) as running,
        aiohttp.ClientSession(running.members[0].http_url) as http,
    ):
        routes = [
            (each.method, each.resource.canonical)
            for each in apps[0].router.routes()
            if each.resource is not None
        ]
        assert len(routes) > 150
        for method, pattern in routes:
            path = re.sub(r"\{[^}]*\}", "x", pattern)
            async with http.request(
                "GET" if method == "*" else method, path, allow_redirects=False
            ) as answer:
                expected = {**dict.fromkeys(OPEN_PATHS, 200), "/": 200, "/page/{file}": 404}.get(
                    pattern, 401
                )
                assert expected == answer.status, (method, path)


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "missing"), ("nonsense", "malformed"), (token(exp=1), "expired")]
)
async def test_a_refused_client_gets_an_error_and_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, reason: str
) -> None:
    async with brokers(tmp_path, config=SETTINGS, token=ME) as running:
        caplog.set_level(logging.INFO)
        client = await running.members[0].client(handshake=False)
        client.write(connect(token=text) + lookup(1))
        error = (await client.receive(T.ERROR)).error
        await client.closed()
        assert ([], ServerError.AuthenticationError) == (client.names(), int(error.error))
        assert 1 == await refused(running.members[0], reason, "pulsar")
        (line,) = (each for each in caplog.records if each.msg == "disconnected a Pulsar client")
        assert "not_authenticated" == line.__dict__["reason"]
        assert text is None or text not in caplog.text + str(line.__dict__) + error.message


async def test_a_client_is_asked_for_a_fresh_token_and_refused_without_one(tmp_path: Path) -> None:
    """The token is valid for four seconds. The client sends it again after it has expired."""
    async with brokers(tmp_path, config=SETTINGS, token=ME) as running:
        member = running.members[0]
        gate = member.worker.access.gate
        assert gate is not None
        gate.now_s = lambda: 1_000.0
        text = token(exp=1_004)
        client = await member.client(token=text)
        assert member.url == await client.located()
        await client.receive(T.AUTH_CHALLENGE)
        gate.now_s = lambda: 1_004.0
        client.write(auth_response(text))
        error = (await client.receive(T.ERROR)).error
        await client.closed()
        assert (ServerError.AuthenticationError, True) == (
            int(error.error),
            "expired" in error.message,
        )


async def test_brokers_ask_each_other_with_their_own_token(tmp_path: Path) -> None:
    """One lists the topics of both, and fetches the state of a topic that moves to it."""
    async with brokers(
        tmp_path, count=2, config=SETTINGS, token=ME, settings=Settings(topics=HASTY)
    ) as running:
        owner, other = await waiting(running)
        assert [TOPIC] == await other.get("/admin/v2/non-persistent/public/default")
        await running.transfer(other)
        assert "1" == await delivered(other)
        assert 0 == other.service.counts.handovers_damaged
        assert [0.0, 0.0] == [await refused(member, "missing", "http") for member in (owner, other)]


async def ran(*arguments: str) -> list[str]:
    """The lines that the program prints, and those of the library's log."""
    url, *others = arguments
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, url, TOPIC, *others, stdout=pipe
    )
    out, _ = await process.communicate()
    return out.decode().splitlines()
