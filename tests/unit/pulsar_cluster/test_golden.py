"""What a real Pulsar 4.0.8 wrote to its channel (tests/golden/pulsar): it is in order, and each
fault put into a copy is found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from equipoise.channel.core.ranges import parse_bundle
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.reading import Read
from equipoise.pulsar_cluster.records import (
    BROKER_LOADS,
    TOP_BUNDLES,
    Message,
    Report,
    message_of,
)
from equipoise.pulsar_cluster.story import Writers, story_of
from equipoise.pulsar_cluster.table import Rejection, Table, server_of
from equipoise.pulsar_cluster.verify import Audit, Result
from tests.pulsar.faults import FAULTS, golden_reads
from tests.unit.cli.fabricated import run


def messages(written: Sequence[Read]) -> list[Message]:
    return [
        message_of(
            (offset, read.message_id, read.key, read.published_ms, read.value, read.producer)
        )
        for offset, read in enumerate(written)
    ]


def folded(written: Sequence[Read]) -> tuple[Table, Result]:
    table, audit = Table(), Audit()
    for message in messages(written):
        audit.see(table.fold(message))
    return table, audit.result()


def test_the_channel_of_a_real_cluster_is_in_order() -> None:
    """Lost races, two killed brokers, a clean stop, splits and a deleted namespace are the life of
    a healthy cluster.
    """
    table, result = folded(golden_reads())
    assert () == result.findings
    assert result.in_order
    assert (469, 438, 8, 4) == (result.messages, result.accepted, result.tombstones, result.splits)
    assert {Rejection.OLD_VERSION: 30, Rejection.TRANSITION: 1} == result.rejected
    assert 30 == result.lost_races
    assert {"127.0.0.1:19043": 4, "127.0.0.1:12088": 3} == result.vanished
    assert 99 == result.transfers.number
    assert not result.unowned
    assert all(server_of(message.record) for message in table.bundles.values())


def test_the_compacted_channel_leads_to_the_same_table() -> None:
    """Pulsar's own compaction keeps what its brokers hold. Both end with the same owners."""
    full, _ = folded(golden_reads())
    compacted, _ = folded(golden_reads("channel_compacted.jsonl"))
    assert {name: message.record for name, message in full.bundles.items()} == {
        name: message.record for name, message in compacted.bundles.items()
    }


@pytest.fixture(name="archive", scope="module")
def archive_of_the_golden_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pulsar record` keeps of the real cluster."""
    path = tmp_path_factory.mktemp("golden") / "pulsar.db"
    with open_archive(path, create_for="pulsar://127.0.0.1:6650") as archive:
        archive.append(golden_reads())
        topics = {"broker_load": BROKER_LOADS, "top_bundles": TOP_BUNDLES}
        reports = [
            Report(read.published_ms, topic, read.key, read.value)
            for name, topic in topics.items()
            for read in golden_reads(f"{name}.jsonl")
        ]
        archive.add_reports(sorted(reports, key=lambda report: report.at_ms))
    return path


def test_the_recorded_load_is_a_trace_for_the_laboratory(archive: Path, tmp_path: Path) -> None:
    """Each bundle under traffic has its load, wherever it is, and any policy can be run on it."""
    trace = tmp_path / "golden.parquet"
    made = json.loads(
        run(
            "pulsar", "trace", str(trace), "--source", str(archive), "--every", "60", "--json"
        ).stdout
    )
    assert made["steps"] > 3
    assert made["bundles"] >= 16
    told = json.loads(run("lab", "run", str(trace), "--policy", "TransferShedder", "--json").stdout)
    assert 0 <= told["unevenness"]


def test_every_bundle_that_ever_was_has_a_story() -> None:
    written = messages(golden_reads())
    for bundle in sorted({message.bundle for message in written}):
        assert list(story_of(written, parse_bundle(bundle), Writers()))


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_in_a_copy_is_found(name: str) -> None:
    faulty = FAULTS[name].inject(golden_reads())
    _, result = folded(faulty)
    assert [(FAULTS[name].kind, len(faulty) - 1)] == [
        (finding.kind, finding.offset) for finding in result.findings
    ]
