"""Files that are no logs, or no longer whole ones: each is refused by a typed error that says what
is wrong, and left alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import EquipoiseError, LogDamaged, OperatorError
from equipoise.channel.core.log import FIRST_OFFSET
from tests.unit.sqlite.sqlite_files import URL, append, edit, make, open_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


def edited(*statements: str) -> Callable[[Path], None]:
    """Return what makes a log of one entry and changes it."""

    def damage(path: Path) -> None:
        make(path, b"a")
        edit(path, *statements)

    return damage


def overwritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return what makes a log of many pages and changes its bytes."""

    def damage(path: Path) -> None:
        make(path, *[b"r" * 300] * 300)
        path.write_bytes(change(path.read_bytes()))

    return damage


GIVE_THE_IDENTITY_A_NUMBER = (  # A column of text would not take one.
    "ALTER TABLE log RENAME TO old",
    (
        "CREATE TABLE log AS SELECT 1 AS identity, start_offset, end_offset, boot,"
        " appended_ms FROM old"
    ),
    "PRAGMA writable_schema = ON",
    """UPDATE sqlite_master SET sql = (SELECT replace(sql, '"old"', 'log') FROM sqlite_master WHERE name = 'old') WHERE name = 'log'""",  # noqa: E501
    "DROP TABLE old",
)

UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "of another program": (
        lambda path: edit(path, "CREATE TABLE people (name TEXT)"),
        "another program",
    ),
    "of another program, empty": (
        lambda path: edit(path, "PRAGMA application_id = 7"),
        "another program",
    ),
    "of another format": (edited("PRAGMA user_version = 2"), "format 2"),
    "without entries": (
        edited("DROP TABLE entries"),
        "another program has changed the table entries",
    ),
    "with another column": (
        edited("ALTER TABLE entries ADD COLUMN note TEXT"),
        "another program has changed the table entries",
    ),
    "with a schema that is not text": (
        overwritten(lambda data: data.replace(b"CREATE TABLE entries", b"CREATE T\xc1BLE entries")),
        "not UTF-8",
    ),
    "without bounds": (edited("DELETE FROM log"), "bounds"),
    "with bounds of text": (edited("UPDATE log SET end_offset = 'many'"), "bounds"),
    "with crossed bounds": (edited("UPDATE log SET start_offset = 9"), "bounds"),
    "with a number for its identity": (edited(*GIVE_THE_IDENTITY_A_NUMBER), "identity"),
    "shorter than a database": (lambda path: path.write_bytes(b"hello"), "not a database"),
    "garbage": (lambda path: path.write_bytes(bytes(range(256)) * 100), "not a database"),
    "cut off": (overwritten(lambda data: data[: len(data) // 2]), "malformed"),
    "with damaged pages": (
        overwritten(lambda data: data[:4_096] + b"\xff" * 100_000 + data[104_096:]),
        "malformed",
    ),
}


@pytest.mark.parametrize("damage", UNUSABLE)
def test_a_file_that_is_not_a_log_is_refused_and_left_alone(path: Path, damage: str) -> None:
    """The error says what is wrong, and no byte is changed."""
    make_damaged, problem = UNUSABLE[damage]
    make_damaged(path)
    before = path.read_bytes()
    # Some damage is seen on opening, some on reading.
    with pytest.raises(LogDamaged, match=problem) as caught, closing(open_at(path)) as log:
        log.read(FIRST_OFFSET, limit=1_000)
    assert URL == caught.value.log
    assert before == path.read_bytes()


BESIDE = {
    "statistics": ("ANALYZE",),
    "Litestream": (
        "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)",
        "CREATE TABLE _litestream_lock (id INTEGER)",
    ),
    "a table and its trigger": (
        "CREATE TABLE zzz (name TEXT)",
        "CREATE TRIGGER grows AFTER INSERT ON zzz BEGIN DELETE FROM zzz; END",
    ),
    "an index": ("CREATE INDEX aaa ON entries (appended_ms)",),
    "a view": ("CREATE VIEW newest AS SELECT max(offset) FROM entries",),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_others_keep_in_the_file_is_left_alone(path: Path, beside: str) -> None:
    make(path, b"a")
    edit(path, *BESIDE[beside])
    with closing(open_at(path)) as log:
        assert [2] == append(log, b"b")
        assert [b"a", b"b"] == [entry.data for entry in log.read(FIRST_OFFSET, limit=3)]


def test_a_trigger_on_our_tables_is_refused(path: Path) -> None:
    """It would change what is written, and the log need not be restored from a copy for it."""
    make(path, b"a")
    edit(path, "CREATE TRIGGER forgets AFTER INSERT ON entries BEGIN DELETE FROM entries; END")
    with pytest.raises(OperatorError, match=r"the trigger forgets .* drop the trigger"):
        open_at(path)
    edit(path, "DROP TRIGGER forgets")
    open_at(path).close()


def test_a_changed_byte_is_found_where_it_is(path: Path) -> None:
    """One byte that changed on the disk within a record is found when that record is read, and only
    then.
    """
    offsets = make(path, b"first", b"the second one", b"third")
    path.write_bytes(path.read_bytes().replace(b"the second one", b"The second one"))
    with closing(open_at(path)) as log:
        assert [(offsets[0], b"first")] == list(log.read(offsets[0], limit=1))
        assert [(offsets[2], b"third")] == list(log.read(offsets[2], limit=1))
        with pytest.raises(
            LogDamaged, match=f"offset {offsets[1]} does not match its checksum"
        ) as caught:
            log.read(offsets[0], limit=3)
        assert offsets[1] == caught.value.offset


PAGE_BYTES = 4_096
# The first byte of a page that leads to others; each of its cells is a page's number (4 bytes), and
# a key.
INTERIOR_PAGE = 5


def mislead(path: Path) -> None:
    """Raise the middle key of the page that leads to all entries: a search, which begins there,
    then ends too early.
    """
    content = bytearray(path.read_bytes())
    page = next(
        place
        for place in range(PAGE_BYTES, len(content), PAGE_BYTES)
        if content[place] == INTERIOR_PAGE
    )
    middle = (int.from_bytes(content[page + 3 : page + 5], "big") - 1) // 2
    place_of_cell = page + 12 + 2 * middle
    cell = page + int.from_bytes(content[place_of_cell : place_of_cell + 2], "big")
    assert content[cell + 4] < 0x80, "a key of one byte"
    content[cell + 4] = 0x7F
    path.write_bytes(content)


def test_a_storage_that_contradicts_itself_is_found(path: Path) -> None:
    """A damaged page must not lead a reader back. A check of the whole storage finds it too, and
    finds nothing in an intact log.
    """
    make(path, *[b"r" * 300] * 120)
    log = open_at(path)
    log.check_storage()
    log.close()
    mislead(path)
    with closing(open_at(path)) as log:
        with pytest.raises(LogDamaged, match="is out of order"):
            log.read(100, limit=1_000)
        with pytest.raises(LogDamaged, match="out of order"):
            log.check_storage()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET data = 'text' WHERE offset = 2",
        "UPDATE entries SET data = x'62', checksum = 'text' WHERE offset = 2",
        "UPDATE entries SET offset = 9 WHERE offset = 2",
    ],
)
def test_a_meddled_entry_is_found(path: Path, statement: str) -> None:
    """An entry that is of another type, has another checksum, or was moved to another offset is not
    handed out.
    """
    make(path, b"a", b"b", b"c")
    edit(path, statement)
    with (
        closing(open_at(path)) as log,
        pytest.raises(LogDamaged, match="does not match its checksum"),
    ):
        log.read(FIRST_OFFSET, limit=100)


@settings(max_examples=80, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), garbage=st.binary(min_size=1, max_size=64))
def test_garbage_in_the_file_never_becomes_an_entry(place: float, garbage: bytes) -> None:
    """Whatever bytes are overwritten, opening, reading and appending give true entries or a typed
    error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.db")
        records = [b"%d" % number * 40 for number in range(200)]
        true = set(zip(make(path, *records), records, strict=True))
        with path.open("r+b") as file:
            file.seek(int(place * path.stat().st_size))
            file.write(garbage)
        try:
            log = open_at(path)
        except EquipoiseError:
            return
        try:
            assert set(log.read(log.start(), limit=1_000)) <= true
            append(log, b"more")
        except EquipoiseError:
            pass
        finally:
            log.close()
