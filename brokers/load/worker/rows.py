"""How load workers spell what they keep, and what they tell one another: a first line of its own, and a body below it.

May live here: `Row` and `Sighting`, and both ways of spelling them. What is parsed may be of another version, or of nobody: each
parser returns a value or raises `UnreadableLoad`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import orjson

from equipoise.brokers.errors import UnreadableLoad
from equipoise.brokers.load.bus.spelling import parse_bundle, spell_bundle
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.fields import MalformedError, fail, integer, text
from equipoise.channel.core.ranges import check_broker_id
from equipoise.shedder.load_reports import SampledBundle

_match_row: Final = re.compile(rb"(\d{1,9}) (\d{1,18}) (\d{1,18}) (\d{1,18})\n").match


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table: a summary or a sighting, spelled, and the place of the message that it is of.

    `partition` and `offset` are of that message's topic; `at_ms` is Unix time by the worker that took it. A table holds all partitions of
    its worker, and whoever takes a row away must know its own. `handed` is the offset behind the last handover that is in a summary.
    """

    partition: int
    offset: int
    at_ms: int
    body: bytes
    handed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A bundle as it is known where it is served.

    * `broker` serves it, and said so `at_ms`, Unix time by its own clock; its samples lie in `partition`.
    * `bundle` is its average, of which `history` stays after `shedder.loads.STEP_MS`.
    """

    broker: str
    at_ms: int
    partition: int
    history: float
    bundle: SampledBundle


def spell_row(row: Row) -> bytes:
    """A row as bytes."""
    return b"%d %d %d %d\n%b" % (row.partition, row.offset, row.at_ms, row.handed, row.body)


def parse_row(data: bytes) -> Row:
    """The row that `spell_row` spelled; of its body nothing is known. Raises `UnreadableLoad` for anything else."""
    match = _match_row(data)
    if match is None:
        raise UnreadableLoad(what="row", problem="it does not begin with a partition, an offset, a time, and an offset")
    partition, offset, at_ms, handed = map(int, match.groups())
    return Row(partition=partition, offset=offset, at_ms=at_ms, handed=handed, body=data[match.end() :])


def spell_sighting(sighting: Sighting) -> bytes:
    """A sighting as bytes."""
    head = {"broker": sighting.broker, "at_ms": sighting.at_ms, "partition": sighting.partition, "history": sighting.history}
    return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE) + spell_bundle(sighting.bundle)


def parse_sighting(data: bytes) -> Sighting:
    """The sighting that `spell_sighting` spelled. Raises `UnreadableLoad` for anything else."""
    head, _, body = data.partition(b"\n")
    bundle = parse_bundle(body)
    try:
        raw = orjson.loads(head)
        if not isinstance(raw, dict):
            fail("its first line must be an object")
        history = raw.get("history")
        if not isinstance(history, int | float) or not 0 <= history <= 1:
            fail("history must be a share from 0 to 1")
        return Sighting(
            broker=check_broker_id(text(raw, "broker")),
            at_ms=integer(raw, "at_ms"),
            partition=integer(raw, "partition"),
            history=float(history),
            bundle=bundle,
        )
    except (orjson.JSONDecodeError, MalformedError, CallerError) as error:
        raise UnreadableLoad(what="sighting", problem=str(error)) from None
