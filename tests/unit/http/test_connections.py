"""The connections of an HTTP port: how many there may be, and how long each may idle."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from equipoise.brokers.http import assignment, connections
from tests.pulsar.pulsar_speech import connect
from tests.unit.http.cluster import NAMESPACE, Broker, Cluster, cluster, with_broker, with_cluster

pytestmark = pytest.mark.integration

IDLE_MS = 100


class Caller:
    """One connection to a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, broker: Broker, *, limit: int = 1 << 16) -> Caller:
        host, port = broker.url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=limit))

    def say(self, path: str, *headers: str) -> None:
        self.writer.write(
            "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", "")).encode()
        )

    async def answer(self) -> tuple[int, Mapping[str, object]]:
        """The status and the document of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1])
            for line in head.split("\r\n")
            if line.lower().startswith("content-length")
        )
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def ask(self, path: str) -> tuple[int, Mapping[str, object]]:
        self.say(path)
        return await self.answer()

    async def is_over(self) -> bytes:
        """Everything that the broker sends until it ends the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()


@with_broker(http_connections_max=2)
async def test_a_connection_beyond_the_bound_is_answered_503_with_the_setting(
    broker: Broker,
) -> None:
    first, second = await Caller.to(broker), await Caller.to(broker)
    assert HTTPStatus.OK == (await second.ask("/health"))[0]
    status, told = await first.ask("/ready")
    assert HTTPStatus.SERVICE_UNAVAILABLE == status
    assert [
        (
            "it accepts no more HTTP connections: 2 are open (setting http_connections_max, or"
            " fewer where ulimit -n is low)"
        )
    ] == told["problems"]
    third = await Caller.to(broker)
    third.say("/ready")
    status, told = await third.answer()
    assert (HTTPStatus.SERVICE_UNAVAILABLE, "Overloaded") == (status, told["error"])
    assert "http_connections_max" in str(told["reason"])
    assert b"" == await third.is_over()
    third.close()
    second.close()
    # What is watched is on the other side.
    while (await first.ask("/ready"))[0] != HTTPStatus.OK:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    fourth = await Caller.to(broker)
    assert HTTPStatus.OK == (await fourth.ask("/health"))[0]
    first.close()
    fourth.close()


@with_broker(http_connections_max=1)
async def test_rejected_connections_make_no_room_for_others(broker: Broker) -> None:
    first = await Caller.to(broker)
    assert HTTPStatus.OK == (await first.ask("/health"))[0]
    # They connect in one go, so that all of them are there before the first one is gone.
    others = await asyncio.gather(*(Caller.to(broker) for _ in range(40)))
    for other in others:
        other.say("/health", "Connection: close")
    told = await asyncio.gather(*(other.is_over() for other in others))
    late = await Caller.to(broker)
    late.say("/health", "Connection: close")
    told.append(await late.is_over())
    assert {answer.partition(b"\r\n")[0] for answer in told} <= {
        b"",
        b"HTTP/1.1 503 Service Unavailable",
    }
    for caller in (first, late, *others):
        caller.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET /health HTTP/1.1\r\nHost: loc"], ids=["nothing", "half a head"]
)
@with_broker(http_idle_ms=IDLE_MS)
async def test_a_connection_without_a_request_is_closed_after_http_idle_ms(
    broker: Broker, said: bytes
) -> None:
    caller = await Caller.to(broker)
    caller.writer.write(said)
    assert b"" == await caller.is_over()
    caller.close()


@with_broker(http_idle_ms=IDLE_MS)
async def test_http_idle_ms_bounds_the_whole_head(broker: Broker) -> None:
    caller = await Caller.to(broker)
    over = asyncio.ensure_future(caller.is_over())
    caller.writer.write(b"GET /health HTTP/1.1\r\nX: ")
    while not over.done():
        caller.writer.write(b"x")
        await asyncio.sleep(0.005)
    caller.close()


@with_broker(http_idle_ms=IDLE_MS)
async def test_a_connection_is_kept_for_http_idle_ms(broker: Broker) -> None:
    caller = await Caller.to(broker)
    for _ in range(2):
        assert HTTPStatus.OK == (await caller.ask("/health"))[0]
    assert b"" == await caller.is_over()
    caller.close()


@with_cluster(http_idle_ms=IDLE_MS, http_body_ms=IDLE_MS)
async def test_polls_and_streams_are_not_idle(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "HEARTBEAT_MS", IDLE_MS)
    broker = brokers.brokers[0]
    offset = broker.worker.view.offset
    stream, poll = await Caller.to(broker), await Caller.to(broker)
    stream.say(f"/v1/assignment/{NAMESPACE}", "Accept: text/event-stream")
    await stream.reader.readuntil(b"event: table")
    poll.say(f"/v1/assignment/{NAMESPACE}?after={offset}")
    for _ in range(5):
        await stream.reader.readuntil(b":\n\n")
    bundle = brokers.bundles()[0]
    assert (
        HTTPStatus.NO_CONTENT == (await broker.put(f"/admin/v2/namespaces/{bundle}/unload")).status
    )
    await stream.reader.readuntil(b"event: change")
    assert HTTPStatus.OK == (await poll.answer())[0]
    stream.close()
    poll.close()


@with_broker(http_idle_ms=IDLE_MS)
async def test_a_caller_that_reads_no_answer_is_disconnected(broker: Broker) -> None:
    caller = await Caller.to(broker, limit=1)
    try:
        while True:
            caller.say("/metrics")
            await caller.writer.drain()
    except ConnectionError:
        caller.close()


UPLOAD = (
    b"PUT /admin/v2/namespaces/acme/new HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
    b" application/json\r\n"
)
BAD = (
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    UPLOAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
)


async def test_interrupted_uploads_log_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, balance=False) as brokers:
        broker = brokers.brokers[0]
        begun = len(asyncio.all_tasks())
        for rest in 10 * (
            b"Content-Length: 100\r\n\r\n{",
            b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        ):
            caller = await Caller.to(broker)
            caller.writer.write(UPLOAD + rest)
            # What is watched is on the other side.
            while len(asyncio.all_tasks()) <= begun:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            caller.writer.transport.abort()
            while len(asyncio.all_tasks()) > begun:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
    assert [] == [record.message for record in caplog.records if record.exc_info]


async def test_invalid_http_is_answered_400_and_logs_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, balance=False) as brokers:
        for said in BAD:
            caller = await Caller.to(brokers.brokers[0])
            caller.writer.write(said)
            answer = await caller.is_over()
            assert b" 400 Bad Request\r\n" in answer
            assert b"\r\nServer: equipoise\r\n" in answer
            assert {"reason", "error"} == set(json.loads(answer.partition(b"\r\n\r\n")[2]))
            caller.close()
    assert [] == [record.message for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("said", "reason", "advice"),
    [
        (
            connect(),
            "pulsar",
            "a Pulsar client connected to the HTTP port; use pulsar://broker:6650",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls", "use http:// instead of https://"),
    ],
    ids=["Pulsar", "TLS"],
)
async def test_a_client_of_another_port_is_told_apart(
    *,
    said: bytes,
    reason: str,
    advice: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line says what to do, however often the client tries again."""
    caplog.set_level(logging.INFO, connections.__name__)
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        addresses = {**broker.worker.profile.addresses, "pulsar": "pulsar://broker:6650"}
        monkeypatch.setattr(
            broker.worker, "profile", replace(broker.worker.profile, addresses=addresses)
        )
        for _ in range(3):
            caller = await Caller.to(broker)
            caller.writer.write(said)
            status, told = await caller.answer()
            assert (HTTPStatus.BAD_REQUEST, "WrongPort", True) == (
                status,
                told["error"],
                advice in str(told["reason"]),
            )
            caller.close()
    (line,) = [record.__dict__ for record in caplog.records if record.name == connections.__name__]
    assert ("refused a connection that is not HTTP", reason, 0) == (
        line["message"],
        line["reason"],
        line["left_out"],
    )
    assert advice in line["problem"]
