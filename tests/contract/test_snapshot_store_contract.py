"""One suite for every `SnapshotStore`, used as snapshot and as history snapshot: the promises of
channel/core/log.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import SnapshotFenced
from equipoise.channel.core.log import CompactedSnapshot, Log, SnapshotRow, SnapshotStore
from tests.contract.log_adapters import ADAPTERS, Adapter, Handles

TIMEOUT_MS = 10_000
DEADLINE_SECONDS = 30.0


SnapshotStores = Callable[[], SnapshotStore]

PLACES: Final[Mapping[str, Callable[[Log], SnapshotStore]]] = {
    "compacted": lambda log: log.compacted_snapshot(),
    "history": lambda log: log.history_snapshot(),
}
"""What a log has of the form of a snapshot."""


@pytest.fixture(params=PLACES)
def compacted_snapshots(handles: Handles, request: pytest.FixtureRequest) -> SnapshotStores:
    """Gives the snapshot of a new log, or its history snapshot, by a new handle each time; nobody
    has claimed it yet.
    """
    return lambda: PLACES[request.param](handles())


def claimed(compacted_snapshots: SnapshotStores) -> SnapshotStore:
    """The snapshot by a new handle, which may replace it."""
    compacted_snapshot = compacted_snapshots()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    return compacted_snapshot


def replace(compacted_snapshot: SnapshotStore, marker: bytes, **rows: bytes | None) -> None:
    """Replace some rows, and the marker."""
    compacted_snapshot.replace(
        [SnapshotRow(key, data) for key, data in rows.items()], marker, timeout_ms=TIMEOUT_MS
    )


def image(marker: bytes, **rows: bytes) -> CompactedSnapshot:
    """What a snapshot is expected to hold."""
    return CompactedSnapshot(marker=marker, rows=rows)


def test_a_snapshot_that_was_never_written_is_none(compacted_snapshots: SnapshotStores) -> None:
    """A new log has no snapshot, and a claim alone makes none."""
    assert claimed(compacted_snapshots).load() is None
    assert compacted_snapshots().load() is None


def test_a_snapshot_comes_back_as_it_was_written(compacted_snapshots: SnapshotStores) -> None:
    """Rows and marker of any bytes and any keys are read back, by this handle and by others, opened
    before or after.
    """
    before = compacted_snapshots()
    rows = {
        "a": b"",
        "ä:ö/\U0001f600": bytes(range(256)),
        "": b"\0",
        "bundle:t/ns/0x00000000_0xffffffff": b"x" * 100_000,
        "'; --": b"1",
    }
    compacted_snapshot = claimed(compacted_snapshots)
    compacted_snapshot.replace(
        [SnapshotRow(key, data) for key, data in rows.items()],
        b"\xff\0marker",
        timeout_ms=TIMEOUT_MS,
    )
    expected = CompactedSnapshot(marker=b"\xff\0marker", rows=rows)
    assert [expected] * 3 == [
        compacted_snapshot.load(),
        before.load(),
        compacted_snapshots().load(),
    ]


REPLACEMENTS: tuple[dict[str, bytes | None], ...] = (
    {},
    {},
    {"kept": b"k", "changed": b"old", "gone": b"g"},
    {"changed": b"new", "gone": None, "added": b"a", "unknown": None},
    {"gone": b"2"},
    {"gone": None},
    {"gone": None},
    {"gone": b"3"},
)


def test_a_replacement_names_what_it_changes(compacted_snapshots: SnapshotStores) -> None:
    """Other rows stay. A replacement without rows moves the marker, also of an empty snapshot. A
    key may be removed, made again and removed again.
    """
    compacted_snapshot, held = claimed(compacted_snapshots), dict[str, bytes]()
    for number, rows in enumerate(REPLACEMENTS):
        replace(compacted_snapshot, b"%d" % number, **rows)
        held = {key: data for key, data in (held | rows).items() if data is not None}
        assert image(b"%d" % number, **held) == compacted_snapshot.load()


def loaded(compacted_snapshot: SnapshotStore) -> CompactedSnapshot:
    """What a snapshot that was written holds."""
    found = compacted_snapshot.load()
    assert found is not None
    return found


def test_only_the_newest_claimant_replaces(compacted_snapshots: SnapshotStores) -> None:
    """From a claim on older claimants are fenced, and change nothing, as who never claimed; the
    newest goes on as often as it likes.
    """
    with pytest.raises(SnapshotFenced):
        replace(compacted_snapshots(), b"1", a=b"1")
    old, other, new = (
        claimed(compacted_snapshots),
        claimed(compacted_snapshots),
        claimed(compacted_snapshots),
    )
    for fenced in (old, other):
        with pytest.raises(SnapshotFenced):
            replace(fenced, b"fenced", a=b"fenced")
    assert new.load() is None
    replace(new, b"1", a=b"1")
    with pytest.raises(SnapshotFenced):
        replace(other, b"fenced", a=None)
    replace(new, b"2", b=b"2")
    assert image(b"2", a=b"1", b=b"2") == old.load() == loaded(new)


def test_one_that_was_fenced_may_claim_again(compacted_snapshots: SnapshotStores) -> None:
    """A claimant that lost the snapshot gets it back by a claim, and the other one loses it."""
    first = claimed(compacted_snapshots)
    second = claimed(compacted_snapshots)
    with pytest.raises(SnapshotFenced):
        replace(first, b"fenced")
    first.claim(timeout_ms=TIMEOUT_MS)
    replace(first, b"1", a=b"1")
    with pytest.raises(SnapshotFenced):
        replace(second, b"fenced")
    assert image(b"1", a=b"1") == loaded(second)


class BrokenOffError(Exception):
    """What ends the making of rows."""


def broken_off(rows: int) -> Iterator[SnapshotRow]:
    """Rows that break off after so many."""
    for number in range(rows):
        yield SnapshotRow(f"lost:{number}", b"never seen")
    raise BrokenOffError


@pytest.mark.parametrize("rows", [0, 1, 700])
def test_a_replacement_that_breaks_off_leaves_no_trace(
    compacted_snapshots: SnapshotStores, rows: int
) -> None:
    """Rows whose making fails are never seen, not even after the next replacement, by this claimant
    or another.
    """
    compacted_snapshot = claimed(compacted_snapshots)
    replace(compacted_snapshot, b"1", a=b"1")
    with pytest.raises(BrokenOffError):
        compacted_snapshot.replace(broken_off(rows), b"lost", timeout_ms=TIMEOUT_MS)
    assert image(b"1", a=b"1") == compacted_snapshots().load()
    with pytest.raises(SnapshotFenced):
        replace(compacted_snapshot, b"without a claim")
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    replace(compacted_snapshot, b"2", b=b"2")
    assert image(b"2", a=b"1", b=b"2") == loaded(compacted_snapshot)
    other = claimed(compacted_snapshots)
    replace(other, b"3", c=b"3")
    assert image(b"3", a=b"1", b=b"2", c=b"3") == loaded(other)


def test_a_reader_sees_all_of_a_replacement_or_nothing(compacted_snapshots: SnapshotStores) -> None:
    """Who loads while another replaces finds the rows of one marker, never of two."""
    keys = [f"key:{number}" for number in range(300)]
    compacted_snapshot = claimed(compacted_snapshots)
    compacted_snapshot.replace(
        [SnapshotRow(key, b"0") for key in keys], b"0", timeout_ms=TIMEOUT_MS
    )
    reader = compacted_snapshots()

    def write() -> None:
        for number in range(1, 16):
            compacted_snapshot.replace(
                [SnapshotRow(key, b"%d" % number) for key in keys],
                b"%d" % number,
                timeout_ms=TIMEOUT_MS,
            )

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            found = loaded(reader)
            assert {found.marker} == set(found.rows.values())
            assert 300 == len(found.rows)
        writing.result(DEADLINE_SECONDS)
    assert b"15" == loaded(reader).marker


def test_many_rows_are_replaced_at_once(compacted_snapshots: SnapshotStores) -> None:
    """Thousands of rows, some of them large, come and go in one replacement."""
    compacted_snapshot = claimed(compacted_snapshots)
    rows = {
        f"key:{number}": b"%d" % number * (20_000 if not number % 500 else 20)
        for number in range(5_000)
    }
    compacted_snapshot.replace(
        [SnapshotRow(key, data) for key, data in rows.items()], b"1", timeout_ms=TIMEOUT_MS
    )
    assert rows == loaded(compacted_snapshot).rows
    compacted_snapshot.replace(
        [SnapshotRow(key, None) for key in rows], b"2", timeout_ms=TIMEOUT_MS
    )
    assert image(b"2") == loaded(compacted_snapshot)


def test_progress_is_told_and_a_check_may_end_it(compacted_snapshots: SnapshotStores) -> None:
    """A load tells how many rows it has, at last all of them, and ends with what its check raises,
    ready to be asked again.
    """
    compacted_snapshot = claimed(compacted_snapshots)
    compacted_snapshot.replace(
        [SnapshotRow(f"key:{number}", b"") for number in range(2_500)], b"1", timeout_ms=TIMEOUT_MS
    )
    told: list[int] = []
    compacted_snapshot.load(progress=lambda done, _: told.append(done))
    assert sorted(told) == told
    assert 2_500 == told[-1]

    def refuse() -> None:
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        compacted_snapshot.load(check=refuse)
    assert 2_500 == len(loaded(compacted_snapshot).rows)


def test_a_snapshot_is_not_the_log(handles: Handles) -> None:
    """A log that is truncated keeps its snapshot and its history snapshot, and those leave the log
    and each other alone.
    """
    log = handles()
    offsets = log.append([b"a", b"b", b"c"], timeout_ms=TIMEOUT_MS)
    log.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    replace(log.compacted_snapshot(), b"1", a=b"1")
    assert [b"a", b"b", b"c"] == [entry.data for entry in log.read(offsets[0], limit=10)]
    assert log.history_snapshot().load() is None
    log.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
    replace(log.compacted_snapshot(), b"2", b=b"2")
    replace(log.history_snapshot(), b"3", c=b"3")
    log.truncate(offsets[2], timeout_ms=TIMEOUT_MS)
    assert image(b"2", a=b"1", b=b"2") == loaded(log.compacted_snapshot())
    assert image(b"3", c=b"3") == loaded(log.history_snapshot())


changes = st.dictionaries(
    st.sampled_from([f"key:{number}" for number in range(8)]),
    st.none() | st.binary(max_size=8),
    max_size=8,
)
operation = st.tuples(
    st.sampled_from(["replace", "replace", "claim", "break off", "other replaces"]), changes
)


@pytest.mark.parametrize("adapter", ADAPTERS[:2], ids=lambda adapter: adapter.id)
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=40, deadline=None)
@given(operations=st.lists(operation, max_size=12))
def test_a_snapshot_is_the_sum_of_its_replacements(
    adapter: Adapter,
    place: str,
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[str, dict[str, bytes | None]]],
) -> None:
    """Whoever replaces, breaks off or takes over in between: what a snapshot holds is what a plain
    dict would hold.
    """
    opener = Handles(adapter, tmp_path_factory.mktemp("snapshot"))
    compacted_snapshot, other = PLACES[place](opener()), PLACES[place](opener())
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    held: dict[str, bytes] = {}
    marker: bytes | None = None
    for number, (what, rows) in enumerate(operations):
        if what == "break off":
            with pytest.raises(BrokenOffError):
                compacted_snapshot.replace(
                    (*[SnapshotRow(*row) for row in rows.items()], *broken_off(0)),
                    b"lost",
                    timeout_ms=TIMEOUT_MS,
                )
        if what in ("break off", "claim"):
            compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
            continue
        writer = other if what == "other replaces" else compacted_snapshot
        if writer is other:
            other.claim(timeout_ms=TIMEOUT_MS)
        marker = b"%d" % number
        writer.replace([SnapshotRow(*row) for row in rows.items()], marker, timeout_ms=TIMEOUT_MS)
        if writer is other:
            compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
        held = {key: data for key, data in (held | rows).items() if data is not None}
        assert CompactedSnapshot(marker=marker, rows=held) == other.load()
    assert (
        None if marker is None else CompactedSnapshot(marker=marker, rows=held)
    ) == compacted_snapshot.load()
    opener.close()
