"""The fault model, as data: how often what goes wrong, for how long, and what is to go wrong at which time.

May live here: frozen data without behaviour. Durations are true time in milliseconds, chances are per thousand. Who draws
from it is named beside each group of fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# From the first to the second, both included.
Span = tuple[int, int]

NEVER: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A process is killed; it starts again after `back_after_ms`, or not before the calm if that is None.

    With `loses_directory` it comes back without its nonces and snapshot.
    """

    host: str
    back_after_ms: int | None
    loses_directory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A process takes no step for `for_ms`: stopped, or its machine asleep. What arrives waits for it.

    With `hidden` its boot clock stands still meanwhile, as that of a virtual machine may; its wall clock does not.
    """

    host: str
    for_ms: int
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """A broker is cut off from the log for `for_ms`, and gets back to it `reconnect_ms` later."""

    host: str
    for_ms: int
    reconnect_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Nobody reaches the log for `for_ms`; each broker gets back to it within `Faults.reconnect_ms` of its own."""

    for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WallJump:
    """The wall clock of a machine is set, forward or back."""

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
    """What may go wrong in a run; with the defaults hardly anything does, and clocks run wrong by up to 1 %."""

    # The way to the log and back (`faulty_log.FaultyLog`, `host.Host`).
    append_ms: Span = (0, 5)
    read_ms: Span = (0, 5)
    # An append is lost without a word, refused with an error, or fails with an error and is on the log all the same.
    lost_permille: int = NEVER
    refused_permille: int = NEVER
    doubtful_permille: int = NEVER
    # An append arrives a second time, or late: long after its author thinks of something else, or has died.
    twice_permille: int = NEVER
    late_permille: int = NEVER
    late_ms: Span = (100, 8_000)
    # A delivery takes longer: a reader lags.
    lag_permille: int = NEVER
    lag_ms: Span = (50, 4_000)
    # The log skips offsets, a few or as many as SQLite does after a restart of its machine.
    gap_permille: int = 20
    leap_permille: int = NEVER

    # Machines and processes (`troubles.Troubles`): one trouble per broker and `trouble_every_ms` on average.
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
    # A snapshot is there and cannot be used: the log is folded from its beginning.
    useless_snapshot_permille: int = 200

    # Outages of the log.
    outage_every_ms: int = NEVER
    outage_ms: Span = (1_500, 30_000)
    reconnect_ms: Span = (0, 500)

    # The service (`service.SimulatedService`): it answers in `service_ms`, refuses, hangs beyond its deadline, or dies with
    # its process.
    service_ms: Span = (1, 40)
    refuses_permille: int = NEVER
    hangs_permille: int = NEVER
    dies_permille: int = NEVER

    scheduled: tuple[Scheduled, ...] = ()
