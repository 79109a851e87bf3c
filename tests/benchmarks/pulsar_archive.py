"""How fast a million records of a Pulsar channel are read: `make bench BENCH=pulsar_archive` prints
one JSON line.

The archive has 1,000,000 records of 20,000 bundles in 20 namespaces, mostly transfers. `verify`
reads, parses, folds and audits all records. `why` is the whole command in a process of its own, for
the bundle with the longest history.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from equipoise.channel.core.ranges import bundle_name, even_boundaries
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.reading import Read
from equipoise.pulsar_cluster.table import Table
from equipoise.pulsar_cluster.verify import Audit
from tests.benchmarks.frame import report, summary

RECORDS, NAMESPACES, BUNDLES, BROKERS = 1_000_000, 20, 1_000, 50
ROUNDS, SEED, BATCH = 3, 1, 5_000
URL = "pulsar://127.0.0.1:6650"


def written() -> Iterator[Read]:
    """Yield the records of transfers between random brokers."""
    chance = random.Random(SEED)
    bounds = even_boundaries(BUNDLES)
    bundles = [
        bundle_name(f"acme/n{number}", low, high)
        for number in range(NAMESPACES)
        for low, high in itertools.pairwise(bounds)
    ]
    brokers = [f"10.0.0.{number}:8080" for number in range(BROKERS)]
    owners: dict[str, str] = {}
    versions = Counter[str]()
    entry = 0
    while True:
        bundle, to = chance.choice(bundles), chance.choice(brokers)
        source = owners.get(bundle)
        if to == source:
            continue
        owners[bundle] = to
        steps = (
            (("Assigning", to), ("Owned", to))
            if source is None
            else (("Releasing", source), ("Assigning", source), ("Owned", to))
        )
        for state, by in steps:
            versions[bundle] += 1
            names = f'"dstBroker":"{to}"' + (
                "" if source is None else f',"sourceBroker":"{source}"'
            )
            value = f'{{"state":"{state}",{names},"force":false,"timestamp":{1_700_000_000_000 + entry},"versionId":{versions[bundle]}}}'  # noqa: E501
            yield Read(
                f"7:{entry}",
                b"position",
                bundle,
                f"local-1-{by}",
                1_700_000_000_000 + entry,
                value.encode(),
            )
            entry += 1


def build(path: Path) -> None:
    """Write the archive, as `pulsar record` does."""
    records = written()
    with open_archive(path, create_for=URL) as archive:
        while archive.end + 1 < RECORDS:
            archive.append([next(records) for _ in range(BATCH)])


def verify(path: Path) -> tuple[float, str]:
    """Return the seconds of an audit, and the bundle with most records."""
    table, audit, counts = Table(), Audit(), Counter[str]()
    begin_s = time.perf_counter()
    with open_archive(path) as archive:
        for message in archive.messages():
            audit.see(table.fold(message))
    spent_s = time.perf_counter() - begin_s
    assert audit.result().in_order
    with open_archive(path) as archive:
        counts.update(message.bundle for message in archive.messages())
    return spent_s, counts.most_common(1)[0][0]


def why(path: Path, bundle: str) -> float:
    """Return the seconds of the command."""
    begin_s = time.perf_counter()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "equipoise.brokers.cli",
            "pulsar",
            "why",
            bundle,
            "--source",
            str(path),
        ],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - begin_s


def measure(folder: Path) -> dict[str, object]:
    """Write, audit, and ask."""
    path = folder / "pulsar.db"
    build(path)
    audits = [verify(path) for _ in range(ROUNDS)]
    return {
        "verify": summary([seconds for seconds, _ in audits], "s"),
        "why": summary([why(path, audits[0][1]) for _ in range(ROUNDS)], "s"),
    }


if __name__ == "__main__":
    report("pulsar_archive", measure, f"{RECORDS} records of {NAMESPACES * BUNDLES} bundles")
