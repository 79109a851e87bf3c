"""Tests of what the audit does with the findings of a batch: store, print, publish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.spark_jobs.audit.findings_out import FINDINGS, FindingsOut
from equipoise.spark_jobs.audit.findings_table import (
    PLAIN_STATE,
    SPARK_STATE,
    kept_findings,
    open_findings,
)
from equipoise.spark_jobs.audit.job import JOB, last_reach, taker
from equipoise.spark_jobs.audit.reporting import PRINTED_MAX, Reach, reach_in, summary
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Finding, parse_finding
from equipoise.spark_jobs.sequence.rows import Emitted, Table
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import watching
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import FILES_MAX
from tests.spark.archived import LOG, NOON_MS, URL, as_rows

FOUND = Finding(
    rule="hole",
    subject="namespace:t/n",
    offsets=(3,),
    at_ms=NOON_MS,
    text="a hole",
    command="look at {log}",
)


class Away(FindingsOut):
    """A destination that refuses some batches. `taken` are the findings that it took."""

    def __init__(self, *, refusals: int) -> None:
        super().__init__("sqlite:unused")
        self.refusals = refusals
        self.taken: list[Finding] = []

    def put(self, findings: Sequence[Finding]) -> None:
        """See `FindingsOut.put`."""
        if self.refusals:
            self.refusals -= 1
            raise SideLogUnavailable(FINDINGS, place="elsewhere", problem="it is read-only")
        self.taken += findings


def rows(offset: int = 3) -> pa.Table:
    """One finding, as Spark hands it over."""
    return as_rows(
        [
            Emitted(
                Table.FINDINGS,
                FOUND.subject,
                offset,
                9,
                NOON_MS,
                FOUND.rule,
                None,
                None,
                FOUND.to_bytes(),
            )
        ]
    )


def options_of(archive: Path, *, as_json: bool = False) -> AuditOptions:
    return AuditOptions(log_url=URL, archive=archive, as_json=as_json)


def test_findings_are_printed_once_although_publishing_fails(tmp_path: Path) -> None:
    said: list[str] = []
    out = Away(refusals=2)
    with (
        open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL) as writer,
        watching(JOB, Screen(result=said.append, note=lambda _line: None), rules=RULES) as watch,
    ):
        take = taker(options_of(tmp_path), writer, out, watch, log=URL)
        for _ in range(2):
            with pytest.raises(PeerError, match="it is read-only"):
                take(0, rows())
        watch.show()
        assert ["alarm hole at 3, namespace t/n: a hole", f"  look at {URL}"] == said
        take(0, rows())
        assert ([FOUND], 1) == (out.taken, watch.findings.total())
        said_last = summary(Reach(audited=3, end=9), watch, 2)
        older = "the archive holds 2 older"
        assert f"audited up to 3 of 9: 1 finding (hole 1) in 0 entries; {older}" == said_last
    assert (["alarm hole at 3, namespace t/n: a hole", f"  look at {URL}"], 1) == (
        said,
        Tables(tmp_path).table(Table.FINDINGS).num_rows,
    )


def test_a_finding_as_json_has_a_complete_command(tmp_path: Path) -> None:
    said: list[str] = []
    screen = Screen(result=said.append, note=lambda _line: None)
    with (
        open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL) as writer,
        watching(JOB, screen, rules=RULES) as watch,
    ):
        taker(
            options_of(tmp_path, as_json=True),
            writer,
            Away(refusals=0),
            watch,
            log="sqlite:my channel.db",
        )(0, rows())
    (line,) = said
    assert "look at 'sqlite:my channel.db'" == parse_finding(line.encode()).command


@pytest.mark.parametrize(
    ("as_json", "lines"), [(False, 2 * PRINTED_MAX + 1), (True, PRINTED_MAX + 7)]
)
def test_people_see_the_first_findings_of_a_batch_and_programs_all(
    tmp_path: Path, as_json: bool, lines: int
) -> None:
    said: list[str] = []
    screen = Screen(result=said.append, note=lambda _line: None)
    with (
        open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL) as writer,
        watching(JOB, screen, rules=RULES) as watch,
    ):
        many = pa.concat_tables(rows(offset) for offset in range(PRINTED_MAX + 7))
        taker(options_of(tmp_path, as_json=as_json), writer, Away(refusals=0), watch, log=URL)(
            0, many
        )
    assert lines == len(said)


def test_an_audit_that_has_not_begun_has_audited_nothing(tmp_path: Path) -> None:
    with open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL):
        assert Reach(audited=0, end=0) == reach_in(tmp_path)
    Reach(audited=3, end=9).keep(tmp_path, log=LOG, url=URL)
    with open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL):
        assert Reach(audited=3, end=9) == reach_in(tmp_path)


def test_an_audit_says_where_a_log_ended_that_does_not_answer(tmp_path: Path) -> None:
    options = AuditOptions(log_url=f"sqlite:{tmp_path}/none", archive=tmp_path)
    Reach(audited=3, end=3, base=2).keep(tmp_path, log=LOG, url=URL)
    assert Reach(audited=3, end=9, base=2) == last_reach(options, 7)


def test_how_far_an_audit_came_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"audited.json cannot be written: .*; fix that"):
        Reach(audited=3, end=9).keep(tmp_path / "none", log=LOG, url=URL)


def test_small_files_of_findings_are_compacted(tmp_path: Path) -> None:
    screen = Screen(result=lambda _line: None, note=lambda _line: None)
    with (
        open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL) as writer,
        watching(JOB, screen, rules=RULES) as watch,
    ):
        take = taker(options_of(tmp_path), writer, Away(refusals=0), watch, log=URL)
        for number in range(FILES_MAX + 1):
            take(number, rows(number))
    archive = Tables(tmp_path)
    assert len(archive.files(Table.FINDINGS)) < FILES_MAX
    assert list(range(FILES_MAX + 1)) == archive.table(Table.FINDINGS)["log_offset"].to_pylist()


def test_a_damaged_file_of_older_findings_does_not_stop_the_audit(tmp_path: Path) -> None:
    notes: list[str] = []
    screen = Screen(result=lambda _line: None, note=notes.append)
    with (
        open_findings(tmp_path, state=SPARK_STATE, log=LOG, url=URL) as writer,
        watching(JOB, screen, rules=RULES) as watch,
    ):
        assert (0, "audited nothing of 9 offsets: no findings in 0 entries") == (
            kept_findings(tmp_path, notes.append),
            summary(Reach(audited=0, end=9), watch, 0),
        )
        taker(options_of(tmp_path), writer, Away(refusals=0), watch, log=URL)(0, rows())
        assert (1, []) == (kept_findings(tmp_path, notes.append), notes)
        (commit, *_) = sorted((tmp_path / "findings" / "_delta_log").glob("*.json"))
        commit.write_bytes(b"no commit")
        assert 0 == kept_findings(tmp_path, notes.append)
        assert "its findings cannot be read" in notes[-1]


@pytest.mark.parametrize(
    ("state", "other", "named"),
    [
        (SPARK_STATE, PLAIN_STATE, "by `equipoise audit`"),
        (PLAIN_STATE, f"{SPARK_STATE}/offsets", "by `equipoise spark audit`"),
    ],
)
def test_an_archive_that_the_other_host_audits_is_refused(
    tmp_path: Path, state: str, other: str, named: str
) -> None:
    (tmp_path / state).mkdir(parents=True)
    with open_findings(tmp_path, state=state, log=LOG, url=URL):
        pass  # Its own state is no reason.
    (tmp_path / other).mkdir(parents=True)
    with (
        pytest.raises(OperatorError, match=named),
        open_findings(tmp_path, state=state, log=LOG, url=URL),
    ):
        pass
