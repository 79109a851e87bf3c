"""Plan which overloaded bundles to split, in one round of one broker (Pulsar's
`DefaultNamespaceBundleSplitStrategyImpl`).

A broker splits only bundles that it owns. Its service decides where to cut, during the split, and
the fold keeps splits safe.

A bundle is split once it has exceeded a limit in more rounds in a row than the threshold, so a
burst splits nothing. A plan returns these counts as `hits`, and the next round takes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from equipoise.brokers.balancing.splitting.split_points import (
    BundleLimits,
    Excess,
    Measure,
    fault_of_bundle,
)
from equipoise.brokers.errors import counted
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import BundleName, parse_bundle
from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.plan import Stay

FAILURE: Final = ("Failure", "Unknown")
"""The counter for a bundle that should be split but cannot be, by Pulsar's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """When bundles are split; the defaults are Pulsar's.

    * `hits_threshold`: a bundle is split in the round after so many in which it exceeded a limit.
    * `splits_max`: per round.
    * `bundles_max`: a namespace is not split into more.
    """

    limits: BundleLimits = field(default_factory=BundleLimits)
    hits_threshold: int = 3
    splits_max: int = 10
    bundles_max: int = 128
    pulsar_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSnapshot:
    """The input of a round. `bundles` are all that `broker` has open, in the order of its report.

    * `not_owned`: the ones among them that belong to others. `splitting`: bundles of any broker
      that are being split.
    * `bundle_counts`: the number of bundles of each namespace; missing if unknown. A split counts
      as one more: only the service knows how many parts it makes.
    """

    broker: str
    bundles: Sequence[BundleTraffic]
    bundle_counts: Mapping[str, int]
    not_owned: Collection[str] = ()
    splitting: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDecision:
    """Split `bundle`. `excess` is the reason by Pulsar's name, `reason` the same for people."""

    bundle: str
    excess: Excess
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The result of a round: the splits in order of decision, and for all other bundles why they
    stay, by name.

    * `failures`: bundles that should be split and cannot be, or have impossible figures, by name.
    * `counted`: the same by Pulsar's result and reason. The broker that makes the splits counts
      these.
    * `hits`: the input of the next round.
    """

    splits: tuple[SplitDecision, ...]
    stays: tuple[Stay, ...]
    failures: tuple[str, ...]
    counted: Mapping[tuple[str, str], int]
    hits: Mapping[str, int]


def plan_splits(
    snapshot: SplitSnapshot, settings: SplitSettings, hits: Mapping[str, int]
) -> SplitPlan:
    """Return the plan of one round. `hits` come from the previous plan, empty at first.

    Due bundles that exceed a limit most come first, ties by name. With `pulsar_exact` the round
    follows the order of the report and ends at `splits_max`, without counting the hits of the
    others.
    """
    planning = _Planning(snapshot, settings, hits)
    if settings.pulsar_exact:
        for bundle in snapshot.bundles:
            due = planning.look_at(bundle)
            if due is not None:
                planning.decide(due)
            if len(planning.splits) == settings.splits_max:
                break
    else:
        found = (
            planning.look_at(bundle)
            for bundle in sorted(snapshot.bundles, key=lambda bundle: bundle.bundle)
        )
        for due in sorted(
            (due for due in found if due is not None),
            key=lambda due: (-due.fullest, due.bundle.bundle),
        ):
            planning.decide(due)
    return planning.plan()


class _No(NamedTuple):
    """Why a bundle is not split. Failures are counted."""

    reason: str
    is_failure: bool = False


class _Due(NamedTuple):
    """A bundle that has exceeded a limit for long enough. `fullest` is the fraction of the limit
    that it exceeds most.
    """

    bundle: BundleTraffic
    place: BundleName
    measure: Measure
    fullest: float


class _Planning:
    """One round in progress: `look_at` each bundle, then `decide` on those that are due."""

    def __init__(
        self, snapshot: SplitSnapshot, settings: SplitSettings, hits: Mapping[str, int]
    ) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._hits_before = hits
        # Pulsar keeps the hits of a bundle that it skips. Here a skipped bundle starts again at 0.
        kept = settings.pulsar_exact
        self._hits = {
            bundle.bundle: hits[bundle.bundle]
            for bundle in snapshot.bundles
            if kept and bundle.bundle in hits
        }
        self._noes: dict[str, _No] = {}
        self._failures = 0
        self._added: Counter[str] = Counter()
        self._splitting = tuple(sorted(snapshot.splitting))
        self.splits: list[SplitDecision] = []

    def plan(self) -> SplitPlan:
        """Return the plan of this round."""
        unseen = _No(f"this round has {counted(len(self.splits), 'split')} already")
        decided = {split.bundle for split in self.splits}
        noes = {
            bundle.bundle: self._noes.get(bundle.bundle, unseen)
            for bundle in self._snapshot.bundles
            if bundle.bundle not in decided
        }
        return SplitPlan(
            splits=tuple(self.splits),
            stays=tuple(Stay(subject=name, reason=no.reason) for name, no in sorted(noes.items())),
            failures=tuple(name for name, no in sorted(noes.items()) if no.is_failure),
            counted={FAILURE: self._failures} if self._failures else {},
            hits=self._hits,
        )

    def look_at(self, bundle: BundleTraffic) -> _Due | None:
        """Count a hit of a bundle. Return it as due if it has enough of them."""
        name, settings = bundle.bundle, self._settings
        no = self._why_unfit(bundle)
        place = _place(name) if no is None else no
        if isinstance(place, _No):
            self._refuse(name, place)
            return None
        measure = settings.limits.exceeded(bundle)
        if measure is None:
            self._hits.pop(name, None)
            self._refuse(name, _No("it exceeds no limit"))
            return None
        self._hits[name] = hits = self._hits_before.get(name, 0) + 1
        if hits <= settings.hits_threshold:
            self._refuse(
                name,
                _No(
                    f"it has been over a limit for {hits} of {settings.hits_threshold + 1} rounds:"
                    f" {measure}"
                ),
            )
            return None
        return _Due(bundle, place, measure, settings.limits.fullest(bundle).share)

    def decide(self, due: _Due) -> None:
        """Split a due bundle, or note why not."""
        name, namespace = due.bundle.bundle, due.place.namespace
        no = self._why_not_now(due)
        if no is not None:
            self._refuse(name, _No(f"it has {due.measure}, but {no.reason}", no.is_failure))
            return
        self.splits.append(
            SplitDecision(
                bundle=name,
                excess=due.measure.excess,
                reason=(
                    f"it has been over a limit for {counted(self._hits.pop(name), 'round')}:"
                    f" {due.measure}"
                ),
            )
        )
        self._added[namespace] += 1

    def _refuse(self, name: str, no: _No) -> None:
        self._noes[name] = no
        self._failures += no.is_failure

    def _why_unfit(self, bundle: BundleTraffic) -> _No | None:
        """Return why a bundle cannot be split at any load."""
        exact = self._settings.pulsar_exact
        # A bundle without topics holds keys, which nobody counts. Pulsar serves topics only.
        if bundle.topics == 1 or (exact and bundle.topics < 1):
            return _No("it has fewer than two topics")
        if bundle.bundle in self._snapshot.not_owned:
            return _No(f"{self._snapshot.broker} does not own it")
        if exact:
            return None
        if bundle.bundle in self._snapshot.splitting:
            return _No("it is being split already")
        fault = fault_of_bundle(bundle)
        return None if fault is None else _No(f"{fault}, which is not plausible", is_failure=True)

    def _why_not_now(self, due: _Due) -> _No | None:
        """Return what prevents a split now: the bundle count, an overlapping split, or the limit
        per round.
        """
        settings, namespace = self._settings, due.place.namespace
        count = self._snapshot.bundle_counts.get(namespace)
        if count is None:
            return _No(f"the number of bundles of {namespace} is unknown", is_failure=True)
        if count + self._added[namespace] >= settings.bundles_max:
            return _No(
                f"{namespace} has {count + self._added[namespace]} bundles, and may have at most"
                f" {settings.bundles_max}"
            )
        overlaps = _overlaps_like_pulsar if settings.pulsar_exact else _overlaps
        under_way = (
            *self._splitting,
            *(() if settings.pulsar_exact else (split.bundle for split in self.splits)),
        )
        rival = next((name for name in under_way if overlaps(due.bundle.bundle, name)), None)
        if rival is not None:
            return _No(f"{rival}, which it overlaps, is being split")
        if len(self.splits) == settings.splits_max:
            return _No(
                f"this round has {counted(settings.splits_max, 'split')} of more loaded bundles"
                " already"
            )
        return None


def _place(name: str) -> BundleName | _No:
    """Return the parsed name of a bundle whose range can be cut."""
    try:
        place = parse_bundle(name)
    except InvalidName as error:
        return _No(str(error), is_failure=True)
    return (
        place
        if place.high - place.low > 1
        else _No("its range is too narrow to be cut", is_failure=True)
    )


def _overlaps(bundle: str, splitting: str) -> bool:
    namespace, low, high = parse_bundle(bundle)
    other = parse_bundle(splitting)
    return namespace == other.namespace and low < other.high and other.low < high


def _overlaps_like_pulsar(bundle: str, splitting: str) -> bool:
    """Return whether the ranges start or end with the same text, even in namespaces whose name only
    starts with the bundle's.
    """
    namespace, _, range_ = bundle.rpartition("/")
    low, _, high = range_.partition("_")
    other = splitting.rpartition("/")[2]
    return splitting.startswith(namespace) and (other.startswith(low) or other.endswith(high))
