"""What one identity may take of a broker, and that others have their share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.limits import (
    BURST_MS,
    Bounds,
    Excess,
    IdentityLimits,
    Limit,
    Rate,
    of_host,
    of_role,
)

GREEDY, MODEST = of_role("greedy"), of_role("modest")


def limits(
    *,
    connections: int = 2,
    requests: int = 10,
    bytes_: int | None = None,
    exceeded: list[tuple[Surface, Limit, str]] | None = None,
) -> IdentityLimits:
    """Limits that report into a list."""
    note = [] if exceeded is None else exceeded
    bounds = Bounds(connections=connections, requests_per_second=requests, bytes_per_second=bytes_)
    return IdentityLimits(bounds, exceeded=lambda *about: note.append(about))


def asks(made: IdentityLimits, identity: str, now_ms: int) -> bool:
    """Whether a request is admitted, as a server admits it."""
    if made.excess(Surface.HTTP, identity, now_ms) is not None:
        return False
    made.took(identity, now_ms, requests=1)
    return True


Arrivals = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 60)), min_size=1, max_size=60)


@given(rate=st.integers(1, 50), arrivals=Arrivals)
def test_a_window_admits_at_most_the_burst_and_what_the_rate_allows(
    rate: int, arrivals: list[tuple[int, int]]
) -> None:
    """Arrivals are gaps in milliseconds, each before a number of requests. The check looks at each
    window between two admissions.
    """
    made = limits(requests=rate)
    now_ms, admitted = 1_000_000, []
    for gap_ms, count in arrivals:
        now_ms += gap_ms
        admitted += [now_ms for _ in range(count) if asks(made, GREEDY, now_ms)]
    for first, began_ms in enumerate(admitted):
        for last in range(first, len(admitted)):
            window_ms = admitted[last] - began_ms
            assert (last - first + 1) * 1_000 <= rate * (BURST_MS + window_ms)


@given(rate=st.integers(1, 50), arrivals=Arrivals)
def test_a_bucket_admits_what_a_slow_and_obvious_one_admits(
    rate: int, arrivals: list[tuple[int, int]]
) -> None:
    made, now_ms = limits(requests=rate), 1_000_000
    tokens_max = tokens = rate * BURST_MS  # In thousandths.
    for gap_ms, count in arrivals:
        now_ms += gap_ms
        tokens = min(tokens + gap_ms * rate, tokens_max)
        for _ in range(count):
            expected = tokens >= 1_000
            assert expected == asks(made, GREEDY, now_ms)
            tokens -= 1_000 if expected else 0


@given(
    rate=st.integers(1, 50), greedy=st.lists(st.integers(0, 100), max_size=60), arrivals=Arrivals
)
def test_no_request_of_a_modest_identity_is_refused_beside_a_greedy_one(
    rate: int, greedy: list[int], arrivals: list[tuple[int, int]]
) -> None:
    """The modest one keeps to the rate alone: it asks again once a token has come."""
    made, now_ms = limits(requests=rate), 1_000_000
    for number, (gap_ms, _) in enumerate(arrivals):
        now_ms += max(gap_ms, -(-1_000 // rate))
        for _ in range(greedy[number % len(greedy)] if greedy else 0):
            asks(made, GREEDY, now_ms)
        assert asks(made, MODEST, now_ms)


@given(
    rate=st.integers(1, 1_000),
    reads=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 5_000)), min_size=1, max_size=40),
)
def test_bytes_exceed_the_rate_by_one_read_at_most(rate: int, reads: list[tuple[int, int]]) -> None:
    """A read cannot be refused. So the reader waits after it, until a byte fits."""
    made, now_ms = limits(bytes_=rate), 1_000_000
    taken: list[tuple[int, int]] = []
    for gap_ms, bytes_ in reads:
        now_ms += gap_ms
        if made.excess(Surface.PULSAR, GREEDY, now_ms) is None:
            made.took(GREEDY, now_ms, received_bytes=bytes_)
            taken.append((now_ms, bytes_))
    for first, (began_ms, _) in enumerate(taken):
        for last in range(first, len(taken)):
            before = sum(bytes_ for _, bytes_ in taken[first:last])
            assert before * 1_000 < rate * (BURST_MS + taken[last][0] - began_ms)


@given(rate=st.integers(1, 50), tokens=st.integers(0, 500))
def test_the_wait_is_the_shortest_that_is_long_enough(rate: int, tokens: int) -> None:
    bucket, now_ms = Rate(rate), 5_000
    bucket.take(GREEDY, tokens, now_ms)
    wait_ms = bucket.wait_ms(GREEDY, now_ms)
    assert 0 == bucket.wait_ms(GREEDY, now_ms + wait_ms)
    assert not wait_ms or bucket.wait_ms(GREEDY, now_ms + wait_ms - 1)


def test_a_full_bucket_is_forgotten() -> None:
    bucket = Rate(100)
    for number in range(1_000):
        bucket.take(of_role(f"r{number}"), 1, 10_000)
    assert 1_000 == len(bucket)
    bucket.take(GREEDY, 1, 11_000)
    assert 1 == len(bucket)


def test_the_connections_of_an_identity_are_limited_at_each_port() -> None:
    exceeded: list[tuple[Surface, Limit, str]] = []
    made = limits(connections=2, exceeded=exceeded)
    assert [True, True, False] == [made.connect(Surface.HTTP, GREEDY) for _ in range(3)]
    assert made.connect(Surface.PULSAR, GREEDY)
    assert made.connect(Surface.HTTP, MODEST)
    made.disconnect(Surface.HTTP, GREEDY)
    assert made.connect(Surface.HTTP, GREEDY)
    assert [(Surface.HTTP, Limit.CONNECTIONS, GREEDY)] == exceeded


def test_brokers_are_not_limited() -> None:
    exceeded: list[tuple[Surface, Limit, str]] = []
    made = limits(connections=1, requests=1, bytes_=1, exceeded=exceeded)
    made.unlimited = frozenset({of_role("broker")})
    for _ in range(10):
        assert made.connect(Surface.HTTP, of_role("broker"))
        made.took(of_role("broker"), 0, requests=100, received_bytes=100)
        assert made.excess(Surface.HTTP, of_role("broker"), 0) is None
    assert [] == exceeded


def test_the_longer_wait_counts_and_both_ports_share_the_rates() -> None:
    exceeded: list[tuple[Surface, Limit, str]] = []
    made = limits(requests=10, bytes_=100, exceeded=exceeded)
    made.took(GREEDY, 0, requests=25, received_bytes=500)
    assert Excess(limit=Limit.BYTES, wait_ms=3_010) == made.excess(Surface.PULSAR, GREEDY, 0)
    made.took(GREEDY, 0, requests=25)
    assert Excess(limit=Limit.REQUESTS, wait_ms=3_100) == made.excess(Surface.HTTP, GREEDY, 0)
    assert [
        (Surface.PULSAR, Limit.BYTES, GREEDY),
        (Surface.HTTP, Limit.REQUESTS, GREEDY),
    ] == exceeded


@pytest.mark.parametrize(
    ("address", "alone", "shared"),
    [
        ("10.0.0.7", "address 10.0.0.7", "address 10.0.0.7"),
        ("::ffff:10.0.0.7", "address 10.0.0.7", "address 10.0.0.7"),
        ("2001:db8:0:1:2:3:4:5", "address 2001:db8:0:1:2:3:4:5", "address 2001:db8:0:1::/64"),
        ("fe80::1%eth0", "address fe80::1", "address fe80::/64"),
        ("no\naddress", r"address 'no\naddress'", r"address 'no\naddress'"),
    ],
)
def test_the_identity_of_an_address(address: str, alone: str, shared: str) -> None:
    """A broker's address has no limits. Its neighbours have."""
    made = limits()
    assert (alone, shared) == (of_host(address), made.of_address(address))
    made.unlimited = frozenset({alone})
    assert alone == made.of_address(address)


def test_a_role_is_no_address() -> None:
    assert of_role("10.0.0.7") != of_host("10.0.0.7")


@pytest.mark.parametrize("limit", list(Limit))
def test_each_sentence_names_the_identity_and_the_setting(limit: Limit) -> None:
    sentence = limits(bytes_=7).problem(limit, GREEDY)
    assert sentence.startswith("role 'greedy' ")
    assert "(setting identity_" in sentence
