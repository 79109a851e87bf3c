"""The session example over real WebSockets: sessions move, and die, with brokers while their
clients talk.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest

from equipoise import Ownership, Worker
from equipoise.examples.session_client import SessionClient, SessionLostError
from equipoise.examples.sessions import GO_ON, INVALID, LOST, Sessions
from equipoise.pytest import MakeProcesses

pytestmark = pytest.mark.integration

NAMESPACE = "web/chats"
SESSIONS = ("red", "green", "blue", "grey")
NAMES = ("ann", "bob")
DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running(clients: Sequence[SessionClient]) -> AsyncIterator[None]:
    """Run clients meanwhile. None may fail."""
    tasks = [asyncio.ensure_future(client.run()) for client in clients]
    try:
        yield
        assert not [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def create(http: aiohttp.ClientSession, address: str) -> None:
    """Create the namespace, once the broker is ready."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with http.put(f"{address}/admin/v2/namespaces/{NAMESPACE}") as answer:
                if answer.ok:
                    return
            await asyncio.sleep(0.05)


async def all_have(clients: Sequence[SessionClient], count: int) -> None:
    """Wait until each client has so many messages."""
    async with asyncio.timeout(DEADLINE_S):
        for client in clients:
            while len(client.messages) < count:  # noqa: ASYNC110 - clients have no event for it
                await asyncio.sleep(0.01)


def test_no_message_is_lost_or_doubled_while_sessions_move(
    equipoise_processes: MakeProcesses,
) -> None:
    """Clients that follow their session get the same messages in the same order, through unloads of
    all bundles and drains of brokers.
    """
    cluster = equipoise_processes(
        "equipoise.examples.sessions:Sessions", settings={"balance": "false"}
    )

    async def scenario() -> None:
        clients = {
            session: [SessionClient(cluster.addresses, NAMESPACE, session, name) for name in NAMES]
            for session in SESSIONS
        }
        everyone = [client for group in clients.values() for client in group]
        async with aiohttp.ClientSession() as http:
            await create(http, cluster.addresses[0])
            unload = ("PUT", f"{cluster.addresses[0]}/admin/v2/namespaces/{NAMESPACE}/unload")
            drains = [
                ("POST", f"{address}/admin/v2/brokers/drain") for address in cluster.addresses[1:]
            ]
            said = 0
            async with running(everyone):
                for number, request in enumerate((unload, unload, *drains), start=1):
                    moving = asyncio.ensure_future(http.request(*request))
                    while not moving.done() or said < 20 * number:
                        said += 1
                        for client in everyone:
                            client.say(str(said))
                        await asyncio.sleep(0.005)
                    async with await moving as answer:
                        assert answer.ok, await answer.text()
                await all_have(everyone, said * len(NAMES))
        for group in clients.values():
            first, *others = (client.messages for client in group)
            assert all(first == other for other in others)
            for name in NAMES:
                expected = [(name, number, str(number)) for number in range(1, said + 1)]
                assert expected == [message for message in first if message[0] == name]

    asyncio.run(scenario())


async def closed(
    http: aiohttp.ClientSession, url: str, sent: str = "nonsense"
) -> tuple[object, str | None]:
    """Connect, send something, and return the code and the reason of the close."""
    async with http.ws_connect(url) as socket:
        await socket.send_str(sent)
        async with asyncio.timeout(DEADLINE_S):
            frame = await socket.receive()
        assert frame.type is aiohttp.WSMsgType.CLOSE
        return frame.data, frame.extra


async def test_a_client_learns_where_its_session_is_and_that_it_is_lost() -> None:
    """By the code and the reason with which a broker closes the connection, which browsers show to
    pages, too.
    """
    log = f"memory:{uuid.uuid4()}"
    path = f"/sessions/{NAMESPACE}/red?client=ann"
    async with (
        aiohttp.ClientSession() as http,
        Worker(log, Sessions(), http_port=0) as one,
        Worker(log, Sessions(), http_port=0) as two,
    ):
        await one.create_namespace(NAMESPACE)
        served = await one.route(NAMESPACE, "red")
        owner, other = (
            f"http://{each.broker_id}"
            for each in ((one, two) if isinstance(served, Ownership) else (two, one))
        )
        assert (GO_ON, owner) == await closed(http, other + path)
        for sent in ("nonsense", "[1]", "[1, 2]", '[2, "one is missing"]', "[" * 10_000):
            assert INVALID == (await closed(http, owner + path, sent))[0]
        assert LOST == (await closed(http, f"{owner}{path}&after=1"))[0]
        for query in ("", "?client=ann&after=x"):
            async with http.get(f"{owner}/sessions/{NAMESPACE}/red{query}") as answer:
                assert 400 == answer.status
        client = SessionClient([other], NAMESPACE, "red", "ann")
        client.messages.append(("ann", 1, "what a dead broker had"))
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(SessionLostError, match="began anew"):
                await client.run()
            with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
                await SessionClient([other], "web/nowhere", "red", "ann").run()
