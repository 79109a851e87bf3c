"""Parse and print moments in the history of a channel: an offset or a time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from typer.core import TyperCommand

from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import INTEGER_MAX, Unreadable

if TYPE_CHECKING:
    from typer._click import Context

UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_YEAR_MS: Final = 365 * UNITS_MS["d"]
_match_duration: Final = re.compile(r"(\d{1,6})([smhdwy])").fullmatch
_match_relative: Final = re.compile(r"(?:now)?-(\d{1,9})([smhdw])").fullmatch
_TIMES: Final = (
    "an offset, a time (2026-01-31T12:34; add Z or +02:00 if it is not local), or how long ago"
    " (-10m; s, m, h, d, w)"
)

MomentArgument = Annotated[
    str,
    typer.Argument(
        metavar="OFFSET|TIME",
        help="42, 2026-01-31T12:34, 2026-01-31T12:34:56Z, or -10m (s, m, h, d, w).",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A place in a history: after the record at `offset`, or before the first record appended at
    `time_ms` or later.

    Exactly one of them is set. `text` is the user's input.

    * `offset`: a logical offset.
    * `time_ms`: Unix time.
    """

    text: str
    offset: int | None = None
    time_ms: int | None = None


def moment(text: str, *, now_ms: int | None = None) -> Moment:
    """Parse a moment relative to Unix time `now_ms`, by default now. A time without a zone is
    local. Raise `typer.BadParameter`.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if text.isdecimal() and text.isascii():
        offset = int(text)
        if offset > INTEGER_MAX:
            raise typer.BadParameter(f"{text} is beyond the greatest offset, {INTEGER_MAX}")
        return Moment(text=text, offset=offset)
    if text == "now":
        return Moment(text=text, time_ms=now_ms + 1)
    relative = _match_relative(text)
    if relative is not None:
        return Moment(text=text, time_ms=max(0, now_ms - int(relative[1]) * UNITS_MS[relative[2]]))
    try:
        seconds = datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text!r} is not a moment: write {_TIMES}") from error
    return Moment(text=text, time_ms=max(0, round(seconds * 1_000)))


class TimeCommand(TyperCommand):
    """A command with time arguments. It accepts `-10m`, which the parser would read as an option
    `-1`.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Rewrite `-10m` as `now-10m` before parsing."""
        return super().parse_args(
            ctx, [f"now{arg}" if _match_relative(arg) else arg for arg in args]
        )


def local_time(time_ms: int, *, precision: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return a Unix time as local time, such as `2026-01-31 12:34:56`, or "" if it is out of the
    calendar's range.
    """
    try:
        return (
            datetime.fromtimestamp(time_ms / 1_000, UTC)
            .astimezone()
            .replace(tzinfo=None)
            .isoformat(" ", precision)
        )
    except (OverflowError, ValueError, OSError):
        return ""


def time_of(folded: Folded) -> str:
    """Return a record's timestamp as local time with milliseconds, or "" if it has none or it is
    out of range.
    """
    timestamp_ms = 0 if isinstance(folded.record, Unreadable) else folded.record.timestamp_ms
    return local_time(timestamp_ms, precision="milliseconds") if timestamp_ms else ""


def duration(text: str) -> int:
    """Parse a duration, and return it in milliseconds. Raise `typer.BadParameter`."""
    match = _match_duration(text)
    if match is None or not int(match[1]):
        raise typer.BadParameter(
            f"{text!r} is no duration above 0: write a number and a unit (30m; s, m, h, d, w, y)"
        )
    return int(match[1]) * UNITS_MS.get(match[2], _YEAR_MS)


def end_ms(duration_ms: int | None) -> int:
    """Return the Unix time at which a duration ends that begins now; 0 for None."""
    return 0 if duration_ms is None else time.time_ns() // 1_000_000 + duration_ms


def ago(duration_ms: int) -> str:
    """Return a duration in the largest whole unit, such as `2 h ago`. A time in the future is
    `ahead of this machine's clock`.
    """
    for unit, size_ms in reversed(UNITS_MS.items()):
        if abs(duration_ms) >= size_ms:
            relation = "ago" if duration_ms > 0 else "ahead of this machine's clock"
            return f"{abs(duration_ms) // size_ms} {unit} {relation}"
    return "just now"
