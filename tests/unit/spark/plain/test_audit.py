"""Tests of the audit in one process: what it finds, where it puts it, and that it goes on where it
was, whatever happens to it.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.request import urlopen

import orjson
import pytest

from equipoise.channel.core.errors import LogUnavailable, OperatorError
from equipoise.channel.core.log import Log
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.free_ports import free_row
from equipoise.spark_jobs.audit import auditing, findings_out
from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.audit.findings_out import FINDINGS, FindingsOut
from equipoise.spark_jobs.audit.reporting import Reach, reach_in
from equipoise.spark_jobs.audit.state import StateFile
from equipoise.spark_jobs.plain import audit as plain_audit
from equipoise.spark_jobs.plain import reading
from equipoise.spark_jobs.plain.audit import run_audit
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Table
from equipoise.spark_jobs.streams.errors import ArchiveInUse
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import Writer
from tests.spark.spark_logs import WrittenStream

BATCH = 100


class Killed(BaseException):
    """What ends a process in the midst of something."""


@dataclass
class Stage:
    """A log with garbage in it, and an audit of it."""

    folder: Path
    results: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    injected: list[int] = field(default_factory=list)

    @property
    def options(self) -> AuditOptions:
        """Options of an audit to the end of the log."""
        return AuditOptions(
            log_url=f"sqlite:{self.folder}/log", archive=self.folder / "archive", to_end=True
        )

    def write(self, *, records: int = 250, garbage: int = 2) -> None:
        """Write a log, with garbage at the end of each part."""
        with closing(open_log(self.options.log_url)) as log:
            stream = WrittenStream(log, bundles=8, brokers=3)
            for _ in range(garbage):
                stream.go_on(records)
                self.injected.append(stream.garbage())

    def audit(
        self,
        options: AuditOptions | None = None,
        *,
        heard: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Audit, and keep what is printed."""

        def result(line: str) -> None:
            self.results.append(line)
            heard(line)

        return run_audit(options or self.options, Screen(result=result, note=self.notes.append))

    @property
    def found(self) -> list[int]:
        """The offsets of the findings in the archive."""
        table = Tables(self.options.archive).table(Table.FINDINGS)
        return sorted(table["log_offset"].to_pylist())

    @property
    def published(self) -> list[int]:
        """The offsets of the findings beside the log."""
        with closing(sqlite3.connect(f"{self.folder}/log.observations")) as connection:
            documents = connection.execute("SELECT document FROM findings ORDER BY id").fetchall()
        return [orjson.loads(document)["offsets"][-1] for (document,) in documents]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A log of six batches with two pieces of garbage."""
    monkeypatch.setattr(reading, "ENTRIES_MAX", BATCH)
    monkeypatch.setattr(reading, "RETRY_S", 0.01)
    stage = Stage(tmp_path)
    stage.write()
    return stage


def test_findings_are_printed_stored_published_and_counted(stage: Stage) -> None:
    port, scraped = free_row(1), ""

    def scrape(_line: str) -> None:
        nonlocal scraped
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            scraped = answer.read().decode()

    assert 2 == stage.audit(replace(stage.options, metrics_port=port), heard=scrape)
    first, second = stage.injected
    log = stage.options.log_url
    assert stage.results[0].startswith(f"warning malformed at {first}, the log: ")
    assert f"equipoise channel show {first} --log {log}" == stage.results[1].strip()
    assert [first, second] == stage.found == stage.published
    assert 'audit_findings_total{rule="malformed"} 2.0' in scraped
    assert "pulsar" not in scraped
    assert stage.notes[-1] == (
        f"audited up to {second:,} of {second:,}: 2 findings (malformed 2) in {second:,} entries"
    )


def test_an_audit_without_findings_loads_no_libraries_of_tables(tmp_path: Path) -> None:
    """They take more memory than the rest of the process."""
    stage = Stage(tmp_path)
    with closing(open_log(stage.options.log_url)) as log:
        WrittenStream(log, bundles=8, brokers=3).go_on(50)
    heavy = ("aiohttp", "deltalake", "pandas", "pyarrow")
    code = (
        "import sys; from equipoise.brokers.cli.main import app\n"
        f"app(['audit', '--to-end', '--log', {stage.options.log_url!r}], standalone_mode=False)\n"
        f"print([each for each in {heavy} if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "[]" == done.stdout.strip()
    assert "no findings" in done.stderr


def test_the_next_run_reads_only_what_is_new(stage: Stage) -> None:
    stage.audit()
    end = stage.injected[-1]
    assert 0 == stage.audit()
    assert stage.notes[-1] == (
        f"audited up to {end:,} of {end:,}: no findings in 0 entries; the archive holds 2 older"
    )
    assert any("continued from the last run" in note for note in stage.notes)


def test_json_ends_with_how_far_the_audit_came(stage: Stage) -> None:
    stage.audit(replace(stage.options, as_json=True))
    *findings, verdict = map(orjson.loads, stage.results)
    end = stage.injected[-1]
    assert stage.injected == [finding["offsets"][-1] for finding in findings]
    assert verdict == {
        "audited": end,
        "end": end,
        "is_whole": True,
        "entries": end,
        "findings": 2,
    }
    assert Reach(audited=end, end=end) == reach_in(stage.options.archive)


@pytest.mark.parametrize("where", ["committed", "printed", "stored", "published"])
def test_a_killed_process_goes_on_and_delivers_each_finding_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    def then_killed(deliver: Callable[..., None]) -> Callable[..., None]:
        def delivered(*arguments: object) -> None:
            deliver(*arguments)
            raise Killed

        return delivered

    with monkeypatch.context() as patch:
        if where == "committed":
            patch.setattr(auditing, "print_findings", killed)
        elif where == "printed":
            patch.setattr(Writer, "add_findings", killed)
        elif where == "stored":
            patch.setattr(FindingsOut, "put", killed)
        else:
            patch.setattr(FindingsOut, "put", then_killed(FindingsOut.put))
        with pytest.raises(Killed):
            stage.audit()
    assert 2 == stage.audit()
    assert stage.injected == stage.found == stage.published


def test_findings_wait_for_a_place_that_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, refusals = FindingsOut.put, iter([True, True])

    def often_away(out: FindingsOut, findings: Sequence[Finding]) -> None:
        if next(refusals, False):
            raise SideLogUnavailable(FINDINGS, place="elsewhere", problem="it is read-only")
        put(out, findings)

    monkeypatch.setattr(findings_out.FindingsOut, "put", often_away)
    assert 2 == stage.audit()
    assert 4 == len(stage.results)
    assert stage.injected == stage.found == stage.published
    assert any("findings wait to be delivered" in note for note in stage.notes)


def test_an_audit_that_is_interrupted_says_how_far_it_came(stage: Stage) -> None:
    lines = iter(["first"])

    def interrupt(_line: str) -> None:
        if next(lines, None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.audit(heard=interrupt)
    first, second = stage.injected
    assert f"audited up to 300 of {second:,}: " in stage.notes[-1]
    assert Reach(audited=300, end=second) == reach_in(stage.options.archive)
    stage.audit()
    assert [first, second] == stage.found


@pytest.mark.parametrize("where", ["fed", "begun to commit"])
def test_a_batch_that_is_cut_by_a_second_interrupt_is_read_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    feed, commit, batches = Auditor.feed, StateFile.commit, iter(range(10))

    def half_fed(auditor: Auditor, batch: Sequence[Arrival]) -> list[Finding]:
        if next(batches) == 2:
            feed(auditor, batch[: len(batch) // 2])
            raise KeyboardInterrupt
        return feed(auditor, batch)

    def cut(
        state: StateFile, changed: list[StateRow], positions: Positions, found: list[bytes]
    ) -> None:
        if next(batches) == 2:
            raise KeyboardInterrupt
        commit(state, changed, positions, found)

    with monkeypatch.context() as patch:
        patch.setattr(plain_audit, "COMMIT_S", 0.0)
        if where == "fed":
            patch.setattr(Auditor, "feed", half_fed)
        else:
            patch.setattr(StateFile, "commit", cut)
        with pytest.raises(KeyboardInterrupt):
            stage.audit()
    assert 2 == stage.audit()
    assert stage.injected == stage.found == stage.published


def test_a_log_that_does_not_answer_has_not_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True])

    def away(url: str, *, create: bool) -> Log:
        if next(answers, False):
            return open_log(url, create=create)
        raise LogUnavailable(log="log", problem="it is away", in_doubt=False)

    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{auditing.__name__}.open_log", away)
    with pytest.raises(KeyboardInterrupt):
        stage.audit(heard=interrupt)
    assert Reach(audited=300, end=stage.injected[-1]) == reach_in(stage.options.archive)


def test_a_batch_is_repeated_until_the_log_is_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Auditor.feed
    away = LogUnavailable(log="log", problem="it is away", in_doubt=False)
    feeds = iter([True])

    def half_fed(auditor: Auditor, batch: Sequence[Arrival]) -> list[Finding]:
        if next(feeds, False):
            feed(auditor, batch[: len(batch) // 2])
            raise away
        return feed(auditor, batch)

    monkeypatch.setattr(Auditor, "feed", half_fed)
    assert 2 == stage.audit()
    assert stage.injected == stage.found
    assert 1 == sum("the batch is repeated" in note for note in stage.notes)


def test_a_batch_is_not_repeated_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_auditor: Auditor, _batch: Sequence[Arrival]) -> list[Finding]:
        raise LogUnavailable(log="log", problem="it is away", in_doubt=False)

    monkeypatch.setattr(Auditor, "feed", refused)
    monkeypatch.setattr(reading, "AWAY_S_MAX", 0)
    with pytest.raises(LogUnavailable):
        stage.audit()


def test_a_second_process_is_refused(stage: Stage) -> None:
    options = stage.options
    refused: list[str] = []

    def again(_line: str) -> None:
        with pytest.raises(ArchiveInUse) as error:
            stage.audit()
        refused.append(str(error.value))

    run_audit(options, Screen(result=again, note=lambda _line: None))
    assert "another process (audit) uses the archive" in refused[0]


def test_a_truncation_without_any_record_after_it_is_never_green(stage: Stage) -> None:
    """What it took is named with the next record."""
    stage.audit()
    known = stage.injected[-1]
    with closing(open_log(stage.options.log_url)) as log:
        end = log.append([b"lost"] * 9, timeout_ms=1_000)[-1]
        log.truncate(end + 1, timeout_ms=1_000)
        assert 1 == stage.audit()
        assert stage.notes[-1].startswith(f"audited up to {known:,} of {end:,}: no findings in 0")
        log.append([b"next"], timeout_ms=1_000)
    assert 0 < stage.audit()
    assert f"the offsets from {known + 1} to {end} are lost" in "".join(stage.results)


def test_a_state_file_of_another_log_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with closing(StateFile(path, version=1, log="a", remedy="it begins anew")):
        pass
    for version, log, problem in ((2, "a", "its version is 1"), (1, "b", "belongs to the log a")):
        with pytest.raises(OperatorError, match=problem):
            StateFile(path, version=version, log=log, remedy="it begins anew")
    path.write_bytes(b"no database" * 100)
    with pytest.raises(OperatorError, match="remove it and start again: it begins anew"):
        StateFile(path, version=1, log="a", remedy="it begins anew")
