"""Tenants, namespaces and bundles, administered over HTTP as scripts written for Pulsar do it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from equipoise.brokers.errors import Cancelled, Rejected
from equipoise.brokers.operations import in_worker, moves, verbs
from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.operations.outcomes import Answer
from equipoise.channel.core.ranges import even_boundaries
from tests.unit.http.cluster import NAMESPACE, PATIENCE_MS, Cluster, cluster, path_of, until

pytestmark = pytest.mark.integration

NAMESPACES = "/admin/v2/namespaces"


async def test_an_invalid_namespace_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for path in (f"{NAMESPACES}/%2E/n", f"{NAMESPACES}/acme/%2E%2E"):
            refused = await broker.put(path, {})
            assert (412, True) == (refused.status, "'.'" in refused.reason), path
        refused = await broker.get(f"{NAMESPACES}/a%20b")
        assert (412, True) == (refused.status, "'a b' is not a tenant" in refused.reason)


async def test_a_namespace_has_the_requested_bundles_or_four(tmp_path: Path) -> None:
    quarters = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    bodies = {
        "few": ({"bundles": {"numBundles": 2}}, ["0x00000000", "0x80000000", "0xffffffff"]),
        "cut": (
            {"bundles": {"boundaries": ["0x00000000", "0x10", "0xffffffff"]}},
            ["0x00000000", "0x00000010", "0xffffffff"],
        ),
        "both": (
            {"bundles": {"boundaries": ["0x0", "0xFFFFFFFF"], "numBundles": 9}},
            ["0x00000000", "0xffffffff"],
        ),
        "zero": (
            {"bundles": {"numBundles": 0, "boundaries": []}, "persistence": {"x": 1}},
            quarters,
        ),
        "none": ({"bundles": None}, quarters),
        "null": (None, quarters),
        "empty": ({}, quarters),
    }

    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        for name, (body, boundaries) in bodies.items():
            assert 204 == (await one.put(f"{NAMESPACES}/acme/{name}", body)).status
            await brokers.settled()
            expected = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
            assert expected == (await other.get(f"{NAMESPACES}/acme/{name}/bundles")).json()
        expected_policies = {
            "bundles": {"boundaries": quarters, "numBundles": 4},
            "replication_clusters": ["equipoise"],
            "deleted": False,
            "on_channel_loss": "fence",
        }
        assert expected_policies == (await other.get(f"{NAMESPACES}/acme/empty")).json()
        assert (
            sorted([NAMESPACE, *(f"acme/{name}" for name in bodies)])
            == (await other.get(f"{NAMESPACES}/acme")).json()
        )
        assert 404 == (await other.get(f"{NAMESPACES}/acm")).status


BAD_BODIES: tuple[tuple[bytes, int, str], ...] = (
    (b"{", 400, "Invalid JSON"),
    (b"\xff", 400, "the body cannot be used"),
    (b"[]", 400, "the body cannot be used"),
    (b'{"bundles": {"numBundles": "16"}}', 400, "bundles.numBundles"),
    (b'{"bundles": {"numBundles": true}}', 400, "bundles.numBundles"),
    (b'{"bundles": {"boundaries": [1, 2]}}', 400, "bundles.boundaries.0"),
    (b'{"bundles": {"numBundles": -1}}', 412, "1 to 4096 bundles, not -1"),
    (b'{"bundles": {"numBundles": 4097}}', 412, "1 to 4096 bundles, not 4097"),
    (
        b'{"bundles": {"boundaries": ["0x00000000"%s]}}' % (b', "0x1"' * 4097),
        412,
        "1 to 4096 bundles, not 4097",
    ),
    (b'{"bundles": {"boundaries": ["0x00000000"]}}', 412, "1 to 4096 bundles, not 0"),
    (b'{"bundles": {"boundaries": ["0x00000000", "0x80000000"]}}', 412, "end with 0xffffffff"),
    (
        b'{"bundles": {"boundaries": ["0x00000000", "0x2", "0x1", "0xffffffff"]}}',
        412,
        "0x00000001 does not come after",
    ),
    (
        b'{"bundles": {"boundaries": ["0x00000000", "eight", "0xffffffff"]}}',
        412,
        "'eight' is not a boundary",
    ),
    (b'"' + b"x" * (1 << 20) + b'"', 413, "is larger than 1048576 bytes, the maximum"),
    (b"[" * 100_000, 400, "the body cannot be used"),
)


async def test_an_invalid_body_creates_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for body, status, told in BAD_BODIES:
            answer = await broker.ask("PUT", f"{NAMESPACES}/acme/new", data=body)
            assert (status, True) == (answer.status, told in answer.reason), (
                body[:80],
                answer.body,
            )
        assert [NAMESPACE] == list(brokers.view.namespaces)


async def test_a_namespace_is_created_once(tmp_path: Path) -> None:
    """By whichever broker, also if both are asked at once."""
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        answer = await one.put(f"{NAMESPACES}/{NAMESPACE}")
        assert (409, True) == (
            answer.status,
            "it already exists (created at offset " in answer.reason,
        )
        answers = await asyncio.gather(
            one.put(f"{NAMESPACES}/acme/new"), other.put(f"{NAMESPACES}/acme/new")
        )
        assert [204, 409] == sorted(answer.status for answer in answers)


async def test_a_deletion_waits_until_every_bundle_is_closed(tmp_path: Path) -> None:
    """One of the bundles is on the move when the deletion begins."""
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        moving, _, target = brokers.first()
        target.service.taking.clear()
        transfer = asyncio.ensure_future(
            one.put(f"{path_of(moving)}/unload?destinationBroker={target.id}")
        )
        await until(lambda: brokers.view.bundles[moving].phase == "transferring")
        deletion = asyncio.ensure_future(other.ask("DELETE", f"{NAMESPACES}/{NAMESPACE}"))
        await until(lambda: brokers.view.namespaces[NAMESPACE].status == "deleting")
        assert (await other.get(f"{NAMESPACES}/{NAMESPACE}")).body.endswith(
            b'"deleted":true,"on_channel_loss":"fence"}'
        )
        target.service.taking.set()
        assert [204, 204] == [(await transfer).status, (await deletion).status]
        assert {} == other.worker.view.bundles
        assert 404 == (await other.get(f"{NAMESPACES}/{NAMESPACE}")).status
        assert 404 == (await other.ask("DELETE", f"{NAMESPACES}/{NAMESPACE}")).status
        assert 204 == (await other.put(f"{NAMESPACES}/{NAMESPACE}")).status


async def test_all_bundles_of_a_namespace_are_unloaded(tmp_path: Path) -> None:
    """There are more of them than are unloaded at once."""
    async with cluster(tmp_path, brokers=2, bundles=100) as brokers:
        before = {name: brokers.view.bundles[name].last for name in brokers.bundles()}
        assert 204 == (await brokers.brokers[0].put(f"{NAMESPACES}/{NAMESPACE}/unload")).status
        await brokers.settled()
        assert all(last < brokers.view.bundles[name].token for name, last in before.items())
        assert 404 == (await brokers.brokers[0].put(f"{NAMESPACES}/acme/nowhere/unload")).status


async def test_an_unload_of_a_namespace_leaves_it_as_even_as_it_was(tmp_path: Path) -> None:
    """Again and again: destinations are planned for all bundles together."""
    async with cluster(tmp_path, brokers=3, bundles=48) as brokers:
        for _ in range(2):
            assert 204 == (await brokers.brokers[0].put(f"{NAMESPACES}/{NAMESPACE}/unload")).status
            await brokers.settled()
            counts = [
                brokers.view.held_count(broker.incarnation)
                for broker in brokers.view.live_brokers()
            ]
            assert (48, True) == (sum(counts), max(counts) - min(counts) <= 2), counts


async def test_an_unload_of_a_namespace_refuses_what_is_for_one_bundle(tmp_path: Path) -> None:
    """As the command line does. It moves nothing."""
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        before = [(bundle.owner, bundle.token) for bundle in brokers.view.bundles_of(NAMESPACE)]
        for query in (f"destinationBroker={other.id}", "force=true"):
            answer = await one.put(f"{NAMESPACES}/{NAMESPACE}/unload?{query}")
            assert (400, True) == (
                answer.status,
                "is for the move of one bundle; name the bundle in the path" in answer.reason,
            )
        refused = await one.put(f"{path_of(brokers.bundles()[0])}/unload?force=true")
        assert (400, True) == (
            refused.status,
            "it is for a transfer; name a destinationBroker" in refused.reason,
        )
        assert before == [
            (bundle.owner, bundle.token) for bundle in brokers.view.bundles_of(NAMESPACE)
        ]


async def test_an_unload_of_a_free_bundle_succeeds_unless_it_names_a_destination(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,), bundle = brokers.brokers, brokers.bundles()[0]
        broker.service.refuses.add(bundle)
        assert 204 == (await broker.put(f"{path_of(bundle)}/unload")).status
        # Once it has been refused.
        await until(lambda: brokers.view.bundles[bundle].phase == "free")
        assert 204 == (await broker.put(f"{path_of(bundle)}/unload")).status
        refused = await broker.put(f"{path_of(bundle)}/unload?destinationBroker={broker.id}")
        assert (409, True) == (refused.status, "is free, not owned" in refused.reason)


async def refusal(brokers: Cluster, query: str, bundle: str | None = None) -> tuple[int, str]:
    """How the unload of a bundle is refused: the status, and Pulsar's `reason`."""
    answer = await brokers.brokers[0].put(
        f"{path_of(bundle or brokers.bundles()[0])}/unload?{query}"
    )
    return answer.status, answer.reason


async def test_impossible_moves_are_refused_with_different_statuses(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (one,) = brokers.brokers
        for query, status, told in (
            (
                f"destinationBroker={one.id}",
                409,
                f"{one.id} already owns it, so there is nothing to move",
            ),
            ("destinationBroker=nobody:8080", 404, "no broker 'nobody:8080' has ever joined"),
            ("destinationBroker=a%20b", 412, "is not a broker id"),
            (
                f"destinationBroker={one.id}&destinationBroker={one.id}",
                400,
                "it is given 2 times; give it once",
            ),
        ):
            refused = await refusal(brokers, query)
            assert (status, True) == (refused[0], told in refused[1]), refused
        assert (404, True) == (
            (other := await refusal(brokers, "", f"{NAMESPACE}/0x00000000_0x00000001"))[0],
            "no bundle" in other[1],
        )
        assert 404 == (await refusal(brokers, "", "acme/nowhere/0x00000000_0xffffffff"))[0]
        assert 412 == (await refusal(brokers, "", f"{NAMESPACE}/LARGEST"))[0]


Operation = Callable[[ChannelPort], Coroutine[Any, Any, Answer]]


def on_the_channel(log_url: str, operation: Operation) -> str:
    """The error of an operation that runs directly on the channel, as the command line runs it."""
    with (
        opened(log_url, timeout_ms=PATIENCE_MS, publisher="admin:erin") as access,
        pytest.raises((Rejected, Cancelled)) as caught,
    ):
        run(operation(ChannelPort(access)))
    return str(caught.value)


def without_offsets(text: str) -> str:
    """A message without the numbers that differ between two attempts."""
    return re.sub(r"(?<= )\d+", "N", text)


async def test_refusals_read_the_same_over_http_and_on_the_channel(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        log_url = one.worker.config.log_url
        first, second, *_, last = brokers.bundles()
        await brokers.give(first, one)
        await brokers.give(second, other)
        other.service.refuses.add(first)
        to_other = f"{path_of(first)}/unload?destinationBroker={other.id}"
        asked: list[tuple[str, int, Operation]] = [
            (
                f"{path_of(first)}/unload?destinationBroker={one.id}",
                409,
                lambda port: moves.transfer(port, first, one.id),
            ),
            (f"{path_of(first)}/merge", 409, lambda port: moves.merge(port, first)),
            (f"{path_of(last)}/merge", 412, lambda port: moves.merge(port, last)),
            (
                f"{NAMESPACES}/{NAMESPACE}",
                409,
                lambda port: verbs.create_namespace(port, NAMESPACE, even_boundaries(1)),
            ),
            (to_other, 409, lambda port: moves.transfer(port, first, other.id)),
        ]
        for path, status, operation in asked:
            answer = await one.put(path)
            assert status == answer.status
            told = await asyncio.to_thread(on_the_channel, log_url, operation)
            assert without_offsets(told).replace("equipoise", "pulsar-admin") == without_offsets(
                answer.reason
            ).replace("equipoise", "pulsar-admin")


async def test_a_move_that_takes_too_long_is_answered_504_and_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2, admin_ms=150) as brokers:
        bundle, source, target = brokers.first()
        target.service.taking.clear()
        answer = await source.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
        assert (504, True) == (
            answer.status,
            f"the transfer of {bundle} to {target.id} did not happen within 150 ms"
            in answer.reason,
        )
        target.service.taking.set()
        await until(lambda: brokers.view.bundles[bundle].phase == "owned")
        assert target is brokers.owner_of(bundle)


async def test_bundles_are_split_and_merged(tmp_path: Path) -> None:
    async with cluster(tmp_path, bundles=1) as brokers:
        (broker,), (whole,) = brokers.brokers, brokers.bundles()
        assert (
            204
            == (await broker.put(f"{path_of(whole)}/split?unload=true&authoritative=false")).status
        )
        halves = [f"{NAMESPACE}/0x00000000_0x7fffffff", f"{NAMESPACE}/0x7fffffff_0xffffffff"]
        assert halves == brokers.bundles()
        assert 204 == (await broker.put(f"{path_of(halves[0])}/merge")).status
        assert [whole] == brokers.bundles()
        answer = await broker.put(
            f"{path_of(whole)}/split?splitAlgorithmName=specified_positions_divide", [48, 16]
        )
        assert 204 == answer.status
        assert [(0, 16), (16, 48), (48, 0xFFFFFFFF)] == [
            (b.low, b.high) for b in brokers.view.bundles_of(NAMESPACE)
        ]


BAD_SPLITS: tuple[tuple[str, object, int, str], ...] = (
    ("splitAlgorithmName=specified_positions_divide", None, 412, "there are none"),
    ("splitAlgorithmName=specified_positions_divide", [], 412, "there are none"),
    ("splitAlgorithmName=specified_positions_divide", [0], 412, "strictly inside"),
    ("splitAlgorithmName=specified_positions_divide", [0xFFFFFFFF], 412, "strictly inside"),
    (
        "splitAlgorithmName=specified_positions_divide",
        [48, 16, 48],
        412,
        "0x00000030 does not come after 0x00000030",
    ),
    ("splitAlgorithmName=range_equally_divide", [0], 412, "strictly inside"),
    (
        "splitAlgorithmName=topic_count_equally_divide",
        [48, 48],
        412,
        "0x00000030 does not come after 0x00000030",
    ),
    ("splitAlgorithmName=specified_positions_divide", [-1], 400, "greater than or equal to 0"),
    ("splitAlgorithmName=specified_positions_divide", ["16"], 400, "valid integer"),
    ("splitAlgorithmName=specified_positions_divide", list(range(1, 65)), 400, "at most 63"),
    ("splitAlgorithmName=specified_positions_divide", {"positions": [1]}, 400, "array"),
    (f"splitAlgorithmName={'x' * 2_000}", None, 400, "is not a name of up to 1024 printable"),
    ("splitAlgorithmName=%00", None, 400, "is not a name of up to 1024 printable"),
    ("splitAlgorithmName=by_moonlight", None, 409, "there is no split algorithm"),
)


async def test_an_impossible_split_leaves_the_bundle_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path, bundles=1) as brokers:
        (broker,), (whole,) = brokers.brokers, brokers.bundles()
        for query, body, status, told in BAD_SPLITS:
            answer = await broker.put(f"{path_of(whole)}/split?{query}", body)
            assert (status, True) == (answer.status, told in answer.reason), (query, answer.body)
            await until(lambda: brokers.view.bundles[whole].phase == "owned")


async def test_concurrent_unloads_of_one_namespace_all_succeed(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2, bundles=32) as brokers:
        path = f"{NAMESPACES}/{NAMESPACE}/unload"
        answers = await asyncio.gather(
            *(broker.put(path) for broker in brokers.brokers for _ in range(3))
        )
        assert [204] * 6 == [answer.status for answer in answers]
        await brokers.settled()


async def test_operations_beyond_the_bound_are_answered_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_worker, "OPERATIONS_MAX", 1)

    async with cluster(tmp_path, brokers=2) as brokers:
        one, _ = brokers.brokers
        first, second, *_ = brokers.bundles()
        owner = brokers.owner_of(first)
        owner.service.closing.clear()
        asked = asyncio.ensure_future(one.put(f"{path_of(first)}/unload"))
        await until(lambda: brokers.view.bundles[first].phase == "handing_over")
        answer = await one.put(f"{path_of(second)}/unload")
        assert (503, "1", True) == (
            answer.status,
            answer.headers["Retry-After"],
            "queue of operations" in answer.reason,
        )
        assert "owned" == brokers.view.bundles[second].phase
        owner.service.closing.set()
        assert 204 == (await asked).status


async def test_a_namespace_is_in_this_cluster_only(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        own = brokers.view.cluster
        path = f"{NAMESPACES}/{NAMESPACE}"
        for bodies in ({"replication_clusters": ["west"]}, {"allowed_clusters": [own, "west"]}):
            answer = await broker.put(f"{NAMESPACES}/acme/new", bodies)
            assert (412, True) == (answer.status, "'west'" in answer.reason)
        assert (
            204
            == (await broker.put(f"{NAMESPACES}/acme/new", {"replication_clusters": [own]})).status
        )
        assert [own] == (await broker.get(f"{path}/replication")).json()
        assert [] == (await broker.get(f"{path}/allowedClusters")).json()
        for name in ("replication", "allowedClusters"):
            assert (
                204
                == (
                    await broker.ask("POST", f"{path}/{name}", data=json.dumps([own]).encode())
                ).status
            )
            assert 412 == (await broker.ask("POST", f"{path}/{name}", data=b'["west"]')).status
