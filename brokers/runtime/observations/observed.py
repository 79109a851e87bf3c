"""Observations: what brokers put down beside the channel for whoever audits it later; and the port that carries them.

May live here: the values, how they are spelled, and `Observations`. Who makes them is `brokers.runtime.observations.witness` and the load
reports; where they are kept is up to the adapters in `brokers.runtime.observations`. No verdict depends on any of it, and no broker reads
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import orjson

from equipoise.channel.core.errors import PeerError

Ended = Literal["closed", "reshaped", "lease_over", "abandoned", "stopped"]
"""Why a stretch of serving ended: the bundle was given away or back; split or merged; the lease ran out, though the ownership may
go on when it is renewed; the service overran its deadline; the broker ended."""


class Kind(StrEnum):
    """What is observed, and the name of its table or the end of its topic's name."""

    SERVING = "serving"
    LOADS = "loads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One document (a JSON object) that `broker` put down at `at_ms`, Unix time by its own clock."""

    at_ms: int
    broker: str
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """From when until when one incarnation of a broker served one bundle under one token.

    * `started_ns` and `answered_ns` are nanoseconds of boot time (CLOCK_BOOTTIME), which two processes can compare if they were
      read in the same run of one machine, `boot`. `answered_ns` is None while the broker serves, then the last moment at which
      it did, or may have.
    * `lease_deadline_ns` is the end, of the same clock, of the last lease that the incarnation was given.
    * `by_token`: it served past the end of its lease, because the namespace serves on: there only the token guards.
    * `at_ms` and `at_ns` are one moment, by the wall clock and by the boot clock: what links the two.
    * `log` is the identity of the log whose records gave the token; those of another log mean nothing to this one.
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
        """As it is kept: a flat JSON object with these fields."""
        return Observation(at_ms=self.at_ms, broker=self.broker, document=orjson.dumps(self))


class Observations(Protocol):
    """Keeps observations for as long as its adapter says, in the order in which they came.

    Nothing about safety rides on them: what could not be written is lost, and told. Calls may block: a host in an event loop
    makes them in a thread. A handle may be used by one thread at a time.
    """

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        """Add some. Raises `ObservationsUnavailable`; some of them may have been kept then, and the next may succeed."""
        ...


class ObservationsUnavailable(PeerError):
    """What brokers observe cannot be kept; they serve on."""

    def __init__(self, *, place: str, problem: str) -> None:
        """`place` says where observations are kept, `problem` what it did."""
        self.place = place
        self.problem = problem
        super().__init__(f"observations cannot be kept {place}: {problem}; brokers serve on, and audits miss what is lost meanwhile")
