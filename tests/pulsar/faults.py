"""Faults to put into a copy of the golden log of a real Pulsar cluster. `pulsar verify` and the
Spark audit must find each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equipoise.pulsar_cluster.reading import Read
from equipoise.pulsar_cluster.verify import Kind

GOLDEN: Final = Path(__file__).parents[1] / "golden/pulsar"
GONE: Final = "127.0.0.1:19043"
"""A broker that was killed, and did not come back."""

LATER_MS: Final = 60_000


def golden_reads(name: str = "channel.jsonl") -> list[Read]:
    """Return the messages of a golden file, as Pulsar's client returns them."""
    found = []
    for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines():
        message = json.loads(line)
        value = None if message["value"] is None else json.dumps(message["value"]).encode()
        place = message["id"].removesuffix(":-1")
        found.append(
            Read(
                place,
                message["id"].encode(),
                message["key"],
                message["producer"],
                message["published_ms"],
                value,
            )
        )
    return found


def _record(read: Read) -> dict[str, object]:
    return {} if read.value is None else json.loads(read.value)


def _newest(reads: Sequence[Read]) -> Read:
    """Return the newest record of a bundle that is owned at the end."""
    last = {read.key: read for read in reads if _record(read).get("versionId") is not None}
    return next(read for read in last.values() if _record(read)["state"] == "Owned")


def _changed(
    read: Read, reads: Sequence[Read], *, ahead: int, producer: str, **fields: object
) -> Read:
    """Return a copy of a record, a minute after the last message, with a version so much ahead."""
    version = _record(read)["versionId"]
    assert isinstance(version, int)
    value = json.dumps(_record(read) | {"versionId": version + ahead} | fields).encode()
    return read._replace(
        value=value, producer=producer, published_ms=reads[-1].published_ms + LATER_MS
    )


def _old_version(reads: Sequence[Read]) -> Read:
    return _changed(_newest(reads), reads, ahead=-1, producer="local-1-99")


def _late_after_a_tombstone(reads: Sequence[Read]) -> Read:
    there = {read.key for read in reads if read.value is None} - {_newest(reads).key}
    read = next(
        read for read in reads if read.key in there and _record(read).get("state") == "Owned"
    )
    return _changed(read, reads, ahead=0, producer="local-1-99", dstBroker="127.0.0.1:11500")


def _second_owner(reads: Sequence[Read]) -> Read:
    """Over a gap of versions Pulsar's brokers take any record, without a look at the owner."""
    return _changed(
        _newest(reads),
        reads,
        ahead=2,
        producer="local-1-99",
        dstBroker="127.0.0.1:12345",
        sourceBroker=None,
    )


def _claim(reads: Sequence[Read]) -> Read:
    """Without a gap they ignore it, but its writer believes that it may own the bundle."""
    return _changed(
        _newest(reads),
        reads,
        ahead=1,
        producer="local-1-99",
        dstBroker="127.0.0.1:12345",
        sourceBroker=None,
    )


def _gone_broker(reads: Sequence[Read]) -> Read:
    producer = next(
        read.producer
        for read in reads
        if _record(read).get("state") == "Owned" and _record(read)["dstBroker"] == GONE
    )
    owner = _record(_newest(reads))["dstBroker"]
    return _changed(
        _newest(reads),
        reads,
        ahead=1,
        producer=producer,
        state="Releasing",
        dstBroker=GONE,
        sourceBroker=owner,
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """A message to add, and what must find it: the kind of `pulsar verify`, and the rule of the
    Spark audit without `pulsar_`.
    """

    message: Callable[[Sequence[Read]], Read]
    kind: Kind
    rule: str

    def inject(self, reads: Sequence[Read]) -> list[Read]:
        """Return the log with the fault at its end."""
        return [*reads, self.message(reads)]


FAULTS: Final = {
    "a record with an old version": Fault(_old_version, Kind.OLD_VERSION, "old_version"),
    "a late record after a tombstone": Fault(
        _late_after_a_tombstone, Kind.OLD_VERSION, "old_version"
    ),
    "a second owner": Fault(_second_owner, Kind.SECOND_OWNER, "second_owner"),
    "a claim on an owned bundle": Fault(_claim, Kind.SECOND_OWNER, "second_owner"),
    "a record of a broker that was gone": Fault(_gone_broker, Kind.GONE_BROKER, "gone_broker"),
}
