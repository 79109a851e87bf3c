"""Make clusters, load reports, records and admin APIs for the tests of plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from urllib.parse import urlsplit

from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.credentials import NOBODY, Credentials, Exchange, Reply, Request
from equipoise.pulsar_cluster.loads import LoadReports
from equipoise.pulsar_cluster.records import (
    BROKER_LOADS,
    TOP_BUNDLES,
    Message,
    Report,
    StateRecord,
)

NOW_MS = 1_795_000_000_000
BROKERS = ("a:8080", "b:8080", "c:8080")
NAMESPACE = "public/default"


def names(count: int, namespace: str = NAMESPACE) -> list[str]:
    step = (1 << 32) // count
    edges = [step * number for number in range(count)] + [0xFFFFFFFF]
    return [f"{namespace}/0x{low:08x}_0x{high:08x}" for low, high in pairwise(edges)]


def owned(
    bundle: str,
    broker: str | None,
    *,
    offset: int = 0,
    version: int = 2,
    state: str = "Owned",
    source: str | None = None,
) -> Message:
    record = StateRecord(state, broker, source, force=False, version=version)
    return Message(offset, f"1:{offset}", bundle, NOW_MS - 600_000, record)


def bundles_at(owners: Mapping[str, Sequence[str]]) -> dict[str, Message]:
    return {
        bundle: owned(bundle, broker) for broker, bundles in owners.items() for bundle in bundles
    }


def broker_load(
    broker: str, *, rate: float = 0.0, bundles: int = 0, taken_ms: int = NOW_MS, **fields: object
) -> Report:
    value = {
        "cpu": {"usage": 40.0, "limit": 200.0},
        "memory": {"usage": 100.0, "limit": 512.0},
        "directMemory": {"usage": 10.0, "limit": 512.0},
        "bandwidthIn": {"usage": 0.0, "limit": 0.0},
        "bandwidthOut": {"usage": 0.0, "limit": 0.0},
        "msgThroughputIn": rate * 1_000,
        "msgThroughputOut": 0.0,
        "msgRateIn": rate,
        "msgRateOut": 0.0,
        "bundleCount": bundles,
        "topics": bundles,
        "maxResourceUsage": 0.2,
        "weightedMaxEMA": 0.2,
        "msgThroughputEMA": rate * 1_000,
        "updatedAt": taken_ms,
        "reportedAt": 0,
    }
    return Report(taken_ms, BROKER_LOADS, broker, json.dumps(value | fields).encode())


def stats(rate: float, **fields: object) -> dict[str, object]:
    return {
        "msgRateIn": rate,
        "msgThroughputIn": rate * 1_000,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "consumerCount": 0,
        "producerCount": 2,
        "topics": 2,
        "cacheSize": 0,
    } | fields


def top_bundles(broker: str, rates: Mapping[str, float], *, at_ms: int = NOW_MS) -> Report:
    entries = [
        {"bundleName": bundle, "stats": stats(rate)}
        for bundle, rate in sorted(rates.items(), key=lambda each: each[1])
    ]
    return Report(at_ms, TOP_BUNDLES, broker, json.dumps({"topBundlesLoadData": entries}).encode())


def reports_of(
    owners: Mapping[str, Sequence[str]], rates: Mapping[str, float], *, named_max: int = 10
) -> LoadReports:
    """Return what brokers report that have these bundles with these message rates."""
    reports = LoadReports()
    for broker, bundles in owners.items():
        own = {bundle: rates[bundle] for bundle in bundles}
        heaviest = dict(
            sorted(
                ((bundle, rate) for bundle, rate in own.items() if rate), key=lambda each: -each[1]
            )[:named_max]
        )
        rate = sum(own.values())
        reports.take(
            broker_load(broker, rate=rate, bundles=len(bundles), weightedMaxEMA=rate / 1_000)
        )
        reports.take(top_bundles(broker, heaviest))
    return reports


# --- an admin API ---


def admin_of(answer: Exchange, *urls: str, credentials: Credentials = NOBODY) -> PulsarAdmin:
    return PulsarAdmin(urls or ("http://a:8080",), credentials=credentials, exchange=answer)


def path_of(request: Request) -> str:
    return urlsplit(request.url).path.removeprefix("/admin/v2")


def host_of(request: Request) -> str:
    return str(urlsplit(request.url).hostname)


def replied(answer: object) -> Reply:
    """Return an answer: None is a 404, an error is raised, and anything else is sent as JSON."""
    if isinstance(answer, Exception):
        raise answer
    if answer is None:
        return Reply(404, '{"reason": "none"}')
    return answer if isinstance(answer, Reply) else Reply(200, json.dumps(answer))


def answers(
    by: Callable[[Request], str], found: Mapping[str, object], asked: list[Request] | None = None
) -> Exchange:
    """Return an API that answers by the path or the host of a request, and notes what was
    asked.
    """

    def answer(request: Request) -> Reply:
        if asked is not None:
            asked.append(request)
        return replied(found.get(by(request), found.get("*")))

    return answer
