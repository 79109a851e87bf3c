"""Define the events that `Agent.step` takes: facts from the log, the service, the operator or the
clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.brokers.agent.requests import Intent
from equipoise.brokers.balancing.placement import Placement
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader


class Instant(NamedTuple):
    """One reading of both clocks. `boot_ms` runs on while the machine sleeps and never jumps;
    `wall_ms` is Unix time.
    """

    boot_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The next entries of the log. `caught_up` is set once they reach the log's end at the broker's
    start.
    """

    entries: Sequence[Entry]
    caught_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Resynced:
    """Truncation removed the next records. Continue with the restored `reader`, which skips
    them.
    """

    reader: Reader


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `Agent.wake_at_ms` is reached, or the host wants a check now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed:
    """The log did not take the attempt because of `error`.

    With `in_doubt` the record may still be on the log or appear there. Without it, it never will.
    """

    attempt: int
    error: EquipoiseError
    in_doubt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceIdWritten:
    """The instance id is fsynced in the broker's data directory."""

    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkWritten:
    """The broker's data directory durably notes that the log was read up to `offset`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """A process of this machine has ended. It may have joined with any of `instance_ids`."""

    instance_ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The service is warm for `bundle`, or refuses it because of `problem`."""

    bundle: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The service has opened `bundle`, or could not because of `problem`."""

    bundle: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenContinues:
    """The service still receives state for `bundle`, so its deadline begins again."""

    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The service has closed `bundle`. `handover` is for the next owner; None after an error."""

    bundle: str
    handover: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The service has discarded what it prepared for `bundle`."""

    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutsFound:
    """Where the owner cuts its splitting `bundle` (hash points); empty, with a `problem`, if it
    cannot.

    `asked_at` is the `last` of the entry in `FindCuts`. It identifies the answer if the bundle is
    split, cancelled and split again.
    """

    bundle: str
    asked_at: int
    cuts: tuple[int, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A client looked up a bundle that no broker serves."""

    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """An operator or the balancer requests something. The result is an `Answered` with this
    `ticket`.

    `requested_by` is the operator's name for the record, `admin:NAME`; None for the balancer.
    """

    ticket: int
    intent: Intent
    requested_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """Move every bundle away. With `leave`, then leave the cluster, by `deadline_ms` of boot time.
    `requested_by` is as in `Requested`.
    """

    leave: bool
    deadline_ms: int
    requested_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainRequested:
    """End a drain: leave once all bundles are away, and join again. Without effect if the broker
    does not drain, or stops.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AssuranceAsked:
    """The incarnation `asker` asks the incarnation `asked` for an assurance (section 4). The result
    is an `AssuranceAnswered` with this `ticket`.
    """

    ticket: int
    cluster: str
    asker: int
    asked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assured:
    """The incarnation `by` gave `asker` the assurance that its question with this `number`
    requested.
    """

    cluster: str
    asker: int
    by: int
    number: int


@dataclass(frozen=True, slots=True)
class Reachable:
    """The broker has answered at its own address: it may join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChosen:
    """Use this placement policy from now on. It may know the load."""

    placement: Placement


Event = (
    Read
    | Resynced
    | Tick
    | AppendFailed
    | InstanceIdWritten
    | MarkWritten
    | ProcessEnded
    | Prepared
    | Opened
    | OpenContinues
    | Closed
    | Discarded
    | CutsFound
    | Wanted
    | Requested
    | DrainRequested
    | UndrainRequested
    | AssuranceAsked
    | Assured
    | Reachable
    | PlacementChosen
)
