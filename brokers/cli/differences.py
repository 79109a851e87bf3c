"""Compare two views of a channel: keys added, keys removed, and fields changed.

The input is the result of `rows.view_document`, or of `pulsar_cluster.table.table_document`, which
has fewer kinds of keys and fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, cast

import typer

from equipoise.brokers.cli.output import Row, cell, print_line

_KEYS: Final = {"brokers": "broker", "namespaces": "namespace", "bundles": "bundle"}
"""Each list of a view document, and the field that identifies its rows."""

_THINGS: Final = {**_KEYS, "policies": "policy"}

_WITH_EACH_RENEWAL: Final = {"brokers": "last"}
"""Fields that change with each renewal, which are ignored."""

_COLORS: Final = {"+": typer.colors.GREEN, "-": typer.colors.RED, "~": typer.colors.YELLOW}

_SHOWN_OF_NEW: Final = {
    "brokers": ("status", "incarnation"),
    "namespaces": ("status", "bundles"),
    "bundles": ("state", "owner", "source", "token", "version"),
    "policies": ("document",),
}


def difference_of(before: Row, after: Row) -> Row:
    """Return what was added, removed and changed between two view documents, by kind of key.

    Changed rows have only the changed fields, before and after.
    """
    return {
        "before": _head(before),
        "after": _head(after),
        **{
            kind: _difference(_rows(before, kind), _rows(after, kind), kind)
            for kind in _THINGS
            if kind in after
        },
    }


def print_difference(difference: Row, *, nothing: str) -> None:
    """Print one line per key that differs, by kind and name, and `nothing` if none does."""
    for line in _lines_of(difference):
        print_line(line, color=_COLORS.get(line[:1]))
    kinds = (cast("Mapping[str, list[Row]]", difference[kind]) for kind, _ in _kinds(difference))
    if not any(any(kind.values()) for kind in kinds):
        print_line(nothing)


def _lines_of(difference: Row) -> Iterator[str]:
    before, after = cast("Row", difference["before"]), cast("Row", difference["after"])
    for name in before:
        yield f"{name}: {_moved(before[name], after[name])}"
    for kind, thing in _kinds(difference):
        groups = cast("Mapping[str, list[Row]]", difference[kind])
        lines = [
            *(
                (row[thing], f"- {thing} {row[thing]}{_fields(row, kind)}")
                for row in groups["removed"]
            ),
            *(
                (row[thing], f"+ {thing} {row[thing]}{_fields(row, kind)}")
                for row in groups["added"]
            ),
            *(
                (row[thing], f"~ {thing} {row[thing]}: {_changes(row)}")
                for row in groups["changed"]
            ),
        ]
        yield from (line for _, line in sorted(lines, key=lambda line: str(line[0])))


def _kinds(difference: Row) -> list[tuple[str, str]]:
    return [(kind, thing) for kind, thing in _THINGS.items() if kind in difference]


def _head(document: Row) -> Row:
    return {
        name: document[name] for name in ("offset", "level", "leader", "digest") if name in document
    }


def _rows(document: Row, kind: str) -> dict[str, Row]:
    if kind == "policies":
        policies = cast("Mapping[str, object]", document[kind])
        return {name: {"policy": name, "document": policy} for name, policy in policies.items()}
    return {str(row[_KEYS[kind]]): row for row in cast("list[Row]", document[kind])}


def _difference(before: Mapping[str, Row], after: Mapping[str, Row], kind: str) -> Row:
    changed = []
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        fields = [
            field
            for field in now
            if was[field] != now[field] and field != _WITH_EACH_RENEWAL.get(kind)
        ]
        if fields:
            changed.append(
                {
                    _THINGS[kind]: name,
                    "before": {f: was[f] for f in fields},
                    "after": {f: now[f] for f in fields},
                }
            )
    return {
        "added": [after[name] for name in sorted(after.keys() - before.keys())],
        "removed": [before[name] for name in sorted(before.keys() - after.keys())],
        "changed": changed,
    }


def _fields(row: Row, kind: str) -> str:
    fields = [f"{name} {cell(row[name])}" for name in _SHOWN_OF_NEW[kind] if name in row]
    return f": {', '.join(fields)}" if fields else ""


def _changes(row: Row) -> str:
    before, after = cast("Row", row["before"]), cast("Row", row["after"])
    return ", ".join(
        f"{name.replace('_', ' ')} {_moved(before[name], after[name])}" for name in after
    )


def _moved(before: object, after: object) -> str:
    return cell(after) if before == after else f"{cell(before)} -> {cell(after)}"
