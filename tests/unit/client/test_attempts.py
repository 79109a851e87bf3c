"""When a request is sent again, how long the pauses are, and which addresses are spared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.client import attempts
from equipoise.brokers.client.attempts import (
    FAILURES_MAX,
    OPEN_MS,
    PAUSES_MS,
    Breakers,
    RequestOutcome,
    may_repeat,
    outcome_of,
    pause_ms,
    peer_in,
)

ADDRESS = "http://a"


@pytest.mark.parametrize(
    ("status", "mark", "is_to_peer", "outcome"),
    [
        (200, None, False, None),
        (200, "not-started", True, None),
        (404, "not-started", False, None),
        (303, "not-started", True, None),
        (307, None, False, None),
        (307, None, True, RequestOutcome.NOT_STARTED),
        (308, "not-started", False, RequestOutcome.NOT_STARTED),
        (421, None, False, RequestOutcome.NOT_STARTED),
        (503, None, True, None),
        (503, "not-started", False, RequestOutcome.NOT_STARTED),
        (503, "unknown", False, RequestOutcome.UNKNOWN),
        (502, "unknown", False, RequestOutcome.UNKNOWN),
        (503, "a foreign word", False, None),
    ],
)
def test_an_answer_says_what_is_known(
    status: int, mark: str | None, is_to_peer: bool, outcome: RequestOutcome | None
) -> None:
    assert outcome is outcome_of(status, mark, is_to_peer=is_to_peer)


def test_what_may_have_been_executed_is_repeated_only_where_that_does_no_harm() -> None:
    assert [True, True] == [
        may_repeat(RequestOutcome.NOT_STARTED, is_idempotent=either) for either in (False, True)
    ]
    assert [False, True] == [
        may_repeat(RequestOutcome.UNKNOWN, is_idempotent=either) for either in (False, True)
    ]


@pytest.mark.parametrize(
    ("location", "peer"),
    [
        ("http://b:1/visits/home?a=1", "http://b:1"),
        ("https://b/prefix/visits/home?a=1", "https://b/prefix"),
        ("http://b:1/login", None),
        ("http://b:1/login?next=/visits/home?a=1", None),
        ("/visits/home?a=1", None),
        ("ftp://b/visits/home?a=1", None),
        ("", None),
    ],
)
def test_a_redirect_to_the_same_path_names_a_peer(location: str, peer: str | None) -> None:
    assert peer == peer_in(location, "/visits/home?a=1")


@given(failures=st.integers(1, 50), chance=st.floats(0, 1))
def test_pauses_grow_to_a_bound(failures: int, chance: float) -> None:
    pause = pause_ms(failures, chance)
    longest = PAUSES_MS[min(failures, len(PAUSES_MS)) - 1]
    assert longest / 2 <= pause <= longest
    assert pause <= pause_ms(failures + 1, 1)


class Model:
    """A breaker written down event by event: the failures in a row, and when an address was last
    tried or failed.
    """

    def __init__(self) -> None:
        self.row = 0
        self.at_ms = 0

    def may_send(self, now_ms: int) -> bool:
        if self.row < FAILURES_MAX:
            return True
        if now_ms - self.at_ms < OPEN_MS:
            return False
        self.at_ms = now_ms
        return True


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["send", "fail", "succeed"]), st.integers(0, OPEN_MS)),
        max_size=60,
    )
)
def test_a_breaker_is_its_model(events: list[tuple[str, int]]) -> None:
    """It opens after failures in a row, and lets one caller try in each period."""
    breakers, model, now_ms = Breakers(), Model(), 0
    for what, passed_ms in events:
        now_ms += passed_ms
        if what == "send":
            wait_ms = breakers.wait_ms(ADDRESS, now_ms)
            assert model.may_send(now_ms) == (wait_ms == 0)
            assert 0 <= wait_ms <= OPEN_MS
            assert 0 == breakers.wait_ms("http://another", now_ms)
        elif what == "fail":
            model.row, model.at_ms = model.row + 1, now_ms
            assert (model.row >= FAILURES_MAX) == breakers.failed(ADDRESS, now_ms)
        else:
            model.row = 0
            breakers.succeeded(ADDRESS)


def test_remembered_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ADDRESSES_MAX", 2)
    breakers = Breakers()
    for address in ("a", "b", "a", "c"):
        for _ in range(FAILURES_MAX):
            breakers.failed(address, 0)
    assert [True, False, True] == [breakers.wait_ms(address, 1) > 0 for address in ("a", "b", "c")]
