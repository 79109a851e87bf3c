"""Files that are no logs, or no longer whole ones: each is refused by a typed error that says what is wrong, and left alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import EquipoiseError, LogDamaged
from equipoise.channel.core.log import FIRST_OFFSET
from tests.unit.sqlite_files import URL, append, edit, make, open_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


def make_foreign(path: Path) -> None:
    """A database of another program."""
    edit(path, "CREATE TABLE people (name TEXT)")


def make_of_another_application(path: Path) -> None:
    """A database of another program that has no tables yet."""
    edit(path, "PRAGMA application_id = 7")


def make_of_a_newer_format(path: Path) -> None:
    """A log of a version to come."""
    make(path, b"a")
    edit(path, "PRAGMA user_version = 4")


def make_without_entries(path: Path) -> None:
    """A log whose entries somebody dropped."""
    make(path, b"a")
    edit(path, "DROP TABLE entries")


def make_without_bounds(path: Path) -> None:
    """A log whose bounds somebody deleted."""
    make(path, b"a")
    edit(path, "DELETE FROM log")


def make_with_bounds_of_text(path: Path) -> None:
    """A log whose bounds are no numbers."""
    make(path, b"a")
    edit(path, "UPDATE log SET end_offset = 'many'")


def make_with_crossed_bounds(path: Path) -> None:
    """A log that ends before it starts."""
    make(path, b"a")
    edit(path, "UPDATE log SET start_offset = 9")


def make_with_a_number_for_identity(path: Path) -> None:
    """A log whose identity is a number, which a column of text would not take, in a table that looks as it should."""
    make(path, b"a")
    edit(
        path,
        "ALTER TABLE log RENAME TO old",
        "CREATE TABLE log AS SELECT 1 AS identity, start_offset, end_offset, boot, begun_ms, appended_ms FROM old",
        "PRAGMA writable_schema = ON",
        """UPDATE sqlite_master SET sql = (SELECT replace(sql, '"old"', 'log') FROM sqlite_master WHERE name = 'old') WHERE name = 'log'""",
        "DROP TABLE old",
    )


def make_with_other_columns(path: Path) -> None:
    """A log whose tables somebody has improved."""
    make(path, b"a")
    edit(path, "ALTER TABLE entries ADD COLUMN note TEXT")


def make_with_a_schema_that_is_no_text(path: Path) -> None:
    """A log in whose schema one byte was changed to one that is no UTF-8, so that SQLite complains in such words too."""
    make(path, b"a")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE entries", b"CREATE T\xc1BLE entries"))


def make_a_word(path: Path) -> None:
    """A file that is shorter than any database."""
    path.write_bytes(b"hello")


def make_garbage(path: Path) -> None:
    """A file that was never a database."""
    path.write_bytes(bytes(range(256)) * 100)


def make_cut_off(path: Path) -> None:
    """A log of which only the first half is left."""
    make(path, *[b"r" * 300] * 300)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def make_with_damaged_pages(path: Path) -> None:
    """A log whose pages were overwritten, but for the first."""
    make(path, *[b"r" * 300] * 300)
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * 100_000)


UNUSABLE: dict[Callable[[Path], None], str] = {
    make_foreign: "another program",
    make_of_another_application: "another program",
    make_of_a_newer_format: "format 3",
    make_without_entries: "changed by another program",
    make_with_other_columns: "changed by another program",
    make_with_a_schema_that_is_no_text: "no text",
    make_without_bounds: "bounds",
    make_with_bounds_of_text: "bounds",
    make_with_crossed_bounds: "bounds",
    make_with_a_number_for_identity: "identity",
    make_a_word: "not a database",
    make_garbage: "not a database",
    make_cut_off: "malformed",
    make_with_damaged_pages: "malformed",
}


@pytest.mark.parametrize("damage", UNUSABLE, ids=lambda damage: damage.__name__)
def test_what_is_no_log_of_ours_is_refused_and_left_alone(path: Path, damage: Callable[[Path], None]) -> None:
    """A file that is foreign or damaged is the operator's matter: the error says what is wrong, and no byte is changed."""
    damage(path)
    before = path.read_bytes()
    with pytest.raises(LogDamaged, match=UNUSABLE[damage]) as caught:  # noqa: PT012 - some damage is seen on opening, some on reading
        log = open_at(path)
        try:
            log.read(FIRST_OFFSET, limit=1_000)
        finally:
            log.close()
    assert URL == caught.value.log
    assert before == path.read_bytes()


@pytest.mark.parametrize("content", [b"", None], ids=["empty", "missing"])
def test_an_empty_file_becomes_a_log(path: Path, content: bytes | None) -> None:
    """A file that is missing, or was made empty ahead of its use, becomes a log."""
    if content is not None:
        path.write_bytes(content)
    assert [FIRST_OFFSET] == make(path, b"a")


def test_a_changed_byte_is_found_where_it_is(path: Path) -> None:
    """One byte that changed on the disk within a record is found when that record is read, and only then."""
    offsets = make(path, b"first", b"the second one", b"third")
    path.write_bytes(path.read_bytes().replace(b"the second one", b"The second one"))
    log = open_at(path)
    assert [(offsets[0], b"first")] == list(log.read(offsets[0], limit=1))
    assert [(offsets[2], b"third")] == list(log.read(offsets[2], limit=1))
    with pytest.raises(LogDamaged, match=f"offset {offsets[1]} does not match its checksum") as caught:
        log.read(offsets[0], limit=3)
    assert offsets[1] == caught.value.offset
    log.close()


PAGE_BYTES = 4_096
INTERIOR_PAGE = 5  # The first byte of a page that leads to others; each of its cells is a page's number (4 bytes), and a key.


def mislead(path: Path) -> None:
    """Raise the middle key of the page that leads to all entries: a search, which begins there, then ends too early."""
    content = bytearray(path.read_bytes())
    page = next(place for place in range(PAGE_BYTES, len(content), PAGE_BYTES) if content[place] == INTERIOR_PAGE)
    middle = (int.from_bytes(content[page + 3 : page + 5], "big") - 1) // 2
    place_of_cell = page + 12 + 2 * middle
    cell = page + int.from_bytes(content[place_of_cell : place_of_cell + 2], "big")
    assert content[cell + 4] < 0x80, "a key of one byte"
    content[cell + 4] = 0x7F
    path.write_bytes(content)


def test_entries_that_are_out_of_order_are_not_handed_out(path: Path) -> None:
    """A damaged page that leads a reader back to what it has read is damage, not a log without end."""
    make(path, *[b"r" * 300] * 120)
    mislead(path)
    log = open_at(path)
    with pytest.raises(LogDamaged, match="is out of order"):
        log.read(100, limit=1_000)
    log.close()


def test_a_storage_that_contradicts_itself_is_found(path: Path) -> None:
    """What a read may not notice, a check of the whole storage does; and it finds nothing in a log that is in order."""
    make(path, *[b"r" * 300] * 120)
    log = open_at(path)
    log.check_storage()
    log.close()
    mislead(path)
    log = open_at(path)
    with pytest.raises(LogDamaged, match="out of order"):
        log.check_storage()
    log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET data = 'text' WHERE offset = 2",
        "UPDATE entries SET data = x'62', checksum = 'text' WHERE offset = 2",
        "UPDATE entries SET offset = 9 WHERE offset = 2",
    ],
)
def test_a_meddled_entry_is_found(path: Path, statement: str) -> None:
    """An entry that is of another type, has another checksum, or was moved to another offset is not handed out."""
    make(path, b"a", b"b", b"c")
    edit(path, statement)
    log = open_at(path)
    with pytest.raises(LogDamaged, match="does not match its checksum"):
        log.read(FIRST_OFFSET, limit=100)
    log.close()


@settings(max_examples=80, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), garbage=st.binary(min_size=1, max_size=64))
def test_garbage_in_the_file_never_becomes_an_entry(place: float, garbage: bytes) -> None:
    """Whatever bytes are overwritten, opening, reading and appending give true entries or a typed error."""
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
