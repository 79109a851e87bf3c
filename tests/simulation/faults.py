"""The fault model as data: frequency, duration and schedule of faults.

Durations are true time in milliseconds. Chances are per thousand. The comment above each group of
fields names the code that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# First and last value, both included.
Span = tuple[int, int]

NEVER: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A process is killed. It restarts after `back_after_ms`; None means not before faults stop.

    With `loses_directory` it restarts without its instance ids and snapshot.
    """

    host: str
    back_after_ms: int | None
    loses_directory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A process stops for `for_ms`, or its machine sleeps. Events wait for it.

    With `hidden` its boot clock stands still, as in a virtual machine. Its wall clock runs on.
    """

    host: str
    for_ms: int
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """A broker loses the log for `for_ms`, and reconnects `reconnect_ms` later."""

    host: str
    for_ms: int
    reconnect_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """No broker reaches the log for `for_ms`. Each reconnects within `Faults.reconnect_ms`."""

    for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WallJump:
    """The wall clock of a machine is set forward or back."""

    host: str
    by_ms: int


Trouble = Crash | Pause | CutOff | Outage | WallJump


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """One trouble at a true time, counted from the beginning of the run."""

    at_ms: int
    trouble: Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What may go wrong in a run. The defaults cause hardly any fault; clocks deviate by up to 1
    %.
    """

    # The way to the log and back (`courier.Courier`, `world`, `host.Host`).
    append_ms: Span = (0, 5)
    read_ms: Span = (0, 5)
    # Lost silently; refused with an error; or failed with an error although the record is on the
    # log.
    lost_permille: int = NEVER
    refused_permille: int = NEVER
    doubtful_permille: int = NEVER
    # An append arrives twice, or so late that its author has moved on or died.
    twice_permille: int = NEVER
    late_permille: int = NEVER
    late_ms: Span = (100, 8_000)
    # The same for declarations of death, which are rare.
    late_death_permille: int = NEVER
    # A delivery takes longer: a reader lags.
    lag_permille: int = NEVER
    lag_ms: Span = (50, 4_000)
    # The log skips offsets: a few, or as many as SQLite skips after a restart of its machine.
    gap_permille: int = 20
    leap_permille: int = NEVER

    # Messages from broker to broker (`post.Post`): lost, late and out of order, or twice.
    direct_ms: Span = (0, 5)
    direct_lost_permille: int = NEVER
    direct_late_permille: int = NEVER
    direct_twice_permille: int = NEVER
    direct_late_ms: Span = (100, 6_000)

    # Machines and processes (`troubles.Troubles`): on average one trouble per broker in
    # `trouble_every_ms`.
    trouble_every_ms: int = NEVER
    crash_weight: int = 3
    lose_directory_weight: int = 1
    pause_weight: int = 3
    hidden_pause_weight: int = 1
    cut_off_weight: int = 3
    wall_jump_weight: int = 1
    back_after_ms: Span = (100, 10_000)
    pause_ms: Span = (50, 12_000)
    cut_off_ms: Span = (50, 12_000)
    wall_jump_ms: Span = (-2_000, 2_000)
    clock_rate_error_ppm: int = 10_000
    timer_late_ms: Span = (0, 3)
    fsync_ms: Span = (0, 4)
    # A snapshot exists but is unusable, so the log is folded from its beginning.
    useless_snapshot_permille: int = 200

    # Outages of the log.
    outage_every_ms: int = NEVER
    outage_ms: Span = (1_500, 30_000)
    reconnect_ms: Span = (0, 500)

    # The service (`host.SimulatedService`): it answers in `service_ms`, refuses, hangs past its
    # deadline, or dies with its process.
    service_ms: Span = (1, 40)
    refuses_permille: int = NEVER
    hangs_permille: int = NEVER
    dies_permille: int = NEVER

    scheduled: tuple[Scheduled, ...] = ()
