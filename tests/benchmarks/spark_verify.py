"""How fast an archive is verified: `make bench BENCH=spark_verify` prints one JSON line, in about
ten minutes the first time.

The archive is made of an honest channel, by the archive's own sequence and sink; it is kept in the
user's cache folder, because making it takes longer than all else.

The same command is run with all cores and pinned to one, one after the other. What is compared is
the time of the folding: the start of Spark, some seconds, is the same in both, and told apart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.frame import report, single
from tests.channels.busy_channel import BusyChannel
from tests.spark.archived import archive_entries

RECORDS: Final = 5_000_000
SNAPSHOT_RECORDS, BATCH_RECORDS = 100_000, 100_000
SEED, BROKERS, BUNDLES, RENEWALS = 1, 16, 1_024, 0.9
FORM: Final = 2
"""Raised whenever another archive is to be made of the same number of records."""


def archive_of(records: int) -> Path:
    """The archive, made now if it is not there yet."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "equipoise"
        / "benchmarks"
    )
    archive = cache / f"verify-{FORM}-{records}"
    if not archive.exists():
        part = archive.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        channel = BusyChannel(seed=SEED, brokers=BROKERS, bundles=BUNDLES, renewals=RENEWALS)
        entries = islice(channel.steps(), records)
        archive_entries(
            entries, part, snapshot_records=SNAPSHOT_RECORDS, batch_records=BATCH_RECORDS
        )
        part.rename(archive)
    return archive


def verified(archive: Path, *, cores: str | None = None) -> float:
    """Run the command on these cores, or on all. Return the records/s of its folding."""
    pinned = [] if cores is None else ["taskset", "-c", cores]
    command = [*pinned, sys.executable, "-m", "equipoise.brokers.cli", "spark", "verify"]
    run = subprocess.run(
        [*command, "--archive", str(archive), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(run.stdout)
    assert result["in_order"], result
    return float(result["records"] / result["seconds"])


def measure(_: Path) -> dict[str, object]:
    """Verify on all cores, and on one."""
    archive = archive_of(RECORDS)
    return {
        "all_cores": single(verified(archive), "records/s"),
        "one_core": single(verified(archive, cores="0"), "records/s"),
    }


if __name__ == "__main__":
    report(
        "spark_verify",
        measure,
        f"{RECORDS} records of {BROKERS} brokers and {BUNDLES} bundles, {RENEWALS:.0%} renewals, a"
        f" snapshot every {SNAPSHOT_RECORDS}; one core is `taskset -c 0` of the same command",
    )
