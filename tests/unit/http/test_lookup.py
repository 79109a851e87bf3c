"""Lookups over HTTP: what they answer, and how long they are held."""

from __future__ import annotations

import asyncio

import pytest

from equipoise.brokers.http import lookup
from equipoise.brokers.runtime import callers
from equipoise.channel.core.ranges import bundle_name, topic_hash
from tests.unit.http.cluster import (
    NAMESPACE,
    Broker,
    Cluster,
    path_of,
    until,
    with_cluster,
)

pytestmark = pytest.mark.integration

PATH = f"/lookup/v2/topic/persistent/{NAMESPACE}"


def metric(broker: Broker, outcome: str) -> float:
    """How many lookups had an outcome."""
    return broker.sample("lookup_duration_seconds_count", outcome=outcome)


@with_cluster(brokers=2)
async def test_every_broker_returns_the_addresses_of_the_owner(brokers: Cluster) -> None:
    topics = {
        "orders": "orders",
        "a%20b%25c": "a b%c",
        "%7Bbraces%7D": "{braces}",
        "%C3%BC": "ü",
        "two%0Alines": "two\nlines",
    }
    for topic, name in topics.items():
        point = topic_hash(f"persistent://{NAMESPACE}/{name}")
        bundle = brokers.view.bundle_at(NAMESPACE, point)
        assert bundle is not None
        expected = {
            "brokerUrl": "",
            "brokerUrlTls": "",
            "httpUrl": brokers.owner_of(bundle.name).url,
            "httpUrlTls": "",
            "nativeUrl": "",
            "brokerUrlSsl": "",
        }
        for broker in brokers.brokers:
            answer = await broker.get(f"{PATH}/{topic}?authoritative=false&listenerName=x")
            assert (200, expected) == (answer.status, answer.json())
            answer = await broker.get(f"{PATH}/{topic}/bundle")
            assert bundle.name == bundle_name(
                NAMESPACE, *(int(end, 16) for end in answer.body.decode().split("_"))
            )
    assert len(topics) == metric(brokers.brokers[0], "answered")


@with_cluster(bundles=1, lookup_ms=200)
async def test_a_held_lookup_ends_with_503_at_its_deadline(brokers: Cluster) -> None:
    (broker,), (bundle,) = brokers.brokers, brokers.bundles()
    broker.service.taking.clear()
    await broker.put(f"{path_of(bundle)}/unload")
    answers = await asyncio.gather(*(broker.get(f"{PATH}/orders") for _ in range(3)))
    assert [(503, "1")] * 3 == [
        (answer.status, answer.headers["Retry-After"]) for answer in answers
    ]
    assert "an owner for" in answers[0].reason
    assert 3 == metric(broker, "timed_out")


@with_cluster(bundles=1)
async def test_lookups_beyond_the_bound_are_answered_503(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "HELD_MAX", 2)
    (broker,), (bundle,) = brokers.brokers, brokers.bundles()
    broker.service.taking.clear()
    await broker.put(f"{path_of(bundle)}/unload")
    asked = [asyncio.ensure_future(broker.get(f"{PATH}/orders")) for _ in range(3)]
    done, held = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = done
    assert 503 == refused.result().status
    assert "Overloaded" in refused.result().body.decode()
    broker.service.taking.set()
    assert [200, 200] == [answer.status for answer in await asyncio.gather(*held)]
    assert 1 == metric(broker, "refused")


@with_cluster(bundles=1)
async def test_a_lookup_whose_caller_has_gone_is_held_no_longer(brokers: Cluster) -> None:
    (broker,), (bundle,) = brokers.brokers, brokers.bundles()
    broker.service.taking.clear()
    await broker.put(f"{path_of(bundle)}/unload")
    asked = [asyncio.ensure_future(broker.get(f"{PATH}/orders")) for _ in range(3)]
    await until(lambda: broker.lookups.held == 3)
    for gone in asked[:2]:
        gone.cancel()  # Closes its connection.
    await until(lambda: broker.lookups.held == 1)
    broker.service.taking.set()
    assert 200 == (await asked[2]).status


@with_cluster(brokers=2, bundles=1)
async def test_a_lookup_during_a_handover_gets_the_new_owner(brokers: Cluster) -> None:
    (bundle,) = brokers.bundles()
    source = brokers.owner_of(bundle)
    target = brokers.other_than(source)
    source.service.closing.clear()
    move = asyncio.ensure_future(
        source.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
    )
    await until(lambda: brokers.view.bundles[bundle].phase == "handing_over")
    asked = asyncio.ensure_future(source.get(f"{PATH}/orders"))
    await until(lambda: source.lookups.held == 1)
    assert not asked.done()
    source.service.closing.set()
    assert 204 == (await move).status
    assert target.url.encode() in (await asked).body


@with_cluster(brokers=2, bundles=1, lookup_ms=100)
async def test_a_cached_answer_is_used_only_while_it_is_valid(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "ANSWERS_REMEMBERED_MAX", 2)
    one, _ = brokers.brokers

    async def owner() -> str:
        urls = set()
        for topic in ("a", "b", "c", "a", "a", "t" * 600):
            answer = await one.get(f"{PATH}/{topic}")
            assert 200 == answer.status
            urls.add(str(answer.json()["httpUrl"]))  # type: ignore[index]
        (url,) = urls
        return url

    source = brokers.owner_of(brokers.bundles()[0])
    assert source.url == await owner()
    target = brokers.other_than(source)
    assert (
        204
        == (
            await one.put(f"{path_of(brokers.bundles()[0])}/unload?destinationBroker={target.id}")
        ).status
    )
    assert target.url == await owner()
    assert 204 == (await one.put(f"{path_of(brokers.bundles()[0])}/split")).status
    assert target.url == await owner()
    with monkeypatch.context() as patched:
        patched.setattr(type(one.worker.agent), "is_suspect", lambda *_, **__: True)
        assert 503 == (await one.get(f"{PATH}/a")).status
    assert target.url == await owner()
    one.worker.agent.lease.lose()
    assert 503 == (await one.get(f"{PATH}/a")).status
