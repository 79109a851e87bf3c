"""Prepare the input of split and merge rounds, remember their state between rounds, and turn their
results into decisions.

`auto_split` and `auto_merge` decide what is split and merged. `brokers.runtime.loops.splitting`
runs the rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from equipoise.brokers.balancing.decisions import Decision, Kind, decision_of
from equipoise.brokers.balancing.splitting.auto_merge import MergePlan, MergeSnapshot, Pair
from equipoise.brokers.balancing.splitting.auto_split import FAILURE, SplitPlan, SplitSnapshot
from equipoise.channel.core.view import View
from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.plan import Cause, Move, Plan, Stay

SPLIT_RULE: Final = "AutoSplit"
MERGE_RULE: Final = "AutoMerge"
"""The strategy names of these decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of the bundles of `broker` on the channel: a copy that any thread may use.

    * `lasts`: bundles that it owns and that are not in transition, each with the offset of its last
      change.
    * `problems`: why the others can be neither split nor merged. `splitting`: the ones among them
      that are being split.
    * `bundle_counts`: the number of bundles of each namespace.
    * `brokers`: the number of live brokers.
    """

    broker: str
    brokers: int
    lasts: Mapping[str, int]
    problems: Mapping[str, str]
    splitting: frozenset[str]
    bundle_counts: Mapping[str, int]


def standing_of(
    view: View, incarnation: int, bundles: Iterable[str], *, frozen: Mapping[str, str] | None = None
) -> Standing:
    """Return the state of `bundles` for the live broker of `incarnation`. It looks at no other
    bundles.

    `frozen` are namespaces whose bundles must be neither split nor merged, and why.
    """
    lasts: dict[str, int] = {}
    problems: dict[str, str] = {}
    splitting: list[str] = []
    counts: dict[str, int] = {}
    for name in bundles:
        entry = view.bundles.get(name)
        if entry is None:
            problems[name] = "it is gone"
        elif entry.owner != incarnation:
            problems[name] = "it belongs to another broker"
        elif entry.phase != "owned":
            problems[name] = f"it is {entry.state}"
            if entry.phase == "splitting":
                splitting.append(name)
        elif view.namespaces[entry.namespace].status == "deleting":
            problems[name] = "its namespace is being deleted"
        elif frozen and entry.namespace in frozen:
            problems[name] = frozen[entry.namespace]
        else:
            lasts[name] = entry.last
            if entry.namespace not in counts:
                counts[entry.namespace] = view.bundle_count(entry.namespace)
    return Standing(
        broker=view.live[incarnation].broker,
        brokers=len(view.live),
        lasts=lasts,
        problems=problems,
        splitting=frozenset(splitting),
        bundle_counts=counts,
    )


class _Rest(NamedTuple):
    """The offset of a bundle's last change, and since when that is its last change."""

    last: int
    since_ms: int


class SplittingMemory:
    """The memory of one broker's rounds. Times are milliseconds of a clock that does not jump,
    except `at_ms` (Unix time).

    A bundle is left alone for `rest_ms` after it arrived, or after a split or a merge of it,
    successful or not. A round gives a decision only if it did something, failed, or left other due
    bundles than the round before; otherwise every quiet round would be recorded.
    """

    def __init__(self) -> None:
        self.split_hits: Mapping[str, int] = {}
        self.merge_hits: Mapping[Pair, int] = {}
        self._rests: Mapping[str, _Rest] = {}
        self._failed_ms: Mapping[str, int] = {}
        self._recorded_due: dict[Kind, frozenset[object]] = {}

    def forget_splits(self) -> None:
        """Forget the state of splits, because splitting is off. Counting starts again at 0."""
        self.split_hits = {}
        self._recorded_due.pop("split", None)

    def forget_merges(self) -> None:
        """Forget the state of merges, because merging is off. Counting starts again at 0."""
        self.merge_hits, self._rests = {}, {}
        self._recorded_due.pop("merge", None)

    # --- what a round looks at ---

    def split_snapshot(
        self, standing: Standing, bundles: Sequence[BundleTraffic], *, now_ms: int, rest_ms: int
    ) -> SplitSnapshot:
        """Return the input of a round of splits, without bundles whose split failed lately."""
        failed = self._failed_lately(now_ms, rest_ms)
        return SplitSnapshot(
            broker=standing.broker,
            bundles=tuple(bundle for bundle in bundles if bundle.bundle not in failed),
            bundle_counts=standing.bundle_counts,
            not_owned=frozenset(standing.problems).difference(standing.splitting),
            splitting=standing.splitting,
        )

    def merge_snapshot(
        self, standing: Standing, bundles: Sequence[BundleTraffic], *, now_ms: int, rest_ms: int
    ) -> MergeSnapshot:
        """Return the input of a round of merges. A bundle that is seen for the first time counts as
        just arrived.
        """
        before, rests = self._rests, {}
        pending = dict(standing.problems)
        failed = self._failed_lately(now_ms, rest_ms)
        for name, last in standing.lasts.items():
            rest = before.get(name)
            rests[name] = rest = (
                rest if rest is not None and rest.last == last else _Rest(last, now_ms)
            )
            if now_ms - rest.since_ms < rest_ms:
                pending[name] = "it arrived, or was split or merged, a short while ago"
            elif name in failed:
                pending[name] = "its split or merge failed a short while ago"
        self._rests = rests
        return MergeSnapshot(
            broker=standing.broker,
            bundles=bundles,
            bundle_counts=standing.bundle_counts,
            brokers=standing.brokers,
            pending=pending,
        )

    def _failed_lately(self, now_ms: int, rest_ms: int) -> Mapping[str, int]:
        self._failed_ms = {
            name: failed_ms
            for name, failed_ms in self._failed_ms.items()
            if now_ms - failed_ms < rest_ms
        }
        return self._failed_ms

    # --- what came of it ---

    def splits_ended(
        self,
        plan: SplitPlan,
        problems: Mapping[str, str],
        *,
        broker: str,
        hits_threshold: int,
        now_ms: int,
        at_ms: int,
    ) -> Decision | None:
        """Finish a round. Return the decision to record, or None. `problems`: the splits that were
        not made, and why.
        """
        self.split_hits = plan.hits
        self._failed_ms = {**self._failed_ms, **dict.fromkeys(problems, now_ms)}
        made = [split for split in plan.splits if split.bundle not in problems]
        counted = Counter(plan.counted)
        counted.update(("Success", str(split.excess)) for split in made)
        counted[FAILURE] += len(problems)
        noted = plan.hits.keys() | set(plan.failures)
        return self._if_changed(
            decision_of(
                Plan(
                    moves=tuple(
                        _here(split.bundle, broker, split.reason, "Overloaded") for split in made
                    ),
                    stays=_stays(plan.stays, noted, problems),
                ),
                at_ms=at_ms,
                broker=broker,
                kind="split",
                strategy=SPLIT_RULE,
                counted=dict(+counted),
            ),
            due=[(name, hits > hits_threshold) for name, hits in plan.hits.items()]
            + list(plan.failures),
            is_news=bool(plan.splits),
        )

    def merges_ended(
        self,
        plan: MergePlan,
        problems: Mapping[str, str],
        *,
        broker: str,
        hits_threshold: int,
        now_ms: int,
        at_ms: int,
    ) -> Decision | None:
        """Finish a round like `splits_ended`. A merge is named by its left bundle."""
        self.merge_hits = plan.hits
        self._failed_ms = {**self._failed_ms, **dict.fromkeys(problems, now_ms)}
        made = [merge for merge in plan.merges if merge.left not in problems]
        counted = Counter({("Success", "Underloaded"): len(made), FAILURE: len(problems)})
        # Most pairs of a quiet cluster are cold and counting. Record only those that have reached
        # the threshold.
        due = [left for (left, _), hits in plan.hits.items() if hits > hits_threshold]
        return self._if_changed(
            decision_of(
                Plan(
                    moves=tuple(
                        _here(
                            merge.left,
                            broker,
                            f"merged with {merge.right}: {merge.reason}",
                            "Underloaded",
                        )
                        for merge in made
                    ),
                    stays=_stays(plan.stays, frozenset(due), problems),
                ),
                at_ms=at_ms,
                broker=broker,
                kind="merge",
                strategy=MERGE_RULE,
                counted=dict(+counted),
            ),
            due=due,
            is_news=bool(plan.merges),
        )

    def _if_changed(
        self, decision: Decision, *, due: Iterable[object], is_news: bool
    ) -> Decision | None:
        due_now = frozenset(due)
        if not is_news and due_now == self._recorded_due.get(decision.kind, frozenset()):
            return None
        self._recorded_due[decision.kind] = due_now
        return decision


def _here(bundle: str, broker: str, reason: str, cause: Cause) -> Move:
    """Return a move from a broker to itself, for a bundle that was split or merged there."""
    return Move(bundle=bundle, source=broker, destination=broker, reason=reason, cause=cause)


def _stays(
    stays: Iterable[Stay], noted: Collection[str], problems: Mapping[str, str]
) -> tuple[Stay, ...]:
    """Return the stays to record, by name: the plan's for `noted` bundles, and the failures."""
    reasons = {stay.subject: stay.reason for stay in stays if stay.subject in noted} | dict(
        problems
    )
    return tuple(Stay(subject=name, reason=reason) for name, reason in sorted(reasons.items()))
