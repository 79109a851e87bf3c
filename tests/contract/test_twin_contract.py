"""One suite for every `Twin`, the twins of logs and their floors: what channel/core/twin.py promises, asked of each adapter.

May live here: tests that know nothing of an adapter but how to open its log. What a compactor makes of a twin is in
tests/compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import TwinFenced
from equipoise.channel.core.log import Log
from equipoise.channel.core.twin import Twin, TwinImage, TwinRow
from tests.contract.log_adapters import ADAPTERS, Adapter, Handles

TIMEOUT_MS = 10_000
DEADLINE_SECONDS = 30.0


Twins = Callable[[], Twin]

PLACES: Final[Mapping[str, Callable[[Log], Twin]]] = {"twin": lambda log: log.twin(), "floor": lambda log: log.floor()}
"""What a log has of the form of a twin."""


@pytest.fixture(params=PLACES)
def twins(handles: Handles, request: pytest.FixtureRequest) -> Twins:
    """Gives the twin of a new log, or its floor, by a new handle each time; nobody has claimed it yet."""
    return lambda: PLACES[request.param](handles())


def claimed(twins: Twins) -> Twin:
    """The twin by a new handle, which may replace it."""
    twin = twins()
    twin.claim(timeout_ms=TIMEOUT_MS)
    return twin


def replace(twin: Twin, marker: bytes, **rows: bytes | None) -> None:
    """Replace some rows, and the marker."""
    twin.replace([TwinRow(key, data) for key, data in rows.items()], marker, timeout_ms=TIMEOUT_MS)


def image(marker: bytes, **rows: bytes) -> TwinImage:
    """What a twin is expected to hold."""
    return TwinImage(marker=marker, rows=rows)


def test_a_twin_that_was_never_written_is_none(twins: Twins) -> None:
    """A new log has no twin, and a claim alone makes none."""
    assert claimed(twins).load() is None
    assert twins().load() is None


def test_a_twin_comes_back_as_it_was_written(twins: Twins) -> None:
    """Rows and marker of any bytes and any keys are read back, by this handle and by others, opened before or after."""
    before = twins()
    rows = {"a": b"", "ä:ö/\U0001f600": bytes(range(256)), "": b"\0", "bundle:t/ns/0x00000000_0xffffffff": b"x" * 100_000, "'; --": b"1"}
    twin = claimed(twins)
    twin.replace([TwinRow(key, data) for key, data in rows.items()], b"\xff\0marker", timeout_ms=TIMEOUT_MS)
    expected = TwinImage(marker=b"\xff\0marker", rows=rows)
    assert [expected] * 3 == [twin.load(), before.load(), twins().load()]


def test_a_marker_may_stand_alone(twins: Twins) -> None:
    """A replacement without rows moves the marker, and an empty twin with a marker is not one that was never written."""
    twin = claimed(twins)
    replace(twin, b"1")
    assert image(b"1") == twin.load()
    replace(twin, b"2")
    assert image(b"2") == twin.load()


def test_rows_that_are_not_named_stay(twins: Twins) -> None:
    """A replacement adds, changes and removes the keys that it names, and leaves the others alone."""
    twin = claimed(twins)
    replace(twin, b"1", kept=b"k", changed=b"old", gone=b"g")
    replace(twin, b"2", changed=b"new", gone=None, added=b"a", unknown=None)
    assert image(b"2", kept=b"k", changed=b"new", added=b"a") == twin.load()


def test_a_key_that_was_gone_comes_back(twins: Twins) -> None:
    """A key may be removed, made again and removed again."""
    twin = claimed(twins)
    for number, data in enumerate((b"1", None, b"2", None, None, b"3")):
        replace(twin, b"%d" % number, key=data)
        assert ({} if data is None else {"key": data}) == loaded(twin).rows


def loaded(twin: Twin) -> TwinImage:
    """What a twin that was written holds."""
    found = twin.load()
    assert found is not None
    return found


def test_only_the_newest_claimant_replaces(twins: Twins) -> None:
    """From a claim on older claimants are fenced, and change nothing; the newest goes on as often as it likes."""
    old, other, new = claimed(twins), claimed(twins), claimed(twins)
    for fenced in (old, other):
        with pytest.raises(TwinFenced):
            replace(fenced, b"fenced", a=b"fenced")
    assert new.load() is None
    replace(new, b"1", a=b"1")
    with pytest.raises(TwinFenced):
        replace(other, b"fenced", a=None)
    replace(new, b"2", b=b"2")
    assert image(b"2", a=b"1", b=b"2") == old.load() == loaded(new)


def test_who_has_not_claimed_cannot_replace(twins: Twins) -> None:
    """Without a claim of its own nobody replaces anything, also while nobody else has claimed."""
    twin = twins()
    with pytest.raises(TwinFenced):
        replace(twin, b"1", a=b"1")
    assert twin.load() is None


def test_one_that_was_fenced_may_claim_again(twins: Twins) -> None:
    """A claimant that lost the twin gets it back by a claim, and the other one loses it."""
    first = claimed(twins)
    second = claimed(twins)
    with pytest.raises(TwinFenced):
        replace(first, b"fenced")
    first.claim(timeout_ms=TIMEOUT_MS)
    replace(first, b"1", a=b"1")
    with pytest.raises(TwinFenced):
        replace(second, b"fenced")
    assert image(b"1", a=b"1") == loaded(second)


class BrokenOffError(Exception):
    """What ends the making of rows."""


def broken_off(rows: int) -> Iterator[TwinRow]:
    """Rows that break off after so many."""
    for number in range(rows):
        yield TwinRow(f"lost:{number}", b"never seen")
    raise BrokenOffError


@pytest.mark.parametrize("rows", [0, 1, 700])
def test_a_replacement_that_breaks_off_leaves_no_trace(twins: Twins, rows: int) -> None:
    """Rows whose making fails are never seen, not even after the next replacement, by this claimant or another."""
    twin = claimed(twins)
    replace(twin, b"1", a=b"1")
    with pytest.raises(BrokenOffError):
        twin.replace(broken_off(rows), b"lost", timeout_ms=TIMEOUT_MS)
    assert image(b"1", a=b"1") == twins().load()
    with pytest.raises(TwinFenced):
        replace(twin, b"without a claim")
    twin.claim(timeout_ms=TIMEOUT_MS)
    replace(twin, b"2", b=b"2")
    assert image(b"2", a=b"1", b=b"2") == loaded(twin)
    other = claimed(twins)
    replace(other, b"3", c=b"3")
    assert image(b"3", a=b"1", b=b"2", c=b"3") == loaded(other)


def test_a_reader_sees_all_of_a_replacement_or_nothing(twins: Twins) -> None:
    """Who loads while another replaces finds the rows of one marker, never of two."""
    keys = [f"key:{number}" for number in range(300)]
    twin = claimed(twins)
    twin.replace([TwinRow(key, b"0") for key in keys], b"0", timeout_ms=TIMEOUT_MS)
    reader = twins()

    def write() -> None:
        for number in range(1, 16):
            twin.replace([TwinRow(key, b"%d" % number) for key in keys], b"%d" % number, timeout_ms=TIMEOUT_MS)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            found = loaded(reader)
            assert {found.marker} == set(found.rows.values())
            assert 300 == len(found.rows)
        writing.result(DEADLINE_SECONDS)
    assert b"15" == loaded(reader).marker


def test_many_rows_are_replaced_at_once(twins: Twins) -> None:
    """Thousands of rows, some of them large, come and go in one replacement."""
    twin = claimed(twins)
    rows = {f"key:{number}": b"%d" % number * (20_000 if not number % 500 else 20) for number in range(5_000)}
    twin.replace([TwinRow(key, data) for key, data in rows.items()], b"1", timeout_ms=TIMEOUT_MS)
    assert rows == loaded(twin).rows
    twin.replace([TwinRow(key, None) for key in rows], b"2", timeout_ms=TIMEOUT_MS)
    assert image(b"2") == loaded(twin)


def test_progress_is_told_and_a_check_may_end_it(twins: Twins) -> None:
    """A load tells how many rows it has, at last all of them, and ends with what its check raises, ready to be asked again."""
    twin = claimed(twins)
    twin.replace([TwinRow(f"key:{number}", b"") for number in range(2_500)], b"1", timeout_ms=TIMEOUT_MS)
    told: list[int] = []
    twin.load(progress=lambda done, _: told.append(done))
    assert sorted(told) == told
    assert 2_500 == told[-1]

    def refuse() -> None:
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        twin.load(check=refuse)
    assert 2_500 == len(loaded(twin).rows)


def test_a_twin_is_not_the_log(handles: Handles) -> None:
    """A log that is truncated keeps its twin and its floor, and those leave the log and each other alone."""
    log = handles()
    offsets = log.append([b"a", b"b", b"c"], timeout_ms=TIMEOUT_MS)
    log.twin().claim(timeout_ms=TIMEOUT_MS)
    replace(log.twin(), b"1", a=b"1")
    assert [b"a", b"b", b"c"] == [entry.data for entry in log.read(offsets[0], limit=10)]
    assert log.floor().load() is None
    log.floor().claim(timeout_ms=TIMEOUT_MS)
    replace(log.twin(), b"2", b=b"2")
    replace(log.floor(), b"3", c=b"3")
    log.truncate(offsets[2], timeout_ms=TIMEOUT_MS)
    assert image(b"2", a=b"1", b=b"2") == loaded(log.twin())
    assert image(b"3", c=b"3") == loaded(log.floor())


changes = st.dictionaries(st.sampled_from([f"key:{number}" for number in range(8)]), st.none() | st.binary(max_size=8), max_size=8)
operation = st.tuples(st.sampled_from(["replace", "replace", "claim", "break off", "other replaces"]), changes)


@pytest.mark.parametrize("adapter", ADAPTERS[:2], ids=lambda adapter: adapter.id)
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=40, deadline=None)
@given(operations=st.lists(operation, max_size=12))
def test_a_twin_is_the_sum_of_its_replacements(
    adapter: Adapter, place: str, tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, dict[str, bytes | None]]]
) -> None:
    """Whoever replaces, breaks off or takes over in between: what a twin holds is what a plain dict would hold."""
    opener = Handles(adapter, tmp_path_factory.mktemp("twin"))
    twin, other = PLACES[place](opener()), PLACES[place](opener())
    twin.claim(timeout_ms=TIMEOUT_MS)
    held: dict[str, bytes] = {}
    marker: bytes | None = None
    for number, (what, rows) in enumerate(operations):
        if what == "break off":
            with pytest.raises(BrokenOffError):
                twin.replace((*[TwinRow(*row) for row in rows.items()], *broken_off(0)), b"lost", timeout_ms=TIMEOUT_MS)
        if what in ("break off", "claim"):
            twin.claim(timeout_ms=TIMEOUT_MS)
            continue
        writer = other if what == "other replaces" else twin
        if writer is other:
            other.claim(timeout_ms=TIMEOUT_MS)
        marker = b"%d" % number
        writer.replace([TwinRow(*row) for row in rows.items()], marker, timeout_ms=TIMEOUT_MS)
        if writer is other:
            twin.claim(timeout_ms=TIMEOUT_MS)
        held = {key: data for key, data in (held | rows).items() if data is not None}
        assert TwinImage(marker=marker, rows=held) == other.load()
    assert (None if marker is None else TwinImage(marker=marker, rows=held)) == twin.load()
    opener.close()


def test_load_needs_no_claim(twins: Twins) -> None:
    """Reading neither needs a claim nor takes it away."""
    twin = claimed(twins)
    assert twins().load() is None
    replace(twin, b"1")
    assert image(b"1") == twins().load()
