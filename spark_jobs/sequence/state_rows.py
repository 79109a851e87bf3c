"""Store a view as rows of state, so that a batch writes only the rows that it changed.

The rows and the marker are those of a compacted snapshot (`channel.snapshots.snapshot_rows`).
Checksums and the view's digest protect them. A view without a genesis has no rows yet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from equipoise.channel.core.log import CompactedSnapshot
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import (
    MARKER_KEY,
    encode_marker,
    keys_of,
    marker_of,
    rows_of,
    view_of,
)
from equipoise.spark_jobs.rules.state_table import StateRow

PREFIX: Final = "view:"
_MARKER: Final = f"{PREFIX}{MARKER_KEY}"

_LOG: Final = "spark"
"""The marker's field for a log identity. The log of a checkpoint is recorded elsewhere, once."""


class ViewRows:
    """Track which rows of one view are written."""

    def __init__(self, view: View, *, gone: Iterable[str] = (), written: bool = False) -> None:
        """Track `view`, with all of its rows written or none. `gone` are keys of rows of a replaced
        view.
        """
        self._view = view
        self._since = view.offset if written else -1
        self._gone: dict[str, None] = dict.fromkeys(gone)

    def removed(self, key: str) -> None:
        """Record that a record removed this key (`bundle:NAME`, `broker:NAME` ...) from the
        view.
        """
        self._gone[key] = None

    def replaced_by(self, view: View) -> ViewRows:
        """Return the rows of another view that replaces this one."""
        return ViewRows(view, gone=(*sorted(keys_of(self._view)), *self._gone))

    def changed(self) -> Iterator[StateRow]:
        """Yield the rows that records changed since the last call."""
        view = self._view
        gone = [key for key in self._gone if not _is_there(view, key)]
        for row in rows_of(view, self._since, gone):
            yield PREFIX + row.key, row.data
        if view.genesis is not None:
            yield _MARKER, encode_marker(marker_of(view, log=_LOG))
        self._since = view.offset
        self._gone.clear()


def _is_there(view: View, key: str) -> bool:
    """Return whether a removed key exists again."""
    kind, _, name = key.partition(":")
    entries: Mapping[str, Container[str]] = {
        "namespace": view.namespaces,
        "policy": view.policies,
        "broker": view.brokers,
        "bundle": view.bundles,
    }
    return name in entries[kind] if kind in entries else view.genesis is not None


def view_from(rows: Mapping[str, bytes], *, offset: int) -> View:
    """Return the view in these rows, at the logical `offset`. Raise `CompactedSnapshotDamaged` if
    they do not fit together.
    """
    marker = rows.get(_MARKER)
    if marker is None:
        view = View()
        view.offset = offset
        return view
    image = {
        key.removeprefix(PREFIX): data
        for key, data in rows.items()
        if key.startswith(PREFIX) and key != _MARKER
    }
    return view_of(CompactedSnapshot(marker=marker, rows=image))
