"""Whether a log can be folded from zero.

May live here: what the first entries of a log tell of its beginning.
"""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.records import Genesis

PEEK_ENTRIES: Final = 100
"""Entries read at once of the beginning of a log, where its genesis is looked for. It is the first, unless somebody wrote garbage."""


def is_whole(log: Log) -> bool:
    """Whether the log still has its beginning, and is no copy, whose beginning is its snapshot. Raises what `Log.read` raises.

    A log without a genesis is whole by itself. With a snapshot it may be a copy whose genesis is missing.
    """
    return log.start() == FIRST_OFFSET and not base_of(log)


def is_told_from_zero(log: Log) -> bool:
    """Whether all of the channel, from its genesis on, stands on the log, and undamaged as far as that. Raises what `Log.read` raises."""
    try:
        return log.start() == FIRST_OFFSET and base_of(log) == 0
    except LogDamaged:
        return False


def base_of(log: Log) -> int | None:
    """The offset above which a log that has its beginning goes on: 0 if it is no copy, None if it has no genesis."""
    position = FIRST_OFFSET
    while entries := log.read(position, limit=PEEK_ENTRIES):
        for entry in entries:
            record = decode(entry.data)
            if isinstance(record, Genesis):
                return record.base
        position = entries[-1].offset + 1
    return None
