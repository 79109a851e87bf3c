"""Maintain an archive's retention hold: a record on the channel that makes the log keep what the
archive has not read yet.

`compaction.retention` defines the record and its effect on compaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from equipoise.brokers.operations.access import Access, opened
from equipoise.brokers.operations.on_channel import submit
from equipoise.channel.core import propose
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError, NotFound
from equipoise.channel.core.records import Unreadable
from equipoise.channel.log.blocking_view import entries_to_end
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.clocks import Deadline
from equipoise.compaction.retention import DAYS_MAX, hold_document, hold_key, is_hold, newest_ms

PUBLISHER: Final = "admin:archive"

EVERY_S: Final = 30
"""Shortest time between two updates. Each update is a record on the channel. Until then the log
only keeps a little more."""

AT_LEAST_EVERY_S: Final = 24 * 3_600
"""Longest time between two updates, even without progress, so that the hold of a live archive does
not lapse."""

READ_MS: Final = 5_000
"""How long one batch may wait for reading the channel: some hundred thousand records. The next
batch continues."""

OPEN_MS: Final = 30_000
"""How long a batch may wait for the snapshot, which has to be read in one go. Sized for a million
bundles."""

OPEN_MS_MAX: Final = 600_000
"""After each timeout the limit for the snapshot doubles, up to this: enough for a machine twenty
times slower."""

WRITE_MS: Final = 10_000
"""How long to wait until a record is written and read back. A later batch retries what fails."""

ALONE_MS: Final = 300_000
"""How long to read the channel when no batch waits: at the end of an archive, or to release a
hold."""

CLOCK_BEHIND_MS_MAX: Final = 10 * 365 * 24 * 3_600 * 1_000
"""How far this machine's clock may be behind the log's. Ten years cover a clock that starts at its
firmware's epoch."""


class Hold:
    """One archive's retention hold.

    It reads the channel independently of the archive, because a record needs the newest offset as
    its expected offset.
    """

    def __init__(
        self,
        log_url: str,
        name: str,
        *,
        note: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the hold `name`. `note` receives a line for every failure. Raises
        `InvalidName`.
        """
        self._url = log_url
        self._key = hold_key(name)
        self._note = note
        self._now_s = now_s
        self._stack = ExitStack()
        self._access: Access | None = None
        self._written_s: float | None = None
        self._checked_s = 0.0
        self._failed_s: float | None = None
        self._noted_s: float | None = None
        self._written_to = -1
        self._moved_to = -1
        """The last offset read that holds a record other than a retention hold."""
        self._open_ms = OPEN_MS

    def archived(self, reached: int, *, at_once: bool = False) -> None:
        """Publish on the channel that the archive has reached a logical offset, unless that was
        done recently. -1 stands for an empty archive.

        Failures are reported and retried later. A batch waits within the bounds of the constants
        above. `at_once` is for the end of an archive, when no batch waits.
        """
        if reached < 0 or not self._is_due(reached, at_once=at_once):
            return
        try:
            access = self._read(read_ms=ALONE_MS if at_once else READ_MS)
            if self._has_news(reached):
                self._write(access, reached)
                self._written_s = self._now_s()
            self._checked_s = self._now_s()
        except EquipoiseError as error:
            if isinstance(error, DeadlineExceeded):
                if self._access is not None:
                    self._note_reading(self._access)
                    return
                self._open_ms = min(2 * self._open_ms, OPEN_MS_MAX)
            self.close()
            self._failed_s = self._now_s()
            self._note(f"cannot update the hold {self._key}, retrying in {EVERY_S} s: {error}")
        else:
            self._failed_s = None

    def _is_due(self, reached: int, *, at_once: bool) -> bool:
        """Return whether it is time to check for progress."""
        if self._failed_s is not None:
            return at_once or self._now_s() - self._failed_s >= EVERY_S
        if self._written_s is None or self._is_old(self._written_s):
            return True
        return reached > self._written_to and (
            at_once or self._now_s() - self._checked_s >= EVERY_S
        )

    def _has_news(self, reached: int) -> bool:
        """Return whether there is progress to publish. Call it after reading the channel.

        Records of retention holds do not count as progress. Otherwise idle archives would answer
        each other's holds with new ones for ever.
        """
        if self._written_s is None or self._is_old(self._written_s):
            return True
        return min(reached, self._moved_to) > self._written_to

    def _is_old(self, written_s: float) -> bool:
        return self._now_s() - written_s >= AT_LEAST_EVERY_S

    def close(self) -> None:
        """Close the log. The hold stays on the channel."""
        self._access = None
        self._stack.close()

    def _read(self, *, read_ms: int) -> Access:
        """Read the channel to its end. Records read while a hold is written count as progress only
        once another record follows.
        """
        access = self._access = self._access or self._opened()
        for entry in entries_to_end(
            access.log, access.reader.position, deadline=Deadline.after(timeout_ms=read_ms)
        ):
            folded = access.reader.feed(entry)
            if (
                folded.verdict.accepted
                and not isinstance(folded.record, Unreadable)
                and not is_hold(folded.record.key)
            ):
                self._moved_to = folded.offset
        return access

    def _write(self, access: Access, reached: int) -> None:
        access = replace(access, deadline=Deadline.after(timeout_ms=WRITE_MS))
        ahead_ms = time.time_ns() // 1_000_000 + CLOCK_BEHIND_MS_MAX
        at_ms = newest_ms(access.log.position_at, end=access.log.end(), now_ms=ahead_ms)
        document = hold_document(archived_to=reached, at_ms=at_ms, days_max=DAYS_MAX)
        submit(
            access,
            lambda view, author: propose.set_policy(
                author, view, name=self._key, document=document
            ),
        )
        self._written_to = reached

    def _opened(self) -> Access:
        """Open the channel at its snapshot. Each batch then reads a part of the records after
        it.
        """
        deadline = Deadline.after(timeout_ms=self._open_ms)
        log = self._stack.enter_context(closing(open_log(self._url, create=False)))
        reader = restored(log, check=lambda: deadline.check(f"reading the snapshot of {self._url}"))
        self._moved_to = reader.view.offset  # The snapshot may stand for records other than holds.
        return Access(log=log, reader=reader, publisher=PUBLISHER, deadline=deadline)

    def _note_reading(self, access: Access) -> None:
        now_s = self._now_s()
        if self._noted_s is None or now_s - self._noted_s >= EVERY_S:
            self._noted_s = now_s
            read = (
                f"the channel is read up to position {access.reader.position - 1}; each batch"
                " continues"
            )
            self._note(
                f"the hold {self._key} is not updated yet, because its record needs the newest"
                f" offset: {read}"
            )


def release_hold(log_url: str, name: str) -> tuple[str, int]:
    """Release the hold `name`. Return its key and the offset of the record that released it.

    Raises `InvalidName`, `NotFound`, `Rejected`, and what `opened` raises.
    """
    key = hold_key(name)
    with opened(log_url, timeout_ms=ALONE_MS, publisher=PUBLISHER) as access:
        if key not in access.view.policies:
            raise NotFound(
                f"there is no hold {key} on the channel; `equipoise channel compact` lists the"
                " holds that compaction counts"
            )
        return (
            key,
            submit(
                access, lambda view, author: propose.remove_policy(author, view, name=key)
            ).offset,
        )
