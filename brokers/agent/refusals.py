"""Refusals: which brokers have not taken a bundle, and when they may be asked for it again.

May live here: the memory of refusals and the arithmetic of the back-off. What counts as a refusal, and who is asked instead,
is decided in `brokers.agent.leading`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ASK_AGAIN_MS: Final = 750
"""How long a broker that refuses for the first time is left in peace: so the others have their turn. Shorter than the time
after which other brokers do the leader's work, so that it is the leader who asks again."""

ASK_AGAIN_MS_MAX: Final = 60_000
"""How long at most, doubled with each refusal: a service that cannot open a bundle costs three or four records a try, and a
minute is what an operator may have to wait for after he has mended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The last refusal of a broker, and how many there were in a row."""

    at_ms: int
    in_a_row: int

    @property
    def back_off_ms(self) -> int:
        # Not by a power of any number of refusals: an integer of that many bits is nobody's friend.
        return min(ASK_AGAIN_MS << min(self.in_a_row - 1, 16), ASK_AGAIN_MS_MAX)

    @property
    def forgotten_at_ms(self) -> int:
        """After this a further refusal is a first one again: between the two the bundle was open, or nobody asked."""
        return self.at_ms + self.back_off_ms + ASK_AGAIN_MS_MAX


class Refusals:
    """Per bundle the incarnations that have refused it. Times are boot time in milliseconds."""

    def __init__(self) -> None:
        """Nobody has refused anything."""
        self._refusals: dict[str, dict[int, _Refusal]] = {}

    def note(self, bundle: str, refuser: int, now_ms: int) -> None:
        """A broker has refused a bundle; what is long past about it is forgotten, so that this does not grow."""
        known = {
            incarnation: refusal for incarnation, refusal in self._refusals.get(bundle, {}).items() if now_ms < refusal.forgotten_at_ms
        }
        before = known.get(refuser)
        known[refuser] = _Refusal(at_ms=now_ms, in_a_row=1 if before is None else before.in_a_row + 1)
        self._refusals[bundle] = known

    def forget(self, bundle: str) -> None:
        """The bundle is no more."""
        self._refusals.pop(bundle, None)

    def to_avoid(self, bundles: Sequence[str], now_ms: int) -> Mapping[str, frozenset[int]]:
        """For each of `bundles` that has any: the incarnations that are not to be asked yet."""
        avoid = {}
        for name in [name for name in bundles if name in self._refusals]:
            refusals = self._refusals[name]
            resting = frozenset(incarnation for incarnation, refusal in refusals.items() if now_ms < refusal.at_ms + refusal.back_off_ms)
            if resting:
                avoid[name] = resting
            elif all(now_ms >= refusal.forgotten_at_ms for refusal in refusals.values()):
                del self._refusals[name]
        return avoid
