"""A channel read to its end, and proposals to it, in the thread that calls; each bounded by one
deadline.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import (
    DeadlineExceeded,
    LogStorageFull,
    LogUnavailable,
    LogWentBack,
    OutcomeUnknown,
)
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import AnyRecord, Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import entries_to_end, read_on
from equipoise.channel.log.blocking_view import propose as put
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.clocks import Deadline
from tests.channels.compacting import begin_copy, reader_at_end
from tests.channels.folding import channel_with
from tests.channels.troubled_log import TroubledLog

OPS = "admin:ops"
numbers = itertools.count()
UNAVAILABLE = LogUnavailable(log="x", problem="it is away", in_doubt=False)
DOUBTFUL = LogUnavailable(log="x", problem="it is away")


def soon() -> Deadline:
    """A deadline that only a test which fails meets."""
    return Deadline.after(timeout_ms=30_000)


def past() -> Deadline:
    """A deadline that came long ago."""
    return Deadline(started_ns=time.monotonic_ns() - 60_000_000_000, timeout_ms=7)


def name() -> str:
    """A log that no other test uses."""
    return f"memory:blocking-view-{next(numbers)}"


def begun(log: Log) -> Log:
    """The log, with a genesis on it."""
    log.append([encode(propose.genesis(Author(publisher=OPS), cluster="test"))], timeout_ms=1_000)
    return log


def limit(view: View, author: Author) -> AnyRecord:
    """A record that sets a policy."""
    return propose.set_policy(author, view, name="limit", document={"by": author.publisher})


def test_a_reader_goes_on_where_it_was() -> None:
    """A second reading folds only what is new, and says the logical offset of the end."""
    log = begin_copy(MemoryLog(name=name()), channel_with("a:1"), base=1_000)
    reader = reader_at_end(log)
    log.append([b"garbage"], timeout_ms=0)
    assert 1_002 == read_on(log, reader, deadline=soon())
    assert 1_002 == reader.view.offset


def test_entries_end_where_the_log_ended() -> None:
    """What is appended while entries are taken is not among them, so that the reading of a busy log
    ends.
    """
    log = begun(MemoryLog(name=name()))
    log.append([b"a", b"b"], timeout_ms=0)
    seen = []
    for entry in entries_to_end(log, 2, deadline=soon()):
        seen.append(entry)
        log.append([b"later"], timeout_ms=0)
    assert [Entry(2, b"a"), Entry(3, b"b")] == seen


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_proposal_is_made_against_the_newest_view(scheme: str, tmp_path: Path) -> None:
    """The record is made after all has been read, appended, and its verdict read back; the reader
    has folded it.
    """
    url = f"sqlite:{tmp_path}/log.db" if scheme == "sqlite" else name()
    log, other = begun(open_log(url)), open_log(url)
    reader = reader_at_end(log)
    first = put(other, reader_at_end(other), limit, publisher="admin:eve", deadline=soon())
    second = put(log, reader, limit, publisher=OPS, deadline=soon())
    assert [(2, True), (3, True)] == [
        (folded.offset, folded.verdict.accepted) for folded in (first, second)
    ]
    assert {"by": OPS} == reader.view.policies["limit"].document
    assert second.record.publisher == OPS
    for handle in (log, other):
        handle.close()


def test_a_rejection_is_a_result_and_may_be_tried_again() -> None:
    """A proposal that loses a race returns with the reason; made again, with the same reader, it is
    accepted.
    """
    log = begun(MemoryLog(name=name()))
    reader = reader_at_end(log)

    def too_slow(view: View, author: Author) -> AnyRecord:
        record = limit(view, author)
        log.append(
            [encode(limit(view, Author(publisher="admin:eve", as_of=author.as_of)))], timeout_ms=0
        )
        return record

    assert Reason.STALE == put(log, reader, too_slow, publisher=OPS, deadline=soon()).verdict.reason
    assert put(log, reader, limit, publisher=OPS, deadline=soon()).verdict.accepted


def test_an_admin_is_not_late_after_a_gap() -> None:
    """Where offsets have skipped ahead of the last record, the author's view is as new as the gap's
    end.
    """

    class Skipping(MemoryLog):
        def end(self) -> int:
            return super().end() + 1_000_000

    authors: list[Author] = []

    def remember(view: View, author: Author) -> AnyRecord:
        authors.append(author)
        return limit(view, author)

    log = begun(Skipping(name=name()))
    put(log, reader_at_end(log), remember, publisher=OPS, deadline=soon())
    assert [1_000_001] == [author.as_of for author in authors]
    assert authors[0].timestamp_ms > 0


@pytest.mark.parametrize(
    "error", [UNAVAILABLE, LogStorageFull(log="x")], ids=["unavailable", "full"]
)
def test_an_append_that_failed_for_certain_raises(error: LogUnavailable | LogStorageFull) -> None:
    """Where the log says that nothing was appended, its error is raised."""
    log = TroubledLog(name=name())
    begun(log)
    log.append_error = error
    with pytest.raises(type(error)):
        put(log, reader_at_end(log), limit, publisher=OPS, deadline=soon())


def test_doubt_is_resolved_by_reading_on() -> None:
    """An append in doubt that is on the log is known by its bytes."""
    log = TroubledLog(name=name())
    begun(log)
    log.append_error = DOUBTFUL
    folded = put(log, reader_at_end(log), limit, publisher=OPS, deadline=soon())
    assert (2, True) == (folded.offset, folded.verdict.accepted)


def test_doubt_that_nothing_resolves_is_a_typed_result() -> None:
    """An append in doubt that is not read by the deadline is unknown."""
    log = TroubledLog(name=name())
    begun(log)
    log.append_error = DOUBTFUL
    log.keeps_what_is_in_doubt = False
    with pytest.raises(OutcomeUnknown, match="not read back within 20 ms") as caught:
        put(log, reader_at_end(log), limit, publisher=OPS, deadline=Deadline.after(timeout_ms=20))
    assert (log.name, "limit") == (caught.value.log, caught.value.subject)


class Recovering(TroubledLog):
    """A log that cannot be read for `outages` reads after an append."""

    def __init__(self, *, name: str, outages: int) -> None:
        super().__init__(name=name)
        self.outages = outages

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        offsets = super().append(batch, timeout_ms=timeout_ms)
        self.read_error = UNAVAILABLE if b"limit" in batch[0] else None
        return offsets

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        if self.failures == self.outages:
            self.read_error = None
        return super().wait(position, timeout_ms=timeout_ms)


def test_a_short_outage_before_the_verdict_is_waited_out() -> None:
    """What was appended has a verdict: a log that cannot be read for a moment is read again."""
    log = Recovering(name=name(), outages=2)
    begun(log)
    assert put(log, reader_at_end(log), limit, publisher=OPS, deadline=soon()).verdict.accepted
    assert 2 == log.failures


def test_a_long_outage_before_the_verdict_leaves_it_unknown() -> None:
    """A log that is not back by the deadline leaves the verdict unknown, and the error says that it
    was away.
    """
    log = Recovering(name=name(), outages=1_000_000)
    begun(log)
    with pytest.raises(OutcomeUnknown, match="it is away"):
        put(log, reader_at_end(log), limit, publisher=OPS, deadline=Deadline.after(timeout_ms=20))


def test_a_deadline_that_has_come_ends_the_reading() -> None:
    """Reading a log has its deadline too, and nothing is appended after it."""
    log = begun(MemoryLog(name=name()))
    reader = reader_at_end(log)
    with pytest.raises(DeadlineExceeded, match=f"reading {log.name} to its end"):
        put(log, reader, limit, publisher=OPS, deadline=past())
    assert 1 == log.end()


def test_a_log_that_went_back_is_found() -> None:
    """A reader that is ahead of the log is told, even though there is nothing to read."""
    longer, shorter = begun(MemoryLog(name=name())), begun(MemoryLog(name=name()))
    longer.append([b"a", b"b"], timeout_ms=0)
    reader: Reader = reader_at_end(longer)
    with pytest.raises(LogWentBack):
        read_on(shorter, reader, deadline=soon())
