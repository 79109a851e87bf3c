"""Snapshots as an archive keeps them: `channel.core.snapshot`, in an order that tells of no past, and compressed.

May live here: the way from a view to these bytes and back.

A view that was restored holds its entries in another order than one that folded them. Rows must be the same either way, so
entries are sorted here by their names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.snapshot import from_bytes, still
from equipoise.channel.core.view import View
from equipoise.compaction.compressed import shortened, whole_again

SNAPSHOT_BYTES_MAX: Final = 1 << 30
"""The largest snapshot that is taken for one: that of 4,000,000 bundles, at 250 bytes each."""


def canonical(view: View) -> bytes:
    """The view as `channel.core.snapshot` spells it, the same for all views that are equal and at one offset."""
    parts = still(view)
    return replace(
        parts,
        namespaces=tuple(sorted(parts.namespaces, key=lambda entry: entry.name)),
        policies=tuple(sorted(parts.policies, key=lambda entry: entry.name)),
        brokers=tuple(sorted(parts.brokers, key=lambda row: row[-1].key)),
        bundles=tuple(sorted(parts.bundles, key=lambda entry: entry.name)),
    ).to_bytes()


def packed(view: View) -> bytes:
    """The view as the body of a row of `Table.SNAPSHOTS`; `unpacked` gives an equal one back."""
    return shortened(canonical(view))


def unpacked(data: bytes) -> View:
    """The view that `packed` spelled. Raises `SnapshotDamaged`."""
    try:
        spelled = whole_again(data, size_max=SNAPSHOT_BYTES_MAX)
    except ValueError as error:
        raise SnapshotDamaged(problem=f"it cannot be decompressed: {error}") from error
    return from_bytes(spelled)
