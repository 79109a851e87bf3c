"""What the demo's callers call: many keys, a few of them far more often than the others.

May live here: streams of calls as values.
"""

from __future__ import annotations

from typing import Final

from equipoise.brokers.local.demo.calling import Stream

# A caller waits for its answer, a few milliseconds: this often it can call and still keep its pace through a short pause.
_CALLS_PER_CALLER_S: Final = 50.0


def uneven(namespace: str, *, keys: int, calls_per_second: float) -> tuple[Stream, ...]:
    """Streams of `keys` keys that make so many calls in all; the n-th key is called an n-th as often as the first."""
    shares = [1 / (number + 1) for number in range(keys)]
    rates = [share / sum(shares) * calls_per_second for share in shares]
    return tuple(
        Stream(key=f"{namespace}/key-{number}", calls_per_second=rate, callers=1 + int(rate / _CALLS_PER_CALLER_S))
        for number, rate in enumerate(rates)
    )


def stubborn(namespace: str, *, keys: int, calls_per_second: float, callers: int = 1) -> tuple[Stream, ...]:
    """Streams to the same keys, the busiest first, by callers who keep calling former owners; so many of both for each key."""
    return tuple(
        Stream(key=f"{namespace}/key-{number}", calls_per_second=calls_per_second, callers=callers, stubborn=True) for number in range(keys)
    )
