"""The answers to unloads over HTTP: the bundle moved, came back, or has no owner."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from equipoise.brokers.http.admin.namespaces import UNLOAD_OUTCOME
from equipoise.brokers.operations import moves
from tests.unit.http.cluster import NAMESPACE, Answer, Cluster, path_of, with_cluster

pytestmark = pytest.mark.integration

NAMESPACES = "/admin/v2/namespaces"


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
