"""Read a channel to its end and propose to it in the calling thread, for command lines and scripts.

Programs with an event loop use `table_view`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import LogTruncated, LogUnavailable, OutcomeUnknown
from equipoise.channel.core.log import READ_ENTRIES_MAX, Entry, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline

RETRY_MS: Final = 50
"""The pause after a failed read while waiting for a verdict."""


Listener = Callable[[Folded], None]
"""Gets each record that is folded."""


def ignore(_folded: Folded) -> None:
    """Ignore the record."""


def read_on(log: Log, reader: Reader, *, deadline: Deadline, listener: Listener = ignore) -> int:
    """Fold new records up to the log's current end, pass each to `listener`, and return the logical
    offset of the end.

    The end may be a gap with no record at that offset; the view is complete up to it. Raises
    `DeadlineExceeded`, and what `Log.read` and `Reader.feed` raise.
    """
    end = log.end()
    for entry in _entries(log, reader.position, end=end, deadline=deadline):
        listener(reader.feed(entry))
    return max(reader.view.offset, end + reader.view.base)


def entries_to_end(log: Log, position: int, *, deadline: Deadline) -> Iterator[Entry]:
    """Yield the entries from `position` to the end that the log has when the first is requested.
    Raises what `Log.read` raises.
    """
    yield from _entries(log, position, end=log.end(), deadline=deadline)


def _entries(log: Log, position: int, *, end: int, deadline: Deadline) -> Iterator[Entry]:
    """Yield the entries from `position` to `end`. Always reads once, even beyond `end`, to detect a
    log that went back.
    """
    while True:
        deadline.check(f"reading {log.name} to its end")
        entries = log.read(position, limit=READ_ENTRIES_MAX)
        for entry in entries:
            if entry.offset > end:
                return
            yield entry
        if not entries:  # The end is a gap.
            return
        position = entries[-1].offset + 1


def propose(
    log: Log,
    reader: Reader,
    make_record: Callable[[View, Author], AnyRecord],
    *,
    publisher: str,
    deadline: Deadline,
) -> Folded:
    """Read to the end, let `make_record` make a record against the view, append it, and return its
    verdict.

    * `publisher` is `admin:NAME`.
    * A rejection is a result, not an error. After `Reason.STALE` the caller may propose again with
      the same reader.
    * If `make_record` raises, nothing is appended and the error is passed on.

    Raises `OutcomeUnknown` if the verdict is not known by the deadline, `LogUnavailable` if nothing
    was appended, and what `read_on` and `Log.append` raise.
    """
    author = author_now(log, reader, publisher=publisher, deadline=deadline)
    return append(log, reader, make_record(reader.view, author), deadline=deadline)


def author_now(
    log: Log, reader: Reader, *, publisher: str, deadline: Deadline, listener: Listener = ignore
) -> Author:
    """Read to the end, and return the author of a proposal against the view. Raises as `read_on`
    does.
    """
    as_of = read_on(log, reader, deadline=deadline, listener=listener)
    return Author(publisher=publisher, as_of=as_of, timestamp_ms=time.time_ns() // 1_000_000)


def append(
    log: Log, reader: Reader, record: AnyRecord, *, deadline: Deadline, listener: Listener = ignore
) -> Folded:
    """Append a record that was made against the reader's view, and return its verdict. Raises as
    `propose` does.
    """
    data = encode(record)
    offset: int | None = None
    doubt = ""
    try:
        [offset] = log.append([data], timeout_ms=deadline.remaining_ms())
    except LogUnavailable as error:
        if not error.in_doubt:
            raise
        doubt = f" after {error.problem}"

    # Recognise an append in doubt by its bytes: equal bytes are the same proposal by the same
    # author against the same view.
    def is_own(entry: Entry) -> bool:
        return entry.data == data if offset is None else entry.offset == offset

    return _verdict(
        log, reader, is_own, record.key, doubt=doubt, deadline=deadline, listener=listener
    )


def _verdict(
    log: Log,
    reader: Reader,
    is_own: Callable[[Entry], bool],
    key: str,
    *,
    doubt: str,
    deadline: Deadline,
    listener: Listener,
) -> Folded:
    """Fold on until the own record is read back. Waits through outages, since an appended record
    has a verdict.

    `doubt` is why it may not be on the log, for the message.
    """
    problem = f"it was not read back within {deadline.timeout_ms} ms{doubt}"
    while remaining_ms := deadline.remaining_ms():
        try:
            entries = (
                log.read(reader.position, limit=READ_ENTRIES_MAX)
                if log.wait(reader.position, timeout_ms=remaining_ms)
                else ()
            )
        except LogUnavailable as error:
            problem = str(error)
            time.sleep(min(RETRY_MS, remaining_ms) / 1_000)
            continue
        except LogTruncated as error:
            # The record was most likely compacted meanwhile, and its verdict with it.
            raise OutcomeUnknown(log=log.name, subject=key, problem=str(error)) from error
        for entry in entries:
            folded = reader.feed(entry)
            listener(folded)
            if is_own(entry):
                return folded
    raise OutcomeUnknown(log=log.name, subject=key, problem=problem)
