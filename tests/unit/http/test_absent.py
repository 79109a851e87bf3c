"""Features of Pulsar that this server does not have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.brokers.http.admin.absent import FEATURES, NOTHING, Feature
from tests.unit.http.cluster import NAMESPACE, Broker, cluster


def concrete(feature: Feature) -> str:
    """The path of a feature in the namespace of the tests. Of alternatives it has the first one."""
    tenant, _, namespace = NAMESPACE.partition("/")
    path = (
        feature.path.replace("{tenant}", tenant)
        .replace("{namespace}", namespace)
        .replace("{cluster}", "equipoise")
    )
    return re.sub(r"{\w+}", "x", re.sub(r"{\w+:(\w+)[^}]*}", r"\1", path))


async def test_a_question_gets_the_default_and_a_change_a_sentence(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for feature in FEATURES:
            for method in feature.methods.split():
                await check(broker, feature, method)


async def check(broker: Broker, feature: Feature, method: str) -> None:
    answer = await broker.ask(method, concrete(feature))
    if method == "GET" and feature.default is not NOTHING:
        assert (204, None) == (answer.status, feature.default) or (200, feature.default) == (
            answer.status,
            answer.json(),
        )
    else:
        assert (405, {"reason": feature.why, "error": "NotSupported"}) == (
            answer.status,
            answer.json(),
        )
        has_answer = "GET" in feature.methods.split() and feature.default is not NOTHING
        assert ("GET" if has_answer else "") == answer.headers["Allow"]


async def test_a_feature_of_what_does_not_exist_is_answered_404(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for method in ("GET", "POST"):
            for path in ("namespaces/no/where/retention", "clusters/nowhere/migrate"):
                answer = await broker.ask(method, f"/admin/v2/{path}")
                assert (404, True) == (answer.status, "where" in answer.reason), path


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.path)
def test_a_refusal_is_one_sentence(feature: Feature) -> None:
    assert feature.why == feature.why.strip().rstrip(".")
    assert ". " not in feature.why
