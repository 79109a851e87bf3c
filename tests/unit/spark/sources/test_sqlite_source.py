"""Test which entries of a log in a file make a batch, and how a truncated, damaged, replaced or
missing file is handled.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from equipoise.channel.core.errors import CallerError, LogWentBack, OperatorError, PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources import channel_files, sqlite_source
from equipoise.spark_jobs.sources.channel_files import BEGINNING, ChannelFiles
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.sources.sqlite_source import (
    Piece,
    SqliteStreamReader,
    read_piece,
    when_available,
)

RECORDS = tuple(b"%d" % number for number in range(1, 11))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log of ten records, at offsets 1 to 10."""
    url = f"sqlite:{tmp_path / 'channel.db'}"
    with closing(open_log(url)) as log:
        log.append(RECORDS, timeout_ms=5_000)
    return url


@pytest.fixture
def files(url: str) -> Iterator[ChannelFiles]:
    """The same, open."""
    with closing(opened(url)) as files:
        yield files


def opened(
    url: str, *, identity: str | None = None, bytes_max: int = channel_files.BATCH_BYTES_MAX
) -> ChannelFiles:
    """The files of a log, open."""
    return ChannelFiles(
        url.removeprefix("sqlite:"), name=url, identity=identity, bytes_max=bytes_max
    )


def observe(url: str, source: Source, times_ms: list[int]) -> None:
    """Write rows with these times beside a log."""
    with (
        closing(sqlite3.connect(f"{url.removeprefix('sqlite:')}.observations")) as connection,
        connection,
    ):
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {source} (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms"
            " INTEGER NOT NULL, key TEXT NOT NULL, document TEXT)"
        )
        # A name of ours.
        connection.executemany(
            f"INSERT INTO {source} (at_ms, key, document) VALUES (?, 'a', '{{}}')",  # noqa: S608
            [(at_ms,) for at_ms in times_ms],
        )


def set_times(url: str, times_ms: dict[int, int]) -> None:
    """Have records been appended at other times."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
        connection.executemany(
            "UPDATE entries SET appended_ms = ? WHERE offset = ?",
            [(at, offset) for offset, at in times_ms.items()],
        )


def offsets(
    files: ChannelFiles, begin: int, end: int, source: Source = Source.CHANNEL
) -> list[int]:
    """The offsets of what is read."""
    return [arrival.offset for arrival in files.rows(source.value, begin, end)]


def test_a_batch_is_bounded_in_entries(files: ChannelFiles) -> None:
    first = files.batch_end(BEGINNING, limit=4)
    second = files.batch_end(first, limit=4)
    third = files.batch_end(second, limit=4)
    assert [5, 9, 11] == [ends[Source.CHANNEL] for ends in (first, second, third)]
    assert third == files.batch_end(third, limit=4)


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (3, [(4, 2), (7, 3), (10, 4)]),
        (5, [(6, 3), (10, 5), (11, 6)]),
        (0, [(2, 2), (3, 3), (4, 4)]),
    ],
)
def test_a_batch_is_bounded_in_bytes(
    url: str, monkeypatch: pytest.MonkeyPatch, bytes_max: int, expected: list[tuple[int, int]]
) -> None:
    """An entry that is too large comes alone."""
    monkeypatch.setattr(channel_files, "LOADS_BYTES_MAX", bytes_max)
    observe(url, Source.LOADS, [0] * 5)
    ends = [BEGINNING]
    with closing(opened(url, bytes_max=bytes_max)) as files:
        for _ in expected:
            ends.append(files.batch_end(ends[-1], limit=100))
    assert expected == [(end[Source.CHANNEL], end[Source.LOADS]) for end in ends[1:]]


def test_companion_entries_wait_for_records_of_their_time(url: str, files: ChannelFiles) -> None:
    set_times(url, {offset: offset * 1_000 for offset in range(1, 11)})
    observe(url, Source.SERVING, [1_000, 3_500, 9_000, 99_000])
    first = files.batch_end(BEGINNING, limit=4)
    assert (5, 3) == (first[Source.CHANNEL], first[Source.SERVING])
    last = files.batch_end(first, limit=100)
    assert (11, 5) == (last[Source.CHANNEL], last[Source.SERVING])


def test_the_observations_file_may_come_late_and_be_replaced(url: str, files: ChannelFiles) -> None:
    assert 1 == files.batch_end(BEGINNING, limit=99)[Source.SERVING]
    observe(url, Source.SERVING, [1, 2, 3])
    end = files.batch_end(BEGINNING, limit=99)
    assert 4 == end[Source.SERVING]
    assert end == files.batch_end(end, limit=99)
    Path(f"{url.removeprefix('sqlite:')}.observations").unlink()
    assert end == files.batch_end(end, limit=99)
    observe(url, Source.SERVING, [1, 2])
    again = files.batch_end(end, limit=99)
    assert {**end, Source.SERVING: 1} == again
    assert {**end, Source.SERVING: 3} == files.batch_end(again, limit=99)


def test_a_damaged_observations_file_does_not_stop_the_channel(
    url: str, files: ChannelFiles
) -> None:
    Path(f"{url.removeprefix('sqlite:')}.observations").write_bytes(b"no database at all" * 99)
    ends = files.batch_end(BEGINNING, limit=9)
    assert (10, 1) == (ends[Source.CHANNEL], ends[Source.SERVING])
    assert 11 == files.ends()[Source.CHANNEL]


def test_an_observations_file_that_goes_while_it_is_read_ends_the_batch(
    url: str, files: ChannelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(url, Source.SERVING, [1, 2])
    monkeypatch.setattr(SqliteSideLog, "read", lambda *_, **__: ())
    assert 1 == files.batch_end(BEGINNING, limit=9)[Source.SERVING]


def test_a_truncated_log_is_read_from_its_start(url: str, files: ChannelFiles) -> None:
    with closing(open_log(url)) as log:
        log.truncate(6, timeout_ms=5_000)
    assert 8 == files.batch_end(BEGINNING, limit=2)[Source.CHANNEL]
    assert [6, 7] == offsets(files, 1, 8)


def test_a_log_that_went_back_is_refused(files: ChannelFiles) -> None:
    with pytest.raises(LogWentBack):
        files.batch_end({**BEGINNING, Source.CHANNEL: 40}, limit=2)


def test_a_damaged_record_has_no_value(url: str, files: ChannelFiles) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
        connection.execute("UPDATE entries SET data = X'00' WHERE offset = 3")
    assert [b"2", None, b"4"] == [
        arrival.value for arrival in files.rows(Source.CHANNEL.value, 2, 5)
    ]


def test_times_outside_sparks_range_are_capped(url: str, files: ChannelFiles) -> None:
    observe(url, Source.SERVING, [-5, 1 << 60])
    assert [0, channel_files.TIME_MS_MAX] == [
        arrival.at_ms for arrival in files.rows(Source.SERVING.value, 1, 9)
    ]


def test_another_log_is_refused(url: str) -> None:
    with pytest.raises(OperatorError, match="is not the one"):
        opened(url, identity="0" * 32)


def test_a_piece_is_read_in_bounded_batches(
    url: str, files: ChannelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_source, "ROWS_AT_ONCE", 4)
    batches = list(read_piece(url, Piece("channel", 1, 11, files.identity)))
    assert [4, 4, 2] == [batch.num_rows for batch in batches]
    assert list(RECORDS) == [
        value for batch in batches for value in batch.column("value").to_pylist()
    ]


def test_offsets_of_a_stream(url: str) -> None:
    reader = SqliteStreamReader(url, start={"channel": 3}, per_trigger=4)
    begun = reader.initialOffset()
    first = reader.latestOffset(begun, reader.getDefaultReadLimit())
    rest = reader.latestOffset(first, ReadAllAvailable())
    assert [3, 7, 11] == [position["channel"] for position in (begun, first, rest)]
    assert rest == reader.reportLatestOffset()
    assert [("channel", 3, 7)] == [piece.value[:3] for piece in reader.partitions(begun, first)]
    assert "" != first["log"]
    reader.stop()


def test_an_unwanted_source_is_not_read(url: str) -> None:
    for source in (Source.SERVING, Source.LOADS):
        observe(url, source, [0, 0])
    reader = SqliteStreamReader(
        url, sources=(Source.CHANNEL, Source.LOADS), start={}, per_trigger=100
    )
    # As a checkpoint has it from when all was wanted.
    begun = {**BEGINNING, "serving": 2, "log": ""}
    end = reader.latestOffset(begun, ReadAllAvailable())
    assert [("channel", 1, 11), ("loads", 1, 3)] == [
        piece.value[:3] for piece in reader.partitions(begun, end)
    ]
    assert {"channel": 11, "loads": 3, "log": end["log"]} == end == reader.reportLatestOffset()
    assert end == reader.latestOffset(end, ReadAllAvailable())
    reader.stop()


def test_a_stream_to_the_end_stops_at_what_existed(url: str) -> None:
    reader = SqliteStreamReader(url, start={}, per_trigger=100)
    reader.prepareForTriggerAvailableNow()
    with closing(open_log(url)) as log:
        log.append([b"later"], timeout_ms=5_000)
    ends = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert 11 == ends["channel"]
    assert ends == reader.latestOffset(ends, ReadMaxRows(100))
    reader.stop()


def test_a_stream_without_its_file_has_nothing_new(tmp_path: Path) -> None:
    """It reads the file when that comes."""
    url = f"sqlite:{tmp_path / 'channel.db'}"
    reader = SqliteStreamReader(url, start={}, per_trigger=100)
    begun = reader.initialOffset()
    assert [begun, begun] == [reader.latestOffset(begun, ReadMaxRows(100)) for _ in range(2)]
    assert reader.reportLatestOffset() is None
    with closing(open_log(url)) as log:
        log.append([b"first"], timeout_ms=5_000)
    assert 2 == reader.latestOffset(begun, ReadMaxRows(100))["channel"]
    reader.stop()


def test_a_task_waits_for_the_file_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_source, "AWAY_S_MAX", 0)
    with pytest.raises(PeerError, match="start the job again"):
        when_available(f"sqlite:{tmp_path / 'channel.db'}", ChannelFiles.ends)


def test_a_task_waits_for_the_observations_file(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{url.removeprefix('sqlite:')}.observations").write_bytes(b"no database at all" * 99)
    monkeypatch.setattr(sqlite_source, "AWAY_S_MAX", 0)
    with pytest.raises(PeerError, match="start the job again"):
        when_available(url, lambda files: list(files.rows(Source.SERVING.value, 1, 9)))


@pytest.mark.parametrize("url", ["memory:x", "sqlite:", "nonsense"])
def test_a_log_that_spark_cannot_read_is_refused(url: str) -> None:
    assert not is_on_kafka(url)
    with pytest.raises(CallerError, match="cannot open a log at"):
        # It is not reached.
        channel_frame(None, url, start={}, per_trigger=1)  # type: ignore[arg-type]
