"""The overview that the page shows, as JSON and as a stream, and the files of the page."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from contextlib import closing
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.decision_log import DecisionLog, DecisionTail
from equipoise.brokers.http.page import past, plans
from equipoise.brokers.http.page.files import _contents
from equipoise.brokers.http.page.overview import Overview
from equipoise.brokers.http.page.sections import changes, rounded
from equipoise.brokers.http.page.weighing import SHADE_MAX, SHARE, Budget, Strip, Weighed, shade_of
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.operations.access import opened
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.log.open_log import open_log
from equipoise.shedder.loads import BundleTraffic, Load
from tests.channels.compacting import compacted
from tests.decisions import idle
from tests.unit.cli.worlds import WORLDS
from tests.unit.http.cluster import (
    NAMESPACE,
    PATIENCE_MS,
    Broker,
    Cluster,
    post,
    told,
    with_broker,
    with_cluster,
)
from tests.unit.security.signing import bearer, token
from tests.unit.security.who_may import RIGHTS, SUPER

LIBRARY = "72284e8e9079"

cuts = st.lists(st.integers(1, HASH_MAX - 1), max_size=20, unique=True).map(
    lambda points: [0, *sorted(points), HASH_MAX]
)
facts = st.tuples(st.integers(0, 9), st.integers(0, 3), st.floats(0, 100))


def cells_in(encoded: str) -> list[tuple[int, int, int]]:
    """Server, state and shade of each cell."""
    data = b64decode(encoded)
    return [
        (data[at] << 8 | data[at + 1], data[at + 2] >> 4, data[at + 2] & 15)
        for at in range(0, len(data), 3)
    ]


@given(cuts, st.data(), st.integers(1, 40))
def test_a_cell_shows_the_heaviest_and_the_worst_of_its_bundles(
    points: list[int], data: st.DataObject, cells: int
) -> None:
    """Also of a part of the hash space, in which bundles begin or end outside."""
    bundles = [Weighed(low, high, *data.draw(facts)) for low, high in pairwise(points)]
    low = data.draw(st.integers(0, HASH_MAX - 1))
    high = data.draw(st.integers(low + 1, HASH_MAX))
    strip = Strip(low, high, cells=cells)
    strip.add(each for each in bundles if each.low < high and low < each.high)
    for place, cell in enumerate(cells_in(strip.encoded(1.0))):
        # Points of the cell; one narrower than a point has the bundle of that point.
        span = high + (high == HASH_MAX) - low
        begin, end = (low + Fraction(each * span, cells) for each in (place, place + 1))
        there = [
            each
            for each in bundles
            if each.low < end and begin < each.high + (each.high == HASH_MAX)
        ]
        heaviest = max(each.cost for each in there)
        assert cell[0] in {each.server for each in there if each.cost == heaviest}
        assert cell[1:] == (max(each.state for each in there), shade_of(heaviest, 1.0))


def test_shades_double_and_end() -> None:
    assert [0, 1, 3, 5, 7, 11, SHADE_MAX, SHADE_MAX] == [
        shade_of(cost, 2.0) for cost in (0, 0.01, 1, 2, 4, 16, 64, 1e18)
    ]
    assert 0 == shade_of(1.0, 0.0)


rows = st.dictionaries(st.sampled_from("abcd"), st.integers(), max_size=4)
tables = st.dictionaries(st.sampled_from("st"), rows, min_size=2, max_size=2)


@given(tables, tables)
def test_changes_lead_from_one_overview_to_the_next(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]
) -> None:
    merged: dict[str, dict[str, Any]] = {name: dict(rows) for name, rows in before.items()}
    found = changes(before, after)
    for section, changed in found.items():
        merged[section] |= changed
    assert after == {
        name: {key: row for key, row in rows.items() if row is not None}
        for name, rows in merged.items()
    }
    assert {} == changes(after, after)


def test_a_budget_waits_until_its_share_of_time_has_passed() -> None:
    now_ns = [0]
    budget = Budget(lambda: now_ns[0])
    budget.spent(1_000_000)
    used_up = []
    for now_ns[0] in (0, round(1_000_000 / SHARE) - 1, round(1_000_000 / SHARE) + 1):
        used_up.append(budget.is_used_up)
    assert [True, True, False] == used_up
    now_ns[0] += 3_600_000_000_000
    budget.spent(round(2_000_000_000 * SHARE))
    assert budget.is_used_up, "an idle hour is not saved"


def test_figures_have_three_digits() -> None:
    assert (0.123, 1230.0, 0.0) == (rounded(0.12345), rounded(1234.5), rounded(0.0))


@with_broker()
async def test_pages_that_ask_at_once_share_one_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle on decisions is for one thread at a time."""
    overview, read = Overview(broker.worker), Mock(return_value=())
    monkeypatch.setattr(DecisionTail, "read", read)
    await asyncio.gather(
        *(overview.focus(NAMESPACE, 0, HASH_MAX, Budget()) for _ in range(3)), overview.sections()
    )
    overview.end()
    assert 1 == read.call_count


@with_cluster(brokers=2)
async def test_the_overview_has_brokers_namespaces_and_moves(cluster: Cluster) -> None:
    bundle, owner, other = cluster.first()
    await cluster.give(bundle, other)
    await cluster.settled()
    found: Any = (await other.get(f"/v1/overview?namespace={NAMESPACE}")).json()
    assert (len(cluster.bundles()), other.id) == (
        found["cluster"]["bundles"],
        found["cluster"]["answers"],
    )
    assert {owner.id, other.id} == set(found["brokers"])
    numbers = {each["number"]: name for name, each in found["brokers"].items()}
    namespace = found["namespaces"][NAMESPACE]
    assert (4, 4, 0, 0) == tuple(namespace[name] for name in ("bundles", "owned", "moving", "free"))
    assert other.id == numbers[cells_in(namespace["strip"])[0][0]]
    (row,) = found["moved"].values()
    assert (bundle, owner.id, other.id, "transfer", "done") == tuple(
        row[name] for name in ("bundle", "from", "to", "kind", "result")
    )
    assert {"": None, **dict.fromkeys(cluster.bundles())}.keys() == found["focus"].keys()
    assert found["you"]["may_operate"]
    answer = await other.get("/v1/overview?namespace=acme/none")
    focus: Any = answer.json()
    assert "there is no namespace acme/none" == focus["focus"][""]["problem"]
    assert (400, "InvalidRequest") == told(
        await other.get(f"/v1/overview?namespace={NAMESPACE}&low=5&high=5")
    )


@with_broker()
async def test_a_stream_sends_all_and_then_changes_until_the_broker_ends(broker: Broker) -> None:
    headers = {"Accept": "text/event-stream"}
    async with broker.session.get(f"{broker.url}/v1/overview", headers=headers) as stream:
        assert (200, "text/event-stream") == (stream.status, stream.content_type)

        async def event() -> tuple[str, Any]:
            name, data = [await stream.content.readline() for _ in range(2)]
            await stream.content.readline()
            return name.decode().strip(), json.loads(data.removeprefix(b"data: "))

        name, whole = await event()
        assert ("event: sections", False) == (name, "problems" in whole)
        body = {"reason": "<script>alert(1)</script>", "for_ms": 60_000}
        assert 204 == (await post(broker, "/admin/v2/controls/pause", body)).status
        while "problems" not in whole:
            name, whole = await event()
            assert "event: changes" == name
        (problem,) = whole["problems"].values()
        assert ("note", "balancing is paused: <script>alert(1)</script>") == (
            problem["level"],
            problem["text"],
        )
        (asked,) = whole["asked"].values()
        assert not asked["refused"]
        assert f"by admin:anonymous at 127.0.0.1 via {broker.id}" in asked["lines"][0]
        await broker.app.shutdown()
        while await stream.content.readline():
            pass


@with_broker(**RIGHTS)
async def test_the_files_need_no_token_and_the_overview_needs_a_right(broker: Broker) -> None:
    for path in ("/", "/page/app.js", "/page/style.css", "/page/vendor/preact-htm.js"):
        answer = await broker.get(path)
        assert 200 == answer.status
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    for path in ("/page/none.js", "/page/..%2fapp.py", "/page/"):
        assert 404 == (await broker.ask("GET", path, headers=bearer(token(SUPER)))).status
    assert 401 == (await broker.get("/v1/overview")).status
    assert 401 == (await broker.ask("POST", "/")).status

    async def asked(role: str) -> tuple[int, bool | None]:
        answer = await broker.ask("GET", "/v1/overview", headers=bearer(token(role)))
        found: Any = answer.json()
        return answer.status, found["you"]["may_operate"] if "you" in found else None

    past = "/v1/overview?at=1"
    refused = [
        (await broker.ask("GET", past, headers=headers)).status
        for headers in ({}, bearer(token("nobody")))
    ]
    assert [401, 403] == refused
    for role, right in (("reader", "read"), ("operator", "operate")):
        body = json.dumps(right).encode()
        path = f"/admin/v2/grants/{role}"
        granted = await broker.ask("POST", path, data=body, headers=bearer(token(SUPER)))
        assert 204 == granted.status
    assert [(403, None), (200, False), (200, True), (200, True)] == [
        await asked(role) for role in ("nobody", "reader", "operator", SUPER)
    ]


@with_cluster(brokers=2)
async def test_a_past_moment_is_as_it_was_live(cluster: Cluster) -> None:
    """With the loads and decisions of then, and without what came later. Nobody can act."""
    bundle, owner, other = cluster.first()
    config, now_ms = owner.worker.config, owner.worker.clock.now().wall_ms
    bus, decisions = LoadBus(config.log_url), DecisionLog(config.log_url)
    cost = BundleTraffic(bundle=bundle, cost=0.25)
    bus.publish(Load(broker=owner.id, at_ms=now_ms, bundles=(cost,), bundle_count=4, cost=0.25))
    decisions.write(idle(now_ms, broker=owner.id))
    await cluster.give(bundle, other)
    await cluster.settled()
    path = f"/v1/overview?namespace={NAMESPACE}"
    live: Any = (await other.get(path)).json()
    offset = live["cluster"]["offset"]

    later_ms = now_ms + 600_000
    bus.publish(Load(broker=owner.id, at_ms=later_ms, bundle_count=1, cost=9.0))
    decisions.write(idle(later_ms, broker=owner.id))
    assert 204 == (await other.put(f"/admin/v2/namespaces/{bundle}/split")).status
    then: Any = (await other.get(f"{path}&at={offset}")).json()
    same = ("brokers", "namespaces", "focus", "hot", "moving", "controls")
    assert {name: live[name] for name in same} == {name: then[name] for name in same}
    assert (offset, live["cluster"]["log_id"], 1) == (
        then["cluster"]["offset"],
        then["cluster"]["log_id"],
        then["cluster"]["first"]["offset"],
    )
    assert [(bundle, owner.id, other.id)] == [
        (row["bundle"], row["from"], row["to"]) for row in then["moved"].values()
    ]
    assert ([1, 1], False) == (
        [len(then["asked"]), len(then["decisions"])],
        then["you"]["may_operate"],
    )


@with_broker()
async def test_a_moment_that_the_log_does_not_have_is_refused(broker: Broker) -> None:
    end = broker.worker.view.offset
    for offset, sentence in ((10**9, "has no record at offset 1000000000"), (0, "has no record")):
        answer = await broker.get(f"/v1/overview?at={offset}")
        assert 412 == answer.status
        assert sentence in answer.reason
    assert (400, "InvalidRequest") == told(await broker.get("/v1/overview?at=yesterday"))
    with closing(open_log(broker.worker.config.log_url, create=False)) as log:
        compacted(log)
    gone = await broker.get("/v1/overview?at=2")
    assert (412, True) == (gone.status, "no longer has the view at offset 2" in gone.reason)
    assert 200 == (await broker.get(f"/v1/overview?at={end}")).status


@with_broker()
async def test_one_moment_is_folded_at_a_time_and_the_last_one_is_kept(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folding, folded = [0], list[int]()
    fold = past._folded  # noqa: SLF001 - what takes time and memory

    def counted(config: WorkerConfig, offset: int) -> object:
        folding[0] += 1
        folded.append(folding[0])
        try:
            return fold(config, offset)
        finally:
            folding[0] -= 1

    monkeypatch.setattr(past, "_folded", counted)
    end = broker.worker.view.offset
    offsets = (end, end - 1, end, end)
    answers = await asyncio.gather(
        *(broker.get(f"/v1/overview?at={offset}") for offset in offsets[:2])
    )
    answers += [await broker.get(f"/v1/overview?at={offset}") for offset in offsets[2:]]
    assert [200] * 4 == [each.status for each in answers]
    assert [1, 1, 1] == folded


def test_the_page_is_small_and_its_library_as_it_was_fetched() -> None:
    contents = _contents()
    assert sum(map(len, contents.values())) < 200_000
    assert LIBRARY == sha256(contents["vendor/preact-htm.js"]).hexdigest()[:12]
    assert {"vendor/htm-LICENSE.txt", "vendor/preact-LICENSE.txt"} <= set(contents)
    page = contents["index.html"].decode()
    assert "http" not in page, "it loads nothing from elsewhere"
    assert "<style" not in page
    assert "style=" not in page


@with_cluster(brokers=2)
async def test_the_history_of_a_bundle_has_its_records_and_its_load(cluster: Cluster) -> None:
    """Also of one that was split meanwhile."""
    bundle, owner, other = cluster.first()
    await cluster.give(bundle, other)
    await cluster.settled()
    costs = {bundle: 0.25, cluster.bundles()[1]: 0.5}
    traffic = tuple(BundleTraffic(bundle=name, cost=cost) for name, cost in costs.items())
    now_ms = other.worker.clock.now().wall_ms
    bus = LoadBus(other.worker.config.log_url)
    bus.publish(Load(broker=other.id, at_ms=now_ms, bundles=traffic, bundle_count=2, cost=0.75))
    split = await other.ask("PUT", f"/admin/v2/namespaces/{bundle}/split")
    found: Any = (await owner.get(f"/v1/bundle/{bundle}/history")).json()
    lines = [row["lines"][0].split("  ")[0] for row in found["records"]]
    assert (204, "create", "handover", "split") == (split.status, lines[0], lines[-3], lines[-1])
    assert (0, 0, 2) == (found["known_from"], found["left_out"], len(found["ending"]))
    assert [(other.id, 0.25)] == [(broker, cost) for _, broker, cost in found["loads"]]
    assert (412, "InvalidName") == told(await owner.get("/v1/bundle/acme/shop/x/history"))


@pytest.mark.parametrize(("world", "moves"), [("budget of another used", 2), ("budget used", 0)])
def test_a_plan_counts_the_budget_that_the_leader_has_used(
    world: str, moves: int, tmp_path: Path
) -> None:
    """As `equipoise plan` does. Otherwise it would promise moves that no round makes."""
    log_url = WORLDS[world](tmp_path)
    config = WorkerConfig(log_url=log_url, data_dir=tmp_path)
    with opened(log_url, timeout_ms=PATIENCE_MS) as access:
        loads, now_ms = LoadBus(log_url).latest(), time.time_ns() // 1_000_000
        plan: Any = plans._planned(access.view, loads, config, now_ms=now_ms)  # noqa: SLF001
    assert (moves, moves == 0) == (len(plan["moves"]), "is used up" in (plan["idle"] or ""))


@with_cluster(brokers=2)
async def test_a_plan_is_carried_out_as_it_was_shown_or_not_at_all(cluster: Cluster) -> None:
    """With a reason in each answer, and batch by batch."""
    owner, other = cluster.first()[1:]
    bundles = cluster.bundles()
    for bundle in bundles:
        if cluster.owner_of(bundle) is not owner:
            await cluster.give(bundle, owner)
    await cluster.settled()
    bus, now_ms = LoadBus(owner.worker.config.log_url), owner.worker.clock.now().wall_ms
    costs = tuple(BundleTraffic(bundle=name, cost=0.1) for name in bundles)
    bus.publish(
        Load(broker=owner.id, at_ms=now_ms, bundles=costs, bundle_count=len(costs), cost=0.4)
    )
    bus.publish(Load(broker=other.id, at_ms=now_ms))
    plan: Any = (await other.get("/v1/plan")).json()
    assert [(owner.id, other.id)] * len(plan["moves"]) == [
        (each["from"], each["to"]) for each in plan["moves"]
    ]
    left = [each["bundle"] for each in plan["moves"]]
    assert 0 < len(left) < len(bundles)
    body = {"text": plan["text"], "left": left}
    assert (400, "InvalidRequest") == told(
        await post(other, "/v1/plan", {**body, "text": plan["text"].replace("0", "1", 1)})
    )
    while left:
        made: Any = (await post(other, "/v1/plan", {**body, "left": left})).json()
        assert all(each["arrived"] for each in made)
        left = [each for each in left if each not in {one["bundle"] for one in made}]
    assert [] == (await post(other, "/v1/plan", {**body, "left": []})).json()
    assert (409, "stale") == told(await post(other, "/v1/plan", body))
