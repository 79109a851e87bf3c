"""What a real Pulsar 4.0.8 wrote to its channel (tests/golden/pulsar): it is in order, and each fault put into a copy is found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from equipoise.channel.core.ranges import parse_bundle
from equipoise.pulsar_cluster.archive import Report, open_archive
from equipoise.pulsar_cluster.conflicts import Rejection
from equipoise.pulsar_cluster.reading import Read
from equipoise.pulsar_cluster.records import BROKER_LOAD_TOPIC, TOP_BUNDLES_TOPIC, Message, message_of
from equipoise.pulsar_cluster.story import Writers, story_of
from equipoise.pulsar_cluster.table import Table, server_of
from equipoise.pulsar_cluster.verify import Audit, Kind, Result
from tests.unit.cli.fabricated import run

GOLDEN = Path(__file__).parents[2] / "golden/pulsar"


def reads(name: str = "channel.jsonl") -> list[Read]:
    """The messages of a golden file, as the client returns them."""
    found = []
    for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines():
        message = json.loads(line)
        value = None if message["value"] is None else json.dumps(message["value"]).encode()
        place = message["id"].removesuffix(":-1")
        found.append(Read(place, message["id"].encode(), message["key"], message["producer"], message["published_ms"], value))
    return found


def messages(written: Sequence[Read]) -> list[Message]:
    return [
        message_of((offset, read.message_id, read.key, read.published_ms, read.value, read.producer)) for offset, read in enumerate(written)
    ]


def folded(written: Sequence[Read]) -> tuple[Table, Result]:
    table, audit = Table(), Audit()
    for message in messages(written):
        audit.see(table.fold(message))
    return table, audit.result()


def owned(written: Sequence[Read]) -> Iterator[tuple[int, Read]]:
    """The messages by which a broker took a bundle, with their places."""
    for place, read in enumerate(written):
        if read.value is not None and json.loads(read.value)["state"] == "Owned":
            yield place, read


def changed(read: Read, **fields: object) -> Read:
    assert read.value is not None, "a tombstone has no fields"
    return read._replace(value=json.dumps(json.loads(read.value) | fields).encode())


def test_the_channel_of_a_real_cluster_is_in_order() -> None:
    """Lost races, two killed brokers, a clean stop, splits and a deleted namespace are the life of a healthy cluster."""
    table, result = folded(reads())
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
    full, _ = folded(reads())
    compacted, _ = folded(reads("channel_compacted.jsonl"))
    assert {name: message.record for name, message in full.bundles.items()} == {
        name: message.record for name, message in compacted.bundles.items()
    }


@pytest.fixture(name="archive", scope="module")
def archive_of_the_golden_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pulsar record` keeps of the real cluster."""
    path = tmp_path_factory.mktemp("golden") / "pulsar.db"
    with open_archive(path, create_for="pulsar://127.0.0.1:6650") as archive:
        archive.append(reads())
        topics = {"broker_load": BROKER_LOAD_TOPIC, "top_bundles": TOP_BUNDLES_TOPIC}
        reports = [
            Report(read.published_ms, topic.rpartition("/")[2], read.key, read.value)
            for name, topic in topics.items()
            for read in reads(f"{name}.jsonl")
        ]
        archive.add_reports(sorted(reports, key=lambda report: report.at_ms))
    return path


def test_the_recorded_load_is_a_trace_for_the_laboratory(archive: Path, tmp_path: Path) -> None:
    """Each bundle under traffic has its load, wherever it is, and any policy can be run on it."""
    trace = tmp_path / "golden.parquet"
    made = json.loads(run("pulsar", "trace", str(trace), "--source", str(archive), "--every", "10", "--json").stdout)
    assert made["steps"] > 10
    assert made["bundles"] >= 16
    told = json.loads(run("lab", "run", str(trace), "--policy", "TransferShedder", "--json").stdout)
    assert 0 <= told["unevenness"]


def test_every_bundle_that_ever_was_has_a_story() -> None:
    written = messages(reads())
    for bundle in sorted({message.bundle for message in written}):
        assert list(story_of(written, parse_bundle(bundle), Writers()))


@pytest.mark.parametrize("age", [1, 5])
def test_a_record_with_an_old_version_is_found(age: int) -> None:
    """A broker that slept for a minute writes what it wanted to write before."""
    written = reads()
    place, read = next(each for each in owned(written) if json.loads(each[1].value or b"")["versionId"] > 20)
    late = changed(read, versionId=json.loads(read.value or b"")["versionId"] - age)
    _, result = folded([*written[: place + 1], late._replace(published_ms=read.published_ms + 60_000)])
    assert [(Kind.OLD_VERSION, place + 1)] == [(finding.kind, finding.offset) for finding in result.findings]


def test_a_second_owner_is_found() -> None:
    """Pulsar's brokers take any record whose version leaves a gap, without a look at the owner."""
    written = reads()
    table, _ = folded(written)
    read = next(read for _, read in owned(written) if read.key in table.bundles)
    held = table.bundles[read.key].record
    assert held is not None
    other = changed(read, dstBroker="127.0.0.1:12345", sourceBroker=None, force=False, versionId=held.version + 2)
    _, result = folded([*written, other._replace(producer="local-1-99")])
    assert [(Kind.SECOND_OWNER, len(written))] == [(finding.kind, finding.offset) for finding in result.findings]


def test_a_late_record_of_a_forgotten_bundle_is_found() -> None:
    """A tombstone forgets the version, so that Pulsar's brokers take what comes late."""
    written = reads()
    table, _ = folded(written)
    read = next(read for _, read in owned(written) if read.key not in table.bundles)
    late = changed(read, dstBroker="127.0.0.1:11500")._replace(producer="local-1-99")
    _, result = folded([*written, late])
    assert [(Kind.OLD_VERSION, len(written))] == [(finding.kind, finding.offset) for finding in result.findings]


def test_a_record_of_a_broker_that_was_gone_is_found() -> None:
    """The leader gave its bundles away, and then its old connection wrote once more."""
    written, gone = reads(), "127.0.0.1:19043"
    read = [read for _, read in owned(written) if json.loads(read.value or b"")["dstBroker"] == gone][-1]
    table, _ = folded(written)
    held = table.bundles["acme/shop/0x90000000_0xa0000000"].record
    assert held is not None
    ghost = changed(read, versionId=held.version + 1, sourceBroker=held.destination, state="Releasing")
    ghost = ghost._replace(key="acme/shop/0x90000000_0xa0000000", published_ms=written[-1].published_ms + 1)
    _, result = folded([*written, ghost])
    assert [(Kind.GONE_BROKER, len(written))] == [(finding.kind, finding.offset) for finding in result.findings]
