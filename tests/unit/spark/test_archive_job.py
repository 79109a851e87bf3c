"""Test what the archive job on Spark does around the stream, which is left out here."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import orjson
import pytest

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive import job
from equipoise.spark_jobs.sequence.rows import Table, row_beside
from equipoise.spark_jobs.sequence.sequence import STATE_KEY
from equipoise.spark_jobs.sources.folds import FoldStream
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from tests.spark.archived import as_rows, reading_of, writer_of
from tests.spark.spark_logs import WrittenStream


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt()])
def test_a_run_ends_with_the_state_of_its_last_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException | None
) -> None:
    """An interrupt ends a live run."""
    url, place = f"sqlite:{tmp_path}/log.db", tmp_path / "archive"
    with closing(open_log(url)) as log:
        WrittenStream(log, bundles=8, brokers=3).go_on(50)
        end, identity = log.end(), log.identity

    def run_folds(_options: object, stream: FoldStream, _watch: object) -> None:
        sequence = stream.make(0)
        sequence.restore(stream.state)
        with closing(reading_of(url)) as reads:
            rows = list(sequence.feed(reads.batch({}).arrivals))
        state = (row_beside(Table.STATE, *each) for each in sequence.changed_rows())
        stream.take(0, as_rows([*rows, *state]))
        if ending is not None:
            raise ending

    monkeypatch.setattr(job, "run_folds", run_folds)
    options = ArchiveOptions(log_url=url, archive=place, to_end=True)
    with nullcontext() if ending is None else pytest.raises(KeyboardInterrupt):
        job.run_archive(options, Screen(result=print, note=print))
    with writer_of(place, log=identity) as writer:
        state = writer.state()
    assert state is not None
    assert end == orjson.loads(state[STATE_KEY])["offset"]
