"""Holds: records on the channel by which archives have its log keep what they have not read yet.

May live here: what such a record says, which holds are in force, and the position below which they let a log be cut.

A hold is a `policy` record with the key `archives/NAME`, written by whoever archives:

* `archived_to`: the logical offset up to which that archive holds everything. Logical, so that it goes along when a channel is copied.
* `at_ms`: when it was written, Unix time by the log's own clock: that of its newest entry. An archive that is alive writes it anew each
  day at least.
* `days_max`: how many days after that it lapses, but `DAYS_LIMIT` at most. An archive that died must not fill the disk for ever.
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
"""A month in which somebody finds out that an archive stands still; a hundred brokers write 20 GB meanwhile."""

DAYS_LIMIT: Final = 366
"""What a hold may ask for: whoever writes more has made a mistake, which must not keep a log for ever."""

_DAY_MS: Final = 86_400_000
_match_name: Final = re.compile(r"[-=:.\w]{1,255}", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What all holds together say. `archived_to` is the lowest logical offset that one in force names, `by` its name; None for none.

    `lapsed` are the names of those that are too old, and no longer in force.
    """

    archived_to: int | None = None
    by: str | None = None
    lapsed: tuple[str, ...] = ()

    def position(self, base: int) -> int | None:
        """The position up to which the log may be cut, in a log whose logical offsets begin above `base`."""
        return None if self.archived_to is None else max(self.archived_to - base + 1, 0)


def hold_key(name: str) -> str:
    """The key of the hold `name`. Raises `InvalidName`."""
    if _match_name(name) is None:
        raise InvalidName(what="name of an archive", name=name, expected="1 to 255 letters, digits, and - = : . _")
    return f"{KIND}/{name}"


def is_hold(key: str) -> bool:
    """Whether a record of this key is a hold, or is to be one."""
    return key.partition("/")[0] == KIND


def hold_document(*, archived_to: int, at_ms: int, days_max: int) -> Document:
    """What a hold says; see the module."""
    return {"archived_to": archived_to, "at_ms": at_ms, "days_max": days_max}


def holds_in(policies: Mapping[str, PolicyEntry], *, now_ms: int) -> Held:
    """What the holds among a channel's policies say at `now_ms`, by the clock that gave the log's entries their times.

    What is no hold that this version can read holds nothing: to keep a log for ever because of a typing error would be worse.
    """
    lowest: tuple[int, str] | None = None
    lapsed = []
    for key in sorted(policies):
        name = key.partition("/")[2]
        document = policies[key].document
        archived_to, at_ms, days_max = (document.get(field) for field in ("archived_to", "at_ms", "days_max"))
        if not is_hold(key) or type(archived_to) is not int or type(at_ms) is not int or type(days_max) is not int:
            continue
        if now_ms - at_ms > min(days_max, DAYS_LIMIT) * _DAY_MS:
            lapsed.append(name)
        elif lowest is None or archived_to < lowest[0]:
            lowest = archived_to, name
    if lowest is None:
        return Held(lapsed=tuple(lapsed))
    return Held(archived_to=lowest[0], by=lowest[1], lapsed=tuple(lapsed))
