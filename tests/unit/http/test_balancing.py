"""Balancing over HTTP: settings, their changes, and decisions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from equipoise.brokers.agent.requests import RACES_MAX
from equipoise.brokers.balancing.settings.pulsar_keys import MANAGER, TAKEN
from equipoise.brokers.balancing.settings.setting_values import SETTINGS
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.decision_log import DecisionLog
from tests.decisions import AT_MS, idle, shed
from tests.unit.http.cluster import Answer, Broker, cluster, until

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


async def test_a_change_is_one_record_for_all_brokers(tmp_path: Path) -> None:
    changes = {
        "balancing.enabled": False,
        "transfer.target_deviation": 0.1,
        "balanced.moves_max": "7",
        "limits.sessions_max": "none",
        "transfer.excluded_namespaces": ["b/b", "a/a"],
    }
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        assert 200 == (await patch(one, {"changes": changes})).status
        document = one.worker.view.policies["balancing/settings"].document
        assert "admin:anonymous at 127.0.0.1" == document["changed_by"]
        await until(lambda: "balancing/settings" in other.worker.view.policies)
        settings = settings_in(other.worker.view, other.worker.config.base_settings)
        assert (False, 0.1, 7, None) == (
            settings.balancing.enabled,
            settings.groups()["transfer"].target_deviation,
            settings.groups()["balanced"].moves_max,
            settings.limits.sessions_max,
        )
        assert frozenset({"a/a", "b/b"}) == settings.groups()["transfer"].excluded_namespaces
        answer = await patch(other, {"changes": dict.fromkeys(changes)})
        made = cast(
            "Mapping[str, Mapping[str, object]]",
            cast("dict[str, object]", answer.json())["changes"],
        )
        assert {"before": "a/a,b/b", "after": None} == made["transfer.excluded_namespaces"]
        assert other.worker.config.base_settings == settings_in(
            other.worker.view, other.worker.config.base_settings
        )


async def test_concurrent_changes_of_different_settings_all_succeed(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        names = [name for name, setting in SETTINGS.items() if setting.kind is bool][:RACES_MAX]
        asked = [
            patch(brokers.brokers[number % 2], {"changes": {name: True}})
            for number, name in enumerate(names)
        ]
        for name, answer in zip(names, await asyncio.gather(*asked), strict=True):
            assert (200, [name]) == (
                answer.status,
                list(cast("dict[str, dict[str, object]]", answer.json())["changes"]),
            )
        document = brokers.view.policies["balancing/settings"].document
        assert dict.fromkeys(names, True) == {
            name: value for name, value in document.items() if name in SETTINGS
        }


BAD_CHANGES: tuple[tuple[object, int, str], ...] = (
    (None, 400, "the body cannot be used"),
    ([], 400, "the body cannot be used"),
    ({}, 400, "changes"),
    ({"changes": {}, "who": "erin"}, 400, "who"),
    ({"changes": {"balanced.moves_max": {}}}, 400, "balanced.moves_max"),
    (
        {"changes": {"balanced.moves_max": 0}},
        412,
        (
            "balanced.moves_max cannot be '0': it must be an integer, at least 1; the old setting"
            " stays"
        ),
    ),
    ({"changes": {"balanced.moves_max": 1.5}}, 412, "it must be an integer"),
    ({"changes": {"balanced.moves_max": True}}, 412, "it must be an integer"),
    ({"changes": {"transfer.target_deviation": float("nan")}}, 412, "it must be a number"),
    (
        {"changes": {"balanced.moves_max": 9, "balancing.shedder": "Mine"}},
        412,
        "it must be one of BalancedShedder",
    ),
    ({"changes": {"balanced.move_max": None}}, 412, "did you mean balanced.moves_max?"),
)


async def test_an_invalid_change_leaves_the_old_settings(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for body, status, told in BAD_CHANGES:
            answer = await patch(broker, body)
            assert (status, True) == (answer.status, told in answer.reason), (body, answer.body)
        assert {} == brokers.view.policies


async def test_the_channel_sets_the_default_number_of_bundles(tmp_path: Path) -> None:
    """Pulsar's clients send 0 for the default."""
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        await patch(broker, {"changes": {"balancing.namespace_bundles": 7}})
        for name, body in (
            ("none", None),
            ("zero", {"bundles": {"numBundles": 0}}),
            ("two", {"bundles": {"numBundles": 2}}),
        ):
            assert 204 == (await broker.put(f"/admin/v2/namespaces/acme/{name}", body)).status
        assert [7, 7, 2] == [
            len(brokers.view.bundles_of(f"acme/{name}")) for name in ("none", "zero", "two")
        ]


async def test_pulsars_dynamic_configuration_sets_our_settings(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        assert [*TAKEN, MANAGER] == (await broker.get(CONFIGURATION)).json()
        for path in (
            "loadBalancerSheddingIntervalMinutes/2",
            "loadBalancerBrokerOverloadedThresholdPercentage/70",
        ):
            assert 204 == (await broker.ask("POST", f"{CONFIGURATION}/{path}")).status
        settings = settings_in(brokers.view, broker.worker.config.base_settings)
        assert (120_000, 70, 70) == (
            settings.balancing.shed_interval_ms,
            settings.groups()["transfer"].overloaded_percent,
            settings.groups()["overload"].overloaded_percent,
        )
        set_here = {
            "loadBalancerSheddingIntervalMinutes": "2",
            "loadBalancerBrokerOverloadedThresholdPercentage": "70",
        }
        assert set_here == (await broker.get(f"{CONFIGURATION}/values")).json()
        runtime = (await broker.get(f"{CONFIGURATION}/runtime")).json()
        assert isinstance(runtime, dict)
        own = {
            "cluster": "equipoise",
            "http_port": broker.url.rpartition(":")[2],
            "balance": "true",
        }
        others = {"failureDomainsEnabled": "true", "balanced.moves_max": "4"}
        assert set_here | own | others == {key: runtime[key] for key in (*set_here, *own, *others)}
        assert all(isinstance(value, str) for value in runtime.values())
        assert (
            204
            == (
                await broker.ask(
                    "DELETE", f"{CONFIGURATION}/loadBalancerBrokerOverloadedThresholdPercentage"
                )
            ).status
        )
        assert {"balancing.shed_interval_ms"} == brokers.view.policies[
            "balancing/settings"
        ].document.keys() & SETTINGS.keys()


BAD_KEYS = (
    ("POST", "loadBalancerSheddingIntervalMinutes/0", "it must be at least 1"),
    ("POST", "loadBalancerLoadSheddingStrategy/org.example.Mine", "there is no such shedder here"),
    (
        "POST",
        "loadBalancerSheddingIntervalMinute/1",
        "did you mean loadBalancerSheddingIntervalMinutes?",
    ),
    ("DELETE", "brokerClientTlsEnabled", "there is no setting 'brokerClientTlsEnabled'"),
)


async def test_keys_of_pulsar_without_a_setting_here_are_answered_412(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for method, path, told in BAD_KEYS:
            answer = await broker.ask(method, f"{CONFIGURATION}/{path}")
            assert (412, True) == (answer.status, told in answer.reason), answer.body
        assert {} == brokers.view.policies


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
