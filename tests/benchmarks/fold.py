"""How fast records become a view: `make bench BENCH=fold` prints one JSON line, in less than a
minute.

Rates are per second of this process' own CPU time, which is what one core gives that has nothing
else to do; `fold_wall` is the fold by the clock on the wall, as it was with the neighbours of that
moment. `fold_hmac` is the fold of records that begin with an HMAC-SHA256, which it checks: what
0034 rejects.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from itertools import islice

import orjson

from equipoise.channel.core.codec import decode
from equipoise.channel.core.records import AnyRecord, Unreadable
from equipoise.channel.core.view import View, apply
from tests.benchmarks.figures import machine, print_line, summary
from tests.channels.busy_channel import GARBAGE, BusyChannel

RECORDS, REPEATS = 200_000, 7
BROKERS, BUNDLES = 16, 1_024
RENEWALS = 0.6
KEY, MAC_BYTES = bytes(range(32)), 32

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


def mac(data: bytes) -> bytes:
    """The HMAC of a record."""
    return hmac.digest(KEY, data, "sha256")


def signed(entries: Entries) -> Entries:
    """The same records, each after its HMAC."""
    return [(offset, mac(data) + data) for offset, data in entries]


def verified(entry: bytes) -> AnyRecord | Unreadable:
    """Check the HMAC of a record, and decode it."""
    data = entry[MAC_BYTES:]
    assert hmac.compare_digest(mac(data), entry[:MAC_BYTES])
    return decode(data)


def fold(
    founding: Entries,
    entries: Entries,
    digest: int,
    read: Callable[[bytes], AnyRecord | Unreadable] = decode,
) -> tuple[float, float]:
    """Records folded a second of CPU time, and a second on the wall."""
    view = View()
    for offset, data in founding:
        apply(view, offset, decode(data))
    began, began_wall = time.process_time(), time.perf_counter()
    diverged = False
    for offset, data in entries:
        diverged |= apply(view, offset, read(data)).diverged
    took, took_wall = time.process_time() - began, time.perf_counter() - began_wall
    assert not diverged
    assert digest == view.digest()
    return len(entries) / took, len(entries) / took_wall


def every(entries: Entries, work: Callable[[bytes], object]) -> float:
    """Records a second of CPU time of which `work` is done with the bytes alone."""
    began = time.process_time()
    for _, data in entries:
        work(data)
    return len(entries) / (time.process_time() - began)


def main() -> None:
    """Measure in turns and print."""
    founding, entries, digest = stream()
    rates: dict[str, list[float]] = {
        "fold": [],
        "fold_wall": [],
        "fold_hmac": [],
        "hmac": [],
        "decode": [],
        "parse_json": [],
    }
    with_macs = signed(entries)
    for _ in range(REPEATS):
        rate, rate_wall = fold(founding, entries, digest)
        rates["fold"].append(rate)
        rates["fold_wall"].append(rate_wall)
        rates["fold_hmac"].append(fold(founding, with_macs, digest, verified)[0])
        rates["hmac"].append(every(entries, mac))
        rates["decode"].append(every(entries, decode))
        rates["parse_json"].append(every(entries, orjson.loads))
    conditions = (
        f"{RECORDS} records of {sum(len(data) for _, data in entries) // RECORDS} bytes on average,"
        f" {RENEWALS:.0%} renewals, {BROKERS} brokers, {BUNDLES} bundles; one core of {machine()},"
        f" orjson {orjson.__version__}"
    )
    print_line(
        "fold", {name: summary(each, "records/s") for name, each in rates.items()}, conditions
    )


if __name__ == "__main__":
    main()
