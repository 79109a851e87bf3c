"""The limit of open files."""

from __future__ import annotations

import resource

import pytest

from equipoise.channel.system.open_files import Shares, files_left, room_for_files, shared_out


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
    "no limit": (
        Limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        1_000,
        1_000,
        resource.RLIM_INFINITY,
    ),
    "raised": (Limits(100, 9_000), 1_000, 1_000, 1_000),
    "raised without a hard limit": (Limits(100, resource.RLIM_INFINITY), 1_000, 1_000, 1_000),
    "raised as far as possible": (Limits(100, 900), 1_000, 900, 900),
    "refused": (Limits(100, 9_000, refuses=True), 1_000, 100, 100),
}


@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_raised_as_far_as_needed_and_possible(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never lowered, never beyond the hard one, and what there is room for then is told."""
    limits, wanted, expected, soft = CASES[case]
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert expected == room_for_files(wanted)
    assert soft == limits.soft


SHARES = {
    "enough for both": (11_256, Shares(http=1_000, pulsar=10_000)),
    "HTTP gets what is left over": (10_656, Shares(http=2_600, pulsar=7_800)),
    "the usual limit of a shell": (1_024, Shares(http=192, pulsar=576)),
    "a small reserve": (200, Shares(http=25, pulsar=75)),
    "next to nothing": (0, Shares(http=1, pulsar=1)),
}


@pytest.mark.parametrize("case", SHARES)
def test_files_are_shared_out(case: str) -> None:
    """The reserve is never given away, Pulsar's clients get more than HTTP, and each port gets
    something.
    """
    room, expected = SHARES[case]
    wanted = Shares(http=max(expected.http, 1_000) if room > 11_000 else 11_000, pulsar=10_000)
    assert expected == shared_out(room, wanted)


def test_without_clients_of_pulsar_http_gets_the_rest() -> None:
    """Where nothing listens for them, nothing is kept for them."""
    assert Shares(http=768, pulsar=0) == shared_out(1_024, Shares(http=11_000, pulsar=0))


def test_files_that_are_open_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left shrinks with each file that is opened, down to none."""
    before, limit = files_left()
    with open("/dev/null", "rb"):  # noqa: PTH123 - a file, and nothing more
        assert files_left()[0] < before

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("socket.socket", refuse)
    assert (0, limit) == files_left()
