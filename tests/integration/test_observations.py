"""The observations of real brokers, audited with the channel: honest brokers give no finding.

tests/injected shows that others give some.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.load.documents import decode_load
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline
from equipoise.spark_jobs.sequence.notes import load_rows
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from tests.load import admin_requests
from tests.load.cluster import counters, running, settle
from tests.spark.spark_pipeline import findings_of
from tests.waiting import until

pytestmark = pytest.mark.integration

NAMESPACE = "acme/shop"
MOVES = (
    MoveKind.TRANSFER,
    MoveKind.SPLIT,
    MoveKind.TRANSFER,
    MoveKind.MERGE,
    MoveKind.TRANSFER,
    MoveKind.MERGE,
)

Document = Mapping[str, Any]


def test_honest_brokers_give_no_finding(tmp_path: Path) -> None:
    """Bundles move, split and merge; one broker is paused, one is killed, all leave."""
    cluster = LocalCluster(counters(tmp_path, brokers=3, balance="false"))
    paused, killed = asyncio.run(eventful(cluster))
    documents = evidence(tmp_path / "channel.db.observations")
    with closing(open_log(cluster.log_url, create=False)) as log:
        entries = log.read(FIRST_OFFSET, limit=READ_ENTRIES_MAX)
        assert log.end() == entries[-1].offset
    now_ms = time.time_ns() // 1_000_000
    channel = [Arrival(Source.CHANNEL, entry.offset, now_ms, entry.data) for entry in entries]
    serving = [
        Arrival(Source.SERVING, number, now_ms, orjson.dumps(document))
        for number, document in enumerate(documents, start=FIRST_OFFSET)
    ]
    assert [] == findings_of([*channel, *serving])
    assert {None, "closed", "reshaped", "lease_over"} <= {each["ended"] for each in documents}
    begun, over = (
        Counter(map(period, documents_of(documents, ended=is_over))) for is_over in (False, True)
    )
    assert {killed} == {each[0] for each in begun - over}
    assert not over - begun
    fenced = [each for each in documents if each["ended"] == "lease_over"]
    assert {paused} == {each["incarnation"] for each in fenced}
    assert all(each["answered_ns"] == each["lease_deadline_ns"] for each in fenced)


def test_observations_can_be_switched_off(tmp_path: Path) -> None:
    """Load reports are kept all the same, because brokers read them."""
    file = asyncio.run(reported(tmp_path))
    assert {None} == {load_rows(decode_load(each))[0].get("bundle") for each in kept(file, "loads")}
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        kept(file, "serving")


async def reported(folder: Path) -> Path:
    """Run a broker without observations until it has reported its load. Return the path of what it
    keeps.
    """
    cluster = LocalCluster(
        counters(folder, brokers=1, balance_interval_ms=200, observations="false")
    )
    async with running(cluster, NAMESPACE, bundles=2):
        bus = LoadBus(cluster.log_url)
        await until(lambda: bool(bus.latest()), "a load report")
    return folder / "channel.db.observations"


async def eventful(cluster: LocalCluster) -> tuple[int, int]:
    """Cause every kind of end of serving.

    Return the incarnation that was paused and the one that was killed, once all that is owned then
    has left evidence.
    """
    async with running(cluster, NAMESPACE, bundles=6) as (table, http):
        await moved(cluster, table, http, MOVES)
        await all_served(cluster, table)
        # One that serves: of another nobody would wait until it is dead.
        serving = {one.owner for one in table.view.bundles_of(NAMESPACE)}
        index = next(
            number
            for number in (1, 0)
            if incarnation(table.view, cluster.broker_ids[number]) in serving
        )
        paused = incarnation(table.view, cluster.broker_ids[index])
        cluster.pause(index)
        await settle(cluster, table, NAMESPACE, without=paused)
        await until(lambda: paused not in table.view.live, "the death of the paused broker")
        cluster.resume(index)
        await until(
            lambda: incarnation(table.view, cluster.broker_ids[index]) > paused, "its return"
        )
        (bundle,) = [one for one in table.view.bundles_of(NAMESPACE) if one.owner is not None][:1]
        to = admin_requests.Move(
            kind=MoveKind.TRANSFER, bundle=bundle.name, to=cluster.broker_ids[2]
        )
        await admin_requests.make(http, cluster.addresses[0], to)
        killed = incarnation(table.view, cluster.broker_ids[2])
        await asyncio.to_thread(cluster.kill, 2)
        await settle(cluster, table, NAMESPACE, without=killed)
        await all_served(cluster, table)
        return paused, killed


async def all_served(cluster: LocalCluster, table: TableView) -> None:
    """Wait for evidence of all that is owned: the log has an owner before that owner serves."""
    path = cluster.settings.directory / "channel.db.observations"
    await until(
        lambda: (
            {(one.name, one.token, one.owner) for one in table.view.bundles_of(NAMESPACE)}
            <= served_in(evidence(path))
        ),
        "evidence of all that is owned",
    )


def served_in(documents: Sequence[Document]) -> set[tuple[str, int, int | None]]:
    """Return who served what by the evidence: bundle, token, incarnation."""
    return {(each["bundle"], each["token"], each["incarnation"]) for each in documents}


async def moved(
    cluster: LocalCluster, table: TableView, http: aiohttp.ClientSession, deeds: Sequence[MoveKind]
) -> None:
    """Make moves one after the other. A merge may need a transfer first."""
    random = Random(5)
    for deed in deeds:
        deadline = Deadline.after(timeout_ms=60_000)
        while True:
            move = admin_requests.choose(deed, table.view, NAMESPACE, random)
            assert move is not None
            problem = await admin_requests.make(http, cluster.addresses[0], move)
            if problem is None:
                break
            # The table, or the first broker, has not read what the other one has.
            assert "it is assigning, not owned" in problem or "there is no bundle" in problem
            deadline.check("the first broker and the table reading the same")
            await asyncio.sleep(0.05)
        await settle(cluster, table, NAMESPACE)


def incarnation(view: View, broker: str) -> int:
    """Return the present incarnation of a broker."""
    return view.brokers[broker].incarnation


def kept(path: Path, table: str) -> list[bytes]:
    """Return the documents of one table of observations, in order."""
    with closing(sqlite3.connect(path)) as connection:
        # A name of ours.
        rows = connection.execute(f"SELECT document FROM {table} ORDER BY id").fetchall()  # noqa: S608
    return [document.encode() for (document,) in rows if document is not None]


def evidence(path: Path) -> list[Document]:
    """Return the observations of serving."""
    return [orjson.loads(document) for document in kept(path, "serving")]


def documents_of(documents: Sequence[Document], *, ended: bool) -> list[Document]:
    """Return the reports of an end, or those of a beginning."""
    return [each for each in documents if (each["ended"] is not None) is ended]


def period(document: Document) -> tuple[int, str, int, int]:
    """Return the period of a document: incarnation, bundle, token, beginning."""
    return document["incarnation"], document["bundle"], document["token"], document["started_ns"]
