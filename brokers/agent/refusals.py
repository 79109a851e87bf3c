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


@dataclass(slots=True, kw_only=True)
class _Refused:
    """A bundle's last refusals, by incarnation; `resting` are those not to be asked yet, which is so until `until_ms`.

    It is kept, because a leader asks again and again about bundles that nobody takes, and there may be thousands of them.
    """

    refusals: dict[int, _Refusal]
    resting: frozenset[int] = frozenset()
    until_ms: int = 0

    def look(self, now_ms: int) -> None:
        """See who rests now."""
        ends_ms = {incarnation: refusal.at_ms + refusal.back_off_ms for incarnation, refusal in self.refusals.items()}
        rests = {incarnation: end_ms for incarnation, end_ms in ends_ms.items() if now_ms < end_ms}
        self.resting = frozenset(rests)
        self.until_ms = min(rests.values(), default=self.forgotten_at_ms)

    @property
    def forgotten_at_ms(self) -> int:
        """After this nothing is left to be known."""
        return max(refusal.forgotten_at_ms for refusal in self.refusals.values())


class Refusals:
    """Per bundle the incarnations that have refused it. Times are boot time in milliseconds."""

    def __init__(self) -> None:
        """Nobody has refused anything."""
        self._refused: dict[str, _Refused] = {}

    def note(self, bundle: str, refuser: int, now_ms: int) -> None:
        """A broker has refused a bundle; what is long past about it is forgotten, so that this does not grow."""
        refused = self._refused.get(bundle)
        earlier = {} if refused is None else refused.refusals
        known = {incarnation: refusal for incarnation, refusal in earlier.items() if now_ms < refusal.forgotten_at_ms}
        before = known.get(refuser)
        known[refuser] = _Refusal(at_ms=now_ms, in_a_row=1 if before is None else before.in_a_row + 1)
        self._refused[bundle] = _Refused(refusals=known)

    def forget(self, bundle: str) -> None:
        """The bundle is no more."""
        self._refused.pop(bundle, None)

    def to_avoid(self, bundles: Sequence[str], now_ms: int) -> Mapping[str, frozenset[int]]:
        """For each of `bundles` that has any: the incarnations that are not to be asked yet."""
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
