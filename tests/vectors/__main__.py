"""`python -m tests.vectors [FOLDER]`: ask our own rules what Pulsar's classes were asked, and count
the equal answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.vectors import (
    avg_shedder,
    broker_load_data,
    conflict_rules,
    least_resource_usage_placement,
    overload_shedder,
    split_boundaries,
    split_decisions,
    threshold_shedder,
    top_k_bundles,
    topic_hashing,
    transfer_shedder,
    uniform_shedder,
)
from tests.vectors.cases import HERE, Case, files_of, read_cases
from tests.vectors.comparing import difference

# Each has `replay(case)`, what we answer to a case; and, where Pulsar's output cannot be compared
# as it stands, `expected(case)`.
FILES: Final[Mapping[str, ModuleType]] = {
    "avg_shedder": avg_shedder,
    "broker_load_data": broker_load_data,
    "conflict_rules": conflict_rules,
    "least_resource_usage_placement": least_resource_usage_placement,
    "overload_shedder": overload_shedder,
    "split_boundaries": split_boundaries,
    "split_decisions": split_decisions,
    "threshold_shedder": threshold_shedder,
    "top_k_bundles": top_k_bundles,
    "topic_hashing": topic_hashing,
    "transfer_shedder": transfer_shedder,
    "uniform_shedder": uniform_shedder,
}


def differing(name: str, cases: tuple[Case, ...]) -> list[str]:
    """Of each case that we answer otherwise than Pulsar: its name, and the first difference."""
    module = FILES[name]
    found = []
    for case in cases:
        expected = module.expected(case) if hasattr(module, "expected") else case["output"]
        told = difference(expected, module.replay(case))
        if told is not None:
            found.append(f"{case['id']}{told}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Replay all files of a folder, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.vectors", description="Compare our decisions with Pulsar's."
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=HERE,
        help="vectors as .jsonl or .jsonl.gz (default: those of this folder)",
    )
    folder = parser.parse_args(arguments).folder
    names = list(files_of(folder)) if folder.is_dir() else []
    if not names:
        print(f"there are no vectors in {folder}: it must hold files .jsonl or .jsonl.gz")
        return 1
    failed = False
    for name in names:
        if name not in FILES:
            print(f"{name}: nobody here knows this file; there are {', '.join(sorted(FILES))}")
            failed = True
        else:
            cases = read_cases(name, folder)
            found = differing(name, cases)
            print(f"{name} {len(cases)} cases, {len(cases) - len(found)} equal")
            for told in found[:3]:
                print(f"  {told}")
            failed |= bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
