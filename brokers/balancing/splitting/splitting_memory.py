"""What one broker's rounds of splits and merges look at, remember, and tell.

May live here: the way from a view and from what a broker carries to the snapshots of `brokers.balancing.splitting.auto_split` and
`brokers.balancing.splitting.auto_merge`, where it is decided what is split and merged; what is remembered between rounds; and the decision
that is told of a round. How rounds come about, and how they are carried out, is in `brokers.server.splitting`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from equipoise.brokers.balancing.decisions import STAYS_MAX, Decision, Kind
from equipoise.brokers.balancing.splitting.auto_merge import MergePlan, MergeSnapshot, Pair
from equipoise.brokers.balancing.splitting.auto_split import FAILURE, SplitPlan, SplitSnapshot
from equipoise.channel.core.view import View
from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.plan import Cause, Move, Stay

SPLIT_RULE: Final = "AutoSplit"
MERGE_RULE: Final = "AutoMerge"
"""Whose decisions these are, as they are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the channel says of the bundles that `broker` carries: a copy, which is good in any thread.

    `lasts` are those that it owns and that are at rest, each with the offset of the record that changed it last; `problems`
    says why the others can be neither split nor merged, `splitting` which of these are being split. `bundle_counts` says of how
    many bundles each namespace is made. `brokers` is how many there are.
    """

    broker: str
    brokers: int
    lasts: Mapping[str, int]
    problems: Mapping[str, str]
    splitting: frozenset[str]
    bundle_counts: Mapping[str, int]


def standing_of(view: View, incarnation: int, bundles: Iterable[str]) -> Standing:
    """How `bundles` stand for the live broker of `incarnation`. It looks at no others, however many there are."""
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
    """Since when a bundle has been as the record at offset `last` left it."""

    last: int
    since_ms: int


class SplittingMemory:
    """The memory of one broker's rounds. Times are milliseconds of any one clock that does not jump, but for `at_ms`: Unix time.

    A bundle is left alone for `rest_ms` after it came here, was cut or joined, or could not be. A round is told when something was
    done, or failed, or when others than before are due and stay: not every few seconds that all is as it was.
    """

    def __init__(self) -> None:
        self.split_hits: Mapping[str, int] = {}
        self.merge_hits: Mapping[Pair, int] = {}
        self._rests: Mapping[str, _Rest] = {}
        self._failed_ms: Mapping[str, int] = {}
        self._told: dict[Kind, frozenset[object]] = {}

    def forget_splits(self) -> None:
        """Nothing is split now: what was counted for it begins anew afterwards."""
        self.split_hits = {}
        self._told.pop("split", None)

    def forget_merges(self) -> None:
        """Nothing is merged now: what was counted for it begins anew afterwards."""
        self.merge_hits, self._rests = {}, {}
        self._told.pop("merge", None)

    # --- what a round looks at ---

    def split_snapshot(self, standing: Standing, bundles: Sequence[BundleTraffic], *, now_ms: int, rest_ms: int) -> SplitSnapshot:
        """What a round of splits looks at. What could not be split lately is left out of it."""
        failed = self._failed_lately(now_ms, rest_ms)
        return SplitSnapshot(
            broker=standing.broker,
            bundles=tuple(bundle for bundle in bundles if bundle.bundle not in failed),
            bundle_counts=standing.bundle_counts,
            not_owned=frozenset(standing.problems).difference(standing.splitting),
            splitting=standing.splitting,
        )

    def merge_snapshot(self, standing: Standing, bundles: Sequence[BundleTraffic], *, now_ms: int, rest_ms: int) -> MergeSnapshot:
        """What a round of merges looks at. A bundle that is seen for the first time has come at that moment."""
        before, rests = self._rests, {}
        pending = dict(standing.problems)
        failed = self._failed_lately(now_ms, rest_ms)
        for name, last in standing.lasts.items():
            rest = before.get(name)
            rests[name] = rest = rest if rest is not None and rest.last == last else _Rest(last, now_ms)
            if now_ms - rest.since_ms < rest_ms:
                pending[name] = "it came, or was cut or joined, a short while ago"
            elif name in failed:
                pending[name] = "it could not be divided or joined a short while ago"
        self._rests = rests
        return MergeSnapshot(
            broker=standing.broker,
            bundles=bundles,
            bundle_counts=standing.bundle_counts,
            brokers=standing.brokers,
            pending=pending,
        )

    def _failed_lately(self, now_ms: int, rest_ms: int) -> Mapping[str, int]:
        self._failed_ms = {name: failed_ms for name, failed_ms in self._failed_ms.items() if now_ms - failed_ms < rest_ms}
        return self._failed_ms

    # --- what came of it ---

    def splits_ended(
        self, plan: SplitPlan, problems: Mapping[str, str], *, broker: str, hits_threshold: int, now_ms: int, at_ms: int
    ) -> Decision | None:
        """The round is over; the decision to tell, if there is anything to tell. `problems` says which splits were not made, and why."""
        self.split_hits = plan.hits
        self._failed_ms = {**self._failed_ms, **dict.fromkeys(problems, now_ms)}
        made = [split for split in plan.splits if split.bundle not in problems]
        counted = Counter(plan.counted)
        counted.update(("Success", str(split.excess)) for split in made)
        counted[FAILURE] += len(problems)
        noted = plan.hits.keys() | set(plan.failures)
        return self._told_of(
            Decision(
                at_ms=at_ms,
                broker=broker,
                kind="split",
                strategy=SPLIT_RULE,
                moves=tuple(_here(split.bundle, broker, split.reason, "Overloaded") for split in made),
                stays=_stays(plan.stays, noted, problems),
                counted=dict(+counted),
            ),
            due=[(name, hits > hits_threshold) for name, hits in plan.hits.items()] + list(plan.failures),
            is_news=bool(plan.splits),
        )

    def merges_ended(
        self, plan: MergePlan, problems: Mapping[str, str], *, broker: str, hits_threshold: int, now_ms: int, at_ms: int
    ) -> Decision | None:
        """As `splits_ended`; a merge is told, and its problem named, by its left bundle."""
        self.merge_hits = plan.hits
        self._failed_ms = {**self._failed_ms, **dict.fromkeys(problems, now_ms)}
        made = [merge for merge in plan.merges if merge.left not in problems]
        counted = Counter({("Success", "Underloaded"): len(made), FAILURE: len(problems)})
        # Most pairs of a quiet cluster are cold, and begin a row with it: only those at the end of their row are of interest.
        due = [left for (left, _), hits in plan.hits.items() if hits > hits_threshold]
        return self._told_of(
            Decision(
                at_ms=at_ms,
                broker=broker,
                kind="merge",
                strategy=MERGE_RULE,
                moves=tuple(_here(merge.left, broker, f"joined with {merge.right}: {merge.reason}", "Underloaded") for merge in made),
                stays=_stays(plan.stays, frozenset(due), problems),
                counted=dict(+counted),
            ),
            due=due,
            is_news=bool(plan.merges),
        )

    def _told_of(self, decision: Decision, *, due: Iterable[object], is_news: bool) -> Decision | None:
        due_now = frozenset(due)
        if not is_news and due_now == self._told.get(decision.kind, frozenset()):
            return None
        self._told[decision.kind] = due_now
        return replace(decision, stays=decision.stays[:STAYS_MAX], stays_left_out=max(len(decision.stays) - STAYS_MAX, 0))


def _here(bundle: str, broker: str, reason: str, cause: Cause) -> Move:
    """A bundle that was divided or joined where it is."""
    return Move(bundle=bundle, source=broker, destination=broker, reason=reason, cause=cause)


def _stays(stays: Iterable[Stay], noted: Collection[str], problems: Mapping[str, str]) -> tuple[Stay, ...]:
    """What is told of those that were to be divided or joined, and were not: by the plan, or because it failed; by name."""
    told = {stay.subject: stay.reason for stay in stays if stay.subject in noted} | dict(problems)
    return tuple(Stay(subject=name, reason=reason) for name, reason in sorted(told.items()))
