"""Test that the process that archives loses no row in an outage and at an interrupt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from equipoise.brokers.side_topics import DECISIONS
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.side_log import Document
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.spark_jobs.plain import archive as plain
from equipoise.spark_jobs.plain import reading
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import Writer
from tests.spark.spark_logs import WrittenStream


def run(url: str, place: Path) -> None:
    """Archive a log to its end."""
    options = ArchiveOptions(log_url=url, archive=place, to_end=True)
    plain.run_archive(options, Screen(result=print, note=print))


def rows_of(place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Tables(place).table(Table.RECORDS).to_pylist()
    return rows


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:{tmp_path}/log.db"
    with closing(open_log(url)) as log:
        WrittenStream(log, bundles=8, brokers=3).go_on(100)
    run(url, tmp_path / "undisturbed")
    return url


def failing(method: Callable[..., Any], error: BaseException, *calls: int) -> Callable[..., Any]:
    """Return `method`, which raises `error` in the calls with these numbers."""
    number = 0

    def call(*args: object, **kwargs: object) -> object:
        nonlocal number
        number += 1
        if number in calls:
            raise error
        return method(*args, **kwargs)

    return call


def test_an_outage_that_lasts_loses_no_row(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables cannot be opened either, at first."""
    away = PeerError("object storage is away")
    monkeypatch.setattr(reading, "RETRY_S", 0.0)
    monkeypatch.setattr(Writer, "write", failing(Writer.write, away, 1))
    monkeypatch.setattr(Writer, "open_tables", failing(Writer.open_tables, away, 2, 3))
    run(url, tmp_path / "archive")
    assert rows_of(tmp_path / "undisturbed") == rows_of(tmp_path / "archive")


@pytest.mark.parametrize("commit", [3, 7])
def test_a_second_interrupt_in_the_midst_of_a_batch_loses_no_row(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    """The second one raises at once. The first commit is the state's, before any batch."""
    with monkeypatch.context() as patch:
        failed = failing(Writer._commit, KeyboardInterrupt(), commit)  # noqa: SLF001 - as a signal
        patch.setattr(Writer, "_commit", failed)
        with pytest.raises(KeyboardInterrupt):
            run(url, tmp_path / "archive")
    run(url, tmp_path / "archive")
    assert rows_of(tmp_path / "undisturbed") == rows_of(tmp_path / "archive")


def test_a_side_log_that_is_made_anew_is_archived_from_its_beginning(
    url: str, tmp_path: Path
) -> None:
    """Its positions begin again. Each document is archived once, over restarts, too."""
    place = tmp_path / "archive"
    for documents in (3, 2, 1):
        if documents == 2:
            for file in tmp_path.glob("*.observations*"):
                file.unlink()
        with closing(open_side_log(url, DECISIONS)) as decisions:
            decisions.append([Document("x", b"{}")] * documents)
        run(url, place)
    assert 3 + 2 + 1 == len(Tables(place).table(Table.DECISIONS))
