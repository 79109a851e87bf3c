"""Define the demo's calls: many keys, a few of them called far more often than the others."""

from __future__ import annotations

from typing import Final

from equipoise.brokers.local.demo.calling import Stream

# A caller waits a few milliseconds for its answer. At this rate it keeps its pace through a short pause.
_CALLS_PER_CALLER_S: Final = 50.0


def uneven(namespace: str, *, keys: int, calls_per_second: float) -> tuple[Stream, ...]:
    """Return streams of `keys` keys with this total rate. The n-th key is called an n-th as often as the first."""
    shares = [1 / (number + 1) for number in range(keys)]
    rates = [share / sum(shares) * calls_per_second for share in shares]
    return tuple(
        Stream(key=f"{namespace}/key-{number}", calls_per_second=rate, callers=1 + int(rate / _CALLS_PER_CALLER_S))
        for number, rate in enumerate(rates)
    )


def stubborn(namespace: str, *, keys: int, calls_per_second: float, callers: int = 1) -> tuple[Stream, ...]:
    """Return streams of stubborn callers to the same keys, the busiest first. `callers` and `calls_per_second` are per key."""
    return tuple(
        Stream(key=f"{namespace}/key-{number}", calls_per_second=calls_per_second, callers=callers, stubborn=True) for number in range(keys)
    )
