"""Plan which cold neighbouring bundles to merge, in one round of one broker.

A broker merges only neighbours that it owns. Nothing moves for a merge, because the shedder might
move it back. Pulsar has no automatic merge.

Why merges and splits do not oscillate:

* A pair is merged only if together it uses less than `cold_ratio` of every limit. So the union is
  split only if its load grows beyond that.
* The parts of a split bundle together exceed a limit. So they are merged only if their load
  shrinks.
* While the load is constant, no range is both created and split. So splits and merges end.
* If the load swings, a pair must be cold for more than `hits_threshold` rounds in a row. The count
  starts when one of the two arrives or is split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from equipoise.brokers.balancing.splitting.split_points import (
    BundleLimits,
    Measure,
    fault_of_bundle,
)
from equipoise.brokers.errors import counted
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import BundleName, parse_bundle
from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.plan import Stay

Pair = tuple[str, str]
"""The names of two neighbours, left first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """When neighbours are merged.

    * `limits`: as for splits.
    * `hits_threshold`: a pair is merged in the round after so many cold ones. It is higher than for
      splits, because one bundle too few costs more than one too many.
    * `merges_max`: per round.
    * `bundles_min`: a namespace keeps so many; the default is Pulsar's number for a new namespace.
    """

    limits: BundleLimits = field(default_factory=BundleLimits)
    cold_ratio: float = 0.5
    hits_threshold: int = 10
    merges_max: int = 4
    bundles_min: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSnapshot:
    """The input of a round: `bundles` are all that `broker` has open.

    * `pending`: bundles that must not be merged now, and why: another owner, moving, or moved or
      split lately.
    * `bundle_counts`: the number of bundles of each namespace; missing if unknown.
    * `brokers`: how many brokers may merge at the same time.
    """

    broker: str
    bundles: Collection[BundleTraffic]
    bundle_counts: Mapping[str, int]
    brokers: int
    pending: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDecision:
    """Merge `left` with its right neighbour `right`."""

    left: str
    right: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """The result of a round: the merges, coldest first, and for all other bundles why they are not
    merged to the right, by name.

    Pass `hits` to the next round: for how many rounds in a row each pair has been cold.
    """

    merges: tuple[MergeDecision, ...]
    stays: tuple[Stay, ...]
    hits: Mapping[Pair, int]


class _Cold(NamedTuple):
    """A pair that has been cold for long enough, and its fullest measure."""

    left: str
    right: str
    namespace: str
    fullest: Measure
    hits: int


def plan_merges(
    snapshot: MergeSnapshot, settings: MergeSettings, hits: Mapping[Pair, int]
) -> MergePlan:
    """Return the plan of one round. `hits` come from the previous plan, empty at first. The coldest
    go first, ties by name.
    """
    stays: dict[str, str] = {}
    hits_after: dict[Pair, int] = {}
    due: list[_Cold] = []
    for namespace, left, right in _neighbours(snapshot, stays):
        pair = (left.bundle, right.bundle)
        fullest = settings.limits.fullest(left, right)
        if not fullest.share < settings.cold_ratio:
            stays[left.bundle] = (
                f"together with its right neighbour it has {fullest}; cold is below"
                f" {settings.cold_ratio:.0%} of the limit"
            )
            continue
        hits_after[pair] = count = hits.get(pair, 0) + 1
        if count <= settings.hits_threshold:
            stays[left.bundle] = (
                f"it and its right neighbour have been cold for {count} of"
                f" {settings.hits_threshold + 1} rounds"
            )
        else:
            due.append(_Cold(*pair, namespace, fullest, count))
    due.sort(key=lambda cold: (cold.fullest.share, cold.left))
    merges = tuple(_choose(due, snapshot, settings, stays))
    for merge in merges:
        del hits_after[merge.left, merge.right]
        stays.pop(merge.right, None)  # It is gone, so its own right side does not matter.
    return MergePlan(
        merges=merges,
        stays=tuple(Stay(subject=name, reason=reason) for name, reason in sorted(stays.items())),
        hits=hits_after,
    )


def _neighbours(
    snapshot: MergeSnapshot, stays: dict[str, str]
) -> Iterator[tuple[str, BundleTraffic, BundleTraffic]]:
    """Yield the pairs that could be merged, from left to right, with their namespace. Write to
    `stays` why others could not.
    """
    fit: list[tuple[BundleName, BundleTraffic]] = []
    for bundle in sorted(snapshot.bundles, key=lambda bundle: bundle.bundle):
        problem = snapshot.pending.get(bundle.bundle)
        if problem is None and (fault := fault_of_bundle(bundle)) is not None:
            problem = f"{fault}, which is not plausible"
        try:
            place = parse_bundle(bundle.bundle)
        except InvalidName as error:
            stays[bundle.bundle] = str(error)
            continue
        if problem is None:
            fit.append((place, bundle))
            stays[bundle.bundle] = (
                f"its right neighbour is not at {snapshot.broker}, cannot be merged now, or does"
                " not exist"
            )
        else:
            stays[bundle.bundle] = problem
    for (place, left), (next_place, right) in pairwise(fit):
        if place.namespace == next_place.namespace and place.high == next_place.low:
            yield place.namespace, left, right


def _choose(
    due: Iterable[_Cold], snapshot: MergeSnapshot, settings: MergeSettings, stays: dict[str, str]
) -> Iterator[MergeDecision]:
    """Yield as many due merges as may be made at once, no bundle twice. Write to `stays` why others
    must wait.
    """
    used: set[str] = set()
    merged: Counter[str] = Counter()
    for left, right, namespace, fullest, hits in due:
        count = snapshot.bundle_counts.get(namespace)
        # Brokers do not know of each other's merges. If each takes only its share of the surplus,
        # together they never take too many.
        spare = (
            0 if count is None else max(count - settings.bundles_min, 0) // max(snapshot.brokers, 1)
        )
        if left in used or right in used:
            stays[left] = "it or its right neighbour is merged with another bundle"
        elif count is None:
            stays[left] = f"the number of bundles of {namespace} is unknown"
        elif merged[namespace] >= spare:
            stays[left] = (
                f"{namespace} has {count} bundles and keeps {settings.bundles_min}; each of"
                f" {snapshot.brokers} brokers may merge {spare}"
            )
        elif merged.total() >= settings.merges_max:
            stays[left] = f"this round has {counted(settings.merges_max, 'merge')} already"
        else:
            used.update((left, right))
            merged[namespace] += 1
            del stays[left]
            reason = f"both have been cold for {counted(hits, 'round')}: together {fullest}"
            yield MergeDecision(left=left, right=right, reason=reason)
