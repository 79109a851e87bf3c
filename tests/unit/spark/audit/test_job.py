"""Tests of what the audit does with the findings of a batch: store, print, publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.spark_jobs.audit import auditing
from equipoise.spark_jobs.audit.auditing import JOB, Audit, last_reach
from equipoise.spark_jobs.audit.findings_out import FINDINGS, FindingsOut
from equipoise.spark_jobs.audit.findings_table import kept_findings, open_findings
from equipoise.spark_jobs.audit.job import taker
from equipoise.spark_jobs.audit.reporting import PRINTED_MAX, Reach, reach_in, summary
from equipoise.spark_jobs.audit.state import StateFile
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Finding, parse_finding
from equipoise.spark_jobs.sequence.rows import Table, finding_row, row_beside
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


def rows(*offsets: int) -> pa.Table:
    """A finding at each offset, as Spark hands them over with how far it came."""
    last = max(offsets)
    reach = {"audited": last, "end": last, "base": 0}
    document = orjson.dumps({"ends": {"channel": last + 1}, "reach": reach})
    return as_rows([
        *(finding_row(replace(FOUND, offsets=(offset,))) for offset in offsets),
        row_beside(Table.REACH, "", document),
        row_beside(Table.STATE, "a key", b"its value"),
    ])  # fmt: skip


@contextmanager
def audit_of(
    archive: Path,
    *,
    said: list[str] | None = None,
    notes: list[str] | None = None,
    as_json: bool = False,
    name: str = URL,
) -> Iterator[Audit]:
    """An audit that has begun. It prints to `said`."""
    screen = Screen(
        result=([] if said is None else said).append, note=([] if notes is None else notes).append
    )
    options = AuditOptions(log_url="sqlite:unused", archive=archive, as_json=as_json)
    with (
        open_findings(archive, log=LOG, url=URL) as table,
        closing(StateFile(archive / "state", version=1, log=LOG, remedy="")) as state,
        watching(JOB, screen, rules=RULES) as watch,
    ):
        state.commit([], {"channel": 1, "loads": 7}, [])
        yield Audit(options, name=name, table=table, state=state, watch=watch)


@pytest.fixture(autouse=True)
def out(monkeypatch: pytest.MonkeyPatch) -> Away:
    """Where the findings are published."""
    out = Away(refusals=0)
    monkeypatch.setattr(auditing, "FindingsOut", lambda _url: out)
    return out


def test_findings_are_committed_and_printed_once_although_publishing_fails(
    tmp_path: Path, out: Away
) -> None:
    said: list[str] = []
    out.refusals = 2
    with audit_of(tmp_path, said=said) as audit:
        take = taker(audit)
        for _ in range(2):
            with pytest.raises(PeerError, match="it is read-only"):
                take(0, rows(3))
        audit.watch.show()
        assert ["alarm hole at 3, namespace t/n: a hole", f"  look at {URL}"] == said
        take(0, rows(3))
        assert ([FOUND], 1) == (out.taken, audit.watch.findings.total())
        assert (1, []) == (audit.state.number, audit.state.pending())
        assert {"channel": 4, "loads": 7} == audit.state.positions
        assert {"a key": b"its value"} == audit.state.rows()
        said_last = summary(Reach(audited=3, end=9), audit.watch, 2)
        older = "the archive holds 2 older"
        assert f"audited up to 3 of 9: 1 finding (hole 1) in 0 entries; {older}" == said_last
        assert Reach(audited=3, end=3) == reach_in(tmp_path)
    assert (["alarm hole at 3, namespace t/n: a hole", f"  look at {URL}"], 1) == (
        said,
        Tables(tmp_path).table(Table.FINDINGS).num_rows,
    )


def test_a_finding_as_json_has_a_complete_command(tmp_path: Path) -> None:
    said: list[str] = []
    with audit_of(tmp_path, said=said, as_json=True, name="sqlite:my channel.db") as audit:
        taker(audit)(0, rows(3))
    (line,) = said
    assert "look at 'sqlite:my channel.db'" == parse_finding(line.encode()).command


@pytest.mark.parametrize(
    ("as_json", "lines"), [(False, 2 * PRINTED_MAX + 1), (True, PRINTED_MAX + 7)]
)
def test_people_see_the_first_findings_of_a_batch_and_programs_all(
    tmp_path: Path, as_json: bool, lines: int
) -> None:
    said: list[str] = []
    with audit_of(tmp_path, said=said, as_json=as_json) as audit:
        taker(audit)(0, rows(*range(PRINTED_MAX + 7)))
    assert lines == len(said)


def test_an_audit_that_has_not_begun_has_audited_nothing(tmp_path: Path) -> None:
    with open_findings(tmp_path, log=LOG, url=URL):
        assert Reach(audited=0, end=0) == reach_in(tmp_path)
    Reach(audited=3, end=9).keep(tmp_path, log=LOG, url=URL)
    with open_findings(tmp_path, log=LOG, url=URL):
        assert Reach(audited=3, end=9) == reach_in(tmp_path)


def test_an_audit_says_where_a_log_ended_that_does_not_answer(tmp_path: Path) -> None:
    options = AuditOptions(log_url=f"sqlite:{tmp_path}/none", archive=tmp_path)
    Reach(audited=3, end=3, base=2).keep(tmp_path, log=LOG, url=URL)
    assert Reach(audited=3, end=9, base=2) == last_reach(options, 7)


def test_how_far_an_audit_came_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"audited.json cannot be written: .*; fix that"):
        Reach(audited=3, end=9).keep(tmp_path / "none", log=LOG, url=URL)


def test_small_files_of_findings_are_compacted(tmp_path: Path) -> None:
    with audit_of(tmp_path) as audit:
        take = taker(audit)
        for number in range(FILES_MAX + 1):
            take(number, rows(number))
    archive = Tables(tmp_path)
    assert len(archive.files(Table.FINDINGS)) < FILES_MAX
    assert list(range(FILES_MAX + 1)) == archive.table(Table.FINDINGS)["log_offset"].to_pylist()


def test_a_damaged_file_of_older_findings_does_not_stop_the_audit(tmp_path: Path) -> None:
    notes: list[str] = []
    with audit_of(tmp_path) as audit:
        assert (0, "audited nothing of 9 offsets: no findings in 0 entries") == (
            kept_findings(tmp_path, notes.append),
            summary(Reach(audited=0, end=9), audit.watch, 0),
        )
        taker(audit)(0, rows(3))
        assert (1, []) == (kept_findings(tmp_path, notes.append), notes)
        (commit, *_) = sorted((tmp_path / "findings" / "_delta_log").glob("*.json"))
        commit.write_bytes(b"no commit")
        assert 0 == kept_findings(tmp_path, notes.append)
        assert "its findings cannot be read" in notes[-1]
