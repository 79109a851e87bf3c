"""Moves over HTTP: they are answered once the owner has opened the bundle, with what became of it,
and can be cancelled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pytest

from equipoise.brokers.http.admin.namespaces import UNLOAD_OUTCOME
from equipoise.brokers.operations import moves, outcomes
from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.on_channel import ChannelPort, run
from tests.unit.http.cluster import (
    NAMESPACE,
    PATIENCE_MS,
    Answer,
    Broker,
    Cluster,
    path_of,
    post,
    told,
    until,
    with_cluster,
)

WITHOUT_END_MS = 3_600_000
"""Nobody who waits so long for an owner that keeps its bundle gets an answer."""

NAMESPACES = "/admin/v2/namespaces"

Ask = Callable[[Cluster, Broker, Broker, str], Awaitable[str]]


async def transferred(_cluster: Cluster, one: Broker, target: Broker, bundle: str) -> str:
    """Transfer a bundle over HTTP, at `one`. Return the outcome."""
    answer = await one.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
    assert 204 == answer.status, answer.body
    return answer.headers["X-Unload-Outcome"]


async def unloaded(_cluster: Cluster, one: Broker, _target: Broker, bundle: str) -> str:
    answer = await one.put(f"{path_of(bundle)}/unload")
    assert 204 == answer.status, answer.body
    return answer.headers["X-Unload-Outcome"]


async def all_unloaded(brokers: Cluster, one: Broker, _target: Broker, bundle: str) -> str:
    assert 204 == (await one.put(f"/admin/v2/namespaces/{NAMESPACE}/unload")).status
    return repr(brokers.view.bundles[bundle].token)


async def by_command(_cluster: Cluster, one: Broker, target: Broker, bundle: str) -> str:
    """Transfer a bundle on the channel, as the command line does."""

    def carry_out() -> str:
        with opened(one.worker.log_name, timeout_ms=PATIENCE_MS, publisher="admin:ops") as access:
            return run(moves.transfer(ChannelPort(access), bundle, target.id)).sentence

    return await asyncio.to_thread(carry_out)


@pytest.mark.parametrize("ask", [transferred, unloaded, all_unloaded, by_command])
@pytest.mark.parametrize("of_target", [False, True], ids=["at-the-source", "at-the-destination"])
@with_cluster(brokers=2, balance=False)
async def test_a_move_is_answered_when_its_owner_has_opened(
    brokers: Cluster, ask: Ask, of_target: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, and without a wait to see that it keeps the bundle."""
    monkeypatch.setattr(outcomes, "SETTLED_MS", WITHOUT_END_MS)
    monkeypatch.setattr(moves, "PLACED_MS", WITHOUT_END_MS)
    bundle, source, target = brokers.first()
    for broker in brokers.brokers:
        broker.service.opening.clear()
    asked = asyncio.ensure_future(ask(brokers, target if of_target else source, target, bundle))
    await until(
        lambda: brokers.owner_of(bundle) is target and brokers.view.bundles[bundle].phase == "owned"
    )
    await source.worker.reached(brokers.view.offset, timeout_ms=PATIENCE_MS)
    assert not asked.done()
    for broker in brokers.brokers:
        broker.service.opening.set()
    assert str(brokers.view.bundles[bundle].token) in await asked


@pytest.mark.parametrize("order", ["split", "unload", "unload?destinationBroker=OTHER"])
@with_cluster(brokers=2, balance=False)
async def test_an_operation_waits_for_the_first_owner_of_a_bundle(
    brokers: Cluster, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it may follow the creation of the namespace at once."""
    monkeypatch.setattr(moves, "PLACED_MS", WITHOUT_END_MS)
    one, namespace = brokers.brokers[0], "acme/new"
    for broker in brokers.brokers:
        broker.service.taking.clear()
    answer = await one.put(f"{NAMESPACES}/{namespace}", {"bundles": {"numBundles": 1}})
    assert 204 == answer.status, answer.body
    await until(
        lambda: all(each.phase == "assigning" for each in brokers.view.bundles_of(namespace))
    )
    (bundle,) = brokers.bundles(namespace)
    waits, until_seen = asyncio.Event(), one.worker.until

    def noted(*given: Any, what: str, **named: Any) -> Any:  # noqa: ANN401 - those of the worker
        if what == f"an owner of {bundle}":
            waits.set()
        return until_seen(*given, what=what, **named)

    monkeypatch.setattr(one.worker, "until", noted)
    target = brokers.other_than(brokers.owner_of(bundle))
    asked = asyncio.ensure_future(one.put(f"{path_of(bundle)}/{order.replace('OTHER', target.id)}"))
    waiting = asyncio.ensure_future(waits.wait())
    await asyncio.wait([asked, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not asked.done(), await asked
    for broker in brokers.brokers:
        broker.service.taking.set()
    answer = await asked
    assert 204 == answer.status, answer.body


@with_cluster(brokers=2, balance=False)
async def test_a_failed_opening_is_the_answer(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's answer is ahead of what the asking broker has read."""
    monkeypatch.setattr(outcomes, "SETTLED_MS", WITHOUT_END_MS)
    bundle, source, target = brokers.first()
    target.service.fails.add(bundle)
    answer = await source.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
    assert (409, True, True) == (
        answer.status,
        f"{bundle} came back to {source.id}, token " in answer.reason,
        f": {target.id} could not open it: RuntimeError: no disk; see equipoise channel why"
        in answer.reason,
    )


@with_cluster(brokers=2, balance=False)
async def test_an_owner_that_does_not_answer_is_watched(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "SETTLED_MS", 1)
    bundle, source, target = brokers.first()
    await target.shut()
    assert "token" in await transferred(brokers, source, target, bundle)


@with_cluster(brokers=2, balance=False)
async def test_what_an_owner_tells(brokers: Cluster) -> None:
    """Only what is open under the token, once nothing of the others is under way."""
    bundle, source, other = brokers.first()
    token = brokers.view.bundles[bundle].token
    tell = partial(post, path="/v1/opened")

    async def answer(broker: Broker, tokens: dict[str, int], timeout_ms: int = 5_000) -> object:
        document = (await tell(broker, body={"bundles": tokens, "timeout_ms": timeout_ms})).json()
        assert isinstance(document, dict)
        return document["open"]

    await brokers.settled()
    assert [bundle] == await answer(source, {bundle: token})
    assert [] == await answer(source, {bundle: token - 1, "acme/shop/0x00000000_0x00000001": token})
    assert [] == await answer(source, {bundle: brokers.view.offset + 1_000_000}, timeout_ms=1)
    assert [] == await answer(other, {bundle: token})
    for body in (
        None,
        {},
        {"bundles": {bundle: "7"}, "timeout_ms": 1},
        {"bundles": {}, "timeout_ms": -1},
    ):
        assert (400, "InvalidRequest") == told(await tell(source, body=body))


def outcome_of(answer: Answer) -> Mapping[str, object]:
    """What an unload answers of the bundle, beside the status that Pulsar's tools expect."""
    assert (204, b"") == (answer.status, answer.body)
    told = json.loads(answer.headers[UNLOAD_OUTCOME])
    assert isinstance(told, dict)
    return told


@with_cluster(brokers=2)
async def test_an_unload_of_a_namespace_with_a_refused_bundle_is_answered_409(
    brokers: Cluster,
) -> None:
    bundle, owner, other = brokers.first()
    other.service.fails.add(bundle)
    answer = await owner.put(f"{NAMESPACES}/{NAMESPACE}/unload")
    assert (409, "Cancelled") == (answer.status, answer.json()["error"])  # type: ignore[index]
    assert f"{bundle} came back to {owner.id}, token " in answer.reason
    outcome = json.loads(answer.headers[UNLOAD_OUTCOME])
    assert (3, 1, bundle) == (
        outcome["moved"],
        outcome["not_moved"],
        outcome["for_example"][0]["bundle"],
    )


@with_cluster()
async def test_an_unload_without_another_broker_reports_why_the_bundle_stays(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner,) = brokers.brokers
    bundle = brokers.bundles()[0]
    outcome = outcome_of(await owner.put(f"{path_of(bundle)}/unload"))
    nobody = "no other broker may own it: no other broker accepts bundles"
    assert (owner.id, owner.id, nobody) == (
        outcome["source"],
        outcome["owner"],
        outcome["problem"],
    )
    owner.service.fails.add(bundle)
    monkeypatch.setattr(moves, "PLACED_MS", 600)
    outcome = outcome_of(await owner.put(f"{path_of(bundle)}/unload"))
    assert (None, f"{owner.id} could not open it: RuntimeError: no disk") == (
        outcome["owner"],
        outcome["problem"],
    )
    owner.service.fails.clear()
    await brokers.settled()


# --- moves ---


def is_under_way(brokers: Cluster, bundle: str) -> bool:
    return brokers.view.bundles[bundle].phase == "transferring"


@with_cluster(brokers=2, balance=False)
async def test_moves_of_a_namespace_or_of_one_bundle_are_cancelled(brokers: Cluster) -> None:
    """The bundles stay under their tokens, and who asked for the moves hears why."""
    one = brokers.brokers[1]
    for each in brokers.brokers:
        each.service.taking.clear()
    for path, names in (
        (f"{path_of(brokers.bundles()[0])}/unload", brokers.bundles()[:1]),
        (f"{NAMESPACES}/{NAMESPACE}/unload", brokers.bundles()),
    ):
        before = {name: brokers.view.bundles[name] for name in names}
        transfers = []
        for name in names:
            target = brokers.other_than(brokers.owner_of(name))
            move = one.put(f"{path_of(name)}/unload?destinationBroker={target.id}")
            transfers.append(asyncio.ensure_future(move))
        for name in names:
            await until(partial(is_under_way, brokers, name))
        assert 204 == (await one.ask("DELETE", path)).status
        for answer in await asyncio.gather(*transfers):
            assert (409, "Cancelled") == told(answer)
            assert "reason: cancelled by an admin" in answer.reason
        for name, bundle in before.items():
            after = brokers.view.bundles[name]
            assert ("owned", bundle.owner, bundle.token) == (after.phase, after.owner, after.token)
    assert (404, "UnknownNamespace") == told(
        await one.ask("DELETE", f"{NAMESPACES}/acme/nowhere/unload")
    )


@with_cluster(brokers=2, bundles=32)
async def test_concurrent_unloads_of_one_namespace_all_succeed(brokers: Cluster) -> None:
    path = f"{NAMESPACES}/{NAMESPACE}/unload"
    asked = [broker.put(path) for broker in brokers.brokers for _ in range(3)]
    assert [204] * 6 == [answer.status for answer in await asyncio.gather(*asked)]
    await brokers.settled()
