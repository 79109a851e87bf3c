"""Test real Pulsar clients with real brokers that move bundles and die while messages flow. The
checker judges the messages.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from equipoise.brokers.balancing.moves import MoveKind
from tests.load.admin_requests import Move
from tests.load.cluster import settle
from tests.pulsar.admin_tool import admin_tool
from tests.pulsar.clients import Consuming, Producing, Type
from tests.pulsar.fleet import Crew, Fleet
from tests.pulsar.moving import (
    BROKERS,
    BUNDLES,
    NAMESPACE,
    Running,
    every_subscription,
    flowing,
    misled,
    running_brokers,
)
from tests.pulsar.programs import EVERYDAY, Language, require

# Building a program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RATE = 20.0
STALL_S = 0.2
STALE = f"non-persistent://{NAMESPACE}/stale"
AUTH_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
KEYS = 8  # Of each producer; see tests/pulsar/README.md.
PLAIN = tuple(f"non-persistent://{NAMESPACE}/plain-{number}" for number in range(8))
SPREAD = PLAIN[:BUNDLES]
"""One topic in each bundle."""
PARTITIONED, PARTITIONS = f"non-persistent://{NAMESPACE}/partitioned", 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "language",
    [
        pytest.param(Language.PYTHON, marks=pytest.mark.on_every_log),
        *(each for each in EVERYDAY if each is not Language.PYTHON),
    ],
)
async def test_a_client_goes_through_every_kind_of_move(
    language: Language, tmp_path: Path, log_url: str
) -> None:
    """Transfers and a graceful stop lose nothing. An unload and a death may lose messages only
    while they last.
    """
    require(language)
    async with running_brokers(tmp_path, log_url) as on:
        url = on.cluster.pulsar_url
        async with flowing(tmp_path, everyday_crew(language, url)) as fleet:
            await on.move_everything(fleet, 2)
            await retire(on, fleet)
            await give_up(on, fleet)
            await on.die(fleet, PLAIN[0])
            await on.move_everything(fleet, 1)
            verdict = await on.finish(fleet)
        assert {} == verdict.violations
        assert verdict.totals["pieces_of_work_in_evidence"] > 0
        assert 0 == verdict.totals["never_settled"]


@pytest.mark.parametrize("language", [each for each in Language if each not in EVERYDAY])
async def test_every_subscription_of_another_client_goes_through_transfers_and_a_death(
    language: Language, tmp_path: Path, log_url: str
) -> None:
    """Transfers lose nothing, with batches and without them. A death may lose messages only while
    it lasts.
    """
    require(language)
    async with (
        running_brokers(tmp_path, log_url) as on,
        flowing(tmp_path, every_subscription(language, on, SPREAD, rate=RATE)) as fleet,
    ):
        await on.die(fleet, PLAIN[0])
        await on.move_everything(fleet, 1)
        verdict = await on.finish(fleet, is_batched=True)
    assert ({}, []) == (verdict.violations, fleet.failures())
    assert 0 == verdict.totals["never_settled"]


async def test_clients_and_pulsar_admin_use_tls_and_tokens(tmp_path: Path, log_url: str) -> None:
    """The tool moves topics under clients in three languages, which lose nothing. A death may lose
    messages only while it lasts.
    """
    require(*EVERYDAY)
    async with (
        running_brokers(tmp_path, log_url, is_secured=True) as on,
        admin_tool(on.cluster.addresses[0]) as tool,
    ):
        assert on.secured is not None
        ca = ["--tls-trust-cert-path", str(on.secured.ca)]
        secrets = [
            *ca,
            "--auth-plugin",
            AUTH_PLUGIN,
            "--auth-params",
            f"token:{on.secured.token.read_text()}",
        ]
        assert (1, 401) == (
            (refused := await tool.run([*ca, "brokers", "list", "equipoise"])).code,
            refused.status,
        )
        assert (0, 3) == (
            (listed := await tool.run([*secrets, "brokers", "list", "equipoise"])).code,
            len(listed.out.split()),
        )
        async with flowing(tmp_path, secured_crew(on)) as fleet:
            for bundle in on.bundles()[:2]:
                other = next(
                    broker for broker in on.cluster.broker_ids if broker != on.owner(bundle)
                )
                unload = [
                    "namespaces",
                    "unload",
                    NAMESPACE,
                    "--bundle",
                    bundle.name.rpartition("/")[2],
                    "--destinationBroker",
                    other,
                ]
                assert "" == (await tool.run([*secrets, *unload])).err
                await settle(on.cluster, on.table, NAMESPACE)
                await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
            await on.die(fleet, PLAIN[0])
            verdict = await on.finish(fleet)
    assert ({}, []) == (verdict.violations, fleet.failures())
    assert 0 == verdict.totals["never_settled"]
    assert verdict.totals["pieces_of_work_in_evidence"] > 0


def secured_crew(on: Running) -> Crew:
    """A consumer in each language, and the producers that start quickly. The benchmark has those of
    Java, too.
    """
    common: dict[str, Any] = {"url": on.cluster.pulsar_url, "topics": PLAIN, "secured": on.secured}
    return [
        *(
            (language, Consuming(name=f"{language}-consumer", subscription=language, **common))
            for language in EVERYDAY
        ),
        *(
            (language, Producing(name=f"{language}-producer", rate=RATE / 2, **common))
            for language in (Language.PYTHON, Language.GO)
        ),
    ]


async def test_a_client_that_stalls_in_a_transfer_loses_nothing(
    tmp_path: Path, log_url: str
) -> None:
    """Go's client discards messages that it receives together with the order to go to another
    broker.
    """
    require(Language.GO)
    async with running_brokers(tmp_path, log_url) as on:
        url = on.cluster.pulsar_url
        crew: Crew = [
            (Language.GO, Consuming(url=url, name="consumer", subscription="s", topics=PLAIN)),
            (Language.GO, Producing(url=url, name="producer", topics=PLAIN, rate=5 * RATE)),
        ]
        async with flowing(tmp_path, crew) as fleet:
            for turn in range(2):
                for bundle in on.bundles():
                    # The stall begins before the move, and ends within it, however long the move
                    # takes.
                    with fleet.consumers[0].suspended():
                        moving = asyncio.create_task(on.transfer(bundle, turn))
                        await asyncio.sleep(STALL_S)
                    await moving
                    await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
            verdict = await on.finish(fleet)
    assert {} == verdict.violations
    assert (0, 0) == (verdict.totals["lost"], verdict.totals["doubled"])


def everyday_crew(language: Language, url: str) -> Crew:
    """One producer, an exclusive consumer, and two that share a subscription."""
    return [
        (language, Consuming(url=url, name="alone", subscription="exclusive", topics=SPREAD)),
        (
            language,
            Consuming(
                url=url, name="shared-0", subscription="shared", topics=SPREAD, type=Type.SHARED
            ),
        ),
        (
            language,
            Consuming(
                url=url, name="shared-1", subscription="shared", topics=SPREAD, type=Type.SHARED
            ),
        ),
        (language, Producing(url=url, name="producer", topics=SPREAD, rate=RATE)),
    ]


async def retire(on: Running, fleet: Fleet) -> None:
    """Stop a broker gracefully and start it again. Its bundles move away first, as in a
    transfer.
    """
    await asyncio.to_thread(on.cluster.stop, BROKERS - 1)
    await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
    await settle(on.cluster, on.table, NAMESPACE)
    await asyncio.to_thread(on.cluster.restart, BROKERS - 1)


async def give_up(on: Running, fleet: Fleet) -> None:
    """Unload a bundle without a destination. Its next owner knows no consumers, and drops messages
    until they are back.
    """
    loop = asyncio.get_running_loop()
    move = Move(kind=MoveKind.TRANSFER, bundle=on.bundles()[0].name)

    def unload() -> None:
        with fleet.excused():
            asyncio.run_coroutine_threadsafe(on.make(move), loop).result()

    await asyncio.to_thread(unload)


async def test_a_stale_lookup_costs_no_message(tmp_path: Path, log_url: str) -> None:
    """A client may find a former owner at its start and in each transfer. Every message with a
    receipt arrives once.
    """
    require(*Language)
    async with running_brokers(tmp_path, log_url) as on:
        for language in Language:  # One after the other, each with a topic of its own.
            (folder := tmp_path / language).mkdir()
            async with misled(on, folder, language, f"{STALE}-{language}", 5 * RATE) as clients:
                for turn in range(2):
                    await clients.transfer(turn)
                await asyncio.to_thread(clients.fleet.wait_receipts, int(5 * RATE))
                verdict = await on.finish(clients.fleet)
            assert ({}, []) == (verdict.violations, clients.fleet.failures()), language
            assert (0, 0) == (verdict.totals["lost"], verdict.totals["doubled"]), language
            assert verdict.totals["receipted"] == verdict.totals["deliveries"] > 5 * RATE, language
            assert (3, 3) == clients.falsified, language


@pytest.mark.slow
async def test_every_kind_of_consumer_goes_through_transfers(tmp_path: Path, log_url: str) -> None:
    """A partitioned topic, a pattern, Failover and Key_Shared lose nothing in transfers."""
    require(Language.JAVA, Language.GO)
    async with running_brokers(tmp_path, log_url) as on:
        url = on.cluster.pulsar_url
        await make_partitions(on)
        async with flowing(tmp_path, every_kind(url)) as fleet:
            await on.move_everything(fleet, 3)
            still_ns = time.monotonic_ns()
            await asyncio.to_thread(fleet.wait_receipts, 2 * KEYS * (1 + len(PLAIN)))
            verdict = await on.finish(fleet)
        assert {} == verdict.violations
        assert (0, 0, 0) == tuple(
            verdict.totals[name] for name in ("lost", "doubled", "never_settled")
        )
        by_key = consumers(
            fleet,
            "keys",
            still_ns,
            lambda said: (said["topic"], said["producer"], said["n"] % KEYS),
        )
        assert ({1}, {"keys-0", "keys-1"}) == (
            set(map(len, by_key.values())),
            set().union(*by_key.values()),
        )
        assert {"plain": {"failover-0"}} == consumers(fleet, "failover", 0, lambda _: "plain")
        assert set(PLAIN) == consumers(fleet, "pattern", 0, lambda said: said["topic"]).keys()
        partitions = {f"{PARTITIONED}-partition-{number}" for number in range(PARTITIONS)}
        assert partitions == consumers(fleet, "partitions", 0, lambda said: said["topic"]).keys()


async def make_partitions(on: Running) -> None:
    """Create the partitioned topic over HTTP."""
    path = f"{on.cluster.addresses[0]}/admin/v2/{PARTITIONED.replace('://', '/')}/partitions"
    async with on.http.put(
        path, data=str(PARTITIONS), headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.ok, await answer.text()


def every_kind(url: str) -> Crew:
    """Producers of two languages, and each type of subscription, with consumers of two languages if
    it can have two.
    """
    pattern = f"non-persistent://{NAMESPACE}/plain-.*"
    consumers: list[tuple[Language, str, str, dict[str, Any]]] = [
        (Language.PYTHON, "failover-0", "failover", {"topics": PLAIN, "type": Type.FAILOVER}),
        (Language.JAVA, "failover-1", "failover", {"topics": PLAIN, "type": Type.FAILOVER}),
        (Language.GO, "keys-0", "keys", {"topics": PLAIN, "type": Type.KEY_SHARED}),
        (Language.JAVA, "keys-1", "keys", {"topics": PLAIN, "type": Type.KEY_SHARED}),
        (Language.PYTHON, "pattern", "pattern", {"pattern": pattern}),
        (Language.GO, "partitions", "partitions", {"topics": (PARTITIONED,)}),
        (Language.PYTHON, "both", "both", {"topics": (PARTITIONED, *PLAIN[:2])}),
    ]
    return [
        *(
            (language, Consuming(url=url, name=name, subscription=of, **how))
            for language, name, of, how in consumers
        ),
        (
            Language.PYTHON,
            Producing(url=url, name="python", topics=(PARTITIONED, *PLAIN), rate=RATE / 2),
        ),
        (Language.GO, Producing(url=url, name="go", topics=(PARTITIONED, *PLAIN), rate=RATE / 2)),
    ]


def consumers(
    fleet: Fleet, subscription: str, since_ns: int, by: Callable[[dict[str, Any]], object]
) -> dict[object, set[str]]:
    """Return the consumers that received messages of a subscription after `since_ns`, grouped `by`
    a property of the message.
    """
    found: defaultdict[object, set[str]] = defaultdict(set)
    for client in fleet.consumers:
        for line in client.history.read_bytes().splitlines():
            said = orjson.loads(line)
            if (
                said["event"] == "received"
                and said["subscription"] == subscription
                and said["at_ns"] > since_ns
            ):
                found[by(said)].add(said["consumer"])
    return dict(found)
