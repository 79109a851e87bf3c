"""Policies over HTTP as scripts written for Pulsar set them, pins, and what policies and operators
refuse to moves.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.http.cluster import (
    NAMESPACE,
    Answer,
    Cluster,
    cluster,
    path_of,
    told,
    until,
)

pytestmark = pytest.mark.integration


# --- moves ---


async def stalled(brokers: Cluster, bundle: str) -> asyncio.Future[Answer]:
    """A transfer of a bundle to a broker whose service does not get ready for it."""
    target = brokers.other_than(brokers.owner_of(bundle))
    target.service.taking.clear()
    transfer = asyncio.ensure_future(
        brokers.brokers[0].put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
    )
    await until(lambda: brokers.view.bundles[bundle].phase == "transferring")
    return transfer


async def test_a_cancelled_transfer_leaves_the_bundle_under_its_token(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        bundle = brokers.bundles()[0]
        before = brokers.view.bundles[bundle]
        transfer = await stalled(brokers, bundle)
        assert 204 == (await brokers.brokers[1].ask("DELETE", f"{path_of(bundle)}/unload")).status
        answer = await transfer
        assert ((409, "Cancelled"), True) == (
            told(answer),
            "reason: cancelled by an admin" in answer.reason,
        )
        after = brokers.view.bundles[bundle]
        assert ("owned", before.owner, before.token) == (after.phase, after.owner, after.token)
        refused = await brokers.brokers[1].ask("DELETE", f"{path_of(bundle)}/unload")
        problem = "there is nothing to cancel: it is owned and does not move"
        assert (409, True) == (refused.status, problem in refused.reason)


async def test_all_moves_of_a_namespace_are_cancelled(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        transfers = [await stalled(brokers, bundle) for bundle in brokers.bundles()]
        assert (
            204
            == (
                await brokers.brokers[1].ask("DELETE", f"/admin/v2/namespaces/{NAMESPACE}/unload")
            ).status
        )
        assert {(409, "Cancelled")} == {told(await transfer) for transfer in transfers}
        assert {"owned"} == {bundle.phase for bundle in brokers.view.bundles_of(NAMESPACE)}
        path = "/admin/v2/namespaces/acme/nowhere/unload"
        assert (404, "UnknownNamespace") == told(await brokers.brokers[0].ask("DELETE", path))
