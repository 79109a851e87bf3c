"""Convert a view to the rows and marker of a compacted snapshot, and back. Read a history snapshot,
the view from which the rest of a log can be folded, and decide whether a log needs it.

There is one row per key, so that only changed keys are written again. Rows are flat JSON objects
that Spark reads with one schema: `kind`, `key` and `last` as on the channel, then the entry's
fields.

Three proofs protect a snapshot:

* Each row, and the marker, ends with a checksum of its key and bytes, because the digest does not
  cover all of them.
* The marker carries the view's digest. The loader rebuilds the view through the fold's writers: a
  missing, outdated or superfluous row gives another digest. Other writers' rows are ignored, and
  the next compaction removes them.
* The marker names the log, so a snapshot of a former log of the same name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import orjson

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import (
    BrokerEntry,
    BundleEntry,
    NamespaceEntry,
    PolicyEntry,
    broker_entry,
    bundle_entry,
)
from equipoise.channel.core.errors import (
    CompactedSnapshotDamaged,
    LogDamaged,
    OperatorError,
)
from equipoise.channel.core.fields import MalformedError, boolean, fail, integer, text
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    LOADS_MAX,
    Check,
    CompactedSnapshot,
    Log,
    Progress,
    SnapshotRow,
    unchecked,
    unwatched,
)
from equipoise.channel.core.records import INTEGER_MAX, Genesis, Joined
from equipoise.channel.core.table import View

# Raised with each change of the layout below. A marker of another format is refused.
FORMAT: Final = 1

MARKER_KEY: Final = "marker"
"""The key of the marker, in a store that has only keys. No row has it."""

CHECKPOINTS_MAX: Final = 1_024
"""Checkpoints that a marker carries: 40 KB. At one per 8,000 records they reach back over eight
million records."""

_GENESIS: Final = "genesis"
_LEVEL: Final = "level"
_ROWS_BETWEEN_CHECKS: Final = 1_000

# Input from outside: every wrong shape ends in one of the errors that `_row_of` expects, or in
# another digest.
Raw = Mapping[str, Any]

Entry = NamespaceEntry | PolicyEntry | BrokerEntry | BundleEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The marker of a snapshot: its `log` (an identity), its cluster, and its extent.

    * `horizon`: the logical offset of the last folded record. `digest`: the view's digest there.
    * `sequences`: the sequence of each live incarnation, which rises without a change of any row.
    * `bytes_below`: the size of all records up to the horizon. `checkpoints`: earlier (horizon,
      bytes_below), rising, for retention by size.
    * `copied`: the view came from another log, which ended at the horizon.
    """

    log: str
    cluster: str
    base: int
    horizon: int
    digest: int
    genesis: int
    level: int
    level_last: int
    removed_at: int
    sequences: Mapping[int, int]
    bytes_below: int = 0
    checkpoints: tuple[tuple[int, int], ...] = ()
    copied: bool = False

    @property
    def position(self) -> int:
        """The physical offset at which a reader of the log goes on."""
        return self.horizon - self.base + 1


def marker_of(
    view: View,
    *,
    log: str,
    bytes_below: int = 0,
    checkpoints: tuple[tuple[int, int], ...] = (),
    copied: bool = False,
) -> Marker:
    """Return the marker for `view`, which has read its genesis. `log` is the identity of the
    snapshot's log.
    """
    assert view.cluster is not None, "a view without a genesis has no snapshot"
    assert view.genesis is not None, "a view without a genesis has no snapshot"
    return Marker(
        log=log,
        cluster=view.cluster,
        base=view.base,
        horizon=view.offset,
        digest=view.digest(),
        genesis=view.genesis,
        level=view.level,
        level_last=view.level_last,
        removed_at=view.removed_at,
        sequences={broker.incarnation: broker.sequence for broker in view.live_brokers()},
        bytes_below=bytes_below,
        checkpoints=checkpoints,
        copied=copied,
    )


def check_log(marker: Marker, identity: str) -> None:
    """Raise `CompactedSnapshotDamaged` unless the marker belongs to the log with this identity."""
    if marker.log != identity:
        raise CompactedSnapshotDamaged(
            problem="it belongs to another log that had this name before"
        )


def encode_marker(marker: Marker) -> bytes:
    """Return the bytes of a marker."""
    return _sealed(
        MARKER_KEY,
        {
            "kind": MARKER_KEY,
            "format": FORMAT,
            "log": marker.log,
            "cluster": marker.cluster,
            "base": marker.base,
            "horizon": marker.horizon,
            "digest": marker.digest,
            "genesis": marker.genesis,
            "level": marker.level,
            "level_last": marker.level_last,
            "removed_at": marker.removed_at,
            "sequences": {
                str(incarnation): sequence for incarnation, sequence in marker.sequences.items()
            },
            "bytes_below": marker.bytes_below,
            "checkpoints": marker.checkpoints,
            "copied": marker.copied,
        },
    )


def decode_marker(data: bytes) -> Marker:
    """Return the marker in these bytes. Raises `CompactedSnapshotDamaged`."""
    raw = _opened(MARKER_KEY, data)
    try:
        if integer(raw, "format") != FORMAT:
            fail(f"it has format {raw['format']}, and this version reads format {FORMAT}")
        return Marker(
            log=text(raw, "log"),
            cluster=text(raw, "cluster"),
            base=integer(raw, "base"),
            horizon=integer(raw, "horizon"),
            digest=integer(raw, "digest"),
            genesis=integer(raw, "genesis"),
            level=integer(raw, "level"),
            level_last=integer(raw, "level_last"),
            removed_at=integer(raw, "removed_at"),
            sequences=_sequences(raw),
            bytes_below=integer(raw, "bytes_below"),
            checkpoints=_checkpoints(raw),
            copied=boolean(raw, "copied"),
        )
    except MalformedError as error:
        raise CompactedSnapshotDamaged(problem=f"its marker is malformed: {error}") from error


def _sequences(raw: dict[str, object]) -> dict[int, int]:
    value = raw.get("sequences")
    if type(value) is not dict:
        fail("sequences must be an object")
    sequences: dict[int, int] = {}
    for incarnation, sequence in value.items():
        if (
            not incarnation.isdecimal()
            or type(sequence) is not int
            or not 0 <= sequence <= INTEGER_MAX
        ):
            fail("sequences must map incarnations to integers from 0 to 2**63 - 1")
        sequences[int(incarnation)] = sequence
    return sequences


def _checkpoints(raw: dict[str, object]) -> tuple[tuple[int, int], ...]:
    value = raw.get("checkpoints")
    if type(value) is not list or len(value) > CHECKPOINTS_MAX:
        fail(f"checkpoints must be a list of at most {CHECKPOINTS_MAX} pairs")
    checkpoints: list[tuple[int, int]] = []
    for pair in value:
        match pair:
            case [int(horizon), int(bytes_below)] if (
                0 <= horizon <= INTEGER_MAX and 0 <= bytes_below <= INTEGER_MAX
            ):
                checkpoints.append((horizon, bytes_below))
            case _:
                fail("checkpoints must be pairs of integers from 0 to 2**63 - 1")
    if any(one >= next_one for (one, _), (next_one, _) in pairwise(checkpoints)):
        fail("checkpoints must rise")
    return tuple(checkpoints)


# --- from a view to rows ---


def keys_of(view: View) -> frozenset[str]:
    """Return the keys of all rows of a view."""
    scalars = () if view.genesis is None else (_GENESIS, _LEVEL)
    keys = (f"{kind}:{name}" for kind, entries in _entries_of(view) for name in entries)
    return frozenset((*scalars, *keys))


def rows_of(view: View, since: int, gone: Iterable[str] = ()) -> Iterator[SnapshotRow]:
    """Yield the row of each key changed above logical offset `since` (-1: all), and tombstones for
    the `gone`.

    The view must not change meanwhile.
    """
    yield from _scalar_rows(view, since)
    for kind, entries in _entries_of(view):
        for name, entry in entries.items():
            if entry.last > since:
                yield _row_of(kind, name, entry)
    for key in gone:
        yield SnapshotRow(key, None)


def _scalar_rows(view: View, since: int) -> Iterator[SnapshotRow]:
    """Yield the marker's scalars as rows, for readers that see only rows."""
    if view.genesis is not None and view.genesis > since:
        yield _row(
            _GENESIS,
            {
                "kind": _GENESIS,
                "key": _GENESIS,
                "last": view.genesis,
                "cluster": view.cluster,
                "base": view.base,
            },
        )
    if view.genesis is not None and view.level_last > since:
        yield _row(
            _LEVEL, {"kind": _LEVEL, "key": _LEVEL, "last": view.level_last, "level": view.level}
        )


_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": ("status", "created", "policies"),
    "policy": ("document",),
    # Without the sequence, which rises with each record of a broker: the marker keeps that.
    "broker": ("incarnation", "status", "digest_after"),
    "bundle": ("namespace", "low", "high", "phase", "owner", "source", "token"),
}
"""The fields of an entry in its row, by kind, in this order."""


def _entries_of(view: View) -> Iterable[tuple[str, Mapping[str, Entry]]]:
    """Return the entries of a view by kind and name, in the order of the rows."""
    return zip(_FIELDS, (view.namespaces, view.policies, view.brokers, view.bundles), strict=True)


def _row_of(kind: str, name: str, entry: Entry) -> SnapshotRow:
    fields = {"kind": kind, "key": name, "last": entry.last}
    fields |= {field: getattr(entry, field) for field in _FIELDS[kind]}
    if isinstance(entry, BrokerEntry):
        fields["joined"] = encode(entry.joined).decode()
    if isinstance(entry, BundleEntry) and entry.phase == "splitting":
        fields |= {"algorithm": entry.algorithm, "positions": entry.positions}
    return _row(f"{kind}:{name}", fields)


def _row(key: str, fields: Raw) -> SnapshotRow:
    return SnapshotRow(key, _sealed(key, fields))


# --- from rows to a view ---


def view_of(image: CompactedSnapshot, *, check: Check = unchecked) -> View:
    """Return the view at the marker's horizon, equal to the fold's.

    Raises `CompactedSnapshotDamaged` if rows and marker do not match, and what `check` raises.
    """
    marker = decode_marker(image.marker)
    view = View()
    view.offset, view.cluster, view.base, view.genesis = (
        marker.horizon,
        marker.cluster,
        marker.base,
        marker.genesis,
    )
    view.level, view.level_last, view.removed_at = (
        marker.level,
        marker.level_last,
        marker.removed_at,
    )
    view.scalars_changed()
    # Sorted, so that the storage's order leaves no trace in the view.
    for count, key in enumerate(sorted(image.rows)):
        if not count % _ROWS_BETWEEN_CHECKS:
            check()
        _put(view, key, image.rows[key], marker)
    for row in _scalar_rows(view, -1):
        if image.rows.get(row.key) != row.data:
            raise CompactedSnapshotDamaged(
                problem=f"its row {row.key!r} is missing or differs from its marker"
            )
    if marker.digest != view.digest():
        raise CompactedSnapshotDamaged(
            problem=(
                f"its marker has digest {marker.digest}, but its rows have digest {view.digest()}"
            )
        )
    if marker.sequences.keys() != view.live.keys():
        raise CompactedSnapshotDamaged(
            problem="the incarnations in its marker are not those that live in its rows"
        )
    return view


def _put(view: View, key: str, data: bytes, marker: Marker) -> None:
    kind, _, name = key.partition(":")
    if kind not in _PUTS:
        return  # Not a row of ours. If one of our rows had lost its key, the digest would differ.
    raw: Raw = _opened(key, data)
    try:
        if raw["kind"] != kind or raw["key"] != (name or kind) or raw["last"] > marker.horizon:
            raise CompactedSnapshotDamaged(problem=f"its row {key!r} is not expected")
        _PUTS[kind](view, raw, marker)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CompactedSnapshotDamaged(
            problem=f"its row {key!r} is malformed: {type(error).__name__}: {error}"
        ) from error


def _put_scalars(_view: View, _raw: Raw, _marker: Marker) -> None:
    """Do nothing: `view_of` takes the scalars from the marker and compares these rows with it."""


def _put_namespace(view: View, raw: Raw, _marker: Marker) -> None:
    name = raw["key"]
    view.put_namespace(
        name,
        NamespaceEntry(
            name=name,
            status=raw["status"],
            last=raw["last"],
            created=raw["created"],
            policies=raw["policies"],
        ),
    )


def _put_policy(view: View, raw: Raw, _marker: Marker) -> None:
    view.put_policy(
        raw["key"], PolicyEntry(name=raw["key"], last=raw["last"], document=raw["document"])
    )


def _put_broker(view: View, raw: Raw, marker: Marker) -> None:
    joined = decode(raw["joined"].encode())
    if not isinstance(joined, Joined) or joined.key != raw["key"]:
        raise TypeError("a broker without its joined record")
    incarnation, status = raw["incarnation"], raw["status"]
    sequence = marker.sequences.get(incarnation, 0)
    digest_after = raw["digest_after"]
    view.put_broker(
        broker_entry(
            joined,
            incarnation=incarnation,
            status=status,
            last=raw["last"],
            sequence=sequence,
            digest_after=digest_after,
        )
    )


def _put_bundle(view: View, raw: Raw, _marker: Marker) -> None:
    positions = raw.get("positions")
    bundle = bundle_entry(
        raw["namespace"],
        raw["low"],
        raw["high"],
        raw["phase"],
        owner=raw["owner"],
        source=raw["source"],
        last=raw["last"],
        token=raw["token"],
        algorithm=raw.get("algorithm"),
        positions=None if positions is None else tuple(positions),
    )
    if bundle.name != raw["key"]:
        raise ValueError("its name does not match its range")
    view.insert_bundle(bundle)


_PUTS: Final[Mapping[str, Callable[[View, Raw, Marker], None]]] = {
    _GENESIS: _put_scalars,
    _LEVEL: _put_scalars,
    "namespace": _put_namespace,
    "policy": _put_policy,
    "broker": _put_broker,
    "bundle": _put_bundle,
}


# --- checksums ---

_SEAL: Final = b',"checksum":"%08x"}'
_SEAL_BYTES: Final = len(_SEAL % 0)


def _sealed(key: str, fields: Raw) -> bytes:
    """Return the fields as one JSON object that ends with a checksum of the key and the other
    fields.
    """
    body = orjson.dumps(fields)[:-1]
    return body + _SEAL % _checksum(key, body)


def _opened(key: str, data: bytes) -> dict[str, object]:
    """Return the fields that `_sealed` wrote. Raises `CompactedSnapshotDamaged`."""
    body = data[:-_SEAL_BYTES]
    if data[-_SEAL_BYTES:] != _SEAL % _checksum(key, body):
        raise CompactedSnapshotDamaged(problem=f"its row {key!r} does not match its checksum")
    try:
        raw: dict[str, object] = orjson.loads(data)
    except ValueError as error:
        raise CompactedSnapshotDamaged(problem=f"its row {key!r} is not JSON: {error}") from error
    return raw


def _checksum(key: str, body: bytes) -> int:
    return crc32(body, crc32(key.encode()))


PEEK_ENTRIES: Final = 100
"""Entries read at once to find the genesis of a log. It is the first entry, unless somebody wrote
garbage."""


def is_whole(log: Log) -> bool:
    """Return whether the log has its beginning and is not a copy, which begins with its snapshot.
    Raises what `Log.read` raises.

    A log without a genesis counts as whole. With a snapshot it may be a copy whose genesis is
    missing.
    """
    return log.start() == FIRST_OFFSET and not base_of(log)


def has_whole_channel(log: Log) -> bool:
    """Return whether the log holds the whole channel, undamaged up to its genesis. Raises what
    `Log.read` raises.
    """
    try:
        return log.start() == FIRST_OFFSET and base_of(log) == 0
    except LogDamaged:
        return False


def base_of(log: Log) -> int | None:
    """Return the base offset of a log that has its beginning: 0 if it is not a copy, None if it has
    no genesis.
    """
    position = FIRST_OFFSET
    while entries := log.read(position, limit=PEEK_ENTRIES):
        for entry in entries:
            record = decode(entry.data)
            if isinstance(record, Genesis):
                return record.base
        position = entries[-1].offset + 1
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSnapshot:
    """What a log has as a snapshot: its `marker` and `view`, where readable, and the `problem` if
    it is damaged.

    `rows` are its rows, even if it cannot be used.
    """

    rows: Mapping[str, bytes] = field(default_factory=dict)
    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def history_snapshot_of(
    log: Log, *, check: Check = unchecked, progress: Progress = unwatched
) -> FoundSnapshot:
    """Return the history snapshot of a log. One that lies below the log's beginning is not damaged,
    but has no marker and no view.

    Raises what `check`, `Log.start` and `SnapshotStore.load` raise, except damage and missing
    rights.
    """
    history_snapshot = FoundSnapshot()
    for _ in range(LOADS_MAX):
        # Before the load: a history snapshot moves before the log is cut, so one below this start
        # is obsolete.
        start = log.start()
        try:
            image = log.history_snapshot().load(check=check, progress=progress)
            if image is None:
                return FoundSnapshot()
            history_snapshot = FoundSnapshot(rows=image.rows)
            marker = decode_marker(image.marker)
            if marker.log != log.identity or marker.position < start:
                return history_snapshot
            view = view_of(image, check=check)
        except (CompactedSnapshotDamaged, LogDamaged) as error:
            history_snapshot = FoundSnapshot(rows=history_snapshot.rows, problem=error.problem)
            continue
        except OperatorError as error:
            # Only the compactor needs it. A reader of the past can do without.
            return FoundSnapshot(problem=str(error))
        if marker.position >= log.start():
            return FoundSnapshot(rows=image.rows, marker=marker, view=view)
    return history_snapshot
