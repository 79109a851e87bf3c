"""The observations of real brokers, compared with the channel: honest brokers give no finding."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest

from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.intents import CreateNamespace, Transfer
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, OwnershipLost, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import Unreadable
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline
from equipoise.spark_jobs.rules.facts import Fact, subject
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.rules.serving import Holder, Serving, check_serving, follow_holder
from equipoise.spark_jobs.sequence.loads import load_rows
from tests.load import admin_requests
from tests.load.cluster import counters, running, settle

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
LOOK_S = 0.02
PATIENCE_S = 30.0
PATIENCE_MS = 30_000

Document = Mapping[str, Any]


def test_honest_brokers_give_no_finding(tmp_path: Path) -> None:
    """Bundles move, split and merge; one broker is paused, one is killed, all leave."""
    cluster = LocalCluster(counters(tmp_path, brokers=3, balance="false"))
    paused, killed, stopping_at = asyncio.run(eventful(cluster))
    documents = evidence(tmp_path / "channel.db.observations")
    findings, holders = compared(cluster.log_url, documents)
    assert [] == findings
    # A broker that is stopped gives its bundles to another one, which may be stopped before it
    # serves them: that leaves no evidence.
    unwitnessed = {holder for holder in holders - served_in(documents) if holder[1] <= stopping_at}
    assert unwitnessed <= {holder for holder in holders if holder[2] in (paused, killed)}, (
        unwitnessed
    )
    assert {None, "closed", "reshaped", "lease_over"} <= {each["ended"] for each in documents}
    begun, over = (
        Counter(map(period, documents_of(documents, ended=is_over))) for is_over in (False, True)
    )
    assert {killed} == {each[0] for each in begun - over}
    assert not over - begun
    fenced = [each for each in documents if each["ended"] == "lease_over"]
    assert {paused} == {each["incarnation"] for each in fenced}
    assert all(each["answered_ns"] == each["lease_deadline_ns"] for each in fenced)


async def test_wrong_evidence_gives_findings(tmp_path: Path) -> None:
    """So the comparison can fail."""
    cluster = LocalCluster(counters(tmp_path, brokers=2, balance="false"))
    async with running(cluster, NAMESPACE, bundles=4) as (table, http):
        await moved(cluster, table, http, (MoveKind.TRANSFER,))
    documents = evidence(tmp_path / "channel.db.observations")
    assert [] == compared(cluster.log_url, documents)[0]
    other = max(each["incarnation"] for each in documents)
    findings, _ = compared(cluster.log_url, [{**each, "incarnation": other} for each in documents])
    assert {"served_without_ownership"} == {finding.rule for finding in findings}
    late = [
        {**each, "answered_ns": each["answered_ns"] and each["answered_ns"] + 60_000_000_000}
        for each in documents
    ]
    assert {"served_past_lease", "served_two_at_once", "served_old_token"} == {
        finding.rule for finding in compared(cluster.log_url, late)[0]
    }


def test_observations_can_be_switched_off(tmp_path: Path) -> None:
    """Load reports are kept all the same, because brokers read them."""
    file = asyncio.run(reported(tmp_path))
    assert {1} == {
        len(rows.brokers) for rows in map(load_rows, kept(file, "loads")) if rows is not None
    }
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
        await until(lambda: bool(bus.latest()))
    return folder / "channel.db.observations"


async def eventful(cluster: LocalCluster) -> tuple[int, int, int]:
    """Cause every kind of end of serving.

    Return the incarnation that was paused, the one that was killed, and the offset at which the
    cluster began to stop.
    """
    async with running(cluster, NAMESPACE, bundles=6) as (table, http):
        await moved(cluster, table, http, MOVES)
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
        await until(lambda: paused not in table.view.live)
        cluster.resume(index)
        await until(lambda: incarnation(table.view, cluster.broker_ids[index]) > paused)
        (bundle,) = [one for one in table.view.bundles_of(NAMESPACE) if one.owner is not None][:1]
        to = admin_requests.Move(
            kind=MoveKind.TRANSFER, bundle=bundle.name, to=cluster.broker_ids[2]
        )
        await admin_requests.make(http, cluster.addresses[0], to)
        killed = incarnation(table.view, cluster.broker_ids[2])
        await asyncio.to_thread(cluster.kill, 2)
        await settle(cluster, table, NAMESPACE, without=killed)
        # The log has an owner before that owner serves.
        path = cluster.settings.directory / "channel.db.observations"
        await until(
            lambda: (
                {(one.name, one.token, one.owner) for one in table.view.bundles_of(NAMESPACE)}
                <= served_in(evidence(path))
            )
        )
        return paused, killed, table.view.offset


def served_in(documents: Sequence[Document]) -> set[tuple[str, int, int | None]]:
    """Return who served what by the evidence: bundle, token, incarnation."""
    return {(each["bundle"], each["token"], each["incarnation"]) for each in documents}


async def moved(
    cluster: LocalCluster, table: TableView, http: aiohttp.ClientSession, deeds: Sequence[MoveKind]
) -> None:
    """Make moves one after the other. A merge may need a transfer first."""
    random = Random(5)
    for deed in deeds:
        move = admin_requests.choose(deed, table.view, NAMESPACE, random)
        assert move is not None
        deadline = Deadline.after(timeout_ms=60_000)
        while (problem := await admin_requests.make(http, cluster.addresses[0], move)) is not None:
            assert "it is assigning, not owned" in problem, problem
            deadline.check("the first broker reading what the table has read")
            await asyncio.sleep(0.05)
        await settle(cluster, table, NAMESPACE)


def incarnation(view: View, broker: str) -> int:
    """Return the present incarnation of a broker."""
    return view.brokers[broker].incarnation


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(LOOK_S)


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


def compared(
    log_url: str, documents: Sequence[Document]
) -> tuple[list[Finding], set[tuple[str, int, int]]]:
    """Return the findings in the evidence, and all owners by the channel: bundle, token,
    incarnation.
    """
    memories: dict[str, Serving] = {}
    findings: list[Finding] = []
    holders: set[tuple[str, int, int]] = set()
    reached, read_ms = 0, 0
    for fact, holder in changes(log_url):
        findings += follow_holder(memories.setdefault(fact.subject, Serving()), holder, fact)
        if holder is not None:
            holders.add((fact.subject.partition(":")[2], *holder))
        reached, read_ms = fact.offset, fact.at_ms
    for number, document in enumerate(documents):
        about = subject("bundle", document["bundle"])
        fact = Fact(
            subject=about,
            source="serving",
            offset=number,
            at_ms=read_ms,
            record=document,
            context={"begin": 0, "reached": reached},
        )
        findings += check_serving(memories.setdefault(about, Serving()), fact)
    return findings, holders


def changes(log_url: str) -> Iterator[tuple[Fact, Holder | None]]:
    """Yield each change of a bundle on the channel as a fact, with its holder after it."""
    with closing(open_log(log_url, create=False)) as log:
        reader, at_ms = Reader(log=log.name), 0
        while entries := log.read(reader.position, limit=1_000):
            for entry in entries:
                folded = reader.feed(entry)
                said_ms = (
                    None if isinstance(folded.record, Unreadable) else folded.record.timestamp_ms
                )
                at_ms = max(at_ms, said_ms or 0)
                fact = Fact(
                    subject="",
                    source="channel",
                    offset=folded.offset,
                    at_ms=at_ms,
                    record={"timestamp_ms": said_ms},
                )
                for change in folded.verdict.changes:
                    if isinstance(change, BundleChanged):
                        yield (
                            replace(fact, subject=subject("bundle", change.name)),
                            holder_of(change.after),
                        )


def holder_of(bundle: BundleEntry | None) -> Holder | None:
    """Return who may serve a bundle, by its phase."""
    if bundle is None:
        return None
    server = bundle.owner if bundle.phase in ("owned", "splitting") else bundle.source
    return None if server is None else (bundle.token, server)


# --- brokers that do not obey ---


class Clinging(Service):
    """A service that works under every ownership that it ever had."""

    def __init__(self) -> None:
        self.ownerships: list[Ownership] = []

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.ownerships.append(ownership)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None: ...

    def work(self) -> None:
        """Work on one key under each."""
        for ownership in self.ownerships:
            with suppress(OwnershipLost):
                ownership.begin("key").finish()


def test_a_broker_whose_check_fails_is_found_by_its_own_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handles pass although they are closed."""
    for name in ("honest", "mutant"):
        (tmp_path / name).mkdir()
    assert [] == asyncio.run(clung(tmp_path / "honest"))
    monkeypatch.setattr(Handle, "passes", lambda _handle, _now: True)
    found = asyncio.run(clung(tmp_path / "mutant"))
    assert ["served_two_at_once"] == sorted({finding.rule for finding in found})


async def clung(folder: Path) -> list[Finding]:
    """Move the only bundle from one broker to the other, work on at both, and return the
    findings.
    """
    log_url, service = f"sqlite:{folder}/channel.db", Clinging()
    workers = [
        Worker(
            WorkerConfig(log_url=log_url, data_dir=folder / broker, broker_id=broker),
            {"*": service},
            addresses={},
        )
        for broker in "ab"
    ]
    try:
        for worker in workers:
            await worker.start()
            await worker.ready(timeout_ms=PATIENCE_MS)
        creation = CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(1))
        await workers[0].request(creation, timeout_ms=PATIENCE_MS)
        await until(lambda: len(service.ownerships) == 1)
        (bundle,) = workers[0].view.bundles_of(NAMESPACE)
        other = next(worker for worker in workers if worker.agent.incarnation != bundle.owner)
        await workers[0].request(
            Transfer(bundle=bundle.name, destination=other.broker_id, reason="test"),
            timeout_ms=PATIENCE_MS,
        )
        await until(lambda: len(service.ownerships) == 2 and other.open_bundles == [bundle.name])
        await asyncio.sleep(LOOK_S)
        service.work()
    finally:
        for worker in workers:
            await worker.stop()
    return compared(log_url, evidence(Path(f"{folder}/channel.db.observations")))[0]
