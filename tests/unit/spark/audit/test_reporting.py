"""Test how findings are printed and stored, and how far an audit says that it has come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.audit.findings_table import kept_findings, open_findings, rows_of
from equipoise.spark_jobs.audit.reporting import PRINTED_MAX, Reach, print_findings, reach_in
from equipoise.spark_jobs.audit.run import last_reach
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Finding, parse_finding
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import watching
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import FILES_MAX
from tests.spark.archived import LOG, NOON_MS, URL

FOUND = Finding(
    rule="hole",
    subject="namespace:t/n",
    offsets=(3,),
    at_ms=NOON_MS,
    text="a hole",
    command="look at {log}",
)


def printed(found: list[Finding], *, as_json: bool, log: str = URL) -> list[str]:
    """What is printed of the findings of one batch."""
    said: list[str] = []
    screen = Screen(result=said.append, note=said.append)
    with watching("audit", screen, log=log, rules=RULES) as watch:
        print_findings(found, watch, archive="archive", log=log, as_json=as_json)
        assert len(found) == watch.findings.total()
    return said


def test_people_see_the_first_findings_of_a_batch_and_programs_all() -> None:
    many = [replace(FOUND, offsets=(offset,)) for offset in range(PRINTED_MAX + 7)]
    first, command, *rest = printed(many, as_json=False)
    assert ["alarm hole at 0, namespace t/n: a hole", f"  look at {URL}"] == [first, command]
    assert "7 more findings in this batch: see archive/findings" == rest[-1]
    assert len(many) == len(printed(many, as_json=True))


def test_a_finding_as_json_has_a_complete_command() -> None:
    (line,) = printed([FOUND], as_json=True, log="sqlite:my channel.db")
    assert "look at 'sqlite:my channel.db'" == parse_finding(line.encode()).command


def test_an_audit_that_has_not_begun_has_audited_nothing(tmp_path: Path) -> None:
    with open_findings(tmp_path, log=LOG, url=URL):
        assert Reach(audited=0, end=0) == reach_in(tmp_path)
    Reach(audited=3, end=9).keep(tmp_path, log=LOG, url=URL)
    with open_findings(tmp_path, log=LOG, url=URL):
        assert Reach(audited=3, end=9) == reach_in(tmp_path)
    assert "audited nothing of 9 offsets" == str(Reach(audited=0, end=9))


def test_an_audit_says_where_a_log_ended_that_does_not_answer(tmp_path: Path) -> None:
    options = AuditOptions(log_url=f"sqlite:{tmp_path}/none", archive=tmp_path)
    Reach(audited=3, end=3, base=2).keep(tmp_path, log=LOG, url=URL)
    assert Reach(audited=3, end=9, base=2) == last_reach(options, 7)


def test_how_far_an_audit_came_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"audited.json cannot be written: .*; fix that"):
        Reach(audited=3, end=9).keep(tmp_path / "none", log=LOG, url=URL)


def test_findings_are_stored_once_in_few_files_and_counted(tmp_path: Path) -> None:
    """A damaged file of older findings does not stop the audit."""
    notes: list[str] = []
    assert 0 == kept_findings(tmp_path, notes.append)
    with open_findings(tmp_path, log=LOG, url=URL) as table:
        for number in (*range(FILES_MAX + 1), 0, FILES_MAX):
            table.append(rows_of([replace(FOUND, offsets=(number,))]))
    archive = Tables(tmp_path)
    assert len(archive.files(Table.FINDINGS)) < FILES_MAX
    assert list(range(FILES_MAX + 1)) == archive.table(Table.FINDINGS)["log_offset"].to_pylist()
    assert (FILES_MAX + 1, []) == (kept_findings(tmp_path, notes.append), notes)
    for commit in (tmp_path / "findings" / "_delta_log").glob("*.json"):
        commit.write_bytes(b"no commit")
    assert 0 == kept_findings(tmp_path, notes.append)
    assert "its findings cannot be read" in notes[-1]
