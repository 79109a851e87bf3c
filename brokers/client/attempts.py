"""Decide whether and when to send a request again, and which addresses to spare for now. Pure: time
and chance are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

OUTCOME: Final = "X-Equipoise-Outcome"
"""The header of an answer that a worker gave in place of its program, if the request may be sent
again: an `RequestOutcome`."""

FORWARDED_BY: Final = "X-Equipoise-Forwarded-By"
"""The header of a request that a worker forwarded to the owner of the key: the broker that
forwarded it."""

IDEMPOTENT: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT"})
"""Methods whose repetition does no harm (RFC 9110, section 9.2.2)."""

PAUSES_MS: Final = (50, 100, 200, 400, 800)
"""The pause after each failure in a row; the last one repeats. Each pause is random, from half of
it to all of it."""

FAILURES_MAX: Final = 3
"""Failed connections in a row after which a breaker opens."""

OPEN_MS: Final = 1_000
"""How long a breaker spares an address before one request tries it again."""

ADDRESSES_MAX: Final = 1_000
"""Addresses whose failures are remembered, far more than a cluster has brokers. The oldest is
forgotten first."""

_REDIRECTS: Final = frozenset({307, 308})
_MISDIRECTED: Final = 421
_UNAVAILABLE: Final = frozenset({502, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What to send: `path` with its query begins with a slash. A body is in memory, so that it can
    be sent again.
    """

    method: str
    namespace: str
    key: str
    path: str
    is_idempotent: bool
    headers: Mapping[str, str]
    content: bytes | None
    json: object

    def __str__(self) -> str:
        return f"an answer to {self.method} {self.path} for {self.namespace}/{self.key}"


class RequestOutcome(Enum):
    """What is known about a request without an answer of the program: it was not executed, or it
    may have been.
    """

    NOT_STARTED = "not-started"
    UNKNOWN = "unknown"


def outcome_of(status: int, mark: str | None, *, is_to_peer: bool) -> RequestOutcome | None:
    """Return what an answer says about its request; None if it is the answer of the program.

    `mark` is the header `OUTCOME`. `is_to_peer`: its `Location` is the same path at another
    address, as programs without a mark redirect.
    """
    if status == _MISDIRECTED or (status in _REDIRECTS and (mark is not None or is_to_peer)):
        return RequestOutcome.NOT_STARTED
    marks = {outcome.value: outcome for outcome in RequestOutcome}
    return marks.get(mark or "") if status in _UNAVAILABLE else None


def may_repeat(outcome: RequestOutcome, *, is_idempotent: bool) -> bool:
    """Return whether to send a request again: it was certainly not executed, or may be executed
    twice.
    """
    return outcome is RequestOutcome.NOT_STARTED or is_idempotent


def pause_ms(failures: int, chance: float) -> int:
    """Return the pause after `failures` in a row, from 1 on. `chance` is from 0 to 1."""
    longest = PAUSES_MS[min(failures, len(PAUSES_MS)) - 1]
    return round(longest * (1 + chance) / 2)


def peer_in(location: str, target: str) -> str | None:
    """Return the base address of a redirect to `target` (path and query) at another address; None
    if it leads elsewhere.
    """
    address = location.removesuffix(target)
    is_address = (
        address != location
        and address.startswith(("http://", "https://"))
        and not {"?", "#"} & set(address)
    )
    return address if is_address else None


class Breakers:
    """One circuit breaker for each address. It opens after some failed connections in a row, and
    lets one request try each second.
    """

    def __init__(self) -> None:
        # Failures in a row, and until when the address is spared.
        self._failures: dict[str, tuple[int, int]] = {}

    def wait_ms(self, address: str, now_ms: int) -> int:
        """Return how long to spare an address; 0 to send now. After a breaker has been open, only
        the first caller gets 0.
        """
        failures, until_ms = self._failures.get(address, (0, 0))
        if failures < FAILURES_MAX:
            return 0
        if now_ms < until_ms:
            return until_ms - now_ms
        self._failures[address] = failures, now_ms + OPEN_MS  # Others wait for this attempt.
        return 0

    def succeeded(self, address: str) -> None:
        """Close the breaker: the address took a connection."""
        self._failures.pop(address, None)

    def failed(self, address: str, now_ms: int) -> bool:
        """Count a failed connection. Return whether the breaker is open."""
        failures, _ = self._failures.pop(address, (0, 0))  # Makes it the newest entry.
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = failures + 1, now_ms + OPEN_MS
        return failures + 1 >= FAILURES_MAX
