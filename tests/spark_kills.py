"""Kill the driver of an audit in the middle of its work, again and again: `python -m tests.spark_kills [--kills 10] [--seed 0]`.

May live here: the log that is audited, the driver that is killed, and the comparison with an audit that nobody disturbed. A test does
the same with fewer kills.

A driver is killed with SIGKILL in the middle of a batch: after Spark has noted which entries are in it, and before it has noted that
the batch is done. Findings must then be those of the undisturbed audit, row for row.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from channel.open_log import open_log
from spark_jobs.audit import run_audit
from spark_jobs.emitted import Table
from spark_jobs.options import AuditOptions, Screen
from spark_jobs.tables.reading import Archive
from tests.spark_logs import WrittenStream

PER_TRIGGER: Final = 300
"""Entries in one batch: a batch takes a second, so that there is time to kill a driver in each."""

BATCHES_MIN: Final = 2
"""Batches between two kills, so that each driver gets somewhere."""

DRIVER_SECONDS_MAX: Final = 600.0
_POLL_SECONDS: Final = 0.01
_DELAY_SECONDS_MAX: Final = 0.7
"""After the beginning of a batch; most of them end a little later."""


def write_log(url: str, *, records: int, forged_every: int = 97) -> int:
    """A busy log with a forged record every so often; how many of these there are."""
    planted = 0
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=16, brokers=4)
        stream.found()
        for _ in range(records // forged_every):
            stream.go_on(forged_every - 1)
            stream.forge()
            planted += 1
    return planted


def silent() -> Screen:
    """A screen for which nothing is printed."""
    return Screen(result=lambda _: None, note=lambda _: None)


def findings(archive: Path) -> list[dict[str, object]]:
    """All that the archive of an audit holds, in order of offsets. Read as it lies in its files: nothing is made single here."""
    rows = [row for batch in Archive(archive).batches(Table.FINDINGS) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["offset"], row["ordinal"]))


def audit(url: str, archive: Path) -> int:
    """Audit all of a log in this process; how many findings there were."""
    return run_audit(AuditOptions(log_url=url, archive=archive, to_end=True, per_trigger=PER_TRIGGER), silent())


def audit_with_kills(url: str, archive: Path, *, kills: int, chance: random.Random) -> int:
    """Audit all of a log in drivers that are killed, and a last one that is not; how many were."""
    batch = 0
    for number in range(kills):
        with driver(url, archive) as running:
            killed_at = killed(running, archive, after=batch + BATCHES_MIN, delay_seconds=chance.uniform(0, _DELAY_SECONDS_MAX))
        if killed_at is None:
            return number
        batch = killed_at
    with driver(url, archive) as running:
        running.wait(DRIVER_SECONDS_MAX)
    assert running.returncode == 0, f"the last driver ended with {running.returncode}"
    return kills


def driver(url: str, archive: Path) -> subprocess.Popen[bytes]:
    """A process that audits all of a log."""
    return subprocess.Popen([sys.executable, "-m", "tests.spark_kills", "--audit", url, "--archive", str(archive)])


def killed(running: subprocess.Popen[bytes], archive: Path, *, after: int, delay_seconds: float) -> int | None:
    """Kill a driver in the middle of a batch with the number `after` or a later one; which that was, None if it ended before."""
    checkpoint = archive / ".checkpoints" / "audit" / "g0001"
    give_up = time.monotonic() + DRIVER_SECONDS_MAX
    while time.monotonic() < give_up:
        if running.poll() is not None:
            return None
        batch = newest(checkpoint / "offsets")
        if batch >= after and newest(checkpoint / "commits") < batch:
            time.sleep(delay_seconds)
            running.send_signal(signal.SIGKILL)
            return batch
        time.sleep(_POLL_SECONDS)
    running.kill()
    raise AssertionError(f"no batch {after} within {DRIVER_SECONDS_MAX} s")


def newest(folder: Path) -> int:
    """The highest number that a file in the folder bears; -1 without one."""
    return max((int(file.name) for file in folder.glob("*") if file.name.isdigit()), default=-1)


def main() -> int:
    """Audit once undisturbed and once with kills, and compare; 0 if there is no difference."""
    parser = argparse.ArgumentParser(description="Kill the driver of an audit in the middle of its work.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=15_000)
    parser.add_argument("--audit", metavar="URL", help="only audit this log, in this process")
    parser.add_argument("--archive", type=Path)
    asked = parser.parse_args()
    if asked.audit is not None:
        audit(asked.audit, asked.archive)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        url, whole, cut = f"sqlite:{folder}/log", Path(folder, "undisturbed"), Path(folder, "killed")
        planted = write_log(url, records=asked.records)
        kills = audit_with_kills(url, cut, kills=asked.kills, chance=random.Random(asked.seed))
        audit(url, whole)
        expected, actual = findings(whole), findings(cut)
    is_equal = expected == actual and kills == asked.kills
    print(f"{planted} planted, {len(expected)} found undisturbed, {len(actual)} found with {kills} kills, equal: {expected == actual}")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
