"""Open a channel in the calling thread, read it and wait for changes, all under one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BundleEntry, Verdict
from equipoise.channel.core.errors import CallerError, LogClosed, LogTruncated, LogUnavailable
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    READ_ENTRIES_MAX,
    Entry,
    Log,
    Progress,
    unwatched,
)
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.table import Resync, resync_between
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import RETRY_MS, entries_to_end, read_on
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.system.clocks import Deadline

WAIT_MS: Final = 100
"""How long one wait for records lasts. A wait may end this much later than its deadline."""

READER: Final = f"{ADMIN_PREFIX}reader"
"""The publisher name of a reader that proposes nothing."""

UNWATCHED: Final = nullcontext(unwatched)
"""Shows no progress of a long read."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An open channel: its view so far, the publisher (`admin:NAME`), and the deadline of all
    calls.
    """

    log: Log
    reader: Reader
    publisher: str
    deadline: Deadline

    @property
    def view(self) -> View:
        """The channel's view, as far as it has been read."""
        return self.reader.view

    def namespace(self, name: str) -> str:
        """Return `name` if the namespace exists. Raises what
        `brokers.balancing.named.namespace_named` raises.
        """
        return namespace_named(self.view, name).name

    def bundle(self, name: str) -> BundleEntry:
        """Return the bundle of this name. Raises what `brokers.balancing.named.bundle_named`
        raises.
        """
        return bundle_named(self.view, name)


@contextmanager
def attached(
    log_url: str,
    *,
    timeout_ms: int,
    publisher: str = READER,
    begin: Callable[..., Reader] = earliest,
    watched: AbstractContextManager[Progress] = UNWATCHED,
) -> Iterator[Access]:
    """Open the channel at `log_url` without reading its records. Never create a log.

    Reading begins at the start of the log, or at its snapshot if the log was truncated. `watched`
    shows how much of the snapshot has been read. Raises what `open_log` and `begin` raise.
    """
    deadline = Deadline.after(timeout_ms=timeout_ms)
    with closing(open_log(log_url, create=False)) as log:
        with watched as progress:
            reader = begin(
                log,
                check=lambda: deadline.check(f"reading the snapshot of {log_url}"),
                progress=progress,
            )
        yield Access(log=log, reader=reader, publisher=publisher, deadline=deadline)


@contextmanager
def opened(
    log_url: str,
    *,
    timeout_ms: int,
    publisher: str = READER,
    cluster: str | None = None,
    watched: AbstractContextManager[Progress] = UNWATCHED,
) -> Iterator[Access]:
    """Open the channel as `attached` does, but from its snapshot if it has one, and read it to its
    end.

    With `cluster`, a log of another cluster is refused. Raises what `open_log`,
    `channel.snapshots.restore.restored` and `channel.log.blocking_view.read_on` raise.
    """
    begin = partial(restored, cluster=cluster)
    with attached(
        log_url, timeout_ms=timeout_ms, publisher=publisher, begin=begin, watched=watched
    ) as access:
        read_on(access.log, access.reader, deadline=access.deadline)
        yield access


def entries(access: Access) -> Iterator[Entry]:
    """Return the entries of the log that are not yet folded, up to its current end."""
    return entries_to_end(access.log, access.reader.position, deadline=access.deadline)


def folded_to_end(access: Access) -> Iterator[Folded]:
    """Fold the unread records one by one. After each, the view stands just behind it.

    A closed log ends with the record that closed it. Raises what else
    `channel.log.blocking_view.read_on` raises.
    """
    for entry in entries(access):
        try:
            folded = access.reader.feed(entry)
        except LogClosed as closed:
            # A closed log is a complete history. Only a caller that wants to append must fail.
            yield Folded(offset=closed.offset, record=decode(entry.data), verdict=Verdict())
            return
        yield folded


def folded_until(access: Access, offset: int, *, moment: str) -> Iterator[Folded]:
    """Fold the unread records up to a logical offset, one by one. In a gap, the last one is below.

    Raises `CallerError` if that is before what can be folded (then it names `moment`), before the
    first record, or after the last; and what `entries` and `Reader.feed` raise.
    """
    view = access.view
    if view.offset > offset:
        raise gone(access, moment)
    reaches = False
    for entry in entries(access):
        # The log's first offset is known only from its first record.
        reaches = view.offset >= 0 and entry.offset + view.base > offset
        folded = None if reaches else feed(access, entry)
        if folded is None:
            break
        yield folded
    if view.offset > offset or not (reaches or view.offset == offset):
        raise unknown_offset(access, offset)


def feed(access: Access, entry: Entry) -> Folded | None:
    """Fold one entry. Return None at the one that closed the log, which is the last."""
    try:
        return access.reader.feed(entry)
    except LogClosed:
        return None


def unknown_offset(access: Access, offset: int) -> CallerError:
    """Return the error for an offset without a record. Read on to find the end of the log."""
    for entry in entries(access):
        if feed(access, entry) is None:
            break
    end = access.view.offset
    there = (
        f"its last record is at {end}, and gaps are normal; list its records: equipoise channel"
        " tail"
        if end >= 0
        else "it has no records yet; start a broker on it"
    )
    return CallerError(f"the log {access.log.name} has no record at offset {offset}; {there}")


def gone(access: Access, moment: str) -> CallerError:
    """Return the error for a moment before the earliest view that can be folded."""
    known_from = access.view.offset
    why = (
        f"no longer has the view at {moment}: the records before offset {known_from} have been"
        " compacted"
    )
    if access.log.start() == FIRST_OFFSET:
        problem = "its first record was appended later"
        if access.view.offset >= 0:
            problem = (
                f"it is a copy; the records before offset {known_from} are on the log that it was"
                " made from"
            )
        why = f"does not have the view at {moment}: {problem}"
    advice = "ask for a later moment, or look at a backup from before it"
    return CallerError(f"the log {access.log.name} {why}; {advice}")


def follow(
    access: Access,
    *,
    outage: Callable[[LogUnavailable], None] | None = None,
    resynced: Callable[[Resync], None] | None = None,
) -> Iterator[Folded | None]:
    """Yield each record folded from now on, without end. Yield None when nothing came for
    `WAIT_MS`, so that the caller can stop.

    * While the log is unavailable nothing comes. `outage` is called once per outage.
    * If truncation removed the next record, `resynced` is called and the view continues from the
      channel's snapshot.

    Raises what else `Log.read` and `restored` raise.
    """
    is_out = False
    while True:
        try:
            found = _news(access, resynced)
            is_out = False
        except LogUnavailable as error:
            if outage is not None and not is_out:
                outage(error)
            is_out, found = True, ()
            time.sleep(RETRY_MS / 1_000)
        for entry in found:
            yield access.reader.feed(entry)
        if not found:
            yield None


def _news(access: Access, resynced: Callable[[Resync], None] | None) -> Sequence[Entry]:
    try:
        has_news = access.log.wait(access.reader.position, timeout_ms=WAIT_MS)
        return access.log.read(access.reader.position, limit=READ_ENTRIES_MAX) if has_news else ()
    except LogTruncated:
        what = resync(access)
    if resynced is not None:
        resynced(what)
    return ()


def resync(access: Access) -> Resync:
    """Restore the view from the channel's snapshot after a truncation. Raises `LogUnavailable`
    during an outage.
    """
    reader = access.reader
    again = restored(access.log, cluster=reader.cluster)
    what = resync_between(reader.view, again.view)
    reader.view, reader.position = again.view, again.position
    return what


def until(
    access: Access,
    condition: Callable[[View], T | None],
    *,
    what: str,
    deadline: Deadline | None = None,
    listener: Callable[[Folded | Resync], None] = lambda _: None,
) -> T:
    """Return the first result of `condition` that is not None. Call it at once, after each record,
    and when nothing has come for a while.

    `listener` gets every record folded meanwhile, and each resync. Raises `DeadlineExceeded` naming
    `what` at the deadline of `access`, or at an earlier `deadline`; and what `follow` raises.
    """
    news = follow(access, resynced=listener)
    while (found := condition(access.view)) is None:
        (deadline or access.deadline).check(what)
        folded = next(news)
        if folded is not None:
            listener(folded)
    return found
