"""The limit of open files."""

from __future__ import annotations

import resource

import pytest

from brokers.open_files import room_for_files


class Limits:
    """What the system would say, and what it was told."""

    def __init__(self, soft: int, hard: int, *, refuses: bool = False) -> None:
        self.soft = soft
        self.hard = hard
        self.refuses = refuses

    def get(self, _kind: int) -> tuple[int, int]:
        return self.soft, self.hard

    def set(self, _kind: int, limits: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("current limit exceeds maximum limit")
        self.soft, self.hard = limits


CASES = {
    "enough": (Limits(5_000, 9_000), 1_000, 1_000, 5_000),
    "no limit": (Limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1_000, 1_000, resource.RLIM_INFINITY),
    "raised": (Limits(100, 9_000), 1_000, 1_000, 1_000),
    "raised without a hard limit": (Limits(100, resource.RLIM_INFINITY), 1_000, 1_000, 1_000),
    "raised as far as possible": (Limits(100, 900), 1_000, 900, 900),
    "refused": (Limits(100, 9_000, refuses=True), 1_000, 100, 100),
}


@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_raised_as_far_as_needed_and_possible(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never lowered, never beyond the hard one, and what there is room for then is told."""
    limits, wanted, expected, soft = CASES[case]
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert expected == room_for_files(wanted)
    assert soft == limits.soft
