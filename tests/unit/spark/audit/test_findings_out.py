"""Tests of findings beside the log: a table that keeps each once, and the choice of the place."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from equipoise.channel.core.errors import CallerError, PeerError
from equipoise.spark_jobs.audit.findings_out import FindingsTable, Numbered, findings_out
from equipoise.spark_jobs.audit.job import lines as lines_of
from equipoise.spark_jobs.rules.rule import Finding, parse_finding


def numbered(offset: int, ordinal: int) -> Numbered:
    """A finding at an offset, with its number there."""
    finding = Finding(
        rule="hole",
        subject="namespace:t/n",
        offsets=(offset,),
        at_ms=7,
        text="a hole",
        command="look",
    )
    return Numbered(ordinal=ordinal, finding=finding)


def kept(path: Path) -> list[tuple[int, int, str, str]]:
    """Offset, number, rule and subject of all that is kept, in the order in which it came."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT offset, ordinal, rule, subject FROM findings ORDER BY id"
        ).fetchall()


def test_a_repeated_batch_is_stored_once(tmp_path: Path) -> None:
    table = FindingsTable(tmp_path / "log.observations")
    table.put([numbered(3, 1), numbered(3, 2)])
    table.put([numbered(3, 1), numbered(3, 2), numbered(4, 1)])
    expected = [
        (offset, ordinal, "hole", "namespace:t/n") for offset, ordinal in ((3, 1), (3, 2), (4, 1))
    ]
    assert expected == kept(tmp_path / "log.observations")


def test_the_document_in_the_table_is_the_finding(tmp_path: Path) -> None:
    FindingsTable(tmp_path / "file").put([numbered(3, 1)])
    with closing(sqlite3.connect(tmp_path / "file")) as connection:
        [(document, at_ms)] = connection.execute("SELECT document, at_ms FROM findings").fetchall()
    assert (numbered(3, 1).finding, 7) == (parse_finding(document.encode()), at_ms)
    assert "a hole" == orjson.loads(document)["text"]


def test_without_findings_there_is_no_table(tmp_path: Path) -> None:
    FindingsTable(tmp_path / "file").put([])
    assert not (tmp_path / "file").exists()


def test_the_table_keeps_the_newest_findings(tmp_path: Path) -> None:
    table = FindingsTable(tmp_path / "file", rows_max=2)
    for offset in range(1, 6):
        table.put([numbered(offset, 1)])
    assert [4, 5] == [offset for offset, *_ in kept(tmp_path / "file")]


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(
        b"no database, but a text that is long enough to be taken for one" * 100
    )
    with pytest.raises(
        PeerError, match=f"in the table findings of {tmp_path}/file: .*not a database"
    ):
        FindingsTable(tmp_path / "file").put([numbered(1, 1)])


def test_the_destination_is_next_to_the_log(tmp_path: Path) -> None:
    assert (
        f"in the table findings of {tmp_path}/log.observations"
        == findings_out(f"sqlite:{tmp_path}/log").place
    )
    assert "to the topic channel-findings" == findings_out("kafka://localhost:1/channel").place
    with pytest.raises(CallerError, match="cannot open a log at"):
        findings_out("memory:test")


def test_lines_of_a_finding() -> None:
    lines = list(lines_of(numbered(3, 1).finding, log="sqlite:a b.db"))
    assert ["alarm hole at 3, namespace t/n: a hole", "  look"] == lines
