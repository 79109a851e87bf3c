"""The reference names every path and metric, and what there is not has a default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.brokers.http.admin.absent import DEFAULTS
from equipoise.brokers.runtime.listening import Handshakes
from equipoise.brokers.runtime.metrics import Metrics
from equipoise.brokers.security.audit import Audit
from equipoise.brokers.security.tls import Certificates, TlsFiles
from equipoise.channel.core.view import View
from tests.docs.metrics_page import documented, misdescribed
from tests.docs.openapi import operations
from tests.unit.http.cluster import NAMESPACE, Broker, cluster, with_broker


@pytest.mark.integration
@with_broker()
async def test_openapi_has_every_path(broker: Broker) -> None:
    """Those of topics have their own test, beside them."""
    described = operations(of_topics=False)
    routes = {
        f"{route.method} {route.resource.canonical}"
        for route in broker.app.router.routes()
        if route.resource is not None
    }
    absent = {f"* {path}" for path in DEFAULTS}
    # aiohttp sees one path of lookups, and takes HEAD wherever it takes GET; the last is there
    # to refuse what no other takes.
    served = (
        {route for route in routes if not route.startswith("HEAD ")}
        - {"GET /lookup/v2/topic/{path}", "* /{path}"}
        - absent
    )
    assert served == {path for path in described if "/lookup/" not in path}


def test_every_metric_is_documented() -> None:
    metrics = Metrics(broker="b")
    certificates = Certificates(TlsFiles(), broker="b", host="b")
    certificates.expires_s = 0.0
    metrics.register(Handshakes(certificates, Audit(broker="b", now_ms=lambda: 0), broker="b"))
    scrape = metrics.scrape(
        View(), incarnation=None, lease_left_ms=0, lag_records=0, log_is_available=True
    ).decode()
    told = set(
        re.findall(r"^# TYPE (?!pulsar_lb_)(\w+) ", scrape, flags=re.MULTILINE)
    )  # Those are counterparts: see tests/unit/balancing/test_balancing_metrics.py.
    of_others = ("equipoise_pulsar_", "equipoise_JOB_")
    assert told == {name for name in documented() if not name.startswith(of_others)}
    assert {} == misdescribed(scrape)


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
