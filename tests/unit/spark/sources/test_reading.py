"""Test which entries of a log in a file make a batch, and how a truncated, damaged, replaced or
missing file is handled.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError, LogNotBegun, LogWentBack, OperatorError
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.side_log import Document, SideLogUnavailable
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source
from equipoise.spark_jobs.sources import reading
from equipoise.spark_jobs.sources.reading import COMPANIONS, Reading
from tests.kafka.fixtures import Kafka

LONG_MS = 20_000
BEGINNING: Positions = {source.value: FIRST_OFFSET for source in Source}
RECORDS = tuple(b"%d" % number for number in range(1, 11))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log of ten records, at offsets 1 to 10."""
    url = f"sqlite:{tmp_path / 'channel.db'}"
    with closing(open_log(url)) as log:
        log.append(RECORDS, timeout_ms=5_000)
    return url


@pytest.fixture
def files(url: str) -> Iterator[Reading]:
    """The same, open."""
    with closing(opened(url)) as files:
        yield files


def opened(
    url: str,
    *,
    identity: str | None = None,
    entries_max: int = 100,
    bytes_max: int = 1 << 20,
) -> Reading:
    """A log that is read in batches."""
    return Reading(url, identity=identity, entries_max=entries_max, bytes_max=bytes_max)


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


def offsets(arrivals: list[Arrival], source: Source = Source.CHANNEL) -> list[int]:
    """The offsets of what is read of a source."""
    return [arrival.offset for arrival in arrivals if arrival.source == source]


def ends_of(files: Reading, position: Positions) -> dict[str, int]:
    """Where the next batch ends."""
    return files.batch(position).ends


def test_a_batch_is_bounded_in_entries(url: str) -> None:
    with closing(opened(url, entries_max=4)) as files:
        first = ends_of(files, BEGINNING)
        second = ends_of(files, first)
        third = ends_of(files, second)
        assert [5, 9, 11] == [ends[Source.CHANNEL] for ends in (first, second, third)]
        assert third == ends_of(files, third)


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
    monkeypatch.setattr(reading, "LOADS_BYTES_MAX", bytes_max)
    observe(url, Source.LOADS, [0] * 5)
    ends = [BEGINNING]
    with closing(opened(url, bytes_max=bytes_max)) as files:
        for _ in expected:
            ends.append(ends_of(files, ends[-1]))
    assert expected == [(end[Source.CHANNEL], end[Source.LOADS]) for end in ends[1:]]


def test_companion_entries_wait_for_records_of_their_time(url: str) -> None:
    set_times(url, {offset: offset * 1_000 for offset in range(1, 11)})
    observe(url, Source.SERVING, [1_000, 3_500, 9_000, 99_000])
    with closing(opened(url, entries_max=4)) as files:
        first = ends_of(files, BEGINNING)
    assert (5, 3) == (first[Source.CHANNEL], first[Source.SERVING])
    with closing(opened(url)) as files:
        last = ends_of(files, first)
    assert (11, 5) == (last[Source.CHANNEL], last[Source.SERVING])


def test_the_observations_file_may_come_late_and_be_replaced(url: str, files: Reading) -> None:
    assert 1 == ends_of(files, BEGINNING)[Source.SERVING]
    observe(url, Source.SERVING, [1, 2, 3])
    end = ends_of(files, BEGINNING)
    assert 4 == end[Source.SERVING]
    assert end == ends_of(files, end)
    Path(f"{url.removeprefix('sqlite:')}.observations").unlink()
    assert end == ends_of(files, end)
    observe(url, Source.SERVING, [1, 2])
    again = ends_of(files, end)
    assert {**end, Source.SERVING: 1} == again
    assert {**end, Source.SERVING: 3} == ends_of(files, again)


def test_a_damaged_observations_file_does_not_stop_the_channel(url: str, files: Reading) -> None:
    Path(f"{url.removeprefix('sqlite:')}.observations").write_bytes(b"no database at all" * 99)
    batch = files.batch(BEGINNING)
    assert (11, 1) == (batch.ends[Source.CHANNEL], batch.ends[Source.SERVING])
    assert isinstance(batch.away, SideLogUnavailable)
    assert 11 == files.ends()[Source.CHANNEL]


def test_an_observations_file_that_goes_while_it_is_read_ends_the_batch(
    url: str, files: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(url, Source.SERVING, [1, 2])

    def gone(*_: object, **__: object) -> tuple[()]:
        Path(f"{url.removeprefix('sqlite:')}.observations").unlink()
        return ()

    monkeypatch.setattr(SqliteSideLog, "read", gone)
    assert 1 == ends_of(files, BEGINNING)[Source.SERVING]


def test_a_truncated_log_is_read_from_its_start(url: str) -> None:
    with closing(open_log(url)) as log:
        log.truncate(6, timeout_ms=5_000)
    with closing(opened(url, entries_max=2)) as files:
        batch = files.batch(BEGINNING)
    assert (8, [6, 7]) == (batch.ends[Source.CHANNEL], offsets(batch.arrivals))


def test_a_log_that_went_back_is_refused(files: Reading) -> None:
    with pytest.raises(LogWentBack):
        files.batch({**BEGINNING, Source.CHANNEL: 40})


def test_a_damaged_record_has_no_value(url: str, files: Reading) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
        connection.execute("UPDATE entries SET data = X'00' WHERE offset = 3")
    arrivals = files.batch({**BEGINNING, Source.CHANNEL: 2}).arrivals
    assert [b"2", None, b"4"] == [arrival.value for arrival in arrivals[:3]]


def test_times_outside_sparks_range_are_capped(url: str, files: Reading) -> None:
    observe(url, Source.SERVING, [-5, 1 << 60])
    assert [0, reading.TIME_MS_MAX] == [
        arrival.at_ms for arrival in files.batch(BEGINNING).arrivals[-2:]
    ]


def test_another_log_is_refused(url: str) -> None:
    with pytest.raises(OperatorError, match="is not the one"):
        opened(url, identity="0" * 32)


def batches(reads: Reading, begin: Positions, until: Positions | None) -> list[list[Arrival]]:
    """All batches from a position to the end."""
    found, position = [], begin
    while (batch := reads.batch(position, until=until)).arrivals:
        found.append(batch.arrivals)
        position = batch.ends
    return found


def test_entries_have_the_times_of_their_appends_and_notes_come_after_them(url: str) -> None:
    open_side_log(url, COMPANIONS[Source.DECISIONS]).append([Document("x", b"{}")])
    with closing(opened(url)) as reads:
        ((*channel, note),) = batches(reads, BEGINNING, None)
        assert [*range(1, 11)] == [arrival.offset for arrival in channel]
        assert all(0 < arrival.at_ms <= note.at_ms for arrival in channel)
        assert (Source.DECISIONS, b"{}") == (note.source, note.value)
        assert {**BEGINNING, "channel": 11, "decisions": 2} == reads.ends()


def test_a_wait_ends_with_the_next_entry(url: str) -> None:
    with closing(opened(url)) as reads, closing(open_log(url)) as log:
        assert not reads.wait(11, timeout_ms=0)
        log.append([b"next"], timeout_ms=1_000)
        assert reads.wait(11, timeout_ms=LONG_MS)


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LogNotBegun):
        opened(f"sqlite:{tmp_path}/none")
    with pytest.raises(CallerError, match="lives in one process"):
        opened("memory:log")


@pytest.mark.integration
def test_a_topic_is_read_as_a_file_is(kafka: Kafka) -> None:
    topic = kafka.topic("reading")
    kafka.topics.append(f"{topic}-decisions")
    url = f"kafka://{kafka.address}/{topic}"
    with closing(open_log(url)) as log, closing(opened(url, entries_max=4)) as reads:
        log.append([b"%d" % number for number in range(10)], timeout_ms=LONG_MS)
        with closing(open_side_log(url, COMPANIONS[Source.DECISIONS])) as decisions:
            decisions.append([Document("x", b"{}")])
        until = reads.ends()
        log.append([b"later"], timeout_ms=LONG_MS)
        found = batches(reads, {Source.CHANNEL: log.start()}, until)
        assert [4, 4, 3] == [len(each) for each in found]
        values = [arrival.value for batch in found for arrival in batch]
        assert [*(b"%d" % number for number in range(10)), b"{}"] == values
        assert reads.wait(until["channel"], timeout_ms=LONG_MS)
        (last,) = reads.batch(until).arrivals
        assert b"later" == last.value
