"""A view as rows of state, of which a batch writes only those that it changed.

May live here: the way from a view to these rows and back. They are the rows and the marker of a snapshot
(`channel.snapshots.snapshot_rows`), which prove themselves by checksums and by the view's digest; a view that has read no genesis has
none of them yet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from equipoise.channel.core.snapshot_store import CompactedSnapshot
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import MARKER_KEY, encode_marker, keys_of, marker_of, rows_of, view_of
from equipoise.spark_jobs.sequence.parts import StateRow

PREFIX: Final = "view:"
_MARKER: Final = f"{PREFIX}{MARKER_KEY}"

_LOG: Final = "spark"
"""What the marker says in place of a log's identity: of which log a checkpoint is, is said beside it, not in each of its batches."""


class ViewRows:
    """Which rows of one view are written already."""

    def __init__(self, view: View, *, gone: Iterable[str] = (), written: bool = False) -> None:
        """Of `view`, none of whose rows is written, or all; `gone` are keys of rows that stand in its place so far."""
        self._view = view
        self._since = view.offset if written else -1
        self._gone: dict[str, None] = dict.fromkeys(gone)

    def removed(self, key: str) -> None:
        """A record took this key (`bundle:NAME`, `broker:NAME` ...) out of the view."""
        self._gone[key] = None

    def replaced_by(self, view: View) -> ViewRows:
        """The rows of another view, which takes the place of this one."""
        return ViewRows(view, gone=(*sorted(keys_of(self._view)), *self._gone))

    def changed(self) -> Iterator[StateRow]:
        """The rows that records changed since it was last asked."""
        view = self._view
        gone = [key for key in self._gone if not _is_there(view, key)]
        for row in rows_of(view, self._since, gone):
            yield PREFIX + row.key, row.data
        if view.genesis is not None:
            yield _MARKER, encode_marker(marker_of(view, log=_LOG))
        self._since = view.offset
        self._gone.clear()


def _is_there(view: View, key: str) -> bool:
    """Whether a key that was taken away has come back."""
    kind, _, name = key.partition(":")
    entries: Mapping[str, Container[str]] = {
        "namespace": view.namespaces,
        "policy": view.policies,
        "broker": view.brokers,
        "bundle": view.bundles,
    }
    return name in entries[kind] if kind in entries else view.genesis is not None


def view_from(rows: Mapping[str, bytes], *, offset: int) -> View:
    """The view that these rows hold, at the logical `offset`. Raises `CompactedSnapshotDamaged` where they do not fit together."""
    marker = rows.get(_MARKER)
    if marker is None:
        view = View()
        view.offset = offset
        return view
    image = {key.removeprefix(PREFIX): data for key, data in rows.items() if key.startswith(PREFIX) and key != _MARKER}
    return view_of(CompactedSnapshot(marker=marker, rows=image))
