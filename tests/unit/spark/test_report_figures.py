"""Test `equipoise report`: the figures of a small archive with a known story, and the files
that it writes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import orjson
import pytest

from equipoise.brokers.load.documents import encode_load
from equipoise.channel.core import propose
from equipoise.channel.core.errors import NotFound, OperatorError
from equipoise.shedder.loads import Load, Resources, Traffic, Use, averaged
from equipoise.spark_jobs.audit.reporting import Reach
from equipoise.spark_jobs.report import queries
from equipoise.spark_jobs.report.figures import (
    BINS,
    Period,
    Report,
    Row,
)
from equipoise.spark_jobs.report.job import made_report, run_report
from equipoise.spark_jobs.report.queries import Queries, opened
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.sequence.snapshots import canonical
from equipoise.spark_jobs.streams.errors import ArchiveDamaged
from equipoise.spark_jobs.streams.options import ReportOptions, Screen
from equipoise.spark_jobs.tables.reading import Tables
from tests.channels.folding import NAMESPACE, Channel, channel_with
from tests.spark.archived import LOG, URL, as_rows, writer_of

BEGAN_MS = 1_763_769_599_000
"""A second before midnight (UTC), so that the story lies in two days."""

EACH_MS = 100
RIGHT = 0x80000000
LAST = 17
PERIOD = Period(from_ms=BEGAN_MS + EACH_MS, to_ms=BEGAN_MS + LAST * EACH_MS + 1)
LEFT_HALF = f"{NAMESPACE}/0x00000000_0x80000000"
SILENT = Screen(result=list[str]().append, note=list[str]().append)
QUARTERS = (f"{NAMESPACE}/0x00000000_0x40000000", f"{NAMESPACE}/0x40000000_0x80000000")
SAMPLE = Load(
    broker="b1",
    at_ms=BEGAN_MS,
    resources=Resources(cpu=Use(used=50, limit=200)),
    average_use=0.25,
    traffic=Traffic(
        bytes_in_per_second=10,
        bytes_out_per_second=20,
        messages_in_per_second=1,
        messages_out_per_second=2,
    ),
    bundle_count=2,
    topics=4,
    cost=3.5,
)


def at(offset: int) -> int:
    """Return the time of a record."""
    return BEGAN_MS + offset * EACH_MS


def story() -> Channel:
    """Two brokers and two bundles: one is moved (9 to 11) and split (16), the owner of the other
    dies (12); 17 is no record.
    """
    channel = channel_with("b1", "b2", bundles=2)
    channel.own("b1")
    channel.own("b1", RIGHT)
    moved = propose.transfer(
        channel.author("b1"),
        channel.bundle(),
        destination=channel.incarnation("b2"),
        reason="transfer: 59 % used",
    )
    channel.accept(moved)
    channel.accept(propose.prepared(channel.author("b2"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("b1"), channel.bundle()))
    channel.die("b1")
    channel.own("b2", RIGHT)
    channel.accept(
        propose.start_split(
            channel.author("b2"), channel.bundle(), algorithm="range_equally_divide"
        )
    )
    channel.accept(
        propose.split(channel.author("b2"), channel.bundle(), cuts=[RIGHT // 2], reason="hot")
    )
    channel.put_bytes(b"no record")
    assert LAST == channel.entries[-1][0]
    return channel


def decision(result: str, kind: str = "unload") -> bytes:
    """Return a decision with the fields that tables read."""
    return orjson.dumps(
        {
            "broker": "b1",
            "kind": kind,
            "strategy": "transfer",
            "result": result,
            "cause": "Overloaded",
        }
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the archive of the story, with a load report, decisions, and a finding that two
    generations of the audit made.
    """
    folder = tmp_path_factory.mktemp("report") / "archive"
    sequence = RowSequence()
    beside = [
        Arrival(Source.LOADS, 1, at(2), encode_load(averaged(None, SAMPLE))),
        *(
            Arrival(Source.DECISIONS, number, at(3), decision(result))
            for number, result in enumerate(("Success", "Skip", "Skip"))
        ),
        # It is no round, and does not count.
        Arrival(Source.DECISIONS, 3, at(3), decision("Success", "outcome")),
    ]
    with writer_of(folder) as writer:
        for offset, data in story().entries:
            arrivals = [
                Arrival(Source.CHANNEL, offset, at(offset), data),
                *(beside if offset == LAST // 2 else ()),
            ]
            writer.write(as_rows(sequence.feed(arrivals)))
        writer.save_state({})
    found = Finding(
        rule="token_fell",
        subject=f"bundle:{LEFT_HALF}",
        offsets=(9, 11),
        at_ms=at(11),
        text="the token fell",
        command="equipoise channel show --log {log} 11",
    )
    row = Emitted(Table.FINDINGS, found.subject, 11, 0, at(11), None, None, None, found.to_bytes())
    for _ in range(2):
        with writer_of(folder, writer="audit") as writer:
            writer.add_findings(as_rows([row]))
    return folder


@pytest.fixture(scope="module")
def report(archive: Path) -> Report:
    """Return the figures of the whole story."""
    return made_report(ReportOptions(out=Path("unused.html")), archive)


def test_ownerships_and_time_without_a_server(report: Report) -> None:
    assert PERIOD == report.period
    lanes = {
        lane.bundle: [(each.broker, each.from_ms, each.to_ms, each.how) for each in lane.ownerships]
        for lane in report.lanes.shown
    }
    assert {
        LEFT_HALF: [("b1", at(6), at(11), "transferred"), ("b2", at(11), at(16), "split")],
        f"{NAMESPACE}/0x80000000_0xffffffff": [
            ("b1", at(8), at(12), "died"),
            ("b2", at(14), PERIOD.to_ms, None),
        ],
        **{quarter: [("b2", at(16), PERIOD.to_ms, None)] for quarter in QUARTERS},
    } == lanes
    assert sorted(lanes) == list(lanes)
    assert 4 == report.lanes.count
    served_ms = {
        broker: sum(cell or 0 for cell in row) * PERIOD.bin_ms
        for broker, row in zip(report.owned.brokers, report.owned.rows, strict=True)
    }
    assert pytest.approx({"b1": 500 + 400, "b2": 500 + 301 + 2 * 101}) == served_ms
    assert 200 + 400 + 200 == report.unserved_ms


def test_the_move_its_pause_and_its_reason(report: Report) -> None:
    moves = report.moves
    assert [{"done": 1}, 1, 1, 100, 100] == [
        moves.results,
        sum(moves.bins["done"]),
        moves.pauses,
        moves.pause_p50_ms,
        moves.pause_sum_ms,
    ]
    assert {16: 1} == moves.pause_bars
    assert [("transfer: # % used", "transfer: 59 % used", 1, 1)] == [
        (each.text, each.example, each.count, each.done) for each in report.reasons.shown
    ]
    assert [(LEFT_HALF, (("transfer: # % used", 1),))] == [
        (each.bundle, each.reasons) for each in report.bundle_moves.shown
    ]
    assert (
        Row(broker="b1", gave=1, got=0, failed=0),
        Row(broker="b2", gave=0, got=1, failed=0),
    ) == report.broker_moves.shown


def test_deaths_splits_decisions_loads_records_and_findings(report: Report) -> None:
    """The finding counts once."""
    assert [("b1", "down", at(12), 1, 0, 200)] == [
        (death.broker, death.kind, death.at_ms, death.bundles, death.waiting, death.healed_ms)
        for death in report.deaths.shown
    ]
    split = Row(
        kind="split",
        at_ms=at(16),
        offset=16,
        publisher="b2",
        reason="hot",
        before=(LEFT_HALF,),
        before_count=1,
        after=QUARTERS,
        after_count=2,
    )
    assert (split,) == report.splits_and_merges.shown
    assert [("Skip", 2), ("Success", 1)] == [
        (each.result, each.count) for each in report.decisions.shown
    ]
    assert [("b1",), {0.25, None}, BINS] == [
        report.cpu.brokers,
        set(report.cpu.rows[0]),
        len(report.cpu.rows[0]),
    ]
    assert LAST == sum(each.count for each in report.records)
    assert Row(kind=None, count=1, accepted=0, reasons=(("malformed", 1),)) in report.records
    assert [(Row(rule="token_fell", count=1),), 1, (9, 11)] == [
        report.broken,
        report.findings.count,
        report.findings.shown[0].offsets,
    ]


def test_a_broker_that_reports_in_time_is_not_silent(tmp_path: Path) -> None:
    """Two brokers report every 5 s for 2 minutes. One of them is silent for 60 s."""
    times = {
        "b1": [at_s for at_s in range(0, 120, 5) if not 30 < at_s < 90],
        "b2": list(range(2, 120, 5)),
    }
    reports = sorted((at_s, broker) for broker, heard in times.items() for at_s in heard)
    sequence = RowSequence()
    loads = [
        Arrival(
            Source.LOADS,
            number,
            BEGAN_MS + 1_000 * at_s,
            encode_load(replace(averaged(None, SAMPLE), broker=broker)),
        )
        for number, (at_s, broker) in enumerate(reports, 1)
    ]
    with writer_of(tmp_path / "archive") as writer:
        writer.write(as_rows(sequence.feed(loads)))
    with opened(Tables(tmp_path / "archive")) as db:
        cpu = Queries(db, Period(from_ms=BEGAN_MS, to_ms=BEGAN_MS + 117_001)).grid(queries.CPU)
    assert ("b1", "b2") == cpu.brokers
    (silent, healthy), columns = cpu.rows, 117_001 // 5_000
    assert [columns] * 2 == [len(silent), len(healthy)]
    assert None not in healthy
    assert [(number < 9 or number >= 17) for number in range(columns)] == [
        cell is not None for cell in silent
    ]


def test_an_unreadable_file_is_named(archive: Path, tmp_path: Path) -> None:
    """The error states what to do."""
    path = copytree(archive, tmp_path / "an archive")
    name = Tables(path).files(Table.RECORDS)[0].path
    file = path / "records" / name
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ArchiveDamaged, match=rf"{name}.*; restore it from a copy"):
        made_report(ReportOptions(out=Path("unused.html")), path)


def test_an_ownership_whose_beginning_was_not_archived(tmp_path: Path) -> None:
    """It begins where the one before it ended: the checkpoint was lost between two steps of a
    move.
    """
    entries = story().entries[:16]
    fold = Channel()
    # After the move the archive continues from a snapshot, which has no beginnings of ownerships.
    for offset, data in entries[:11]:
        fold.put_bytes(data, offset=offset)
    parts = ((None, entries[:11]), (canonical(fold.view), entries[11:]))
    for begin, some in parts:
        sequence = RowSequence(begin)
        arrivals = [Arrival(Source.CHANNEL, offset, at(offset), data) for offset, data in some]
        with writer_of(tmp_path) as writer:
            writer.write(as_rows(sequence.feed(arrivals)))
    with opened(Tables(tmp_path)) as db:
        served = next(
            lane
            for lane in Queries(db, PERIOD).few(queries.FEW["lanes"]).shown
            if lane.bundle == LEFT_HALF
        )
    assert [("b1", at(6), at(11)), ("b2", at(11), at(16))] == [
        (each.broker, each.from_ms, each.to_ms) for each in served.ownerships
    ]


def test_a_page_of_a_part(archive: Path, tmp_path: Path) -> None:
    """The job writes the page and its pictures, and prints the figures as JSON."""
    path, out, printed = tmp_path / "archive", tmp_path / "page.html", list[str]()
    Reach(audited=LAST, end=LAST).keep(copytree(archive, path), log=LOG, url=URL)
    options = ReportOptions(out=out, archive=path, from_ms=at(12), to_ms=at(15), as_json=True)
    assert 0 == run_report(options, Screen(result=printed.append, note=list[str]().append))
    about = orjson.loads(printed[0])
    assert [3, 0, 0, 1, 200] == [
        about[name] for name in ("records", "moves", "findings", "deaths", "unserved_ms")
    ]
    pictures = [tmp_path / "page-plots" / name for name in ("ownership.png", "owned.png")]
    assert [str(path) for path in pictures] == about["pictures"]
    assert [b"\x89PNG"] * 2 == [path.read_bytes()[:4] for path in pictures]
    page = out.read_text(encoding="utf-8")
    assert [True] * 3 == [
        words in page for words in ("No findings", "No move ended in this period.", "declared dead")
    ]


def test_an_audit_that_stopped_is_not_green(archive: Path, tmp_path: Path) -> None:
    """It is, for a period that it has checked."""
    path = copytree(archive, tmp_path / "archive")
    Reach(audited=12, end=LAST).keep(path, log=LOG, url=URL)
    whole, part = (
        made_report(ReportOptions(out=Path("unused.html"), to_ms=to_ms), path)
        for to_ms in (None, at(12) + 1)
    )
    assert [(LAST, False), (12, True)] == [
        (report.last_offset, report.is_whole) for report in (whole, part)
    ]


def test_a_report_of_nothing(archive: Path, tmp_path: Path) -> None:
    """There is no archive, no folder for the page, no record, or none in the period."""
    screen, out = Screen(result=list[str]().append, note=list[str]().append), tmp_path / "page.html"
    with pytest.raises(NotFound, match="there is no archive"):
        run_report(ReportOptions(out=out, archive=tmp_path), screen)
    with pytest.raises(OperatorError, match="there is no folder"):
        run_report(ReportOptions(out=tmp_path / "nowhere" / "page.html", archive=archive), screen)
    with pytest.raises(OperatorError, match="it is not an ordinary file"):
        run_report(ReportOptions(out=Path("/dev/null"), archive=archive), screen)
    with writer_of(tmp_path / "empty") as writer:
        writer.save_state({})
    for folder, from_ms, words in (
        (tmp_path / "empty", None, "The archive is empty"),
        (archive, at(100), "The archive does not cover this period"),
    ):
        assert 0 == run_report(ReportOptions(out=out, archive=folder, from_ms=from_ms), screen)
        assert words in out.read_text(encoding="utf-8")
