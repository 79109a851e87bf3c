"""Decide how much of a compacted log is kept (by time, size or number of offsets, and by the holds
of archives), and how long a compaction may take.

A hold keeps a log from cutting what an archive has not read yet. It is a `policy` record with the
key `archives/NAME`, written by the archiver:

* `archived_to`: the logical offset up to which the archive holds everything. It is logical, so it
  stays valid when a channel is copied.
* `at_ms`: Unix time of writing by the log's own clock, the time of its newest entry. A live archive
  writes its hold anew at least once a day.
* `days_max`: the days until it lapses, at most `DAYS_LIMIT`. A dead archive must not fill the disk
  for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from equipoise.channel.core.entries import PolicyEntry
from equipoise.channel.core.errors import CallerError, InvalidName, compaction_refused
from equipoise.channel.core.records import INTEGER_MAX, Document
from equipoise.channel.snapshots.snapshot_rows import Marker

Unit = Literal["ms", "bytes", "offsets"]

RETAIN_BY_DEFAULT: Final = "7d"
"""100 brokers that renew every 3 s write 20 million records, or 4 GB, per week."""

NEWEST_MS: Final = 600_000
"""Always kept: ten minutes, so that a reader which lags or starts meanwhile is rarely cut off."""

CLOCK_PRECISION_MS: Final = 1_000
"""The precision of the estimated time of the newest entry."""

COMPACT_S_MAX: Final = 600
"""The default time limit of one compaction. A million records take 15 s on a full core. The limit
also covers a tenth of a core, or the ten million records of a log that was never compacted."""

WAIT_MS_MAX: Final = 10_000
"""How long each write waits for other writers: the brokers, whose batches take milliseconds."""

_UNITS: Final[Mapping[str, tuple[Unit, int]]] = {
    "s": ("ms", 1_000),
    "m": ("ms", 60_000),
    "h": ("ms", 3_600_000),
    "d": ("ms", 86_400_000),
    "B": ("bytes", 1),
    "KiB": ("bytes", 1 << 10),
    "MiB": ("bytes", 1 << 20),
    "GiB": ("bytes", 1 << 30),
    "offsets": ("offsets", 1),
}
_match_retention: Final = re.compile(r"(\d{1,15}) ?([A-Za-z]+)", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The minimum of the log's newest part to keep."""

    unit: Unit
    amount: int


def parse_retention(text: str) -> Retention:
    """Parse a retention: `7d`, `12h`, `30m`, `90s`, `64MiB`, `2GiB`, `10000 offsets`. Raises
    `CallerError`.
    """
    match = _match_retention(text.strip())
    if match is None or match[2] not in _UNITS:
        raise _invalid(text)
    unit, factor = _UNITS[match[2]]
    amount = int(match[1]) * factor
    if amount > INTEGER_MAX:
        raise _invalid(text)
    return Retention(unit=unit, amount=amount)


def _invalid(text: str) -> CallerError:
    return CallerError(
        f"{text!r} is not a retention; write a time (7d, 12h, 30m), a size (64MiB, 2GiB) or offsets"
        " (10000 offsets)"
    )


def newest_ms(position_at: Callable[[int], int], *, end: int, now_ms: int) -> int:
    """Return the time by the clock of the log's entries: about that of the newest entry, but not
    after `now_ms`.

    * A compactor whose own clock is ahead would otherwise take new entries for old ones.
    * Live brokers renew all the time, so the newest entry is seconds old. Without live brokers,
      more is kept.
    * `end` is the log's, `position_at` is `Log.position_at`. It is called some twenty times if the
      clocks agree, and some fifty times if they are years apart.
    """
    if position_at(now_ms) <= end or position_at(0) > end:
        return now_ms
    age_ms = CLOCK_PRECISION_MS
    while age_ms < now_ms and position_at(now_ms - age_ms) > end:
        age_ms *= 2
    low_ms, high_ms = max(now_ms - age_ms, 0), now_ms
    while high_ms - low_ms > CLOCK_PRECISION_MS:
        middle_ms = (low_ms + high_ms) // 2
        if position_at(middle_ms) <= end:
            low_ms = middle_ms
        else:
            high_ms = middle_ms
    return low_ms


def cut_position(
    marker: Marker,
    *,
    start: int,
    retain: Retention,
    position_at: Callable[[int], int],
    now_ms: int,
    held: int | None = None,
) -> int:
    """Return the position below which a log may be truncated once its snapshot has `marker`.
    `start` is its present start.

    It is never above the marker's own position, within the newest ten minutes, or above `held`, the
    lowest position that an archive still needs (`compaction.retention`). `position_at` is
    `Log.position_at`, `now_ms` the time by its clock (see `newest_ms`).
    """
    limits = [marker.position, position_at(now_ms - NEWEST_MS)]
    if held is not None:
        limits.append(held)
    match retain.unit:
        case "ms":
            limits.append(position_at(now_ms - retain.amount))
        case "bytes":
            limits.append(_position_of_size(marker, retain.amount))
        case "offsets":
            limits.append(marker.position - retain.amount)
    return max(start, min(limits))


def _position_of_size(marker: Marker, size_bytes: int) -> int:
    """Return the highest position with a known size from which at least `size_bytes` lead to the
    horizon.
    """
    known = ((marker.horizon, marker.bytes_below), *reversed(marker.checkpoints))
    return next(
        (
            horizon - marker.base + 1
            for horizon, below in known
            if marker.bytes_below - below >= size_bytes
        ),
        0,
    )


def check_cut(marker: Marker, cut: int, *, log: str) -> None:
    """Raise `OperatorError` if truncating below `cut` would remove records that the snapshot
    with `marker` does not cover.
    """
    if cut > marker.position:
        problem = (
            f"a cut below offset {cut} would remove records from {marker.position} on, which its"
            " snapshot does not hold"
        )
        raise compaction_refused(
            log=log, problem=problem, remedy="nothing was removed; please report this"
        )


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
