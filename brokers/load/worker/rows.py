"""Encode and decode the table rows and the sightings of load workers: a header line, then a body.

Input may be of another version or another program: each parser returns a value or raises
`UnreadableLoad`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import orjson

from equipoise.brokers.errors import UnreadableLoad
from equipoise.brokers.load.documents import decode_bundle, encode_bundle, history_in
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.fields import MalformedError, fail, integer, text
from equipoise.channel.core.ranges import check_broker_id
from equipoise.shedder.loads import BundleTraffic

_match_row: Final = re.compile(rb"(\d{1,9}) (\d{1,18}) (\d{1,18}) (\d{1,18})\n").match


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A table row: an encoded load or sighting, and the position of its message.

    * `partition` and `offset` are those of the message in its topic. A table holds all partitions
      of its worker, and rows are deleted by partition.
    * `at_ms` is when the worker processed the message (Unix time by its clock).
    * `handed` is the offset after the last handover that the load includes.
    """

    partition: int
    offset: int
    at_ms: int
    body: bytes
    handed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A bundle as its broker reported it.

    * `broker` serves it and reported it at `at_ms`, Unix time by its own clock. Its samples are in
      `partition`.
    * `bundle` has its average traffic. `history` is the share of an average that remains after
      `shedder.loads.STEP_MS`.
    """

    broker: str
    at_ms: int
    partition: int
    history: float
    bundle: BundleTraffic


def encode_row(row: Row) -> bytes:
    """Encode a row."""
    return b"%d %d %d %d\n%b" % (row.partition, row.offset, row.at_ms, row.handed, row.body)


def decode_row(data: bytes) -> Row:
    """Decode what `encode_row` encoded, without checking the body. Raises `UnreadableLoad` for
    anything else.
    """
    match = _match_row(data)
    if match is None:
        raise UnreadableLoad(
            what="row",
            problem="it does not begin with a partition, an offset, a time, and an offset",
        )
    partition, offset, at_ms, handed = map(int, match.groups())
    return Row(
        partition=partition, offset=offset, at_ms=at_ms, handed=handed, body=data[match.end() :]
    )


def encode_sighting(sighting: Sighting) -> bytes:
    """Encode a sighting."""
    head = {
        "broker": sighting.broker,
        "at_ms": sighting.at_ms,
        "partition": sighting.partition,
        "history": sighting.history,
    }
    return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE) + encode_bundle(sighting.bundle)


def decode_sighting(data: bytes) -> Sighting:
    """Decode what `encode_sighting` encoded. Raises `UnreadableLoad` for anything else."""
    head, _, body = data.partition(b"\n")
    bundle = decode_bundle(body)
    try:
        raw = orjson.loads(head)
        if not isinstance(raw, dict):
            fail("its first line must be an object")
        return Sighting(
            broker=check_broker_id(text(raw, "broker")),
            at_ms=integer(raw, "at_ms"),
            partition=integer(raw, "partition"),
            history=history_in(raw),
            bundle=bundle,
        )
    except (orjson.JSONDecodeError, MalformedError, CallerError) as error:
        raise UnreadableLoad(what="sighting", problem=str(error)) from None
