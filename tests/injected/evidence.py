"""False evidence: an honest channel, and one changed or added document of serving that shows a
broken promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any, Final

import orjson

from equipoise.spark_jobs.sequence.rows import Arrival
from tests.injected.honest import Run, busy, play
from tests.injected.injection import Injected, Kind, injected

Stretch = dict[str, Any]

_SECOND_NS: Final = 1_000_000_000

# More than the difference between clocks that the audit tolerates.
_LONG_NS: Final = 8 * _SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """The ended stretches of one run, in order of time, and the places of their documents in
    `run.serving`.
    """

    run: Run
    places: list[int]
    stretches: list[Stretch]

    def pairs(self, fits: Callable[[Stretch, Stretch], bool]) -> list[tuple[int, int]]:
        """Return the pairs of stretches that fit: of one bundle, the second of another incarnation
        with a later token.
        """
        return [
            (one, other)
            for one, first in enumerate(self.stretches)
            for other, second in enumerate(self.stretches)
            if first["bundle"] == second["bundle"]
            and first["incarnation"] != second["incarnation"]
            and first["token"] < second["token"]
            and fits(first, second)
        ]

    def with_document(self, place: int, stretch: Stretch) -> list[Arrival]:
        """Return all arrivals, with this document in place of the one at `place`."""
        serving = list(self.run.serving)
        serving[self.places[place]] = serving[self.places[place]]._replace(
            value=orjson.dumps(stretch)
        )
        return Run(channel=self.run.channel, serving=serving).arrivals

    def and_document(self, place: int, stretch: Stretch) -> list[Arrival]:
        """Return all arrivals, with this document a moment after the one at `place`, or when
        it was noted.
        """
        serving = list(self.run.serving)
        beside = serving[self.places[place]]
        at_ms = max(beside.at_ms + 1, stretch["at_ms"])
        serving.append(
            beside._replace(offset=len(serving) + 1, at_ms=at_ms, value=orjson.dumps(stretch))
        )
        return Run(channel=self.run.channel, serving=serving).arrivals


@cache
def _served(seed: int) -> _Served:
    run = play(busy(), seed, evidence=True)
    documents = [orjson.loads(arrival.value or b"") for arrival in run.serving]
    places = [
        place for place, stretch in enumerate(documents) if stretch["answered_ns"] is not None
    ]
    return _Served(run=run, places=places, stretches=[documents[place] for place in places])


def _injected(arrivals: list[Arrival], rule: str, stretch: Stretch, *tokens: int) -> Injected:
    return injected(arrivals, rule, f"bundle:{stretch['bundle']}", *(tokens or (stretch["token"],)))


def _serves_beside_the_next(served: _Served, rng: Random) -> Injected | None:
    """Let a former server continue until the next one ends, with a valid lease."""
    pairs = served.pairs(
        lambda one, other: (
            other["answered_ns"] > other["started_ns"] and other["token"] - one["token"] < _NEAR
        )
    )
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    until_ns = served.stretches[other]["answered_ns"]
    stretch = {
        **served.stretches[one],
        "answered_ns": until_ns,
        "lease_deadline_ns": until_ns + _SECOND_NS,
    }
    return _injected(
        served.with_document(one, stretch),
        "served_two_at_once",
        stretch,
        stretch["token"],
        served.stretches[other]["token"],
    )


def _answers_past_its_lease(served: _Served, rng: Random) -> Injected:
    place = rng.randrange(len(served.stretches))
    stretch = dict(served.stretches[place])
    stretch["answered_ns"] = stretch["lease_deadline_ns"] + rng.randrange(
        _SECOND_NS // 10, _SECOND_NS
    )
    return _injected(served.with_document(place, stretch), "served_past_lease", stretch)


def _serves_under_an_old_token(served: _Served, rng: Random) -> Injected | None:
    """Let a former server serve again with its old token, long after another one owns the
    bundle.
    """
    pairs = served.pairs(
        lambda one, other: (
            other["at_ns"] - one["at_ns"] > 0 and other["token"] - one["token"] < _NEAR
        )
    )
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    began_ns = served.stretches[other]["answered_ns"] + _LONG_NS
    stretch = {
        **served.stretches[one],
        **_at(served.stretches[one], began_ns),
        "answered_ns": None,
        "ended": None,
    }
    stretch["lease_deadline_ns"] = began_ns + _SECOND_NS
    return _injected(served.and_document(other, stretch), "served_old_token", stretch)


def _at(stretch: Stretch, began_ns: int) -> Stretch:
    """Return the fields of a stretch and its document for another beginning."""
    return {
        "started_ns": began_ns,
        "at_ns": began_ns,
        "at_ms": stretch["at_ms"] + (began_ns - stretch["at_ns"]) // 1_000_000,
    }


def _serves_what_it_was_never_given(served: _Served, rng: Random) -> Injected:
    """Let a broker serve that never had the bundle under this token."""
    place = rng.randrange(len(served.stretches) // 4, len(served.stretches) // 2)
    stretch = dict(served.stretches[place])
    others = sorted(
        {
            (one["broker"], one["incarnation"])
            for one in served.stretches
            if one["broker"] != stretch["broker"]
        }
    )
    stretch["broker"], stretch["incarnation"] = rng.choice(others)
    return _injected(served.and_document(place, stretch), "served_without_ownership", stretch)


def _serves_what_is_not_there(served: _Served, rng: Random) -> Injected:
    """Let a broker serve a bundle that does not exist, with a token beyond the end of the log."""
    place = rng.randrange(len(served.stretches) // 4, len(served.stretches) // 2)
    stretch = {
        **served.stretches[place],
        "bundle": "tenant/nothing/0x00000000_0xffffffff",
        "token": served.run.channel[-1].offset + 1,
    }
    return _injected(served.and_document(place, stretch), "served_without_ownership", stretch)


def _serves_before_it_is_given(served: _Served, rng: Random) -> Injected | None:
    """Let a stretch begin long before the record that gave the bundle."""
    late = [
        place for place, stretch in enumerate(served.stretches) if stretch["started_ns"] >= _LONG_NS
    ]
    if not late:
        return None
    place = rng.choice(late)
    stretch = dict(served.stretches[place])
    stretch["started_ns"] = max(stretch["started_ns"] - rng.randrange(_LONG_NS, 2 * _LONG_NS), 0)
    return _injected(served.with_document(place, stretch), "served_before_owned", stretch)


# The audit remembers only the latest ownerships of a bundle, so tokens must be near each other.
_NEAR: Final = 400

_LIES: Final[tuple[Callable[[_Served, Random], Injected | None], ...]] = (
    _serves_beside_the_next,
    _answers_past_its_lease,
    _serves_under_an_old_token,
    _serves_what_it_was_never_given,
    _serves_what_is_not_there,
    _serves_before_it_is_given,
)


def _inject(
    lie: Callable[[_Served, Random], Injected | None], seed: int, rng: Random
) -> Injected | None:
    return lie(_served(seed), rng)


LIES: Final = tuple(Kind(name=lie.__name__[1:], inject=partial(_inject, lie)) for lie in _LIES)
