"""What people would pick instead, measured beside ours: `make bench BENCH=peers`, in an hour, or in
parts: `make bench BENCH=peers PEERS="redis zookeeper" EVENTS="kill stop10"`.

Three programs share 64 shards under 200 calls/s; then a fourth joins, one dies, and so on. Results
are in `build/peers`, one file for each system. `python -m tests.docs.benchmarks_page` takes
them into `results.json`, and draws the plot of the page "When to use it" from that.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import uvloop

from tests.benchmarks.frame import print_line
from tests.benchmarks.peers.runs import Results, measure
from tests.benchmarks.peers.servers import version_of
from tests.benchmarks.peers.systems import ALL_EVENTS, NODE, SYSTEMS, adapter_lines
from tests.house.house_rules import ROOT

FOLDER: Final = ROOT / "build" / "peers"


def _chosen(variable: str, known: Sequence[str]) -> Sequence[str]:
    words = os.environ.get(variable, "").split()
    assert set(words) <= set(known), f"{variable} takes some of: {' '.join(known)}"
    return words or known


def main() -> None:
    """Measure the chosen systems."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in _chosen("PEERS", list(SYSTEMS)):
        system, path = SYSTEMS[name], FOLDER / f"{name}.json"
        results: Results = json.loads(path.read_text())["events"] if path.exists() else {}
        chosen = [each for each in _chosen("EVENTS", ALL_EVENTS) if each in system.events]
        alone = [[each] for each in chosen if each in NODE]
        try:
            for events in ([each for each in chosen if each not in NODE], *alone):
                if events:
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                        uvloop.run(measure(system, events, Path(folder), results))
        finally:
            line = {
                "title": system.title,
                "versions": [
                    f"{system.package} {version(system.package)}",
                    version_of(system.server),
                ],
                "lines": adapter_lines(system.adapter),
                "events": results,
            }
            path.write_text(json.dumps(line, indent=1) + "\n")
        print_line(f"peers {name}", line, "three programs, 64 shards, 200 calls/s")


if __name__ == "__main__":
    main()
