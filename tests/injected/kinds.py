"""All kinds of injected violations, and the trial of one in the audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from random import Random
from typing import Final

from equipoise.spark_jobs.rules.rule import Finding
from tests.injected.evidence import LIES
from tests.injected.forgeries import FORGED_KINDS
from tests.injected.injection import Injected, Kind
from tests.injected.mutants import BrokenFold, broken_folds, channel_for, folding_with, injected_in
from tests.injected.obedience import DISOBEDIENCES
from tests.injected.stories import STORIES
from tests.injected.tampering import TAMPERINGS
from tests.spark.spark_host import archive_findings_of, spark_findings_of
from tests.spark.spark_pipeline import findings_of

# The rarest kind needs some twenty seeds for five places.
SEEDS_MAX: Final = 60

FOLDS: Final = {f"fold_{broken.name}": broken for broken in broken_folds()}


def _inject_in_fold(broken: BrokenFold, seed: int, _rng: Random) -> Injected | None:
    return injected_in(channel_for(broken, seed), broken)


KINDS: Final = (
    *FORGED_KINDS,
    *TAMPERINGS,
    *STORIES,
    *LIES,
    *DISOBEDIENCES,
    *(Kind(name=name, inject=partial(_inject_in_fold, broken)) for name, broken in FOLDS.items()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One violation, the seed that made it, all findings of the audit, and whether Spark makes the
    same, also of archived records.
    """

    seed: int
    injected: Injected
    findings: list[Finding]
    is_same_in_spark: bool

    @property
    def is_named(self) -> bool:
        """Whether a finding names the violation by one of its rules, with its subject and
        offset.
        """
        return bool(self.injected.named_by(self.findings))

    def __str__(self) -> str:
        """Return what was expected, and what was found at these offsets."""
        injected = self.injected
        wanted = (
            f"{sorted(injected.rules)} of {sorted(injected.subjects)} at"
            f" {sorted(injected.offsets)[:3]}"
        )
        near = [
            finding for finding in self.findings if not injected.offsets.isdisjoint(finding.offsets)
        ]
        return f"seed {self.seed}: {wanted}, found {near[:3]}"


def trials(kind: Kind, *, places: int) -> Iterator[Trial]:
    """Yield trials of a kind, each in another channel; fewer than `places` if `SEEDS_MAX` seeds
    have no more.
    """
    return islice(_trials(kind), places)


def _trials(kind: Kind) -> Iterator[Trial]:
    for seed in islice(count(1), SEEDS_MAX):
        injected = kind.inject(seed, Random(seed))
        if injected is not None:
            with _fold_of(kind):
                yield _trial(seed, injected)


def _trial(seed: int, injected: Injected) -> Trial:
    arrivals, lost = injected.arrivals, injected.lost
    findings = findings_of(arrivals, lost=lost)
    return Trial(
        seed=seed,
        injected=injected,
        findings=findings,
        is_same_in_spark=_is_same(findings, spark_findings_of(arrivals, lost=lost))
        # Notes are not archived: they come after all records.
        and _is_same(
            findings_of(arrivals, lost=lost, batch=len(arrivals)),
            archive_findings_of(arrivals, lost=lost),
        ),
    )


def _is_same(plain: Iterable[Finding], spark: Iterable[Finding]) -> bool:
    return {each.to_bytes() for each in plain} == {each.to_bytes() for each in spark}


def _fold_of(kind: Kind) -> AbstractContextManager[None]:
    broken = FOLDS.get(kind.name)
    return nullcontext() if broken is None else folding_with(broken)
