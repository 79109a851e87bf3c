"""Remember which brokers refused a bundle, and when they may be asked again.

`brokers.agent.leading` decides what counts as a refusal, and which broker is asked instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ASK_AGAIN_MS: Final = 750
"""Back-off after a first refusal, so that others get a turn. Shorter than the time after which
others do the leader's work, so that the leader asks again."""

ASK_AGAIN_MS_MAX: Final = 60_000
"""Longest back-off, doubled per refusal. Each try costs three or four records. An operator who
fixed the service waits at most this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The last refusal of a broker, and the number of refusals in a row."""

    at_ms: int
    in_a_row: int

    @property
    def back_off_ms(self) -> int:
        # Bounded, or the integer would become huge.
        return min(ASK_AGAIN_MS << min(self.in_a_row - 1, 16), ASK_AGAIN_MS_MAX)

    @property
    def forgotten_at_ms(self) -> int:
        """After this a refusal counts as the first again: the bundle was open meanwhile, or the
        broker was not asked.
        """
        return self.at_ms + self.back_off_ms + ASK_AGAIN_MS_MAX


@dataclass(slots=True, kw_only=True)
class _Refused:
    """A bundle's last refusals by incarnation. Do not ask the `resting` ones before `until_ms`.

    `resting` is cached: a leader may ask about thousands of bundles repeatedly.
    """

    refusals: dict[int, _Refusal]
    resting: frozenset[int] = frozenset()
    until_ms: int = 0

    def look(self, now_ms: int) -> None:
        """Update which brokers are resting now."""
        ends_ms = {
            incarnation: refusal.at_ms + refusal.back_off_ms
            for incarnation, refusal in self.refusals.items()
        }
        rests = {incarnation: end_ms for incarnation, end_ms in ends_ms.items() if now_ms < end_ms}
        self.resting = frozenset(rests)
        self.until_ms = min(rests.values(), default=self.forgotten_at_ms)

    @property
    def forgotten_at_ms(self) -> int:
        """When the last refusal is forgotten."""
        return max(refusal.forgotten_at_ms for refusal in self.refusals.values())


class Refusals:
    """Per bundle, the incarnations that have refused it. Times are boot time in milliseconds."""

    def __init__(self) -> None:
        """Create an empty memory of refusals."""
        self._refused: dict[str, _Refused] = {}

    def note(self, bundle: str, refuser: int, now_ms: int) -> None:
        """Note a refusal of a bundle. Drop old ones, so that memory stays bounded."""
        refused = self._refused.get(bundle)
        earlier = {} if refused is None else refused.refusals
        known = {
            incarnation: refusal
            for incarnation, refusal in earlier.items()
            if now_ms < refusal.forgotten_at_ms
        }
        before = known.get(refuser)
        known[refuser] = _Refusal(
            at_ms=now_ms, in_a_row=1 if before is None else before.in_a_row + 1
        )
        self._refused[bundle] = _Refused(refusals=known)

    def forget(self, bundle: str) -> None:
        """Forget a bundle that no longer exists."""
        self._refused.pop(bundle, None)

    def to_avoid(self, bundles: Sequence[str], now_ms: int) -> Mapping[str, frozenset[int]]:
        """Return, for each of `bundles` with refusals, the incarnations that must not be asked
        yet.
        """
        avoid = {}
        for name in [name for name in bundles if name in self._refused]:
            refused = self._refused[name]
            if now_ms >= refused.until_ms:
                refused.look(now_ms)
            if refused.resting:
                avoid[name] = refused.resting
            elif now_ms >= refused.forgotten_at_ms:
                del self._refused[name]
        return avoid
