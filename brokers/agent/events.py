"""What happens to a broker: the events that `Agent.step` takes.

May live here: event classes. An event is a fact from outside (the log, the service, the operator, the clock); it decides
nothing. Times are in `Instant`, the second argument of `step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.balancing.placement import Placement
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader


class Instant(NamedTuple):
    """One reading of both clocks. `boot_ms` runs on while the machine sleeps and never jumps; `wall_ms` is Unix time."""

    boot_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The next entries of the log, in order; `caught_up` once they reach the end that the log had when the broker started."""

    entries: Sequence[Entry]
    caught_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Resynced:
    """Truncation took what the broker wanted to read next: it goes on with `reader`, which was restored and has left that out."""

    reader: Reader


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `Agent.wake_at_ms` is reached, or somebody is impatient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed:
    """The log did not take the attempt, because of `error`; with `in_doubt` it may stand on the log, or appear there later.

    Without it the record is not on the log, and never will be by this attempt.
    """

    attempt: int
    error: EquipoiseError
    in_doubt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceWritten:
    """The nonce is fsynced in the broker's data directory."""

    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The service is warm for `bundle`; or it refuses, and `problem` says why."""

    bundle: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The service has opened `bundle`; or it could not, and `problem` says why."""

    bundle: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The service has closed `bundle` and leaves `handover` to the next owner; an error in closing leaves nothing."""

    bundle: str
    handover: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The service has discarded what it prepared for `bundle`."""

    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutsFound:
    """Where the owner cuts its splitting `bundle` (hash points inside it); empty if it cannot, and `problem` says why.

    `asked_at` is the `last` of the entry that `FindCuts` asked about: a bundle may be split, cancelled and split anew while
    the service still thinks about the first time, with other positions.
    """

    bundle: str
    asked_at: int
    cuts: tuple[int, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Somebody looked up a bundle that nobody serves."""

    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """An operator, or the balancer, wants something done; an `Answered` with this `ticket` will tell what came of it."""

    ticket: int
    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """Move everything away; with `leave`, then leave the cluster, after `deadline_ms` of boot time at the latest."""

    leave: bool
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChosen:
    """From now on bundles are placed by this plug, which may bear what is known of the load."""

    placement: Placement


Event = (
    Read
    | Resynced
    | Tick
    | AppendFailed
    | NonceWritten
    | Prepared
    | Opened
    | Closed
    | Discarded
    | CutsFound
    | Wanted
    | Requested
    | DrainRequested
    | PlacementChosen
)
