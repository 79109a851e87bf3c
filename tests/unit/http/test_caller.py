"""Each record that a request makes names its caller: the role, or without authentication the
address.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest

from equipoise.brokers.http.caller import CALLED_FROM
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Record
from equipoise.channel.inspect.story import Names, describe
from tests.unit.http.cluster import (
    NAMESPACE,
    Broker,
    Cluster,
    path_of,
    told,
    with_broker,
    with_cluster,
)
from tests.unit.security.signing import SETTINGS, bearer, token

ALICE = bearer(token("alice"))


def noted(broker: Broker) -> list[Folded]:
    """The records that a broker reads from now on, without renewals."""
    found = list[Folded]()
    broker.worker.listen(
        lambda folded: None if type(folded.record).__name__ == "Renewed" else found.append(folded)
    )
    return found


def requesters(found: list[Folded]) -> list[tuple[str, str | None]]:
    return [
        (type(folded.record).__name__, folded.record.requested_by)
        for folded in found
        if isinstance(folded.record, Record)
    ]


async def done(
    broker: Broker, method: str, path: str, body: object = None, headers: Mapping[str, str] = ALICE
) -> None:
    data = None if body is None else json.dumps(body).encode()
    answer = await broker.ask(
        method, path, data=data, headers={"Content-Type": "application/json", **headers}
    )
    assert answer.status in {200, 204}, answer.body


@with_cluster(brokers=2, **SETTINGS)
async def test_records_name_the_role_of_the_caller(made: Cluster) -> None:
    bundle, owner, other = made.first()
    found = noted(other)
    await done(other, "PUT", f"/admin/v2/namespaces/{NAMESPACE}-2", {"bundles": {"numBundles": 1}})
    await done(other, "POST", f"/admin/v2/namespaces/{NAMESPACE}/antiAffinity", "group")
    await done(other, "PATCH", "/admin/v2/balancing", {"changes": {"balancing.enabled": False}})
    await done(other, "PUT", "/admin/v2/tenants/new", {"allowedClusters": []})
    await done(other, "PUT", f"{path_of(bundle)}/unload?destinationBroker={other.id}")
    asked = [each for each in requesters(found) if each[1] is not None]
    names = [
        "NamespaceRecord",
        "NamespaceRecord",
        "PolicyRecord",
        "PolicyRecord",
        "BundleTransition",
    ]
    assert [(name, "admin:alice") for name in names] == asked
    document = other.worker.view.policies["balancing/settings"].document
    assert "admin:alice" == document["changed_by"]
    await done(owner, "POST", "/admin/v2/brokers/drain")
    await other.worker.reached(owner.worker.view.offset, timeout_ms=20_000)
    assert ("BrokerRecord", "admin:alice") in requesters(found)


@with_cluster(brokers=2, **SETTINGS)
async def test_a_story_shows_who_asked_and_which_broker_wrote_it_down(made: Cluster) -> None:
    bundle, _, other = made.first()
    found = noted(other)
    await done(other, "PUT", f"{path_of(bundle)}/unload?destinationBroker={other.id}")
    story = [describe(folded, other.worker.view, Names(other.worker.view))[0] for folded in found]
    assert [line for line in story if line.endswith(f"by admin:alice via {other.id}")], story
    # What brokers did to carry it out is theirs.
    assert ["alice" in line for line in story].count(True) == 1


@with_broker()
async def test_without_authentication_records_name_the_address(broker: Broker) -> None:
    found = noted(broker)
    forged = {"Authorization": "Bearer alice", CALLED_FROM: "9.9.9.9"}
    await done(broker, "PUT", "/admin/v2/tenants/new", {"allowedClusters": []}, forged)
    assert [("PolicyRecord", "admin:anonymous at 127.0.0.1")] == requesters(found)


@with_broker(**SETTINGS)
async def test_a_role_that_no_record_can_carry_is_refused(broker: Broker) -> None:
    answer = await broker.ask("POST", "/admin/v2/brokers/drain", headers=bearer(token("r" * 1_024)))
    assert (412, "InvalidName") == told(answer)
    assert "1 to 1018 printable characters" in answer.reason


@with_broker(**SETTINGS)
async def test_a_refusal_is_logged_with_the_path_and_without_the_query(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert 401 == (await broker.get("/admin/v2/tenants%0Ax?token=shh")).status
    (line,) = (
        each
        for each in caplog.records
        if each.levelno == logging.WARNING and "refused a client" in each.msg
    )
    about = (
        line.__dict__["surface"],
        line.__dict__["role"],
        line.__dict__["client"],
        line.__dict__["what"],
        line.__dict__["fault"],
    )
    assert ("http", "-", "127.0.0.1", "GET /admin/v2/tenants%0Ax", "missing") == about
