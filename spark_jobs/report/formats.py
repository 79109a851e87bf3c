"""Format times, durations and counts for people."""

from __future__ import annotations

from datetime import UTC, datetime, timezone, tzinfo
from typing import Final

_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_TIME_MS_MAX: Final = 253_402_214_400_000
"""The last midnight (UTC) of the year 9999. The margin of a day keeps the year at four digits in
every time zone."""

NONE: Final = "\N{EN DASH}"


def format_count(count: int, one: str = "", many: str = "") -> str:
    """Format a count with thousands separators and its noun: `1,204 moves`. `many` defaults to
    `one` plus "s".
    """
    if not one:
        return f"{count:,}"
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_duration(duration_ms: float | None) -> str:
    """Format a duration in fitting units: `87 ms`, `1.4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4
    h`.
    """
    if duration_ms is None:
        return NONE
    if duration_ms < _SECOND_MS:
        return f"{duration_ms:.0f} ms"
    if duration_ms < _MINUTE_MS:
        return f"{duration_ms / _SECOND_MS:.1f} s"
    for unit_ms, unit, next_ms, next_unit in (
        (_DAY_MS, "d", _HOUR_MS, "h"),
        (_HOUR_MS, "h", _MINUTE_MS, "min"),
        (_MINUTE_MS, "min", _SECOND_MS, "s"),
    ):
        if duration_ms >= unit_ms:
            whole, rest = divmod(int(duration_ms), unit_ms)
            part = rest // next_ms
            return f"{whole:,} {unit} {part} {next_unit}" if part else f"{whole:,} {unit}"
    raise AssertionError(duration_ms)


def format_time(at_ms: int, zone: tzinfo) -> str:
    """Format a Unix time in a zone, to the second."""
    return datetime.fromtimestamp(within_year_9999(at_ms) / _SECOND_MS, zone).strftime(
        "%Y-%m-%d %H:%M:%S"
    )


def within_year_9999(at_ms: int) -> int:
    """Return the Unix time, capped at the end of 9999 (UTC). A damaged row may hold any number."""
    return min(at_ms, _TIME_MS_MAX)


def local_zone(at_ms: int) -> tzinfo:
    """Return the local zone at a Unix time as a fixed offset from UTC, so that no clock time occurs
    twice.
    """
    zone = datetime.fromtimestamp(within_year_9999(at_ms) / _SECOND_MS, UTC).astimezone().tzinfo
    assert zone is not None, "astimezone gives a zone"
    return zone


def format_zone(zone: tzinfo) -> str:
    """Format a fixed zone as `UTC` or `UTC+02:00`."""
    offset = datetime.fromtimestamp(0, zone).utcoffset()
    return "UTC" if not offset else str(timezone(offset))


def format_share(part: int, whole: int) -> str:
    """Format a share in percent. A share above zero is never shown as zero."""
    if whole == 0:
        return NONE
    percent = 100 * part / whole
    # The last digit shown.
    return "below 0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"  # noqa: PLR2004
