"""One suite for the contract of every `SideLog`, and tests of what only files can suffer."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.decision_log import DecisionLog, newest_decisions
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.side_log import (
    Document,
    SideLog,
    SideLogUnavailable,
    SideTopic,
    newest,
    read_on,
)
from equipoise.channel.log.open_log import open_log, open_side_log
from tests.decisions import shed

NOTES = SideTopic(
    name="notes",
    content="the log of notes",
    consequence="nothing follows",
    kept_ms=3_600_000,
    rows_max=10,
)


@pytest.fixture(params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.integration)])
def open_notes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SideLog]]:
    """The opener of handles beside one new log, for each adapter. One stays open, so that memory
    lives on.
    """
    url = f"memory:{tmp_path}"
    if request.param == "sqlite":
        url = f"sqlite:{tmp_path}/log.db?synchronous=normal"
        open_log(url).close()
    elif request.param == "kafka":
        kafka = request.getfixturevalue("kafka")
        topic = kafka.topic("side")
        kafka.topics.append(NOTES.beside(topic))
        url = f"kafka://{kafka.address}/{topic}"
    opened: list[SideLog] = []

    def opening() -> SideLog:
        opened.append(open_side_log(url, NOTES))
        return opened[-1]

    opening()
    yield opening
    for each in opened:
        each.close()


def note(number: int, key: str = "a") -> Document:
    """Some document."""
    return Document(key, b'{"number":%d}' % number)


def notes_in(side_log: SideLog) -> list[Document]:
    """All documents of a side log, in order."""
    return [Document(each.key, each.value) for each in read_on(side_log, 0)]


def test_a_new_side_log_is_empty(open_notes: Callable[[], SideLog]) -> None:
    notes = open_notes()
    first, end = notes.bounds()
    assert (first, first, []) == (end, notes.position_at(0), list(notes.read(7, limit=1)))
    assert [] == list(newest(notes, 3))


def test_what_is_appended_by_any_handle_is_read_in_order(
    open_notes: Callable[[], SideLog],
) -> None:
    """A key may come again, and a document may have no value."""
    one, other = open_notes(), open_notes()
    one.append([note(0), note(1, "b"), note(2)])
    other.append([])
    other.append([Document("b", None), note(3, "ü")])
    expected = [note(0), note(1, "b"), note(2), Document("b", None), note(3, "ü")]
    assert expected == notes_in(one) == notes_in(other) == notes_in(open_notes())


def test_positions_rise_and_say_where_to_read_on(open_notes: Callable[[], SideLog]) -> None:
    """A position that is not there counts as that of the oldest."""
    notes = open_notes()
    notes.append([note(number) for number in range(5)])
    kept = list(read_on(notes, 0))
    positions = [each.position for each in kept]
    assert sorted(set(positions)) == positions
    assert (positions[0], positions[-1] + 1) == notes.bounds()
    assert kept[2:] == list(read_on(notes, positions[2]))
    assert kept[3] in notes.read(positions[3], limit=1)
    assert [] == list(notes.read(positions[-1] + 1, limit=1))
    assert kept[0] in notes.read(positions[-1] + 1_000, limit=1)
    notes.append([note(5)])
    assert [note(5).value] == [each.value for each in notes.read(positions[-1] + 1, limit=9)]


def test_the_newest_are_the_last_that_came(open_notes: Callable[[], SideLog]) -> None:
    """Oldest first."""
    notes = open_notes()
    notes.append([note(number) for number in range(4)])
    for at_most, expected in ((0, []), (2, [2, 3]), (9, [0, 1, 2, 3])):
        assert [note(number).value for number in expected] == [
            each.value for each in newest(notes, at_most)
        ]


def test_a_time_has_a_position(open_notes: Callable[[], SideLog]) -> None:
    """Documents have the time when they came."""
    notes, before_ms = open_notes(), time.time_ns() // 1_000_000 - 60_000
    notes.append([note(0)])
    [kept] = notes.read(0, limit=1)
    assert before_ms < kept.at_ms < before_ms + 120_000
    assert kept.position == notes.position_at(before_ms) == notes.position_at(kept.at_ms)
    assert kept.position + 1 == notes.position_at(kept.at_ms + 1)


def test_a_log_of_another_kind_has_no_side_log() -> None:
    with pytest.raises(CallerError, match="kafka"):
        open_side_log("kafka:localhost:9092/channel", NOTES)
    with pytest.raises(CallerError, match="the log of notes cannot be beside a log of this kind"):
        open_side_log("ftp:log", NOTES)


# --- where the oldest go by number ---


def test_the_oldest_go(tmp_path: Path) -> None:
    """No position is given again."""
    open_log(f"sqlite:{tmp_path}/log").close()
    for url in (f"memory:{tmp_path}", f"sqlite:{tmp_path}/log"):
        notes = open_side_log(url, NOTES)
        for start in range(0, 25, 5):
            notes.append([note(number) for number in range(start, start + 5)])
        assert [note(number) for number in range(15, 25)] == notes_in(notes)
        assert (16, 26) == notes.bounds()


# --- what only files can suffer ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of an embedded log."""
    path = tmp_path / "log.db"
    open_log(f"sqlite:{path}").close()
    return path


@pytest.fixture
def file(path: Path) -> Path:
    """The file beside that log, which has one note."""
    beside(path).append([note(0)])
    return path.with_name("log.db.observations")


def beside(path: Path, topic: SideTopic = NOTES) -> SideLog:
    return open_side_log(f"sqlite:{path}", topic)


def edit(file: Path, statement: str) -> Sequence[object]:
    """Change the file as another program might."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def test_nothing_is_made_before_the_first_document(path: Path) -> None:
    before = set(path.parent.iterdir())
    notes_in(beside(path))
    beside(path).append([])
    assert before == set(path.parent.iterdir())
    beside(path).append([note(0)])
    assert {path.with_name("log.db.observations")} == set(path.parent.iterdir()) - before


def test_no_log_no_documents(tmp_path: Path) -> None:
    notes = beside(tmp_path / "none.db")
    with pytest.raises(SideLogUnavailable, match="there is no file"):
        notes.read(0, limit=1)
    with pytest.raises(SideLogUnavailable, match="there is no file"):
        notes.append([note(0)])
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        ("DROP TABLE notes", []),
        ("CREATE INDEX by_key ON notes (key)", [note(0)]),
        ("ALTER TABLE notes ADD COLUMN remark TEXT", [note(0)]),
        ("UPDATE notes SET document = x'', at_ms = 'x'", [Document("a", b"")]),
        ("UPDATE notes SET key = x'ff', document = x'ff'", [Document("�", b"\xff")]),
    ],
)
def test_a_changed_table_takes_and_gives_what_it_can(
    path: Path, file: Path, damage: str, left: list[Document]
) -> None:
    edit(file, damage)
    beside(path).append([note(1)])
    assert [*left, note(1)] == notes_in(beside(path))


def test_a_file_that_cannot_be_used_is_a_typed_error(path: Path, file: Path) -> None:
    """The message names the file, says what is wrong, and what follows from it."""
    edit(file, "DROP TABLE notes")
    edit(file, "CREATE TABLE notes (id INTEGER)")
    with pytest.raises(SideLogUnavailable, match=r"log\.db\.observations .* no such column"):
        beside(path).append([note(1)])
    file.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    with pytest.raises(SideLogUnavailable, match="not a database; nothing follows"):
        beside(path).read(0, limit=1)
    file.unlink()
    file.mkdir()
    with pytest.raises(SideLogUnavailable, match="unable to open"):
        beside(path).append([note(1)])


def test_a_held_lock_costs_half_a_second(path: Path, file: Path) -> None:
    """Readers do not wait."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began_s = time.monotonic()
        with pytest.raises(SideLogUnavailable, match="locked"):
            beside(path).append([note(1)])
        assert 0.4 < time.monotonic() - began_s
        assert [note(0)] == notes_in(beside(path))


def test_many_writers_lose_nothing(path: Path) -> None:
    """Threads that make the file and its tables at once make one of each."""
    topics = [replace(NOTES, name=name, rows_max=100, lock_ms_max=10_000) for name in ("n", "m")]

    def write(number: int) -> None:
        beside(path, topics[number % 2]).append([note(number)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(40)))
    found = [each for topic in topics for each in notes_in(beside(path, topic))]
    assert {note(number) for number in range(40)} == set(found)
    assert 40 == len(found)


def test_a_file_made_anew_is_read_from_its_beginning(path: Path) -> None:
    notes = beside(path)
    notes.append([note(number) for number in range(5)])
    _, end = notes.bounds()
    for file in path.parent.glob("log.db.observations*"):
        file.unlink()
    notes.append([note(9)])
    assert [note(9).value] == [each.value for each in read_on(notes, end)]


def test_decisions_are_read_by_sql_and_by_us(path: Path) -> None:
    """Result and cause are in the document."""
    DecisionLog(f"sqlite:{path}").write(shed())
    [row] = edit(
        path.with_name("log.db.observations"),
        "SELECT key, json_extract(document, '$.result'), json_extract(document, '$.cause')"
        " FROM decisions",
    )
    assert ("a", "Success", "Overloaded") == row
    edit(
        path.with_name("log.db.observations"),
        "INSERT INTO decisions (at_ms, key, document) VALUES (1, 'a', 'none')",
    )
    assert [shed()] == list(newest_decisions(f"sqlite:{path}", 10))
