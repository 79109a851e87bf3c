"""Test how a retention is written, and where it cuts a log."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.channel.snapshots.snapshot_rows import CHECKPOINTS_MAX, Marker
from equipoise.compaction.compactor import Checkpoint, kept_checkpoints
from equipoise.compaction.retention import (
    CLOCK_PRECISION_MS,
    NEWEST_MS,
    RETAIN_BY_DEFAULT,
    Retention,
    check_cut,
    cut_position,
    newest_ms,
    parse_retention,
)

DAY_MS = 86_400_000
MARKER = Marker(
    log="x",
    cluster="c",
    base=1_000,
    horizon=1_500,
    digest=1,
    genesis=1_001,
    level=1,
    level_last=1_001,
    removed_at=1_001,
    sequences={},
    bytes_below=5_000,
    checkpoints=((1_100, 1_000), (1_200, 2_000), (1_400, 4_000)),
)


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("7d", "ms", 7 * DAY_MS),
        ("12h", "ms", DAY_MS // 2),
        ("30m", "ms", 1_800_000),
        ("90s", "ms", 90_000),
        (" 64MiB ", "bytes", 64 << 20),
        ("2 GiB", "bytes", 2 << 30),
        ("5KiB", "bytes", 5_120),
        ("7B", "bytes", 7),
        ("10000 offsets", "offsets", 10_000),
        ("0offsets", "offsets", 0),
        (RETAIN_BY_DEFAULT, "ms", 7 * DAY_MS),
    ],
)
def test_a_retention_is_a_number_and_a_unit(text: str, unit: str, amount: int) -> None:
    """Times, sizes and offsets, each with its unit."""
    assert (unit, amount) == (parse_retention(text).unit, parse_retention(text).amount)


NONE = (
    "",
    "7",
    "d",
    "-7d",
    "7.5d",
    "7D",
    "7mb",
    "1e3 offsets",
    "7d 3h",
    "\N{ARABIC-INDIC DIGIT SEVEN}d",
    "9" * 17 + "d",
    "9" * 15 + "d",
)


@pytest.mark.parametrize("text", NONE)
def test_what_is_none_is_refused(text: str) -> None:
    """Anything else is the caller's error, which quotes it."""
    with pytest.raises(CallerError, match=re.escape(f"{text!r} is not a retention")):
        parse_retention(text)


@dataclass(frozen=True, kw_only=True)
class Cut:
    id: str
    retain: str
    expected: int
    start: int = 1
    newest: int = 600  # From this position on the log's entries are of the newest ten minutes.


CUTS = (
    Cut(id="nothing kept", retain="0 offsets", expected=501),
    Cut(id="offsets", retain="100 offsets", expected=401),
    Cut(id="more offsets than there are", retain="9999 offsets", expected=1),
    Cut(id="time", retain="1h", expected=300),
    Cut(id="bytes, at a checkpoint", retain="1000B", expected=401),
    Cut(id="bytes, between two", retain="1001B", expected=201),
    Cut(id="bytes, below all", retain="4001B", expected=1),
    Cut(id="no bytes", retain="0B", expected=501),
    Cut(id="the newest ten minutes", retain="0 offsets", expected=250, newest=250),
    Cut(id="cut further already", retain="100 offsets", expected=450, start=450),
)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.id)
def test_a_log_is_cut_no_further_than_everybody_allows(cut: Cut) -> None:
    """The snapshot, the retention and the newest ten minutes all have their say; and a cut never
    goes back.
    """

    def position_at(time_ms: int) -> int:
        return {10 * DAY_MS - NEWEST_MS: cut.newest, 10 * DAY_MS - 3_600_000: 300}[time_ms]

    assert cut.expected == cut_position(
        MARKER,
        start=cut.start,
        retain=parse_retention(cut.retain),
        position_at=position_at,
        now_ms=10 * DAY_MS,
    )


@given(
    retain=st.builds(
        Retention, unit=st.sampled_from(["ms", "bytes", "offsets"]), amount=st.integers(0, 10_000)
    ),
    now_ms=st.integers(0, 10**7),
)
def test_no_retention_cuts_what_the_snapshot_does_not_hold(retain: Retention, now_ms: int) -> None:
    """Whatever is asked for, and whenever, nothing above the horizon is removed, and enough bytes
    stay.
    """
    cut = cut_position(
        MARKER,
        start=1,
        retain=retain,
        position_at=lambda time_ms: 1 + bisect_left(range(0, 10**7, 10**4), time_ms),
        now_ms=now_ms,
    )
    assert cut <= MARKER.horizon - MARKER.base + 1
    if retain.unit == "bytes":
        below = next(
            (size for horizon, size in reversed(MARKER.checkpoints) if horizon - MARKER.base < cut),
            0,
        )
        assert cut == 1 or MARKER.bytes_below - below >= retain.amount or cut == MARKER.position


@given(
    times_ms=st.lists(st.integers(DAY_MS, 9 * DAY_MS), min_size=1, max_size=20).map(sorted),
    now_ms=st.integers(DAY_MS, 10 * DAY_MS),
)
def test_the_time_is_not_after_the_newest_entry(times_ms: list[int], now_ms: int) -> None:
    """A clock that is ahead of the storage's is not believed, by more than a second; one that is
    behind is.
    """
    asked: list[int] = []

    def position_at(time_ms: int) -> int:
        asked.append(time_ms)
        return 1 + bisect_left(times_ms, time_ms)

    found_ms = newest_ms(position_at, end=len(times_ms), now_ms=now_ms)
    expected_ms = min(now_ms, times_ms[-1])
    assert expected_ms - CLOCK_PRECISION_MS < found_ms <= expected_ms
    assert 60 > len(asked)


def test_a_log_without_entries_tells_no_time() -> None:
    """Where nothing was appended, or nothing is left, the clock of this machine is all there is."""
    assert DAY_MS == newest_ms(lambda _: 8, end=7, now_ms=DAY_MS)


def test_a_cut_above_the_horizon_is_refused() -> None:
    """Whatever reckoned it, a cut that would remove what the snapshot does not hold is refused, by
    one offset even.
    """
    check_cut(MARKER, MARKER.position, log="memory:x")
    with pytest.raises(OperatorError, match="from 501 on"):
        check_cut(MARKER, MARKER.position + 1, log="memory:x")
    with pytest.raises(OperatorError):
        check_cut(replace(MARKER, horizon=1_400), MARKER.position, log="memory:x")


def test_checkpoints_below_the_log_are_dropped() -> None:
    """What lies below the log's beginning can be no place to cut."""
    assert ((20, 2), (30, 3)) == kept_checkpoints([(10, 1), (20, 2), (30, 3)], first=20)


def test_checkpoints_are_bounded() -> None:
    """Of too many every second is kept, the newest among them, so that they still reach as far
    back.
    """
    many: list[Checkpoint] = [(offset, 10 * offset) for offset in range(1, 4 * CHECKPOINTS_MAX)]
    left = kept_checkpoints(many, first=0)
    assert CHECKPOINTS_MAX // 2 < len(left) <= CHECKPOINTS_MAX
    assert many[-1] == left[-1]
    assert left[0][0] <= 4
    assert sorted(set(left)) == list(left)
