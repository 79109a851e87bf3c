"""Who takes part in a round that goes by reports: the live brokers with a fresh and possible one; and what is said of the others.

May live here: what all strategies after Pulsar's ask of a snapshot before they decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from equipoise.shedder.loads import BrokerLoad, BundleTraffic, fault_of
from equipoise.shedder.plan import Move, Stay
from equipoise.shedder.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The brokers that take part, by id, with their loads; why others do not; and the live ones that said nothing at all."""

    loads: Mapping[str, BrokerLoad]
    out: Mapping[str, str]
    silent: tuple[str, ...]
    has_outdated: bool = False


def reported(snapshot: Snapshot, *, ttl_ms: int) -> Reported:
    """Sort the live brokers by what can be made of their reports.

    A report is outdated when it is older than `ttl_ms`, or from further in the future than that: its clock tells nothing. A
    figure that no broker can have makes the whole report worthless, since nobody knows what else in it is wrong.
    """
    loads: dict[str, BrokerLoad] = {}
    out: dict[str, str] = {}
    silent: list[str] = []
    has_outdated = False
    for broker in sorted(snapshot.live):
        load = snapshot.loads.get(broker)
        if broker in snapshot.apart:
            out[broker] = snapshot.apart[broker]
        elif load is None:
            silent.append(broker)
        elif abs(snapshot.now_ms - load.taken_ms) > ttl_ms:
            out[broker] = (
                f"its load is outdated: it was taken {told_age(snapshot.now_ms - load.taken_ms)}, and counts for {told_ms(ttl_ms)}"
            )
            has_outdated = True
        elif (fault := fault_of(load)) is not None:
            out[broker] = f"its report cannot be true, so it is left out: {fault}"
        else:
            loads[broker] = load
    return Reported(loads=loads, out=out, silent=tuple(silent), has_outdated=has_outdated)


def why_held(snapshot: Snapshot, bundle: str, broker: str) -> str | None:
    """Why a bundle that `broker` reported must not be taken from it now; None if it may be."""
    owner = snapshot.owners.get(bundle)
    if owner != broker:
        return "nobody serves it now" if owner is None else f"{owner} serves it now, not {broker}"
    return snapshot.resting.get(bundle)


def bundles_of(load: BrokerLoad) -> tuple[BundleTraffic, ...]:
    """The bundles that a broker reported, each once, whatever it said; none if it said nothing of them."""
    return tuple({bundle.bundle: bundle for bundle in load.bundles or ()}.values())


def in_order(stays: Mapping[str, str], moves: Iterable[Move]) -> tuple[Stay, ...]:
    """The stays by subject, without what moves and the brokers that give something."""
    given = {name for move in moves for name in (move.source, move.bundle)}
    return tuple(Stay(subject=subject, reason=stays[subject]) for subject in sorted(stays) if subject not in given)


def told_ms(duration_ms: int) -> str:
    """A duration for people."""
    return f"{duration_ms / 1_000:.0f} s"


def told_age(age_ms: int) -> str:
    """How long ago something was for people; less than 0 is what another clock says is still to come."""
    return f"{told_ms(age_ms)} ago" if age_ms >= 0 else f"{told_ms(-age_ms)} ahead of the clock here"


def told_percent(fraction: float) -> str:
    """A fraction for people."""
    return f"{100 * fraction:.0f} %"


def told_bytes(bytes_per_second: float) -> str:
    """A throughput for people."""
    return f"{bytes_per_second / 1_000_000:.3g} MB/s"
