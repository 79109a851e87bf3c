"""The language of the stories of brokers with the Pulsar service, asked by clients and over HTTP.

* `brokers count=2 receipt_wait_ms=30`: new brokers, with settings of any kind, and the namespace
  public/default in 4 or so many `bundles`. `owner` owns the bundle of the topic `orders`; the
  others are `other` and `third`.
* `owner PUT {topic}/partitions 3`: a request over HTTP, with a body in JSON. `| a.b c` shows only
  these fields. `{topic}` and `{namespace}` are paths of `orders` and of public/default. After a
  change all brokers read it.
* `c at owner`, `c at owner client_version: "x"`: a client connects. `c ends`: it vanishes.
  `c mute`: it answers no PING from now on.
* `c PRODUCER producer_id: 1`: a command, with the fields in protobuf's format of texts. The topic
  is `orders`. Its answer is shown, if the command has one; `c asks PRODUCER ...` does not wait.
* `c SEND producer_id: 1 sequence_id: 0 + text`
* `c gets MESSAGE SEND_RECEIPT`: wait for commands, in any order, and show them in this one
* `c left`: what else a client has got by now, but for PINGs
* `transfer to other`, `transfer orders-0 to other`: move the bundle of a topic, if it is not there
* `owner has topics=1`: wait until a metric has a value
* `owner loses its lease`; `owner limits orders`, `owner frees orders`: one more message of a topic
  is published, and then none for an hour
* `cli topics list public/default`: the command line, for brokers with `log=sqlite`
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.throttling import Bucket, Rate
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from equipoise.channel.system.clocks import now_ms
from tests.pulsar.pulsar_speech import entry, framed, ping
from tests.pulsar.wire_stage import BLOCKS, command_of, written
from tests.unit.cli.fabricated import run
from tests.unit.http.cluster import DEADLINE_S
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    PAYLOAD_HEAD,
    TOPIC,
    Member,
    T,
    WireClient,
    brokers,
)

_PATHS: Final = {
    "{topic}": f"/admin/v2/non-persistent/{NAMESPACE}/orders",
    "{topics}": f"/admin/v2/non-persistent/{NAMESPACE}",
    "{namespace}": f"/admin/v2/namespaces/{NAMESPACE}",
}
# What every answer has.
_NOISE: Final = re.compile(
    r"\s(?:request_id: (?:\d+|nobody)|authoritative: true|proxy_through_service_url: false"
    r"|last_sequence_id: -1|producer_ready: true|ledgerId: 0|highest_sequence_id: 0)"
)
# What is another one each time: names, addresses, times and places in the log.
_GENERATED: Final = re.compile(
    r"equipoise-\w+-[0-9a-f]{8}-\d+|127\.0\.0\.1:\d+|\d{4}-\d\d-\d\dT[\d:.]+Z"
    r"|(?<=offset )\d+|(?<=record )\d+|(?<=token )\d+"
)


class ServiceStage:
    """Brokers, and clients by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts = AsyncExitStack()
        self._members: dict[str, Member] = {}
        self._clients: dict[str, WireClient] = {}
        self._started = 0

    def play(self, runner: asyncio.Runner, line: str) -> list[str]:
        """Do what a line of a story says. Return what is answered."""
        try:
            lines = runner.run(asyncio.wait_for(self._perform(line), DEADLINE_S))
        except TimeoutError:
            pytest.fail(f"nothing came of {line!r}")
        return [self._masked(each) for each in lines]

    async def close(self) -> None:
        """Stop the brokers."""
        await self._parts.aclose()
        self._clients.clear()

    async def _perform(self, line: str) -> list[str]:
        who, _, rest = line.partition(" ")
        what, _, more = rest.partition(" ")
        if who == "brokers":
            await self._start(dict(word.split("=") for word in rest.split()))
        elif who == "cli":
            done = await asyncio.to_thread(run, *rest.split(), log=self._log_url)
            return [f"exit {done.exit_code}"] * bool(done.exit_code) + done.output.splitlines()
        elif who == "transfer":
            topic, _, destination = rest.rpartition("to ")
            await self._transfer(_full(topic.strip()), self._members[destination])
        elif what == "at":
            await self._connect(who, *more.partition(" ")[::2])
        elif who in self._members:
            return await self._of_member(self._members[who], what, more)
        else:
            return [each async for each in self._of_client(self._clients[who], what, more)]
        return []

    async def _start(self, options: dict[str, str]) -> None:
        await self.close()
        self._started += 1
        folder = self._folder / str(self._started)
        self._log_url = f"sqlite:{folder}.db" if options.pop("log", "") else f"memory:{folder}"
        values: dict[str, Any] = {name: int(value) for name, value in options.items()}
        count, bundles = values.pop("count", 1), values.pop("bundles", 4)
        topics, service = (
            {each.name: values.pop(each.name) for each in fields(kind) if each.name in values}
            for kind in (TopicLimits, Settings)
        )
        self._running = await self._parts.enter_async_context(
            brokers(
                folder,
                count=count,
                bundles=bundles,
                log_url=self._log_url,
                settings=Settings(topics=TopicLimits(**topics), **service),
                config=values,
            )
        )
        owner = self._running.owner_of()
        others = [each for each in self._running.members if each is not owner]
        self._members = dict(zip(("owner", "other", "third"), (owner, *others), strict=False))

    async def _transfer(self, topic: str, destination: Member) -> None:
        if self._running.owner_of(topic) is not destination:
            await self._running.transfer(destination, topic)

    async def _connect(self, name: str, place: str, fields_: str) -> None:
        client = await self._members[place].client(handshake=False)
        client.write(framed(command_of("CONNECT", fields_)))
        await client.receive(T.CONNECTED)
        self._clients[name] = client

    async def _of_member(self, member: Member, what: str, rest: str) -> list[str]:
        if what in {"has", "loses", "limits", "frees"}:
            await _meddle(member, what, rest)
            return []
        asked, _, shown = rest.partition(" | ")
        path, _, body = asked.partition(" ")
        for short, whole in _PATHS.items():
            path = path.replace(short, whole)
        status, answer = await member.ask(what, path, orjson.loads(body) if body else None)
        if what != "GET":
            await self._running.settled()
        if isinstance(answer, dict) and "error" in answer:
            return [f"{status} {answer['error']}: {answer['reason']}"]
        found = [_at(answer, each) for each in shown.split()] if shown else [answer]
        told = (
            orjson.dumps(each, option=orjson.OPT_SORT_KEYS).decode() for each in found if each != ""
        )
        return [" ".join((str(status), *told))]

    async def _of_client(self, client: WireClient, what: str, rest: str) -> AsyncIterator[str]:
        match what:
            case "gets":
                for name in rest.split():
                    yield _told(*await client.take(getattr(T, name)))
            case "left":
                client.write(ping())
                await client.receive(T.PONG)
                yield ", ".join(name for name in client.names() if name != "PING") or "nothing"
            case "ends":
                await client.close()
            case "mute":
                client.answers_pings = False
            case "asks":
                name, _, body = rest.partition(" ")
                _send(client, name, body)
            case _:
                request_id = _send(client, what, rest)
                if request_id is not None:
                    yield _told(*await client.answer_to(request_id))

    def _masked(self, line: str) -> str:
        for name, member in self._members.items():
            for text in (member.http_url, member.url):
                line = line.replace(text, f"{text.partition(':')[0]}://{name}")
            line = line.replace(member.worker.broker_id, name)
        return _GENERATED.sub("generated", line)


async def _meddle(member: Member, what: str, rest: str) -> None:
    """Wait for a metric, or do to a broker what no client can."""
    match what:
        case "has":
            name, _, value = rest.partition("=")
            while await member.metric(name) != float(value):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        case "loses":
            member.worker.agent.lease.lose()
        case "limits":
            bucket = Bucket(Rate(bytes=1, period_ms=3_600_000), now_ms=now_ms())
            member.service.hosting.topics[_full(rest)].topic.publish_bucket = bucket
        case "frees":
            member.service.hosting.topics[_full(rest)].topic.publish_bucket = None


def _full(topic: str) -> str:
    return f"non-persistent://{NAMESPACE}/{topic}" if topic else TOPIC


def _at(document: Any, path: str) -> object:  # noqa: ANN401 - any JSON
    """Return what lies at a path such as `a.0.b`."""
    return reduce(
        lambda found, key: found[int(key) if key.isdecimal() else key], path.split("."), document
    )


def _send(client: WireClient, name: str, body: str) -> int | None:
    """Send a command. Return the id of its request, or None if it has no answer."""
    body, _, text = body.partition(" + ")
    command = command_of(name, body)
    part = getattr(command, command.DESCRIPTOR.fields_by_number[command.type].name)
    request_id = None
    if "request_id" in part.DESCRIPTOR.fields_by_name:
        request_id = part.request_id = client.request_id()
    if getattr(part, "topic", "") and "//" not in part.topic:
        part.topic = _full("" if part.topic == "t" else part.topic)
    block = BLOCKS["damaged"] if text == "damaged" else entry(PAYLOAD_HEAD + text.encode())
    client.write(framed(command, block if name == "SEND" else b""))
    return request_id


def _told(command: BaseCommand, block: bytes) -> str:
    text = f" + {block.rpartition(PAYLOAD_HEAD)[2].decode()}" if block else ""
    return _NOISE.sub("", written(command)) + text
