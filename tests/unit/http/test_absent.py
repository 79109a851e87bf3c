"""Features of Pulsar that this server does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.http.admin.absent import DEFAULTS
from tests.unit.http.cluster import NAMESPACE, cluster


async def test_a_question_gets_the_default_and_a_change_a_sentence(tmp_path: Path) -> None:
    tenant, _, namespace = NAMESPACE.partition("/")
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for path, default in DEFAULTS.items():
            named = {"tenant": tenant, "namespace": namespace, "cluster": "equipoise"}
            concrete = path.format(**named)
            answer = await broker.ask("GET", concrete)
            assert (204, None) == (answer.status, default) or (200, default) == (
                answer.status,
                answer.json(),
            )
            refused = await broker.ask("PUT", concrete)
            assert (405, "GET") == (refused.status, refused.headers["Allow"])
            command = concrete.removeprefix("/admin/v2/")
            assert refused.reason.startswith(f"this server has no 'PUT {command}': ")


@pytest.mark.parametrize(
    ("method", "path", "way"),
    [
        ("POST", f"v2/namespaces/{NAMESPACE}/permissions/s/r", "grant consume in the namespace"),
        ("PUT", f"v2/namespaces/{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", "use schema"),
        ("POST", f"v2/namespaces/{NAMESPACE}/resourcegroup/x", "use publishRate and dispatchRate"),
        ("GET", "v2/broker-stats/mbeans", "use broker-stats monitoring-metrics"),
        ("POST", "v2/clusters/equipoise/migrate", "start new clients with the address"),
        ("GET", "namespaces/a/b", "use tenant/namespace"),
    ],
)
async def test_a_refusal_names_the_command_and_the_way_round(
    tmp_path: Path, method: str, path: str, way: str
) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        answer = await broker.ask(method, f"/admin/{path}")
    assert 405 == answer.status
    assert answer.reason.startswith(f"this server has no '{method} {path.removeprefix('v2/')}': ")
    assert way in answer.reason


async def test_a_broker_without_topics_names_those_that_have_them(tmp_path: Path) -> None:
    """It cannot tell what they lack."""
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for method, path in (
            ("GET", f"namespaces/{NAMESPACE}/publishRate"),
            ("POST", f"namespaces/{NAMESPACE}/backlogQuota"),
            ("PUT", f"persistent/{NAMESPACE}/orders/subscription/s"),
            ("PUT", f"non-persistent/{NAMESPACE}/orders/subscription/s"),
            ("GET", "broker-stats/topics"),
        ):
            answer = await broker.ask(method, f"/admin/v2/{path}")
            assert (404, True) == (answer.status, "ask a broker that does" in answer.reason), path


async def test_a_feature_of_what_does_not_exist_is_answered_404(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for method in ("GET", "POST"):
            for path in ("namespaces/no/where/retention", "clusters/nowhere/migrate"):
                answer = await broker.ask(method, f"/admin/v2/{path}")
                assert (404, True) == (answer.status, "where" in answer.reason), path
