"""Balancing over HTTP: settings, their changes, and decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from equipoise.brokers.balancing.settings.setting_values import SETTINGS
from equipoise.brokers.decision_log import DecisionLog
from tests.decisions import AT_MS, idle, shed
from tests.unit.http.cluster import Answer, Broker, cluster

PATH = "/admin/v2/balancing"
CONFIGURATION = "/admin/v2/brokers/configuration"
DECISIONS = "/admin/v2/balancing/decisions"


async def patch(broker: Broker, body: object) -> Answer:
    return await broker.ask("PATCH", PATH, data=json.dumps(body).encode())


async def shown(broker: Broker) -> tuple[Mapping[str, Mapping[str, object]], Mapping[str, object]]:
    """The settings of a broker, and the other fields of its answer."""
    document = cast(
        "dict[str, Mapping[str, Mapping[str, object]]]", (await broker.get(PATH)).json()
    )
    return document.pop("settings"), document


async def test_each_setting_is_shown_with_its_origin(tmp_path: Path) -> None:
    async with cluster(tmp_path, balance_interval_ms=900) as brokers:
        (broker,) = brokers.brokers
        settings, about = await shown(broker)
        assert list(SETTINGS) == list(settings)
        assert {"changed_at": None, "changed_by": None, "problems": []} == about
        assert {"value": 900, "default": 5_000, "from": "broker"} == settings[
            "balancing.shed_interval_ms"
        ]
        assert {"value": [], "default": [], "from": "default"} == settings[
            "transfer.excluded_namespaces"
        ]
        answer = await patch(broker, {"changes": {"balancing.shed_interval_ms": 700}})
        offset = brokers.view.policies["balancing/settings"].last
        assert {
            "offset": offset,
            "changes": {"balancing.shed_interval_ms": {"before": None, "after": "700"}},
        } == answer.json()
        settings, about = await shown(broker)
        assert {"value": 700, "default": 5_000, "from": "channel"} == settings[
            "balancing.shed_interval_ms"
        ]
        assert {
            "changed_at": offset,
            "changed_by": "admin:anonymous at 127.0.0.1",
            "problems": [],
        } == about


async def test_what_is_in_force_is_shown_by_pulsars_keys_and_by_our_names(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        path = f"{CONFIGURATION}/loadBalancerSheddingIntervalMinutes/2"
        assert 204 == (await broker.ask("POST", path)).status
        runtime = (await broker.get(f"{CONFIGURATION}/runtime")).json()
        assert isinstance(runtime, dict)
        expected = {
            "loadBalancerSheddingIntervalMinutes": "2",
            "cluster": "equipoise",
            "http_port": broker.url.rpartition(":")[2],
            "balance": "true",
            "failureDomainsEnabled": "true",
            "balanced.moves_max": "4",
        }
        assert expected == {key: runtime[key] for key in expected}
        assert all(isinstance(value, str) for value in runtime.values())


async def test_any_broker_returns_the_newest_decisions(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        _, other = brokers.brokers
        assert [] == (await other.get(DECISIONS)).json()
        log = DecisionLog(other.worker.config.log_url)
        for decision in (idle(AT_MS), shed(AT_MS + 1), idle(AT_MS + 2)):
            log.write(decision)
        told = (await other.get(f"{DECISIONS}?limit=2")).json()
        assert isinstance(told, list)
        assert [(AT_MS + 1, "Success", 2), (AT_MS + 2, "Skip", 0)] == [
            (each["at_ms"], each["result"], len(each["moves"])) for each in told
        ]
        # A list, as above.
        assert 3 == len((await other.get(DECISIONS)).json())  # type: ignore[arg-type]
