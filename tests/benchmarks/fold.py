"""How fast records become a view: `make bench BENCH=fold` prints one JSON line, in less than a
minute.

Rates are per second of CPU time, which is what one core gives that has nothing else to do.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from equipoise.channel.core.codec import decode
from equipoise.channel.core.view import View, apply
from tests.benchmarks.frame import report, summary
from tests.channels.busy_channel import GARBAGE, BusyChannel

RECORDS, REPEATS = 200_000, 7
BROKERS, BUNDLES = 16, 1_024
RENEWALS = 0.6

Entries = list[tuple[int, bytes]]


def stream() -> tuple[Entries, Entries, int]:
    """The records by which a cluster is founded, those that are measured, and the digest after
    them.
    """
    channel = BusyChannel(brokers=BROKERS, bundles=BUNDLES, renewals=RENEWALS)
    founding = list(channel.entries)
    records = (
        (offset, data)
        for offset, data in islice(channel.steps(), len(founding), None)
        if data != GARBAGE
    )
    return founding, list(islice(records, RECORDS)), channel.view.digest()


def fold(founding: Entries, entries: Entries, digest: int) -> float:
    """Records folded a second of CPU time."""
    view = View()
    for offset, data in founding:
        apply(view, offset, decode(data))
    began = time.process_time()
    diverged = False
    for offset, data in entries:
        diverged |= apply(view, offset, decode(data)).diverged
    took = time.process_time() - began
    assert not diverged
    assert digest == view.digest()
    return len(entries) / took


def measure(_: Path) -> dict[str, object]:
    """Fold the same records again and again."""
    found = stream()
    return {"fold": summary([fold(*found) for _ in range(REPEATS)], "records/s")}


if __name__ == "__main__":
    report(
        "fold",
        measure,
        f"{RECORDS} records, {RENEWALS:.0%} renewals, {BROKERS} brokers, {BUNDLES} bundles",
    )
