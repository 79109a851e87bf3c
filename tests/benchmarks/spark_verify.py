"""How fast an archive is verified: `make bench BENCH=spark_verify` prints one JSON line, in about
ten minutes the first time.

The archive is made of an honest channel, by the archive's own sequence and sink; it is kept in the
user's cache folder, because making it takes longer than all else.

The same command is run with all cores and pinned to one, one after the other. What is compared is
the time of the folding: the start of Spark, some seconds, is the same in both, and told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil

from tests.benchmarks.figures import machine, print_line, single
from tests.channels.busy_channel import BusyChannel
from tests.spark.archived import archive_entries

RECORDS: Final = 5_000_000
SNAPSHOT_RECORDS, BATCH_RECORDS = 100_000, 100_000
SEED, BROKERS, BUNDLES, RENEWALS = 1, 16, 1_024, 0.9
FORM: Final = 1
"""Raised whenever another archive is to be made of the same number of records."""

SAMPLE_EVERY_S: Final = 0.5
_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Run:
    """One verification: records/s of its folding, seconds until its process had ended, and how much
    memory it had at most (MiB).
    """

    records_per_s: float
    folding_s: float
    whole_s: float
    memory_mib: int


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


def verified(archive: Path, *, cores: Sequence[int] | None) -> Run:
    """Run the command on these cores, or on all."""
    pinned = [] if cores is None else ["taskset", "-c", ",".join(map(str, cores))]
    began = time.monotonic()
    command = [
        *pinned,
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "spark",
        "verify",
        "--archive",
        str(archive),
        "--json",
    ]
    memory = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            memory = max(memory, _memory_bytes(process.pid))
            time.sleep(SAMPLE_EVERY_S)
        assert process.stdout is not None
        result: dict[str, Any] = json.loads(process.stdout.read())
    assert result["in_order"], result
    seconds = result["seconds"]
    return Run(
        records_per_s=result["records"] / seconds,
        folding_s=seconds,
        whole_s=time.monotonic() - began,
        memory_mib=memory // _MIB,
    )


def _memory_bytes(pid: int) -> int:
    """What a process and all that it started have in memory; what they share is counted once."""
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.spark_verify")
    parser.add_argument(
        "--records",
        type=int,
        default=RECORDS,
        help=f"how many records the archive holds (default {RECORDS})",
    )
    records = parser.parse_args(arguments).records
    archive = archive_of(records)
    before = machine()
    all_cores = verified(archive, cores=None)
    one_core = verified(archive, cores=[0])
    results = {
        "all_cores": single(all_cores.records_per_s, "records/s"),
        "one_core": single(one_core.records_per_s, "records/s"),
        "speedup": single(one_core.folding_s / all_cores.folding_s, "times"),
        "memory": single(all_cores.memory_mib, "MiB"),
        "whole_run": single(all_cores.whole_s, "s"),
    }
    conditions = (
        f"{before}, {records} records of {BROKERS} brokers and {BUNDLES} bundles, {RENEWALS:.0%}"
        f" renewals, a snapshot every {SNAPSHOT_RECORDS}; one core is `taskset -c 0` of the same"
        " command; memory is that of the JVM and all workers together"
    )
    print_line("spark_verify", results, conditions)


if __name__ == "__main__":
    main(sys.argv[1:])
