"""Read retention holds: records by which archives keep a log from cutting what they have not read
yet.

A hold is a `policy` record with the key `archives/NAME`, written by the archiver:

* `archived_to`: the logical offset up to which the archive holds everything. It is logical, so it
  stays valid when a channel is copied.
* `at_ms`: Unix time of writing by the log's own clock, the time of its newest entry. A live archive
  writes its hold anew at least once a day.
* `days_max`: the days until it lapses, at most `DAYS_LIMIT`. A dead archive must not fill the disk
  for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.entries import PolicyEntry
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.records import Document

KIND: Final = "archives"

DAYS_MAX: Final = 30
"""A month to notice that an archive stands still. A hundred brokers write 20 GB meanwhile."""

DAYS_LIMIT: Final = 366
"""The longest hold. A longer request is a mistake, which must not keep a log for ever."""

_DAY_MS: Final = 86_400_000
_match_name: Final = re.compile(r"[-=:.\w]{1,255}", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The combined effect of all holds.

    `archived_to` is the lowest logical offset of those in force, `by` its name; None if there is
    none. `lapsed` are the names of those that are too old.
    """

    archived_to: int | None = None
    by: str | None = None
    lapsed: tuple[str, ...] = ()

    def position(self, base: int) -> int | None:
        """Return the position up to which the log may be cut, in a log whose logical offsets begin
        above `base`.
        """
        return None if self.archived_to is None else max(self.archived_to - base + 1, 0)


def hold_key(name: str) -> str:
    """Return the key of the hold `name`. Raises `InvalidName`."""
    if _match_name(name) is None:
        raise InvalidName(
            what="name of an archive", name=name, expected="1 to 255 letters, digits, and - = : . _"
        )
    return f"{KIND}/{name}"


def is_hold(key: str) -> bool:
    """Return whether a record of this key is meant as a hold."""
    return key.partition("/")[0] == KIND


def hold_document(*, archived_to: int, at_ms: int, days_max: int) -> Document:
    """Return the document of a hold. See the module for its fields."""
    return {"archived_to": archived_to, "at_ms": at_ms, "days_max": days_max}


def holds_in(policies: Mapping[str, PolicyEntry], *, now_ms: int) -> Held:
    """Return the effect of a channel's holds at `now_ms`, by the clock of the log's entries.

    An unreadable hold has no effect: a typing error must not keep a log for ever.
    """
    lowest: tuple[int, str] | None = None
    lapsed = []
    for key in sorted(policies):
        name = key.partition("/")[2]
        document = policies[key].document
        archived_to, at_ms, days_max = (
            document.get(field) for field in ("archived_to", "at_ms", "days_max")
        )
        if (
            not is_hold(key)
            or type(archived_to) is not int
            or type(at_ms) is not int
            or type(days_max) is not int
        ):
            continue
        if now_ms - at_ms > min(days_max, DAYS_LIMIT) * _DAY_MS:
            lapsed.append(name)
        elif lowest is None or archived_to < lowest[0]:
            lowest = archived_to, name
    if lowest is None:
        return Held(lapsed=tuple(lapsed))
    return Held(archived_to=lowest[0], by=lowest[1], lapsed=tuple(lapsed))
