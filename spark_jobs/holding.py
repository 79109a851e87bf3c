"""The hold: a record on the channel by which an archive has the log keep what it has not read yet.

May live here: writing and lifting that record. What it says, and what compaction makes of it, is told in `compaction.holds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from brokers.admin.access import Access, opened, submit
from channel import propose
from channel.blocking_view import read_on
from channel.deadline import Deadline
from channel.errors import EquipoiseError
from compaction.holds import DAYS_MAX, hold_document, hold_key
from compaction.retention import newest_ms
from spark_jobs.arrivals import Source
from spark_jobs.tables.errors import NoHold
from spark_jobs.tables.manifest import Manifest

PUBLISHER: Final = "admin:archive"

EVERY_S: Final = 30
"""How often a hold is moved at most: each time is a record on the channel, and what it lags behind is only kept a little longer."""

AT_LEAST_EVERY_S: Final = 24 * 3_600
"""How often it is written anew although nothing moved, so that it does not lapse while its archive is alive."""

TIMEOUT_MS: Final = 30_000
"""For reading the channel on and writing one record. The archive waits meanwhile; what fails is tried again with a later batch."""


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
        self._failed_s: float | None = None
        self._written_to = -1
        self._own_offset = -1

    def archived(self, manifest: Manifest, *, at_once: bool = False) -> None:
        """Say on the channel how far the archive has come, unless it was said just now. What fails is told, and tried again later."""
        position = manifest.positions.get(Source.CHANNEL)
        if position is None:
            return
        reached = position - 1 + manifest.base
        if not self._is_due(reached, at_once=at_once):
            return
        try:
            self._write(reached)
        except EquipoiseError as error:
            self.close()
            self._failed_s = self._now_s()
            self._tell(f"the hold {self._key} could not be moved, and is tried again in {EVERY_S} s: {error}")
        else:
            self._written_s, self._failed_s = self._now_s(), None

    def _is_due(self, reached: int, *, at_once: bool) -> bool:
        if self._failed_s is not None:
            return at_once or self._now_s() - self._failed_s >= EVERY_S
        if self._written_s is None:
            return True
        waited_s = self._now_s() - self._written_s
        # The hold's own record is the log's newest as long as nobody else writes: to follow it would be a record every time.
        has_moved = reached > max(self._written_to, self._own_offset)
        return waited_s >= AT_LEAST_EVERY_S or (has_moved and (at_once or waited_s >= EVERY_S))

    def close(self) -> None:
        """Let go of the log; the hold stays on the channel."""
        self._access = None
        self._stack.close()

    def _write(self, reached: int) -> None:
        if self._access is None:
            self._access = self._stack.enter_context(opened(self._url, timeout_ms=10 * TIMEOUT_MS, publisher=PUBLISHER))
        access = replace(self._access, deadline=Deadline.after(timeout_ms=TIMEOUT_MS))
        read_on(access.log, access.reader, deadline=access.deadline)
        ahead_ms = time.time_ns() // 1_000_000 + CLOCK_BEHIND_MS_MAX
        at_ms = newest_ms(access.log.position_at, end=access.log.end(), now_ms=ahead_ms)
        document = hold_document(archived_to=reached, at_ms=at_ms, days_max=DAYS_MAX)
        done = submit(access, lambda view, author: propose.set_policy(author, view, name=self._key, document=document))
        self._written_to, self._own_offset = reached, done.offset


def release_hold(log_url: str, name: str) -> str:
    """Lift the hold `name`; a sentence that says so. Raises `InvalidName`, `NoHold`, `Rejected`, and what `opened` raises."""
    key = hold_key(name)
    with opened(log_url, timeout_ms=10 * TIMEOUT_MS, publisher=PUBLISHER) as access:
        if key not in access.view.policies:
            raise NoHold(key=key)
        done = submit(access, lambda view, author: propose.remove_policy(author, view, name=key))
    return f"accepted at offset {done.offset}: the hold {key} is lifted, and compaction no longer waits for that archive"
