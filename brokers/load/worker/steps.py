"""Decide what follows from one message: from a table row and a message to the new row and the
messages to send.

Pure: `now_ms` is Unix time by the worker's clock. An unreadable row was written by another version
and is ignored.

Table rows and sightings are a header line, then a body. Input may be of another version or another
program: each parser returns a value or raises `PeerError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import orjson

from equipoise.brokers.errors import unreadable_load
from equipoise.brokers.load.bus import PASSING_KEPT_MS, SUMMARIES_KEPT_MS
from equipoise.brokers.load.documents import (
    decode_bundle,
    decode_load,
    encode_bundle,
    encode_load,
    history_in,
)
from equipoise.channel.core.errors import CallerError, PeerError
from equipoise.channel.core.fields import MalformedError, fail, integer, text
from equipoise.channel.core.ranges import check_broker_id
from equipoise.channel.system.failures import RepeatedFailures
from equipoise.shedder.loads import BundleTraffic, Load, averaged, blended, fault_of, kept_share

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
    """Decode what `encode_row` encoded, without checking the body. Raises `PeerError` for
    anything else.
    """
    match = _match_row(data)
    if match is None:
        raise unreadable_load(
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
    """Decode what `encode_sighting` encoded. Raises `PeerError` for anything else."""
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
        raise unreadable_load(what="sighting", problem=str(error)) from None


CLOCKS_APART_MS_MAX: Final = PASSING_KEPT_MS
"""How far a sample's time may differ from the worker's. Older samples are useless; later ones would
look fresh for too long."""

_Body = TypeVar("_Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A message from a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A message without effect: its sender, as far as it is known, and what is wrong with the
    message, if anything.
    """

    subject: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUpdate:
    """The consequences of a message about a broker.

    * `row`: the broker's new table row. None deletes it.
    * `load`: the load to publish. None is a tombstone.
    * `sightings`: messages to send, each with its bundle's name as key.
    * `problem`: an impossible figure. It is passed on with its sender, but enters no average.
    """

    row: bytes | None
    load: bytes | None
    sightings: Sequence[tuple[bytes, bytes]] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleUpdate:
    """The consequences of a sighting: the bundle's new row, and a handover if the bundle has moved.

    `handover` is (partition, key, value): the partition that the sighting names, with the new
    broker as the key.
    """

    row: bytes
    handover: tuple[int, bytes, bytes] | None = None


def on_sample(row: bytes | None, message: Arrived, *, now_ms: int) -> BrokerUpdate | LeftOut:
    """Return what follows from a message on the topic of samples. `row` is the broker's table
    row.
    """
    broker = _broker_in(message)
    if isinstance(broker, LeftOut):
        return broker
    if message.value is None:  # The broker leaves.
        return BrokerUpdate(row=None, load=None)
    try:
        sample = decode_load(message.value)
    except PeerError as error:
        return LeftOut(subject=broker, problem=str(error))
    problem = _doubt(broker, sample, now_ms)
    if problem is not None:
        return LeftOut(subject=broker, problem=problem)
    kept, before = _load_in(row)
    offset = message.offset
    if (
        kept is not None
        and before is not None
        and offset <= kept.offset
        and sample.at_ms <= before.at_ms
    ):
        # A worker applied it, but died before it committed. Keep the later messages that it
        # applied.
        load = before
        offset = kept.offset
    else:
        load = averaged(before, sample)
    body = encode_load(load)
    sightings = [
        Sighting(
            broker=broker,
            at_ms=load.at_ms,
            partition=message.partition,
            history=sample.history,
            bundle=bundle,
        )
        for bundle in load.bundles
    ]
    handed = 0 if kept is None else kept.handed
    return BrokerUpdate(
        row=encode_row(
            Row(partition=message.partition, offset=offset, at_ms=now_ms, handed=handed, body=body)
        ),
        load=body,
        sightings=[
            (sighting.bundle.bundle.encode(), encode_sighting(sighting)) for sighting in sightings
        ],
        problem=fault_of(averaged(None, sample)),
    )


def on_sighting(
    row: bytes | None, message: Arrived, *, now_ms: int, partitions: int
) -> BundleUpdate | LeftOut:
    """Return what follows from a message on the topic of sightings. `row` is the bundle's table
    row; each topic has `partitions`.
    """
    try:
        seen = decode_sighting(message.value or b"")
    except PeerError as error:
        return LeftOut(subject="a load worker", problem=str(error))
    if seen.partition >= partitions:
        return LeftOut(
            subject=seen.broker,
            problem=(
                f"its samples are in partition {seen.partition}, but the topic has {partitions}"
                " partitions"
            ),
        )
    last, before = _sighting_in(row)
    if (
        last is not None
        and before is not None
        and message.offset <= last.offset
        and seen.at_ms <= before.at_ms
    ):
        # It was applied before, as in `on_sample`.
        return LeftOut(subject=seen.broker, problem=None)
    if before is None or before.broker == seen.broker:
        return BundleUpdate(row=_row(message, now_ms, encode_sighting(seen)))
    # The last report of its former broker; it has been seen elsewhere since.
    if seen.at_ms < before.at_ms:
        return LeftOut(subject=seen.broker, problem=None)
    kept = kept_share(seen.history, elapsed_ms=seen.at_ms - before.at_ms)
    body = encode_sighting(replace(seen, bundle=blended(before.bundle, seen.bundle, kept=kept)))
    return BundleUpdate(
        row=_row(message, now_ms, body), handover=(seen.partition, seen.broker.encode(), body)
    )


def on_handover(row: bytes | None, message: Arrived, *, now_ms: int) -> BrokerUpdate | LeftOut:
    """Return what follows from a message on the topic of handovers. `row` is the broker's table
    row.

    The row keeps the offset of its sample and stores that of the handover: applied again, the
    handover would undo later samples.
    """
    try:
        handed = decode_sighting(message.value or b"")
    except PeerError as error:
        return LeftOut(subject="a load worker", problem=str(error))
    kept, load = _load_in(row)
    name = handed.bundle.bundle
    if kept is None or load is None or load.broker != handed.broker or name not in load.costs:
        # The broker has left, or the bundle is no longer among its busiest.
        return LeftOut(subject=handed.broker, problem=None)
    if message.offset < kept.handed and handed.at_ms < load.at_ms:
        return LeftOut(subject=handed.broker, problem=None)
    bundles = tuple(handed.bundle if bundle.bundle == name else bundle for bundle in load.bundles)
    body = encode_load(replace(load, bundles=bundles))
    return BrokerUpdate(
        row=encode_row(replace(kept, at_ms=now_ms, handed=message.offset + 1, body=body)),
        load=body,
    )


def is_forgotten(row: bytes, *, partition: int, now_ms: int) -> bool:
    """Return whether to delete a row: unreadable, or of `partition` and not renewed for as long as
    loads are kept.
    """
    try:
        kept = decode_row(row)
    except PeerError:
        return True
    return kept.partition == partition and now_ms - kept.at_ms > SUMMARIES_KEPT_MS


def _row(message: Arrived, now_ms: int, body: bytes) -> bytes:
    return encode_row(
        Row(partition=message.partition, offset=message.offset, at_ms=now_ms, body=body)
    )


def _broker_in(message: Arrived) -> str | LeftOut:
    key = message.key or b""
    try:
        return check_broker_id(key.decode())
    except (UnicodeDecodeError, CallerError):
        return LeftOut(subject=repr(key[:64]), problem="its key is not the id of a broker")


def _doubt(broker: str, sample: Load, now_ms: int) -> str | None:
    """Return why a sample is ignored, or None if it is used."""
    if sample.broker != broker:
        return f"it names the broker {sample.broker}"
    apart_ms = sample.at_ms - now_ms
    if abs(apart_ms) > CLOCKS_APART_MS_MAX:
        return (
            f"it was taken {abs(apart_ms) // 1_000} s {'ahead of' if apart_ms > 0 else 'before'}"
            " this machine's clock"
        )
    return None


def _load_in(row: bytes | None) -> tuple[Row, Load] | tuple[None, None]:
    return _read(row, decode_load)


def _sighting_in(row: bytes | None) -> tuple[Row, Sighting] | tuple[None, None]:
    return _read(row, decode_sighting)


def _read(
    row: bytes | None, parse: Callable[[bytes], _Body]
) -> tuple[Row, _Body] | tuple[None, None]:
    try:
        if row is not None:
            kept = decode_row(row)
            return kept, parse(kept.body)
    except PeerError:
        pass
    return None, None


LOG_INTERVAL_MS: Final = 60_000
"""The least time between two log lines about one broker."""

SUBJECTS_MAX: Final = 1_000
"""The most brokers counted separately, as many as a cluster may have. This bounds the memory if
names are forged."""

_OTHERS: Final = "others"


class Troubles:
    """Counts faulty messages by their sender."""

    def __init__(self) -> None:
        self.total = 0
        self._by_subject: dict[str, RepeatedFailures] = {}

    def count(self, subject: str, *, now_ms: int) -> int | None:
        """Count a message of `subject`. If a log line is due now, return how many messages it
        covers, including this one.
        """
        self.total += 1
        if subject not in self._by_subject and len(self._by_subject) >= SUBJECTS_MAX:
            subject = _OTHERS
        return self._by_subject.setdefault(
            subject, RepeatedFailures(interval_ms=LOG_INTERVAL_MS)
        ).failed(now_ms)
