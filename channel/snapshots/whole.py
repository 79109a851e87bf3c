"""Decide whether a log can be folded from zero."""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.records import Genesis

PEEK_ENTRIES: Final = 100
"""Entries read at once to find the genesis of a log. It is the first entry, unless somebody wrote garbage."""


def is_whole(log: Log) -> bool:
    """Return whether the log has its beginning and is not a copy, which begins with its snapshot. Raises what `Log.read` raises.

    A log without a genesis counts as whole. With a snapshot it may be a copy whose genesis is missing.
    """
    return log.start() == FIRST_OFFSET and not base_of(log)


def has_whole_channel(log: Log) -> bool:
    """Return whether the log holds the whole channel, undamaged up to its genesis. Raises what `Log.read` raises."""
    try:
        return log.start() == FIRST_OFFSET and base_of(log) == 0
    except LogDamaged:
        return False


def base_of(log: Log) -> int | None:
    """Return the base offset of a log that has its beginning: 0 if it is not a copy, None if it has no genesis."""
    position = FIRST_OFFSET
    while entries := log.read(position, limit=PEEK_ENTRIES):
        for entry in entries:
            record = decode(entry.data)
            if isinstance(record, Genesis):
                return record.base
        position = entries[-1].offset + 1
    return None
