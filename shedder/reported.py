"""Select the brokers that take part in a round: the live ones with a fresh and plausible report.
All strategies after Pulsar's use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from equipoise.shedder.loads import BundleTraffic, Load, fault_of
from equipoise.shedder.plan import Move, Stay
from equipoise.shedder.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The loads of the brokers that take part, by id; why others do not (`out`); and live brokers
    without any report (`silent`).
    """

    loads: Mapping[str, Load]
    out: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    has_outdated: bool = False

    @property
    def apart(self) -> dict[str, str]:
        """Why each live broker that takes no part does not, including those without a report."""
        return {**self.out, **dict.fromkeys(self.silent, "it has not reported its load")}


def reported(snapshot: Snapshot, *, ttl_ms: int) -> Reported:
    """Sort the live brokers by the state of their reports.

    A report is outdated if its age or its distance into the future is more than `ttl_ms`. One
    impossible figure invalidates the whole report, because the others may be wrong, too.
    """
    loads: dict[str, Load] = {}
    out: dict[str, str] = {}
    silent: list[str] = []
    has_outdated = False
    for broker in sorted(snapshot.live):
        load = snapshot.loads.get(broker)
        if broker in snapshot.apart:
            out[broker] = snapshot.apart[broker]
        elif load is None:
            silent.append(broker)
        elif abs(snapshot.now_ms - load.at_ms) > ttl_ms:
            age = format_age(snapshot.now_ms - load.at_ms)
            out[broker] = (
                f"its load report is outdated: it was made {age} (limit: {format_duration(ttl_ms)})"
            )
            has_outdated = True
        elif (fault := fault_of(load)) is not None:
            out[broker] = f"its load report is not plausible and does not count: {fault}"
        else:
            loads[broker] = load
    return Reported(loads=loads, out=out, silent=tuple(silent), has_outdated=has_outdated)


def why_held(snapshot: Snapshot, bundle: str, broker: str) -> str | None:
    """Return why a bundle that `broker` reported must not move now; None if it may."""
    owner = snapshot.owners.get(bundle)
    if owner != broker:
        return (
            "no broker serves it now" if owner is None else f"{owner} serves it now, not {broker}"
        )
    return snapshot.resting.get(bundle)


def bundles_of(load: Load) -> tuple[BundleTraffic, ...]:
    """Return the reported bundles, each once; empty if the report has none."""
    return tuple({bundle.bundle: bundle for bundle in load.bundles}.values())


def in_order(stays: Mapping[str, str], moves: Iterable[Move]) -> tuple[Stay, ...]:
    """Return the stays by subject, without moving bundles and the brokers that give some."""
    given = {name for move in moves for name in (move.source, move.bundle)}
    return tuple(
        Stay(subject=subject, reason=stays[subject])
        for subject in sorted(stays)
        if subject not in given
    )


def format_duration(duration_ms: int) -> str:
    """Format a duration."""
    return f"{duration_ms / 1_000:.0f} s"


def format_age(age_ms: int) -> str:
    """Format an age. A negative age means that the other clock is ahead."""
    return (
        f"{format_duration(age_ms)} ago"
        if age_ms >= 0
        else f"{format_duration(-age_ms)} ahead of this clock"
    )


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * fraction:.0f} %"


def format_rate(bytes_per_second: float) -> str:
    """Format a throughput."""
    return f"{bytes_per_second / 1_000_000:.3g} MB/s"
