"""Features of Pulsar that this server does not have."""

from __future__ import annotations

from pathlib import Path

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
