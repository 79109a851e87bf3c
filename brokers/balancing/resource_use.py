"""How much of its resources a broker uses: from counters at two moments, and what there is of each.

May live here: arithmetic over counters. Reading them is `brokers.load.process_use`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from equipoise.shedder.loads import Resources, Use

_MIB: Final = 1 << 20
_BYTE_KBIT: Final = 8 / 1_000
_MBIT_KBIT: Final = 1_000.0
_GBIT_KBIT: Final = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What was counted up to one moment, `at_ms` of boot time.

    `cpu_seconds` are of all processes of the broker, and of those of its children that have ended; `memory_bytes` is what
    they hold now. Bytes in and out are those of the network cards.
    """

    at_ms: int
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What there is: CPUs, memory, and what the network carries each way; 0 where that is not known."""

    cpu_cores: float
    memory_bytes: int
    network_kbits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A network card: its counters, and its speed in Mbit/s, 0 where it says none."""

    name: str
    speed_mbits: int
    bytes_in: int
    bytes_out: int


def resources_between(before: Counters, now: Counters, limits: Limits, *, told_in: float, told_out: float) -> Resources | None:
    """The use of each resource from `before` until `now`; None if no time has passed, since nothing can be said of that.

    A counter that went back, because a child took what it had counted with it, or a card was made anew, counts as one that
    stood still. `told_in` and `told_out` are bytes per second that services say they carry: what goes over loopback, which
    no card counts, is the least that the network is used by.
    """
    seconds = (now.at_ms - before.at_ms) / 1_000
    if seconds <= 0:
        return None

    def kbits(counted_before: int, counted: int, told: float) -> Use:
        return Use(used=max((counted - counted_before) / seconds, told, 0.0) * _BYTE_KBIT, limit=limits.network_kbits)

    return Resources(
        cpu=Use(used=100 * max(now.cpu_seconds - before.cpu_seconds, 0.0) / seconds, limit=100 * limits.cpu_cores),
        memory=Use(used=now.memory_bytes / _MIB, limit=limits.memory_bytes / _MIB),
        bandwidth_in=kbits(before.bytes_in, now.bytes_in, told_in),
        bandwidth_out=kbits(before.bytes_out, now.bytes_out, told_out),
    )


def counting_cards(cards: Iterable[Card]) -> list[Card]:
    """The cards that count: those that have a speed, if any has, because what goes through virtual ones goes through these, too."""
    found = list(cards)
    return [card for card in found if card.speed_mbits > 0] or found


def network_kbits(cards: Iterable[Card], *, nic_speed_gbps: float | None) -> float:
    """What the network carries each way: as it is set, else as the cards say; 0 if nobody says."""
    if nic_speed_gbps is not None:
        return nic_speed_gbps * _GBIT_KBIT
    return sum(card.speed_mbits for card in cards) * _MBIT_KBIT
