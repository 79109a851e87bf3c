"""How many of the injected violations the audit names: `make bench BENCH=audit_injected` prints one
JSON line.

It injects each kind at `PLACES` places. A violation that is missed makes the benchmark fail.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from tests.benchmarks.frame import machine, print_line
from tests.injected.kinds import KINDS, trials

PLACES: Final = 5


def missed(place: int) -> tuple[int, list[str]]:
    """Of the kind at this place of the catalogue: how often it was injected, and what the audit did
    not name.
    """
    tried = list(trials(KINDS[place], places=PLACES))
    return len(tried), [f"{KINDS[place].name}: {trial}" for trial in tried if not trial.is_named]


def main() -> int:
    """Inject, and print; return 1 if anything was missed or could not be injected."""
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        answers = list(pool.map(missed, range(len(KINDS))))
    misses = [miss for _, lines in answers for miss in lines]
    print(*misses, sep="\n", end="\n" if misses else "", file=sys.stderr)
    injected = sum(tried for tried, _ in answers)
    results = {
        "kinds": len(KINDS),
        "injected": injected,
        "named": injected - len(misses),
        "named_percent": 100 * (injected - len(misses)) / injected,
    }
    print_line("audit_injected", results, f"{PLACES} places a kind; {machine()}")
    return 1 if misses or injected < PLACES * len(KINDS) else 0


if __name__ == "__main__":
    sys.exit(main())
