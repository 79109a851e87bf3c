"""The client over a log: owners, waiting for one, and reports of a wrong one."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence

import pytest

from equipoise.brokers.client import client as client_module
from equipoise.brokers.client.client import Client
from equipoise.brokers.errors import UnknownNamespace
from equipoise.channel.core import propose
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    InvalidName,
    LevelTooNew,
    LogNotBegun,
    Overloaded,
)
from equipoise.channel.log.memory_log import MemoryLog
from tests.channels.folding import (
    NAMESPACE,
    Channel,
    channel_in,
    channel_with,
    joined,
    raise_level,
)

TIMEOUT_MS = 20_000


class Shown:
    """A channel whose records can be shown to readers of a log in memory, up to now or one by
    one.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.url = f"memory:{uuid.uuid4()}"
        self.log = MemoryLog(name=self.url)
        self.shown = 0

    def show(self) -> None:
        """Append what the channel has and the log has not."""
        for offset, data in self.channel.entries[self.shown :]:
            assert [offset] == list(self.log.append([data], timeout_ms=0))
        self.shown = len(self.channel.entries)


def shown(channel: Channel) -> Shown:
    """A log that shows a channel as it is."""
    shown = Shown(channel)
    shown.show()
    return shown


async def owner_now(client: Client) -> str | None:
    """The owner that the client returns without waiting."""
    try:
        return (await client.owner(NAMESPACE, "key", timeout_ms=0)).broker
    except DeadlineExceeded:
        return None


async def named(client: Client, broker: str | None) -> None:
    """Wait until the client returns a broker, or none."""
    while True:
        if await owner_now(client) == broker:
            return
        await asyncio.sleep(0.001)


async def test_the_owner_is_returned_with_its_addresses() -> None:
    log = shown(channel_in("owned"))
    async with Client(log.url) as client:
        peer = await client.owner(NAMESPACE, "key", timeout_ms=0)
    assert ("owner", {"http": "http://owner"}) == (peer.broker, peer.addresses)


async def test_a_caller_waits_during_a_handover() -> None:
    log = shown(channel_in("transferring"))
    async with Client(log.url) as client:
        assert (await client.owner(NAMESPACE, "key", timeout_ms=0)).broker == "source"
        log.channel.accept(propose.prepared(log.channel.author("owner"), log.channel.bundle()))
        log.show()
        await named(client, None)
        waiting = asyncio.ensure_future(client.owner(NAMESPACE, "key", timeout_ms=TIMEOUT_MS))
        log.channel.accept(propose.hand_over(log.channel.author("source"), log.channel.bundle()))
        log.show()
        assert (await waiting).broker == "owner"


async def test_waiting_ends_at_the_deadline() -> None:
    log = shown(channel_in("free"))
    async with Client(log.url) as client:
        with pytest.raises(DeadlineExceeded, match="an owner for tenant/ns/key did not"):
            await client.owner(NAMESPACE, "key", timeout_ms=20)


@pytest.mark.parametrize(
    ("brokers", "problem"),
    [((), "no broker is up"), (("other",), f"no broker that is up serves {NAMESPACE}")],
)
async def test_a_timeout_names_a_namespace_that_nobody_serves(
    brokers: Sequence[str], problem: str
) -> None:
    channel = channel_with("a")
    channel.die("a")
    for broker in brokers:
        channel.join(broker, serves=["shop/*"])
    log = shown(channel)
    async with Client(log.url) as client:
        expected = re.escape(f"tenant/ns/key ({problem}; start a program that serves it)")
        with pytest.raises(DeadlineExceeded, match=expected):
            await client.owner(NAMESPACE, "key", timeout_ms=0)
        with pytest.raises(DeadlineExceeded, match=expected):
            await client.request("GET", NAMESPACE, "key", "/", timeout_ms=0)


async def test_names_are_checked() -> None:
    log = shown(channel_in("owned"))
    async with Client(log.url) as client:
        with pytest.raises(UnknownNamespace):
            await client.owner("tenant/other", "key")
        with pytest.raises(InvalidName):
            await client.owner("no namespace", "key")


async def test_a_misrouted_owner_is_not_returned_until_the_bundle_changes() -> None:
    log = shown(channel_in("owned", "other"))
    async with Client(log.url) as client:
        seen = await client.owner(NAMESPACE, "key", timeout_ms=0)
        client.misrouted(NAMESPACE, "key", seen)
        waiting = asyncio.ensure_future(client.owner(NAMESPACE, "key", timeout_ms=TIMEOUT_MS))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.channel.die("owner")
        log.channel.own("other")
        log.show()
        assert (await waiting).broker == "other"


async def test_a_misrouted_owner_is_returned_again_after_distrust_ms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "DISTRUST_MS", 30)
    log = shown(channel_in("owned"))
    async with Client(log.url) as client:
        seen = await client.owner(NAMESPACE, "key", timeout_ms=0)
        client.misrouted(NAMESPACE, "key", seen)
        assert await owner_now(client) is None
        assert seen == await client.owner(NAMESPACE, "key", timeout_ms=TIMEOUT_MS)


async def test_a_report_about_a_former_owner_changes_nothing() -> None:
    log = shown(channel_in("owned", "other"))
    async with Client(log.url) as client:
        seen = await client.owner(NAMESPACE, "key", timeout_ms=0)
        log.channel.die("owner")
        log.channel.own("other")
        log.show()
        await named(client, "other")
        client.misrouted(NAMESPACE, "key", seen)
        assert (await client.owner(NAMESPACE, "key", timeout_ms=0)).broker == "other"


async def test_distrusted_owners_and_waiting_callers_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "DISTRUSTED_MAX", 1)
    monkeypatch.setattr(client_module, "WAITERS_MAX", 1)
    channel = channel_in("owned")
    channel.accept(
        propose.create_namespace(
            channel.admin(), channel.view, name="tenant/two", boundaries=(0, 0xFFFFFFFF)
        )
    )
    bundle = channel.bundle(namespace="tenant/two")
    channel.accept(propose.assign(channel.admin(), bundle, owner=channel.incarnation("owner")))
    channel.accept(propose.opened(channel.author("owner"), channel.bundle(namespace="tenant/two")))
    log = shown(channel)
    async with Client(log.url) as client:
        seen = await client.owner(NAMESPACE, "key", timeout_ms=0)
        client.misrouted(NAMESPACE, "key", seen)
        client.misrouted("tenant/two", "key", seen)
        assert seen == await client.owner(NAMESPACE, "key", timeout_ms=0)
        waiting = asyncio.ensure_future(client.owner("tenant/two", "key", timeout_ms=TIMEOUT_MS))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await client.owner("tenant/two", "key", timeout_ms=TIMEOUT_MS)
        assert seen == await waiting


def test_a_client_in_a_thread_answers_without_a_loop() -> None:
    log = shown(channel_in("owned"))
    with Client(log.url).in_thread() as client:
        seen = client.owner(NAMESPACE, "key")
        client.misrouted(NAMESPACE, "key", seen)
        with pytest.raises(DeadlineExceeded):
            client.owner(NAMESPACE, "key", timeout_ms=10)
        with pytest.raises(UnknownNamespace):
            client.misrouted("tenant/other", "key", seen)
    assert seen.broker == "owner"


@pytest.mark.parametrize("sources", [(), ("memory:a", "memory:b"), ("http://a", "memory:b")])
def test_a_client_has_one_kind_of_source(sources: tuple[str, ...]) -> None:
    with pytest.raises(CallerError, match="takes one log URL"):
        Client(*sources)


def test_a_log_that_does_not_exist_ends_the_start(tmp_path: object) -> None:
    with (
        pytest.raises(LogNotBegun, match="there is no file"),
        Client(f"sqlite:{tmp_path}/log.db").in_thread(),
    ):
        pass


async def test_every_caller_gets_the_error_that_ended_the_subscription() -> None:
    channel = Channel()
    channel.genesis()
    channel.accept(joined("owner", channel.view, instance_id="n", supports=2))
    channel.create()
    log = shown(channel)
    async with Client(log.url) as client:
        waiting = asyncio.ensure_future(client.owner(NAMESPACE, "key", timeout_ms=TIMEOUT_MS))
        channel.accept(raise_level(channel.admin(), channel.view, level=2))
        log.show()
        with pytest.raises(LevelTooNew):
            await waiting
        with pytest.raises(LevelTooNew):
            await client.owner(NAMESPACE, "key", timeout_ms=0)
