"""Every kind of planted violation, and how one of them is put to the audit.

May live here: the catalogue of kinds, the search for seeds in which one can be planted, and the question to the audit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from random import Random
from typing import Final

from equipoise.spark_jobs.rules.rule import Finding
from tests.planted.evidence import LIES
from tests.planted.forgeries import FORGED_KINDS
from tests.planted.mutants import BrokenFold, broken_folds, channel_for, folding_with, planted_in
from tests.planted.obedience import DISOBEDIENCES
from tests.planted.planted import Kind, Planted
from tests.planted.stories import STORIES
from tests.planted.tampering import TAMPERINGS
from tests.spark_pipeline import findings_of

# A kind that finds no place under so many seeds is not planted at all: the rarest needs some twenty for five places.
SEEDS_MAX: Final = 60

FOLDS: Final = {f"fold_{broken.name}": broken for broken in broken_folds()}


def _plant_in_fold(broken: BrokenFold, seed: int, _rng: Random) -> Planted | None:
    return planted_in(channel_for(broken, seed), broken)


KINDS: Final = (
    *FORGED_KINDS,
    *TAMPERINGS,
    *STORIES,
    *LIES,
    *DISOBEDIENCES,
    *(Kind(name=name, plant=partial(_plant_in_fold, broken)) for name, broken in FOLDS.items()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One violation that was put to the audit: under which seed, what it was, and all that was found."""

    seed: int
    planted: Planted
    findings: list[Finding]

    @property
    def is_named(self) -> bool:
        """Whether a finding names what was planted: by a right rule, of the right subject, at the right offset."""
        return bool(self.planted.named_by(self.findings))

    def __str__(self) -> str:
        """What was expected, and what was found at these offsets."""
        planted = self.planted
        near = [finding for finding in self.findings if not planted.offsets.isdisjoint(finding.offsets)]
        return f"seed {self.seed}: {sorted(planted.rules)} of {sorted(planted.subjects)} at {sorted(planted.offsets)[:3]}, found {near[:3]}"


def trials(kind: Kind, *, places: int) -> Iterator[Trial]:
    """The kind at so many places, each in another channel; fewer if `SEEDS_MAX` seeds have no more."""
    return islice(_trials(kind), places)


def _trials(kind: Kind) -> Iterator[Trial]:
    for seed in islice(count(1), SEEDS_MAX):
        planted = kind.plant(seed, Random(seed))
        if planted is not None:
            with _fold_of(kind):
                findings = findings_of(planted.arrivals, lost=planted.lost)
            yield Trial(seed=seed, planted=planted, findings=findings)


def _fold_of(kind: Kind) -> AbstractContextManager[None]:
    broken = FOLDS.get(kind.name)
    return nullcontext() if broken is None else folding_with(broken)
