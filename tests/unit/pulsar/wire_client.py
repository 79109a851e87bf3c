"""A scripted client of Pulsar's protocol, and brokers on one loop that it connects to."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
from yarl import URL

from equipoise.brokers.agent.requests import CreateNamespace, Transfer
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandSubscribe,
)
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries, topic_hash
from equipoise.channel.core.view import View
from tests.pulsar.pulsar_speech import connect, entry, flow, frame_of, pong, send
from tests.unit.http.cluster import Test, story, until

NAMESPACE = "public/default"
TOPIC = f"non-persistent://{NAMESPACE}/orders"
PATIENCE_MS = 20_000
PAYLOAD_HEAD = b"hello "

T = BaseCommand.Type


class WireClient:
    """One connection. By default it answers PINGs and reads all that it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.inbox: list[tuple[BaseCommand, bytes]] = []
        self.is_closed = False
        self.answers_pings = True
        self._news = asyncio.Event()
        self._request_ids = iter(range(1_000_000))
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def connected(
        cls,
        url: str,
        *,
        handshake: bool = True,
        token: str | None = None,
        address: str | None = None,
    ) -> Self:
        """Connect to `pulsar://host:port`, from an `address` of this machine if given. Without
        `handshake` send nothing.
        """
        host, _, port = url.removeprefix("pulsar://").rpartition(":")
        client = cls(
            *await asyncio.open_connection(host, int(port), local_addr=address and (address, 0))
        )
        client.read()
        if handshake:
            client.write(connect(token=token))
            await client.receive(T.CONNECTED)
        return client

    def write(self, data: bytes) -> None:
        """Write any bytes."""
        self._writer.write(data)

    async def drained(self) -> None:
        """Wait until all bytes are sent."""
        await self._writer.drain()

    def read(self) -> None:
        """Start to read."""
        self._reading = asyncio.ensure_future(self._read())

    async def stop_reading(self) -> None:
        """Stop reading, so that the broker's writes accumulate."""
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def half_close(self) -> None:
        """End the stream to the broker."""
        self._writer.write_eof()

    def vanish(self) -> None:
        """Abort the connection."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection."""
        self.vanish()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def outlive(self) -> None:
        """Read all that a broker sent before it ended, and close the connection."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
        self.vanish()

    async def _read(self) -> None:
        try:
            while True:
                total, size = struct.unpack(">II", await self._reader.readexactly(8))
                body = await self._reader.readexactly(total - 4)
                command = BaseCommand.FromString(body[:size])
                assert command.IsInitialized()
                if command.type == T.PING and self.answers_pings:
                    self.write(pong())
                self.inbox.append((command, body[size:]))
                self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_closed = True
            self._news.set()

    async def receive(
        self, kind: BaseCommand.Type, matches: Callable[[BaseCommand], bool] = lambda _: True
    ) -> BaseCommand:
        """Wait for the next command of a type, and take it from the inbox. Fail if the connection
        is closed before.
        """
        return (await self.take(kind, matches))[0]

    async def receive_message(self) -> tuple[int, int, str]:
        """Wait for the next MESSAGE: its consumer, its entry id, and the text that was
        published.
        """
        command, block = await self.take(T.MESSAGE)
        text = block[block.index(PAYLOAD_HEAD) + len(PAYLOAD_HEAD) :]
        return command.message.consumer_id, command.message.message_id.entryId, text.decode()

    async def answer_to(self, request_id: int) -> tuple[BaseCommand, bytes]:
        """Wait for the answer to a request, and take it from the inbox."""

        def answers(command: BaseCommand) -> bool:
            body = getattr(command, command.DESCRIPTOR.fields_by_number[command.type].name)
            return getattr(body, "request_id", None) == request_id

        return await self.take(None, answers)

    async def take(
        self,
        kind: BaseCommand.Type | None,
        matches: Callable[[BaseCommand], bool] = lambda _: True,
    ) -> tuple[BaseCommand, bytes]:
        """As `receive`, with the block behind the command. None: of any type."""
        while True:
            for place, (command, block) in enumerate(self.inbox):
                if kind in {None, command.type} and matches(command):
                    del self.inbox[place]
                    return command, block
            assert not self.is_closed, f"closed before {kind}: {self.names()}"
            self._news.clear()
            await self._news.wait()

    async def answer(self) -> BaseCommand:
        """Wait for the next command of any type, and take it from the inbox."""
        while not self.inbox:
            self._news.clear()
            await self._news.wait()
        return self.inbox.pop(0)[0]

    async def closed(self) -> None:
        """Wait until the broker has closed the connection."""
        while not self.is_closed:
            self._news.clear()
            await self._news.wait()

    def names(self) -> list[str]:
        """The types of the commands in the inbox."""
        return [T.Name(command.type) for command, _ in self.inbox]

    def request_id(self) -> int:
        """A new request id."""
        return next(self._request_ids)

    # --- conversations ---

    async def located(self, topic: str = TOPIC) -> str:
        """Look a topic up: the address that the broker answers."""
        self.ask(T.LOOKUP, topic=topic)
        return (await self.receive(T.LOOKUP_RESPONSE)).lookup_response.brokerServiceUrl

    # The fields that Pulsar gives it.
    def ask(self, kind: BaseCommand.Type, **body: Any) -> int:  # noqa: ANN401
        """Send a request. Return its id."""
        request_id = self.request_id()
        self.write(frame_of(kind, request_id=request_id, **body))
        return request_id

    # As above.
    def ask_producer(
        self,
        producer_id: int,
        topic: str = TOPIC,
        *,
        name: str | None = None,
        **body: Any,  # noqa: ANN401
    ) -> int:
        """Send PRODUCER. Return the request's id."""
        return self.ask(
            T.PRODUCER, topic=topic, producer_id=producer_id, producer_name=name, **body
        )

    # As above.
    async def producer(
        self,
        producer_id: int,
        topic: str = TOPIC,
        *,
        name: str | None = None,
        **body: Any,  # noqa: ANN401
    ) -> str:
        """Open a producer. Return its name."""
        request_id = self.ask_producer(producer_id, topic, name=name, **body)
        answer = await self.receive(
            T.PRODUCER_SUCCESS, lambda command: command.producer_success.request_id == request_id
        )
        return answer.producer_success.producer_name

    def ask_consumer(
        self,
        consumer_id: int,
        topic: str = TOPIC,
        *,
        subscription: str = "s",
        kind: CommandSubscribe.SubType = CommandSubscribe.Exclusive,
        name: str = "",
        **body: Any,  # noqa: ANN401 - as above
    ) -> int:
        """Send SUBSCRIBE. Return the request's id."""
        who = {"consumer_id": consumer_id, "consumer_name": name}
        return self.ask(
            T.SUBSCRIBE, topic=topic, subscription=subscription, subType=kind, **who, **body
        )

    # As above.
    async def consumer(
        self,
        consumer_id: int,
        topic: str = TOPIC,
        *,
        permits: int = 1_000,
        **body: Any,  # noqa: ANN401
    ) -> None:
        """Subscribe as `ask_consumer` does, and grant permits."""
        request_id = self.ask_consumer(consumer_id, topic, **body)
        await self.receive(T.SUCCESS, lambda command: command.success.request_id == request_id)
        if permits:
            self.flow(consumer_id, permits)

    def flow(self, consumer_id: int, permits: int) -> None:
        """Grant permits."""
        self.write(flow(consumer_id, permits))

    def publish(self, producer_id: int, sequence_id: int, text: str, *, padding: int = 0) -> None:
        """Send a message without waiting for its receipt."""
        self.write(
            send(producer_id, sequence_id, entry(b" " * padding + PAYLOAD_HEAD + text.encode()))
        )

    async def receipt(self, producer_id: int, sequence_id: int) -> None:
        """Wait for the next receipt of a producer, which must be this one."""
        receipt = (
            await self.receive(
                T.SEND_RECEIPT, lambda command: command.send_receipt.producer_id == producer_id
            )
        ).send_receipt
        assert sequence_id == receipt.sequence_id

    def ask_topics(self, namespace: str = NAMESPACE) -> None:
        """Send GET_TOPICS_OF_NAMESPACE."""
        self.ask(
            T.GET_TOPICS_OF_NAMESPACE, namespace=namespace, mode=CommandGetTopicsOfNamespace.ALL
        )

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        self.ask(T.PARTITIONED_METADATA, topic=topic)
        answer = await self.receive(T.PARTITIONED_METADATA_RESPONSE)
        return answer.partitioned_metadata_response.partitions


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One broker. `addresses` are those of its start, which stay if it joins again."""

    broker: Broker
    worker: Worker
    addresses: Mapping[str, str]
    service: PulsarService
    http: aiohttp.ClientSession
    clients: list[WireClient]
    token: str | None

    @property
    def url(self) -> str:
        """Its Pulsar address."""
        return self.addresses["pulsar"]

    @property
    def http_url(self) -> str:
        """Its HTTP address."""
        return self.addresses["http"]

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """Make a request over HTTP, and follow redirects. Return the status and the JSON or
        text.
        """
        url = URL(self.http_url + path, encoded=True)
        async with self.http.request(method, url, json=body) as response:
            text = await response.text()
            return (
                response.status,
                await response.json()
                if response.content_type == "application/json" and text
                else text,
            )

    async def get(self, path: str) -> object:
        """Return the answer of a GET, which must succeed."""
        status, answer = await self.ask("GET", path)
        assert 200 == status, answer
        return answer

    async def metric(self, name: str, **labels: str) -> float:
        """Return a metric, or 0 if it is absent."""
        text = str(await self.get("/metrics"))
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        for line in text.splitlines():
            if line.startswith(f"equipoise_pulsar_{name}{{") and all(
                each in line for each in wanted
            ):
                return float(line.rpartition(" ")[2])
        return 0.0

    async def stop(self) -> None:
        """Stop it gracefully."""
        await self.broker.__aexit__(None, None, None)

    async def client(
        self, *, handshake: bool = True, token: str | None = None, address: str | None = None
    ) -> WireClient:
        """Connect a new client, by default with the token of the brokers' clients. See
        `WireClient.connected`.
        """
        client = await WireClient.connected(
            self.url, handshake=handshake, token=token or self.token, address=address
        )
        self.clients.append(client)
        return client


@dataclass(frozen=True, kw_only=True)
class Brokers:
    """Brokers with the namespace public/default, all of whose bundles are owned."""

    members: Sequence[Member]

    @property
    def view(self) -> View:
        """The view of the first broker."""
        return self.members[0].worker.view

    def bundle_of(self, topic: str = TOPIC) -> str:
        """The bundle of a topic."""
        bundle = self.view.bundle_at(NAMESPACE, topic_hash(topic))
        assert bundle is not None
        return bundle.name

    def owner_of(self, topic: str = TOPIC) -> Member:
        """The broker that owns a topic's bundle."""
        owner = self.view.bundles[self.bundle_of(topic)].owner
        return next(member for member in self.members if member.worker.agent.incarnation == owner)

    def other_than(self, *those: Member) -> Member:
        """Another broker."""
        return next(member for member in self.members if member not in those)

    async def transfer(self, destination: Member, topic: str = TOPIC) -> None:
        """Move a topic's bundle, and wait until every broker has read of it, and the destination
        has opened it.
        """
        bundle = self.bundle_of(topic)
        worker = self.members[0].worker
        await worker.request(
            Transfer(bundle=bundle, destination=destination.worker.broker_id, reason="a test"),
            timeout_ms=PATIENCE_MS,
        )
        await self.settled()
        assert destination is self.owner_of(topic)
        await until(lambda: bundle in destination.service.hosting.bundles)

    async def settled(self) -> None:
        """Wait until all bundles are owned, in every view."""
        for member in self.members:
            await member.worker.until(
                _all_owned, timeout_ms=PATIENCE_MS, what="all bundles being owned"
            )
        offset = max(member.worker.view.offset for member in self.members)
        for member in self.members:
            await member.worker.reached(offset, timeout_ms=PATIENCE_MS)


def _all_owned(view: View) -> bool | None:
    return all(bundle.phase == "owned" for bundle in view.bundles.values()) or None


async def _outlive(clients: Sequence[WireClient]) -> None:
    for client in clients:
        await client.outlive()


@asynccontextmanager
async def brokers(
    folder: Path,
    *,
    count: int = 1,
    bundles: int = 4,
    settings: Settings | None = None,
    config: Mapping[str, object] | None = None,
    log_url: str | None = None,
    others: Mapping[str, Service] | None = None,
    token: str | None = None,
) -> AsyncIterator[Brokers]:
    """Run `count` brokers on one loop, by default over a log in memory. `config` is added to each
    one's configuration.

    `others` are services of other namespaces, by pattern. `token` is what clients send, on the wire
    and over HTTP.
    """
    log_url = log_url or f"memory:{uuid.uuid4()}"
    async with AsyncExitStack() as parts:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        http = await parts.enter_async_context(aiohttp.ClientSession(headers=headers))
        clients: list[WireClient] = []
        parts.push_async_callback(_outlive, clients)
        members = []
        for number in range(count):
            service = PulsarService(settings)
            values = {
                "log_url": log_url,
                "data_dir": folder / f"b{number}",
                "http_port": 0,
                "pulsar_port": 0,
                "drain_ms": 2_000,
            }
            made = WorkerConfig.model_validate({**values, "balance": False, **(config or {})})
            broker = Broker(made, {**(others or {}), "*": service})
            worker = await parts.enter_async_context(broker)
            await worker.ready(timeout_ms=PATIENCE_MS)
            entry_ = worker.agent.entry
            assert entry_ is not None
            addresses = entry_.joined.addresses
            members.append(
                Member(
                    broker=broker,
                    worker=worker,
                    addresses=addresses,
                    service=service,
                    http=http,
                    clients=clients,
                    token=token,
                )
            )
        intent = CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(bundles))
        await members[0].worker.request(intent, timeout_ms=PATIENCE_MS)
        running = Brokers(members=members)
        await running.settled()
        yield running


def with_brokers(**options: Any) -> Callable[[Test], Test]:  # noqa: ANN401 - those of `brokers`
    """Run a test on `brokers` with these options."""
    return story(lambda folder: brokers(folder, **options))
