"""A broker whose process tree burns CPU gives bundles away, whatever their own load."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from equipoise.brokers.decision_log import newest_decisions
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.ranges import key_hash
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline
from tests.load.admin_requests import QUICK, tune
from tests.load.callers import CallerProcess, Plan, Stream
from tests.load.cluster import counters, running
from tests.load.verdicts import check_calls

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.repeats,
    pytest.mark.timeout(400),
]

NAMESPACE = "acme/relief"
BROKERS, BUNDLES, KEYS_EACH = 3, 12, 2
BURNING = "tests.integration.burning:Burning"
PATIENCE_MS = 240_000
LOOK_S = 0.1

# One child takes a processor of a machine that is idle, and only its share of one that others use,
# too: another is started each time, until so much is burnt that it shows. 48 at most in
# `PATIENCE_MS`.
BURN_MORE_MS = 5_000


async def test_a_broker_whose_process_tree_burns_cpu_is_relieved(tmp_path: Path) -> None:
    """It loses at least half of its bundles, as the decisions say, and no call is lost. Other load
    on the machine may move others, too.
    """
    settings = counters(tmp_path, brokers=BROKERS, evidence=True, cpu_cores=1)
    cluster = LocalCluster(replace(settings, services=(BURNING,)))
    history = tmp_path / "history.jsonl"
    async with AsyncExitStack() as parts:
        table, http = await parts.enter_async_context(running(cluster, NAMESPACE, bundles=BUNDLES))
        await asyncio.to_thread(tune, cluster.log_url, QUICK)
        streams = tuple(
            Stream(key=f"{NAMESPACE}/{key}", calls_per_second=3.0) for key in even_keys(table)
        )
        callers = await parts.enter_async_context(
            CallerProcess(Plan(brokers=cluster.addresses, streams=streams, history=history))
        )
        burning = cluster.broker_ids[1]
        held = bundles_of(table, burning)
        assert BUNDLES // BROKERS == held
        began_ms = time.time_ns() // 1_000_000
        deadline, burn_more = Deadline.after(timeout_ms=PATIENCE_MS), Deadline.after(timeout_ms=0)
        while bundles_of(table, burning) > held // 2:
            if not burn_more.remaining_ms():
                deadline.check(f"{burning} being relieved")
                await burn(http, cluster.addresses[1])
                burn_more = Deadline.after(timeout_ms=BURN_MORE_MS)
            await asyncio.sleep(LOOK_S)
        await callers.stop()
    decisions = [
        decision
        for decision in newest_decisions(cluster.log_url, 1_000)
        if decision.at_ms >= began_ms and decision.plan.moves
    ]
    assert {"BalancedShedder"} == {decision.strategy for decision in decisions}
    sources = {
        move.bundle: move.source for decision in reversed(decisions) for move in decision.plan.moves
    }
    assert burning == Counter(sources.values()).most_common(1)[0][0]
    verdict = check_calls([history], store=tmp_path / "counter.db", evidence=cluster.evidence())
    assert verdict.is_clean, verdict


def even_keys(table: TableView) -> Iterator[str]:
    """The same number of keys for each bundle, so that half of the load is half of the bundles."""
    found = Counter[str]()
    for number in itertools.count():
        bundle = table.view.bundle_at(NAMESPACE, key_hash(f"key-{number}"))
        assert bundle is not None, "all of the hash space is covered"
        if found[bundle.name] < KEYS_EACH:
            found[bundle.name] += 1
            yield f"key-{number}"
        if found.total() == KEYS_EACH * BUNDLES:
            return


async def burn(http: aiohttp.ClientSession, broker: str) -> None:
    async with http.post(f"{broker}/burn") as response:
        assert 200 == response.status


def bundles_of(table: TableView, broker: str) -> int:
    return table.view.held_count(table.view.brokers[broker].incarnation)
