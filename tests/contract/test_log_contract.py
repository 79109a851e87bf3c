"""One suite for every `Log`: what channel/core/log.py promises, asked of each adapter."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError, LogTruncated, LogWentBack
from equipoise.channel.core.log import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    FIRST_OFFSET,
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    RECORD_BYTES_MAX,
    Entry,
    Log,
)
from tests.channels.carried import entries_of
from tests.contract.log_adapters import ADAPTERS, EACH_ADAPTER, Adapter, Handles, handles_on

TIMEOUT_MS = 10_000
FOREVER_MS = 3_600_000
DEADLINE_SECONDS = 30.0
DESCRIPTOR_ROUNDS, DESCRIPTOR_SECONDS = 5, 10.0
CLOCKS_APART_MS = 5
"""How far the storage's clock may be from ours; both are of this machine."""


@pytest.fixture
def log(handles: Handles) -> Log:
    """A handle on a new log."""
    return handles()


def append(log: Log, *records: bytes) -> list[int]:
    """The offsets of some records that are appended as one batch."""
    return list(log.append(records, timeout_ms=TIMEOUT_MS))


def test_a_new_log_is_empty(log: Log) -> None:
    """A new log starts at the first offset, ends before it, and has nothing to read there."""
    assert (FIRST_OFFSET, FIRST_OFFSET - 1) == (log.start(), log.end())
    assert [] == list(log.read(FIRST_OFFSET, limit=10))


def test_appended_records_are_read_back_as_they_were(log: Log) -> None:
    """A read returns the very bytes that were appended, in order, at the offsets that the append
    returned.
    """
    records = [b"", b"\0", b"{}", b"\xff\xfe", bytes(range(256)) * 40, "Grüße".encode()]
    offsets = append(log, *records)
    assert list(map(Entry, offsets, records)) == entries_of(log)


def test_offsets_rise_from_batch_to_batch(log: Log) -> None:
    """Each append gets offsets above all others, in the order of its batch. The end is the last of
    them. An empty batch gets none.
    """
    offsets = (
        append(log, b"a", b"b") + append(log, b"c") + append(log, b"d", b"e", b"f") + append(log)
    )
    assert sorted(set(offsets)) == offsets
    assert FIRST_OFFSET <= offsets[0]
    assert offsets[-1] == log.end()


def test_the_largest_record_and_batch_fit(log: Log) -> None:
    """A record and batches at their limits are taken."""
    append(log, *[b"r" * RECORD_BYTES_MAX] * (BATCH_BYTES_MAX // RECORD_BYTES_MAX))
    assert BATCH_ENTRIES_MAX == len(append(log, *[b"s"] * BATCH_ENTRIES_MAX))


@dataclass(frozen=True, kw_only=True)
class TooLarge:
    id: str
    batch: tuple[bytes, ...]
    size: int
    size_max: int


TOO_LARGE = (
    TooLarge(
        id="record",
        batch=(b"a", b"r" * (RECORD_BYTES_MAX + 1)),
        size=RECORD_BYTES_MAX + 1,
        size_max=RECORD_BYTES_MAX,
    ),
    TooLarge(
        id="entries",
        batch=(b"",) * (BATCH_ENTRIES_MAX + 1),
        size=BATCH_ENTRIES_MAX + 1,
        size_max=BATCH_ENTRIES_MAX,
    ),
    TooLarge(
        id="bytes",
        batch=(b"b" * RECORD_BYTES_MAX,) * 8 + (b"b",),
        size=BATCH_BYTES_MAX + 1,
        size_max=BATCH_BYTES_MAX,
    ),
)


@pytest.mark.parametrize("case", TOO_LARGE, ids=lambda case: case.id)
def test_what_is_too_large_is_refused_whole(log: Log, case: TooLarge) -> None:
    """A record or a batch above its limit is the caller's error, and nothing of the batch is
    appended.
    """
    message = (
        f"the log {re.escape(log.name)} accepts at most {case.size_max} [a-z ]+, not {case.size};"
    )
    with pytest.raises(CallerError, match=message):
        append(log, *case.batch)
    assert [] == entries_of(log)


def test_a_read_stops_at_its_limit(log: Log) -> None:
    """A read returns the first entries from its position on, and no more than its limit. Just above
    the end there is nothing yet.
    """
    offsets = append(log, b"a", b"b", b"c")
    assert [] == list(log.read(log.end() + 1, limit=10))
    assert [(offsets[1], b"b")] == list(log.read(offsets[1], limit=1))
    assert [b"b", b"c"] == [entry.data for entry in log.read(offsets[1], limit=9)]


def test_a_read_is_bounded_in_entries(log: Log) -> None:
    """However large its limit, a read returns at most the entries that the port allows, and the
    next read goes on.
    """
    for _ in range(READ_ENTRIES_MAX // BATCH_ENTRIES_MAX + 1):
        append(log, *[b""] * BATCH_ENTRIES_MAX)
    first = log.read(FIRST_OFFSET, limit=2**62)
    assert READ_ENTRIES_MAX == len(first)
    assert BATCH_ENTRIES_MAX == len(log.read(first[-1].offset + 1, limit=2**62))


def test_a_read_is_bounded_in_bytes(log: Log) -> None:
    """A run of giant records is read in several answers, each about as large as the port allows,
    without losing any.
    """
    giant = b"g" * RECORD_BYTES_MAX
    for _ in range(3):
        append(log, *[giant] * 7)
    first = log.read(FIRST_OFFSET, limit=100)
    assert READ_BYTES_MAX // RECORD_BYTES_MAX + 1 == len(first)
    assert 21 == len(first) + len(log.read(first[-1].offset + 1, limit=100))


@pytest.mark.parametrize("position", [0, -5, -(2**70)])
def test_there_is_no_position_below_the_first(log: Log, position: int) -> None:
    """A position below the first offset is below the start of any log."""
    append(log, b"a")
    with pytest.raises(LogTruncated):
        log.read(position, limit=10)


@pytest.mark.parametrize("ahead", [2, 100, 2**70])
def test_a_reader_beyond_the_end_is_stopped(log: Log, ahead: int) -> None:
    """A position that this log never reached belongs to another log, for a read as for a wait."""
    append(log, b"a")
    for use in (
        lambda position: log.read(position, limit=10),
        lambda position: log.wait(position, timeout_ms=0),
    ):
        end = log.end()
        with pytest.raises(LogWentBack) as caught:
            use(end + ahead)
        assert (log.name, end + ahead, end) == (
            caught.value.log,
            caught.value.position,
            caught.value.end,
        )


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(each, id=each.id, marks=pytest.mark.integration)
        for each in ADAPTERS
        if each.report_end
    ],
)
def test_an_old_end_is_not_final(
    adapter: Adapter,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A storage of several nodes may ask one that is cut off. Its end never ends a reader who has
    read more, and it is never the end.
    """
    with closing(handles_on(adapter, tmp_path, request)) as handles:
        log, offsets = handles(), append(handles(), b"a", b"b")
        assert offsets == [entry.offset for entry in entries_of(log)]
        assert adapter.report_end is not None
        adapter.report_end(monkeypatch, offsets[0])
        for handle in (log, handles()):
            assert [] == list(handle.read(offsets[-1] + 1, limit=10))
            assert not handle.wait(offsets[-1] + 1, timeout_ms=0)
            assert handle.end() >= offsets[-1]
            with pytest.raises(LogWentBack):
                handle.read(handle.end() + 2, limit=10)
        assert append(log, b"c")[0] > offsets[-1]


def test_truncation_removes_what_is_below(log: Log) -> None:
    """After truncation a reader below meets `LogTruncated`, one at or above the new start reads on,
    and the end stays.
    """
    offsets = append(log, b"a", b"b", b"c", b"d")
    log.truncate(offsets[2], timeout_ms=TIMEOUT_MS)
    assert (offsets[2], offsets[3]) == (log.start(), log.end())
    assert [(offsets[2], b"c"), (offsets[3], b"d")] == entries_of(log)
    with pytest.raises(LogTruncated) as caught:
        log.read(offsets[2] - 1, limit=10)
    assert (log.name, offsets[2] - 1, offsets[2]) == (
        caught.value.log,
        caught.value.position,
        caught.value.start,
    )
    with pytest.raises(LogTruncated):
        log.wait(offsets[0], timeout_ms=0)
    for below in (offsets[0], -(2**70)):  # A truncation never goes back.
        log.truncate(below, timeout_ms=TIMEOUT_MS)
    with pytest.raises(LogWentBack):
        log.truncate(offsets[3] + 2, timeout_ms=TIMEOUT_MS)
    assert [(offsets[2], b"c"), (offsets[3], b"d")] == entries_of(log)


def test_offsets_go_on_after_all_is_truncated(handles: Handles) -> None:
    """When every entry is gone, even with the handles that knew them, offsets still rise above the
    old end.
    """
    with closing(handles()) as log:
        end = append(log, *[b"a"] * 2_500)[-1]
        log.truncate(end + 1, timeout_ms=TIMEOUT_MS)
        other = handles()
    assert (end + 1, end) == (other.start(), other.end())
    assert [] == entries_of(other)
    assert end < append(other, b"b")[0]
    assert [b"b"] == [entry.data for entry in entries_of(other)]


def later() -> int:
    """The Unix time in milliseconds, once it is another than it was: what was appended before is
    older.
    """
    before_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= before_ms + CLOCKS_APART_MS:
        time.sleep(0.001)
    return before_ms + 1


def test_a_time_leads_to_a_position(log: Log) -> None:
    """The position at a time is that of the first entry which was appended then or later, or just
    above the end.
    """
    assert log.end() + 1 == log.position_at(0)
    times_ms, offsets = [], []
    for record in (b"a", b"b", b"c"):
        times_ms.append(later())
        offsets += append(log, record)
    assert offsets == [log.position_at(time_ms) for time_ms in times_ms]
    assert offsets[0] == log.position_at(0) == log.position_at(-1)
    assert log.end() + 1 == log.position_at(later() + CLOCKS_APART_MS) == log.position_at(2**53)


def test_a_time_before_the_start_leads_to_the_start(log: Log) -> None:
    """Of a log that was truncated, or emptied, only what is left is looked through."""
    offsets = append(log, *[b"a"] * 100)
    time_ms = later()
    offsets += append(log, *[b"b"] * 100)
    log.truncate(offsets[50], timeout_ms=TIMEOUT_MS)
    assert (offsets[50], offsets[100]) == (log.position_at(0), log.position_at(time_ms))
    log.truncate(log.end() + 1, timeout_ms=TIMEOUT_MS)
    assert log.end() + 1 == log.position_at(0) == log.position_at(time_ms)


def test_handles_share_one_log(handles: Handles) -> None:
    """What one handle appended, every other handle reads, whether it was opened before or after."""
    before, writer = handles(), handles()
    offsets = append(writer, b"a", b"b")
    after = handles()
    assert list(map(Entry, offsets, [b"a", b"b"])) == entries_of(before) == entries_of(after)


@pytest.mark.parametrize("adapter", EACH_ADAPTER)
def test_identity_tells_logs_apart(
    adapter: Adapter, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All handles on one log tell one identity, and a log made anew tells another."""
    opener = handles_on(adapter, tmp_path, request)
    first, second = opener(), opener()
    assert first.identity == second.identity != ""
    opener.close()
    opener.delete()
    anew = opener()
    assert first.identity != anew.identity
    anew.close()


def test_a_wait_tells_whether_there_is_an_entry(log: Log) -> None:
    """It returns true at once if there is one, and false at its timeout or after a wake from
    another thread.
    """
    offsets = append(log, b"a", b"b")
    assert [True, True] == [log.wait(offset, timeout_ms=0) for offset in offsets]
    assert not log.wait(log.end() + 1, timeout_ms=5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait, log.end() + 1, timeout_ms=FOREVER_MS)
        log.wake()
        assert not waiting.result(DEADLINE_SECONDS)


def test_a_wait_ends_when_another_handle_appends(handles: Handles) -> None:
    """A reader that waits at the end, even one that was woken before, is woken by each commit of a
    writer, and finds the entry there.
    """
    reader, writer = handles(), handles()
    reader.wake()
    assert not reader.wait(FIRST_OFFSET, timeout_ms=FOREVER_MS)
    with ThreadPoolExecutor(1) as pool:
        try:
            for number in range(50):
                waiting = pool.submit(reader.wait, writer.end() + 1, timeout_ms=FOREVER_MS)
                offsets = append(writer, b"%d" % number)
                assert waiting.result(DEADLINE_SECONDS)
                assert [b"%d" % number] == [
                    entry.data for entry in reader.read(offsets[0], limit=10)
                ]
        finally:
            reader.wake()


def test_wake_is_kept_for_the_next_wait(log: Log) -> None:
    """Wakes that come while nobody waits end the next wait, once, however many they were."""
    log.wake()
    log.wake()
    assert not log.wait(FIRST_OFFSET, timeout_ms=FOREVER_MS)
    assert not log.wait(FIRST_OFFSET, timeout_ms=5)


def test_wake_wakes_its_own_handle_only(handles: Handles) -> None:
    """A wake of one handle is no wake of another one on the same log."""
    one, other = handles(), handles()
    one.wake()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, FIRST_OFFSET, timeout_ms=TIMEOUT_MS)
        append(one, b"a")
        assert waiting.result(DEADLINE_SECONDS)


def test_a_closed_log_can_still_be_woken_and_closed(log: Log) -> None:
    """After close, a late wake and a second close do nothing."""
    log.close()
    log.wake()
    log.close()


def descriptors() -> set[tuple[str, str]]:
    """The open descriptors of this process, each with what it leads to."""
    found = set[tuple[str, str]]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The one that listed the others.
            found.add((descriptor.name, str(descriptor.readlink())))
    return found


def test_close_gives_all_descriptors_back(handles: Handles) -> None:
    """A log that was used and closed leaves none of its descriptors open. A leak would stay open
    each time; what earlier tests left behind may open some now and then, and close them late.
    """
    left = list[set[tuple[str, str]]]()
    while len(left) < DESCRIPTOR_ROUNDS and set() not in left:
        before = descriptors()
        with closing(handles()) as log:
            append(log, b"a")
            assert not log.wait(log.end() + 1, timeout_ms=1)
        give_up = time.monotonic() + DESCRIPTOR_SECONDS
        # The threads of Kafka's client end slightly later on a busy machine.
        while descriptors() - before and time.monotonic() < give_up:
            time.sleep(0.05)
        left = [each & descriptors() for each in (*left, descriptors() - before)]
    assert set() in left


def test_threads_see_one_order(handles: Handles) -> None:
    """Writers in several threads and readers that tail beside them agree on one order, in which
    nothing is lost.
    """
    writers, readers, batches = 4, 2, 50
    expected = writers * batches * 2
    at_once = threading.Barrier(writers + readers)

    def write(writer: int) -> list[tuple[int, bytes]]:
        log = handles()
        at_once.wait(DEADLINE_SECONDS)
        written: list[tuple[int, bytes]] = []
        for number in range(batches):
            records = [b"%d:%d:first" % (writer, number), b"%d:%d:second" % (writer, number)]
            written += zip(append(log, *records), records, strict=True)
        return written

    def tail() -> list[tuple[int, bytes]]:
        log = handles()
        at_once.wait(DEADLINE_SECONDS)
        seen: list[tuple[int, bytes]] = []
        position = FIRST_OFFSET
        while len(seen) < expected and log.wait(position, timeout_ms=TIMEOUT_MS):
            seen += log.read(position, limit=17)
            position = seen[-1][0] + 1
        return seen

    handles()  # So that a log in memory outlives each of the threads.
    with ThreadPoolExecutor(writers + readers) as pool:
        writing = [pool.submit(write, writer) for writer in range(writers)]
        tailing = [pool.submit(tail) for _ in range(readers)]
        acknowledged = [entry for future in writing for entry in future.result(DEADLINE_SECONDS)]
        orders = [future.result(DEADLINE_SECONDS) for future in tailing]
    assert expected == len(acknowledged)
    assert [sorted(acknowledged)] * readers == orders


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing to do with a log and with its slow model. `share` picks a place between start and
    end, 0 to 1 and beyond.
    """

    action: str
    records: tuple[bytes, ...] = ()
    share: float = 0.0
    limit: int = 1


STEPS = st.one_of(
    st.builds(
        Step,
        action=st.just("append"),
        records=st.lists(st.binary(max_size=9), max_size=5).map(tuple),
    ),
    st.builds(Step, action=st.just("read"), share=st.floats(-0.2, 1.2), limit=st.integers(1, 6)),
    st.builds(Step, action=st.just("truncate"), share=st.floats(-0.2, 1.2)),
    st.builds(Step, action=st.just("reopen")),
)


class DumbLog:
    """What a log does, in lists: entries with the offsets that the clever log gave them."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.start = FIRST_OFFSET
        self.end = FIRST_OFFSET - 1

    def place(self, share: float) -> int:
        """A position below, within or above the log."""
        return round(self.start + share * (self.end + 1 - self.start + 4)) - 2

    def read(self, position: int, limit: int) -> list[tuple[int, bytes]] | type[Exception]:
        """The entries of one read, or the error that it raises."""
        if position < self.start:
            return LogTruncated
        if position > self.end + 1:
            return LogWentBack
        return [entry for entry in self.entries if entry[0] >= position][:limit]

    def truncate(self, below: int) -> type[Exception] | None:
        """Forget the entries below; the error that this raises."""
        if below > self.end + 1:
            return LogWentBack
        self.start = max(below, self.start)
        self.entries = [entry for entry in self.entries if entry[0] >= self.start]
        return None


def outcome_of_read(
    log: Log, position: int, limit: int
) -> list[tuple[int, bytes]] | type[Exception]:
    """What a read of the clever log returned or raised."""
    try:
        return list(log.read(position, limit=limit))
    except (LogTruncated, LogWentBack) as error:
        return type(error)


def outcome_of_truncate(log: Log, below: int) -> type[Exception] | None:
    """What a truncation of the clever log raised."""
    try:
        log.truncate(below, timeout_ms=TIMEOUT_MS)
    except LogWentBack as error:
        return type(error)
    return None


def take_step(step: Step, log: Log, dumb: DumbLog) -> None:
    """Do one step with both, and compare what came of it."""
    place = dumb.place(step.share)
    if step.action == "append":
        offsets = append(log, *step.records)
        assert sorted(set(offsets)) == offsets
        assert all(offset > dumb.end for offset in offsets)
        dumb.entries += zip(offsets, step.records, strict=True)
        dumb.end = offsets[-1] if offsets else dumb.end
    elif step.action in ("read", "truncate"):
        expected = dumb.read(place, step.limit) if step.action == "read" else dumb.truncate(place)
        assert expected == (
            outcome_of_read(log, place, step.limit)
            if step.action == "read"
            else outcome_of_truncate(log, place)
        )
        if expected is LogWentBack and log.end() == dumb.end + 1:
            dumb.end += 1  # Storage of several nodes may need an append to find out.
    assert (dumb.start, dumb.end, dumb.entries) == (log.start(), log.end(), entries_of(log))
    position = min(max(place, dumb.start), dumb.end + 1)
    assert any(offset >= position for offset, _ in dumb.entries) == log.wait(position, timeout_ms=0)


@pytest.mark.parametrize("adapter", ADAPTERS[:2], ids=lambda adapter: adapter.id)
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_a_log_does_what_its_model_does(adapter: Adapter, steps: list[Step]) -> None:
    """Any sequence of appends, reads, truncations and reopenings has the outcome that two lists
    would have.
    """
    with tempfile.TemporaryDirectory() as folder:
        handles = Handles(adapter, Path(folder))
        log, dumb = handles(), DumbLog()
        try:
            for step in steps:
                if step.action == "reopen":
                    closing, log = log, handles()
                    closing.close()
                take_step(step, log, dumb)
        finally:
            handles.close()
