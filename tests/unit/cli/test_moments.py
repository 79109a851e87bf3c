"""Offsets and times, as people write them where a history is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import typer

from equipoise.brokers.cli.moments import ago, local_time, moment

NOW_MS = 1_767_225_600_123  # 2026-01-01 00:00:00.123 UTC


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time without a zone is local; here that is two hours ahead of Greenwich."""
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@dataclass(frozen=True)
class Case:
    text: str
    time_ms: int


CASES = [
    Case("2026-01-01T02:00", NOW_MS - 123),
    Case("2026-01-01 02:00:00.123", NOW_MS),
    Case("2026-01-01", NOW_MS - 123 - 7_200_000),
    Case("2026-01-01T00:00:00Z", NOW_MS - 123),
    Case("2026-01-01T01:00:00+01:00", NOW_MS - 123),
    Case("-10m", NOW_MS - 600_000),
    Case("now-10m", NOW_MS - 600_000),
    Case("-90s", NOW_MS - 90_000),
    Case("-2h", NOW_MS - 7_200_000),
    Case("-3d", NOW_MS - 3 * 86_400_000),
    Case("-1w", NOW_MS - 7 * 86_400_000),
    Case("-999999999w", 0),
    Case("1960-01-01", 0),
    # What was appended this very millisecond is there now.
    Case("now", NOW_MS + 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_a_time_is_parsed(case: Case) -> None:
    assert (None, case.time_ms) == (
        moment(case.text, now_ms=NOW_MS).offset,
        moment(case.text, now_ms=NOW_MS).time_ms,
    )


def test_a_number_is_an_offset() -> None:
    assert (2026, None) == (
        moment("2026", now_ms=NOW_MS).offset,
        moment("2026", now_ms=NOW_MS).time_ms,
    )
    assert 2**63 - 1 == moment(str(2**63 - 1), now_ms=NOW_MS).offset


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-10",
        "10m",
        "-10y",
        "-1234567890s",
        str(2**63),
        "25:00",
        "2026-13-01",
        "²",
        "9999-12-31T23:59-23:59",
    ],
)
def test_an_invalid_moment_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not a moment|greatest offset"):
        moment(text, now_ms=NOW_MS)


def test_local_time() -> None:
    text = local_time(1_700_000_000_123, precision="milliseconds")
    assert (23, "2023-11-1", ".123") == (len(text), text[:9], text[-4:])
    assert text[:-4] == local_time(1_700_000_000_123)
    assert "" == local_time(10**18)


@pytest.mark.parametrize(
    ("duration_ms", "expected"),
    [
        (-999, "just now"),
        (999, "just now"),
        (1_000, "1 s ago"),
        (119_999, "1 m ago"),
        (7_200_000, "2 h ago"),
        (10**10, "16 w ago"),
        (-1_000, "1 s ahead of this machine's clock"),
        (-119_999, "1 m ahead of this machine's clock"),
        (-(10**12), "1653 w ahead of this machine's clock"),
    ],
)
def test_ago(duration_ms: int, expected: str) -> None:
    assert expected == ago(duration_ms)
