"""Policies over HTTP as scripts written for Pulsar set them, pins, and what policies and operators
refuse to moves.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.balancing.policies import isolation_document
from tests.unit.http.cluster import (
    NAMESPACE,
    Answer,
    Broker,
    Cluster,
    cluster,
    path_of,
    post,
    told,
    until,
)

pytestmark = pytest.mark.integration

ISOLATIONS = "/admin/v2/clusters/equipoise/namespaceIsolationPolicies"
PINS = "/admin/v2/policies/pin"
ANTI_AFFINITY = f"/admin/v2/namespaces/{NAMESPACE}/antiAffinity"


def body_for(*primary: Broker, namespaces: str = "acme/.*") -> dict[str, object]:
    """Pulsar's body of a policy that gives namespaces to these brokers."""
    return {
        "namespaces": [namespaces],
        "primary": [broker.id for broker in primary],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "80"},
        },
    }


async def test_an_isolation_policy_is_set_in_pulsars_form(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        assert {} == (await one.get(ISOLATIONS)).json()
        body = body_for(one, other)
        assert (
            204 == (await post(one, f"{ISOLATIONS}/gold", {**body, "unload_scope": "none"})).status
        )
        await brokers.settled()
        assert {"gold": body} == (await other.get(ISOLATIONS)).json()
        assert body == (await other.get(f"{ISOLATIONS}/gold")).json()
        expected = isolation_document(
            namespaces=["acme/.*"], primary=[one.id, other.id], min_limit=1, usage_threshold=80
        )
        assert expected == brokers.view.policies["isolation/gold"].document
        assert (
            204
            == (
                await post(other, f"{ISOLATIONS}/gold", {"namespaces": ["x"], "primary": [one.id]})
            ).status
        )
        await brokers.settled()
        assert (
            isolation_document(namespaces=["x"], primary=[one.id])
            == brokers.view.policies["isolation/gold"].document
        )
        assert 204 == (await one.ask("DELETE", f"{ISOLATIONS}/gold")).status
        for method in ("GET", "DELETE"):
            assert (404, "NotFound") == told(await one.ask(method, f"{ISOLATIONS}/gold"))


async def test_the_policies_of_each_broker_are_returned(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        await post(one, f"{ISOLATIONS}/gold", {**body_for(one), "secondary": [other.id]})
        await post(one, f"{ISOLATIONS}/iron", body_for(one, namespaces="iron/.*"))
        nothing: dict[str, object] = {"policyName": None, "primary": False, "namespaceRegex": []}
        expected = {
            one.id: {
                "brokerName": one.id,
                "policyName": "iron",
                "primary": True,
                "namespaceRegex": ["acme/.*", "iron/.*"],
            },
            other.id: {
                "brokerName": other.id,
                "policyName": "gold",
                "primary": False,
                "namespaceRegex": ["acme/.*"],
            },
        }
        assert [expected[broker] for broker in sorted(expected)] == (
            await one.get(f"{ISOLATIONS}/brokers")
        ).json()
        assert expected[other.id] == (await one.get(f"{ISOLATIONS}/brokers/{other.id}")).json()
        assert {"brokerName": "yet-to-come:8080", **nothing} == (
            await one.get(f"{ISOLATIONS}/brokers/yet-to-come:8080")
        ).json()


async def test_the_policies_of_another_cluster_are_answered_404(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        path = "/admin/v2/clusters/other/namespaceIsolationPolicies"
        assert (404, "NotFound") == told(await broker.get(path))
        assert (404, "NotFound") == told(await post(broker, f"{path}/gold", body_for(broker)))
        for method in ("GET", "DELETE"):
            assert (404, "NotFound") == told(await broker.ask(method, f"{path}/gold"))
        assert {} == brokers.view.policies


BODIES: tuple[tuple[bytes, int, str], ...] = (
    (b"", 400, "it is missing; it must be an object with namespaces and primary"),
    (b"{", 400, "Invalid JSON"),
    (b'{"namespaces": ["x"]}', 400, "primary: Field required"),
    (b'{"namespaces": "x", "primary": ["a"]}', 400, "namespaces: Input should be a valid"),
    (b'{"namespaces": ["x"], "primary": [7]}', 400, "primary.0: "),
    (
        (
            b'{"namespaces": ["x"], "primary": [".*"], "auto_failover_policy": {"policy_type":'
            b' "other"}}'
        ),
        400,
        "min_available",
    ),
    (
        (
            b'{"namespaces": ["x"], "primary": [".*"], "auto_failover_policy": {"parameters":'
            b' {"min_limit": "x"}}}'
        ),
        400,
        "min_limit",
    ),
    (
        (
            b'{"namespaces": ["x"], "primary": [".*"], "auto_failover_policy": {"parameters":'
            b' {"min_limit": -1}}}'
        ),
        412,
        "min_limit is -1",
    ),
    (b'{"namespaces": [], "primary": [".*"]}', 412, "it needs at least one of namespaces"),
    (
        b'{"namespaces": ["x"], "primary": ["("]}',
        412,
        "primary.0 is '(', which is no regular expression that can be used: ",
    ),
    (
        b'{"namespaces": ["x"], "primary": ["(?!a)b"]}',
        412,
        "which is no regular expression that can be used: invalid perl operator: (?!",
    ),
    (b'{"namespaces": ["x"], "primary": ["gone"]}', 409, "none of the brokers that it names is up"),
)


async def test_an_invalid_policy_leaves_the_old_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        before = body_for(broker)
        assert 204 == (await post(broker, f"{ISOLATIONS}/gold", before)).status
        for body, status, problem in BODIES:
            answer = await broker.ask("POST", f"{ISOLATIONS}/gold", data=body)
            assert (status, True) == (answer.status, problem in answer.reason), answer.body
        assert 412 == (await post(broker, f"{ISOLATIONS}/a%2Fb", before)).status
        assert {"gold": before} == (await broker.get(ISOLATIONS)).json()


async def test_pins_are_set_shown_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        ranged = {"namespace": NAMESPACE, "range": "0x00000000_0x40000000", "brokers": [broker.id]}
        assert (
            204
            == (
                await post(broker, f"{PINS}/all", {"namespace": NAMESPACE, "brokers": [broker.id]})
            ).status
        )
        assert 204 == (await post(broker, f"{PINS}/low", ranged)).status
        expected = {
            "all": {"namespace": NAMESPACE, "range": None, "brokers": [broker.id]},
            "low": ranged,
        }
        assert expected == (await broker.get(PINS)).json()
        assert ranged == (await broker.get(f"{PINS}/low")).json()
        for body, status, problem in (
            ({**ranged, "range": "LARGEST"}, 412, "'LARGEST' is not a bundle range"),
            ({**ranged, "brokers": []}, 412, "it needs at least one of brokers"),
            ({**ranged, "brokers": ["gone"]}, 409, "none of the brokers that it names is up"),
            ({**ranged, "ranges": "x"}, 400, "ranges: Extra inputs are not permitted"),
            (None, 400, "it is missing; it must be an object with namespace and brokers"),
        ):
            answer = await post(broker, f"{PINS}/low", body)
            assert (status, True) == (answer.status, problem in answer.reason), answer.body
        assert expected == (await broker.get(PINS)).json()
        assert 204 == (await broker.ask("DELETE", f"{PINS}/low")).status
        assert (404, "NotFound") == told(await broker.get(f"{PINS}/low"))


async def test_a_namespace_joins_a_group_and_leaves_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        assert 204 == (await broker.get(ANTI_AFFINITY)).status
        assert b"" == (await broker.get(ANTI_AFFINITY)).body
        for body in (b'"Orders"', b"Orders"):  # Pulsar's tools send the text as it is.
            assert 204 == (await broker.ask("POST", ANTI_AFFINITY, data=body)).status
            assert b"Orders" == (await broker.get(ANTI_AFFINITY)).body
        cluster_name = brokers.view.cluster
        assert [NAMESPACE] == (
            await broker.get(f"/admin/namespaces/{cluster_name}/antiAffinity/orders?property=acme")
        ).json()
        assert (
            [] == (await broker.get(f"/admin/namespaces/{cluster_name}/antiAffinity/others")).json()
        )
        assert (404, "NotFound") == told(
            await broker.get("/admin/namespaces/elsewhere/antiAffinity/orders")
        )
        policies = (await broker.get(f"/admin/v2/namespaces/{NAMESPACE}")).json()
        assert isinstance(policies, dict)
        assert "Orders" == policies["antiAffinityGroup"]
        for impossible, status in (("", 412), (" x", 412)):
            assert status == (await post(broker, ANTI_AFFINITY, impossible)).status
        assert 400 == (await broker.ask("POST", ANTI_AFFINITY, data=b"")).status
        not_utf8 = await broker.ask("POST", ANTI_AFFINITY, data=b"Or\xffders")
        assert (400, "the body cannot be used: it is not UTF-8: byte 2 is 0xff") == (
            not_utf8.status,
            not_utf8.reason,
        )
        odd = {"Content-Type": "application/json; charset=nope"}
        assert 204 == (await broker.ask("POST", ANTI_AFFINITY, data=b"Orders", headers=odd)).status
        assert b"Orders" == (await broker.get(ANTI_AFFINITY)).body
        for _ in range(2):
            assert 204 == (await broker.ask("DELETE", ANTI_AFFINITY)).status
        assert 204 == (await broker.get(ANTI_AFFINITY)).status
        for method in ("GET", "POST", "DELETE"):
            path = "/admin/v2/namespaces/acme/nowhere/antiAffinity"
            assert (404, "UnknownNamespace") == told(await broker.ask(method, path, data=b'"x"'))


# --- moves ---


async def test_a_transfer_that_policies_forbid_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        bundle, source, target = brokers.first()
        assert 204 == (await post(source, f"{ISOLATIONS}/gold", body_for(source))).status
        move = f"{path_of(bundle)}/unload?destinationBroker={target.id}"
        refused = await source.put(move)
        assert (412, "DestinationForbidden") == told(refused)
        assert (
            f"{target.id} may not have it: isolation/gold gives this namespace other brokers"
            in refused.reason
        )
        assert 412 == (await source.put(f"{move}&force=false")).status
        assert (400, "InvalidRequest") == told(await source.put(f"{move}&force=yes"))
        assert source is brokers.owner_of(bundle)
        assert 204 == (await source.put(f"{move}&force=true")).status
        await brokers.settled()
        assert target is brokers.owner_of(bundle)


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
