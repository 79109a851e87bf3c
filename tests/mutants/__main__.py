"""`python -m tests.mutants [DIR]`: apply each patch of DIR to a copy of the product, and simulate
until a checker catches it.

Mutants of compaction, of the files of logs and of answers, which the simulation lacks, are hunted
by tests/channels/*_hunt.py.

Exits with 0 if every mutant is caught by a checker within its budget.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.channels import (
    admin_hunt,
    compaction_hunt,
    deposed_leader_hunt,
    keyed_hunt,
    power_loss_hunt,
    process_lock_hunt,
)
from tests.house.house_rules import LINKED, ROOT
from tests.mutants.patching import Mutant, PatchDoesNotApplyError, apply, parse

SEEDS_MAX = 200
# Of CPU time, so that a busy machine catches what a quiet one does; and of any time, because
# nothing waits for ever.
BUDGET_SECONDS = 120
PATIENCE_SECONDS = 10 * BUDGET_SECONDS
HUNTS = {
    hunt.SCENARIO: (hunt.__name__,)
    for hunt in (
        admin_hunt,
        compaction_hunt,
        deposed_leader_hunt,
        keyed_hunt,
        power_loss_hunt,
        process_lock_hunt,
    )
}
_VIOLATION = re.compile(r"^VIOLATION of (.*)$", re.MULTILINE)
_SEED = re.compile(r"^scenario \S+, seed (\d+);", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one mutant: caught or not, and how, in one line."""

    mutant: str
    caught: bool
    how: str
    seconds: float


def mutants_of(folder: Path) -> list[Mutant]:
    return [
        parse(path.stem, path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.patch"))
    ]


def product_texts() -> dict[str, str]:
    paths = [path for package in LINKED for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def write_product(folder: Path, texts: Mapping[str, str]) -> None:
    """Write a package `equipoise` into `folder`, with these modules in place of the linked
    packages.
    """
    shutil.copytree(
        ROOT / "equipoise", folder / "equipoise", ignore=shutil.ignore_patterns(*LINKED)
    )
    for path, text in texts.items():
        (folder / "equipoise" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "equipoise" / path).write_text(text, encoding="utf-8")


def hunt(mutant: Mutant, texts: dict[str, str], *, seeds_max: int = SEEDS_MAX) -> Result:
    began = time.monotonic()
    try:
        changed = apply(mutant, texts)
    except PatchDoesNotApplyError as problem:
        return Result(mutant=mutant.name, caught=False, how=f"DOES NOT APPLY: {problem}", seconds=0)
    with TemporaryDirectory(prefix="mutant-") as folder:
        write_product(Path(folder), {**texts, **changed})
        caught, how = _simulate(mutant, Path(folder), seeds_max)
    return Result(mutant=mutant.name, caught=caught, how=how, seconds=time.monotonic() - began)


def _simulate(mutant: Mutant, folder: Path, seeds_max: int) -> tuple[bool, str]:
    options = HUNTS.get(mutant.scenario) or (
        "tests.simulation",
        "--quiet",
        "--scenario",
        mutant.scenario,
    )
    command = [sys.executable, "-m", *options, "--seeds", str(seeds_max)]
    # The copy comes first on the path, before the product that is installed beside this
    # interpreter, and before the tests.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    limited = ["sh", "-c", f'ulimit -t {BUDGET_SECONDS}; exec "$@"', "sh", *command]
    try:
        run = subprocess.run(
            limited,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"NOT CAUGHT within {PATIENCE_SECONDS} s of {mutant.scenario}"
    if run.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return False, f"NOT CAUGHT within {BUDGET_SECONDS} s of CPU time, of {mutant.scenario}"
    violation, seed = _VIOLATION.search(run.stdout), _SEED.search(run.stdout)
    if run.returncode == 1 and violation is not None and seed is not None:
        return True, f"caught by seed {seed[1]} of {mutant.scenario}: {violation[1]}"
    if run.returncode == 0:
        return False, f"NOT CAUGHT by {seeds_max} seeds of {mutant.scenario}"
    return (
        False,
        f"CRASHED instead of being caught by a checker:\n{run.stderr[-2_000:]}{run.stdout[-500:]}",
    )


def main() -> int:
    """Hunt all mutants of the folder that the command line names, as many at once as there are
    cores.
    """
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    try:
        mutants = mutants_of(folder)
    except PatchDoesNotApplyError as problem:
        print(problem)
        return 1
    if not mutants:
        print(f"there is no *.patch in {folder}")
        return 1
    texts, began = product_texts(), time.monotonic()
    results = []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for result in pool.map(lambda mutant: hunt(mutant, texts), mutants):
            results.append(result)
            print(f"{result.mutant:<36} {result.how}  [{result.seconds:.0f} s]", flush=True)
    caught = sum(result.caught for result in results)
    print(f"{caught} of {len(results)} mutants caught, in {time.monotonic() - began:.0f} s")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
