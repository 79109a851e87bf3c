"""The hold: a record on the channel by which an archive has the log keep what it has not read yet.

May live here: writing and lifting that record. What it says, and what compaction makes of it, is told in `compaction.holds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from equipoise.brokers.operations.access import Access, opened, submit
from equipoise.channel.core import propose
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError
from equipoise.channel.core.records import Unreadable
from equipoise.channel.log.blocking_view import entries_to_end
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.deadline import Deadline
from equipoise.compaction.holds import DAYS_MAX, hold_document, hold_key, is_hold
from equipoise.compaction.retention import newest_ms
from equipoise.spark_jobs.archive.tables.manifest import Manifest
from equipoise.spark_jobs.sequence.arrivals import Source
from equipoise.spark_jobs.streams.archive_errors import NoHold

PUBLISHER: Final = "admin:archive"

EVERY_S: Final = 30
"""How often a hold is moved at most: each time is a record on the channel, and what it lags behind is only kept a little longer."""

AT_LEAST_EVERY_S: Final = 24 * 3_600
"""How often it is written anew although nothing moved, so that it does not lapse while its archive is alive."""

READ_MS: Final = 5_000
"""How long one batch of the archive waits for the channel to be read on, some hundred thousand records; the next one goes on."""

OPEN_MS: Final = 30_000
"""How long it waits for the view with which that reading begins, which cannot be read by halves: the snapshot of a million bundles."""

OPEN_MS_MAX: Final = 600_000
"""Each time that was too short it waits twice as long, up to this: a machine that is twenty times slower. A batch waits no longer."""

WRITE_MS: Final = 10_000
"""How long it waits for one record to be written and read back. What fails is tried again with a later batch."""

ALONE_MS: Final = 300_000
"""The same for who has no batch that waits: an archive that has come to its end, and whoever lifts a hold."""

CLOCK_BEHIND_MS_MAX: Final = 10 * 365 * 24 * 3_600 * 1_000
"""By how much this machine's clock may be behind the log's: ten years, as one that begins at the epoch of a firmware."""


class Hold:
    """One archive's hold. It reads the channel beside the archive, because a record must be based on what was written last."""

    def __init__(self, log_url: str, name: str, *, tell: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        """`name` is the hold's, `tell` takes lines that say what could not be done. Raises `InvalidName`."""
        self._url = log_url
        self._key = hold_key(name)
        self._tell = tell
        self._now_s = now_s
        self._stack = ExitStack()
        self._access: Access | None = None
        self._written_s: float | None = None
        self._looked_s = 0.0
        self._failed_s: float | None = None
        self._told_s: float | None = None
        self._written_to = -1
        self._moved_to = -1
        """The last offset at which the channel said something that is no hold, as far as it has been read."""
        self._open_ms = OPEN_MS

    def archived(self, manifest: Manifest, *, at_once: bool = False) -> None:
        """Say on the channel how far the archive has come, unless it was said just now. What fails is told, and tried again later.

        A batch waits for it for so long as the constants above say. With `at_once` there is none that waits.
        """
        position = manifest.positions.get(Source.CHANNEL)
        if position is None:
            return
        reached = position - 1 + manifest.base
        if not self._is_due(reached, at_once=at_once):
            return
        try:
            access = self._read(read_ms=ALONE_MS if at_once else READ_MS)
            if self._has_news(reached):
                self._write(access, reached)
                self._written_s = self._now_s()
            self._looked_s = self._now_s()
        except EquipoiseError as error:
            if isinstance(error, DeadlineExceeded):
                if self._access is not None:
                    self._tell_reading(self._access)
                    return
                self._open_ms = min(2 * self._open_ms, OPEN_MS_MAX)
            self.close()
            self._failed_s = self._now_s()
            self._tell(f"the hold {self._key} could not be moved, and is tried again in {EVERY_S} s: {error}")
        else:
            self._failed_s = None

    def _is_due(self, reached: int, *, at_once: bool) -> bool:
        """Whether it is time to ask the channel if there is anything to say."""
        if self._failed_s is not None:
            return at_once or self._now_s() - self._failed_s >= EVERY_S
        if self._written_s is None or self._is_old(self._written_s):
            return True
        return reached > self._written_to and (at_once or self._now_s() - self._looked_s >= EVERY_S)

    def _has_news(self, reached: int) -> bool:
        """Whether there is anything to say, once the channel has been read.

        Holds are none: where nobody else writes, the newest records are this hold's and those of other archives, and to follow them
        would be a record every time, each of which the others would follow in their turn.
        """
        if self._written_s is None or self._is_old(self._written_s):
            return True
        return min(reached, self._moved_to) > self._written_to

    def _is_old(self, written_s: float) -> bool:
        return self._now_s() - written_s >= AT_LEAST_EVERY_S

    def close(self) -> None:
        """Let go of the log; the hold stays on the channel."""
        self._access = None
        self._stack.close()

    def _read(self, *, read_ms: int) -> Access:
        """The channel, read to its end. The few records that are read while one is written move nothing before another follows them."""
        access = self._access = self._access or self._opened()
        for entry in entries_to_end(access.log, access.reader.position, deadline=Deadline.after(timeout_ms=read_ms)):
            folded = access.reader.feed(entry)
            if folded.verdict.accepted and not isinstance(folded.record, Unreadable) and not is_hold(folded.record.key):
                self._moved_to = folded.offset
        return access

    def _write(self, access: Access, reached: int) -> None:
        access = replace(access, deadline=Deadline.after(timeout_ms=WRITE_MS))
        ahead_ms = time.time_ns() // 1_000_000 + CLOCK_BEHIND_MS_MAX
        at_ms = newest_ms(access.log.position_at, end=access.log.end(), now_ms=ahead_ms)
        document = hold_document(archived_to=reached, at_ms=at_ms, days_max=DAYS_MAX)
        submit(access, lambda view, author: propose.set_policy(author, view, name=self._key, document=document))
        self._written_to = reached

    def _opened(self) -> Access:
        """The channel, of which nothing is read but its snapshot: what follows that is read on by one batch after the other."""
        deadline = Deadline.after(timeout_ms=self._open_ms)
        log = self._stack.enter_context(closing(open_log(self._url, create=False)))
        reader = restored(log, check=lambda: deadline.check(f"reading the snapshot of {self._url}"))
        self._moved_to = reader.view.offset  # Whatever the snapshot stands for.
        return Access(log=log, reader=reader, publisher=PUBLISHER, deadline=deadline)

    def _tell_reading(self, access: Access) -> None:
        now_s = self._now_s()
        if self._told_s is None or now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            read = f"the channel is read up to position {access.reader.position - 1}, which each batch goes on with"
            self._tell(f"the hold {self._key} is not moved yet, because its record must be based on the newest: {read}")


def release_hold(log_url: str, name: str) -> tuple[str, int]:
    """Lift the hold `name`; the key of that, and the offset of the record that did it.

    Raises `InvalidName`, `NoHold`, `Rejected`, and what `opened` raises.
    """
    key = hold_key(name)
    with opened(log_url, timeout_ms=ALONE_MS, publisher=PUBLISHER) as access:
        if key not in access.view.policies:
            raise NoHold(key=key)
        return key, submit(access, lambda view, author: propose.remove_policy(author, view, name=key)).offset
