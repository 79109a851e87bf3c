"""Define observations, which brokers keep for audits, and the port that stores them.

No verdict depends on them, and no broker reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import orjson

from equipoise.channel.core.errors import PeerError

Ended = Literal["closed", "reshaped", "lease_over", "abandoned", "stopped"]
"""Why serving ended: the bundle was moved or given back; split or merged; the lease ran out (a
renewal may continue the ownership); the service overran its deadline; the broker ended."""


class Kind(StrEnum):
    """The kind of an observation: the name of its table, or the end of its topic's name."""

    SERVING = "serving"
    LOADS = "loads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One document (a JSON object) that `broker` wrote at `at_ms`, Unix time by its own clock."""

    at_ms: int
    broker: str
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When one incarnation of a broker served one bundle under one token.

    * `started_ns`, `answered_ns`: boot time (CLOCK_BOOTTIME), comparable within one run of a
      machine, `boot`. `answered_ns` is None while the broker serves, then the last moment at which
      it served or may have.
    * `lease_deadline_ns`: end of the last lease, by the same clock.
    * `by_token`: served past the lease, because the namespace serves on. Only the token guards
      there.
    * `at_ms`, `at_ns`: one moment by wall and boot clock, to link the two.
    * `log`: identity of the log. Tokens of different logs are not comparable.
    """

    log: str
    broker: str
    incarnation: int
    bundle: str
    token: int
    boot: str
    started_ns: int
    answered_ns: int | None
    lease_deadline_ns: int
    ended: Ended | None
    by_token: bool
    at_ms: int
    at_ns: int

    def observation(self) -> Observation:
        """Return it as stored: a flat JSON object with these fields."""
        return Observation(at_ms=self.at_ms, broker=self.broker, document=orjson.dumps(self))


class Observations(Protocol):
    """Stores observations in order, for as long as the adapter keeps them.

    Failed writes are lost and logged; safety does not depend on them. Calls may block. Use a handle
    from one thread at a time.
    """

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        """Add observations. Raise `ObservationsUnavailable`; some may have been stored, and the
        next call may succeed.
        """
        ...


class ObservationsUnavailable(PeerError):
    """Observations cannot be stored; brokers serve on."""

    def __init__(self, *, place: str, problem: str) -> None:
        """`place` is where observations are stored, `problem` how it failed."""
        self.place = place
        self.problem = problem
        super().__init__(
            f"observations cannot be kept {place}: {problem}; brokers serve on, and audits miss"
            " what is lost meanwhile"
        )
