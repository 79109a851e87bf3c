"""Compute how much of its resources a broker uses, from counters at two moments and the limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from equipoise.channel.core.errors import CallerError
from equipoise.shedder.loads import DECLARED_MAX, FIGURE_MAX, Resources, Use, check_unit

_MIB: Final = 1 << 20
_BYTE_KBIT: Final = 8 / 1_000
_MBIT_KBIT: Final = 1_000.0
_GBIT_KBIT: Final = 1_000_000.0


def _amounts(given: object) -> object:
    """Return what `UNIT=AMOUNT,UNIT=AMOUNT` says."""
    if not isinstance(given, str):
        return given
    if not all("=" in each for each in given.split(",")):
        raise PydanticCustomError("amounts", "write it as UNIT=AMOUNT, such as tokens/s=2000")
    return dict(each.rpartition("=")[::2] for each in given.split(","))


def _unit(name: str) -> str:
    try:
        return check_unit(name)
    except CallerError as error:
        raise PydanticCustomError("unit", "{problem}", {"problem": str(error)}) from None


Capacities = Annotated[
    dict[
        Annotated[str, AfterValidator(_unit)],
        Annotated[float, Field(gt=0, le=FIGURE_MAX, allow_inf_nan=False)],
    ],
    BeforeValidator(_amounts),
    Field(max_length=DECLARED_MAX),
]
"""How much of each unit in which services declare costs a broker can take. A text such as
`tokens/s=2000,seats=30` is read, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters at the moment `at_ms` (boot time).

    `cpu_seconds` includes ended child processes. `memory_bytes` is the present use. `bytes_in` and
    `bytes_out` come from the network cards.
    """

    at_ms: int
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The available CPUs, memory, and network capacity in each direction. 0: unknown."""

    cpu_cores: float
    memory_bytes: int
    network_kbits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A network card: its counters, and its speed in Mbit/s (0: unknown)."""

    name: str
    speed_mbits: int
    bytes_in: int
    bytes_out: int


def resources_between(
    before: Counters, now: Counters, limits: Limits, *, reported_in: float, reported_out: float
) -> Resources | None:
    """Return the use of each resource between `before` and `now`; None if no time has passed.

    A counter that went back counts as unchanged: a child took its counts with it, or a card was
    recreated. `reported_in` and `reported_out` are the bytes per second that services report. They
    are a lower bound for network use, because no card counts loopback traffic.
    """
    seconds = (now.at_ms - before.at_ms) / 1_000
    if seconds <= 0:
        return None

    def network_use(counted_before: int, counted: int, reported: float) -> Use:
        return Use(
            used=max((counted - counted_before) / seconds, reported, 0.0) * _BYTE_KBIT,
            limit=limits.network_kbits,
        )

    return Resources(
        cpu=Use(
            used=100 * max(now.cpu_seconds - before.cpu_seconds, 0.0) / seconds,
            limit=100 * limits.cpu_cores,
        ),
        memory=Use(used=now.memory_bytes / _MIB, limit=limits.memory_bytes / _MIB),
        bandwidth_in=network_use(before.bytes_in, now.bytes_in, reported_in),
        bandwidth_out=network_use(before.bytes_out, now.bytes_out, reported_out),
    )


def default_capacity(cpu_cores: float | None, *, allowed: float) -> int:
    """Return the capacity of a broker, in percent of a core. `cpu_cores` is what the setting says,
    `allowed` what the system gives it. Without the former it computes on one core at most, as
    each Python process does.
    """
    return max(1, round(100 * (min(1.0, allowed) if cpu_cores is None else cpu_cores)))


def counting_cards(cards: Iterable[Card]) -> list[Card]:
    """Return the cards to count: those with a speed, if there are any. Traffic of virtual cards
    goes through these, too.
    """
    found = list(cards)
    return [card for card in found if card.speed_mbits > 0] or found


def network_kbits(cards: Iterable[Card], *, nic_speed_gbps: float | None) -> float:
    """Return the network capacity in each direction: the setting, else the sum of the cards, else
    0.
    """
    if nic_speed_gbps is not None:
        return nic_speed_gbps * _GBIT_KBIT
    return sum(card.speed_mbits for card in cards) * _MBIT_KBIT
