"""Name the archive's files, select those that count, and choose those to join.

    ARCHIVE/TABLE/day=2026-11-22/g0001-b0000000012.parquet               batch 12 of generation 1
    ARCHIVE/TABLE/day=2026-11-22/g0001-b0000000000-0000000099.parquet    batches 0 to 99, joined

A *generation* is the life of one checkpoint. Within it a batch number stands for fixed contents, so
a repeated batch replaces its own files. Readers skip a file in three cases:

1. Another file of its generation covers its batches: it was joined into that file.
2. It is a single batch above the writer's last finished batch: it is being written, or was never
   finished.
3. Its name does not have this form. A file being written has a name with a leading dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SUFFIX: Final = ".parquet"
PART_SUFFIX: Final = ".part"

# Ten digits are enough for a batch per second for three centuries.
_match_name: Final = re.compile(r"g(\d{4})-b(\d{10})(?:-(\d{10}))?\.parquet", re.ASCII).fullmatch
_match_day: Final = re.compile(r"day=(\d{4}-\d{2}-\d{2})", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileName:
    """A file name: the generation, and the first and last batch in the file."""

    generation: int
    first: int
    last: int

    @property
    def text(self) -> str:
        """The name as text."""
        joined = f"-{self.last:010}" if self.last != self.first else ""
        return f"g{self.generation:04}-b{self.first:010}{joined}{SUFFIX}"

    def covers(self, other: FileName) -> bool:
        """Return whether this file contains all batches of another file."""
        within = self.first <= other.first and other.last <= self.last
        return (
            self.generation == other.generation
            and within
            and (self.first, self.last) != (other.first, other.last)
        )


def parse_name(text: str) -> FileName | None:
    """Parse a name made by `FileName.text`. Return None for other names."""
    match = _match_name(text)
    if match is None:
        return None
    first = int(match[2])
    last = first if match[3] is None else int(match[3])
    return FileName(generation=int(match[1]), first=first, last=last) if first <= last else None


def part_name(text: str) -> str:
    """Return a file's name while it is being written. Neither Equipoise nor other readers treat it
    as part of the table.
    """
    return f".{text}{PART_SUFFIX}"


def parse_part(text: str) -> FileName | None:
    """Return the final name of a file named by `part_name`; None for other names."""
    is_part = text.startswith(".") and text.endswith(PART_SUFFIX)
    return parse_name(text[1 : -len(PART_SUFFIX)]) if is_part else None


def day_folder(day: str) -> str:
    """Return the folder name of a day in the form `YYYY-MM-DD`."""
    return f"day={day}"


def parse_day(folder: str) -> str | None:
    """Return the day of a folder; None for other names."""
    match = _match_day(folder)
    return None if match is None else match[1]


def is_finished(name: FileName, finished: Mapping[int, int]) -> bool:
    """Return whether a file holds only finished batches. `finished` maps a generation to its last
    finished batch.

    Joined files always count, because only finished batches are joined. They may be newer than
    `finished`, with their own files removed.
    """
    return name.first != name.last or name.last <= finished.get(name.generation, -1)


def resolved(names: Iterable[str], finished: Mapping[int, int]) -> tuple[FileName, ...]:
    """Return the files of one folder that count, in order of writing. Each row is in exactly one of
    them.
    """
    files = sorted(
        (
            name
            for name in map(parse_name, names)
            if name is not None and is_finished(name, finished)
        ),
        key=lambda name: (name.generation, name.first, -name.last),
    )
    found: list[FileName] = []
    for name in files:
        # In this order a file comes after those that cover it, and the last one taken reaches
        # furthest.
        if not found or not found[-1].covers(name):
            found.append(name)
    return tuple(found)


def covered(names: Iterable[str]) -> tuple[FileName, ...]:
    """Return the files of one folder that were joined into others and not removed yet."""
    files = sorted({name for name in map(parse_name, names) if name is not None})
    return tuple(name for name in files if any(other.covers(name) for other in files))


def joins(
    files: Sequence[tuple[FileName, int]], *, size_max: int, files_min: int
) -> tuple[tuple[FileName, ...], ...]:
    """Return groups of files to join, given the files that count with their sizes in bytes.

    A group is a run of neighbours of one generation: at least `files_min` files, at most `size_max`
    bytes in total.
    """
    groups: list[tuple[FileName, ...]] = []
    run: list[FileName] = []
    run_bytes = 0
    for name, size in files:
        if run and (name.generation != run[-1].generation or run_bytes + size > size_max):
            groups.append(tuple(run))
            run, run_bytes = [], 0
        if size <= size_max:
            run.append(name)
            run_bytes += size
    groups.append(tuple(run))
    return tuple(group for group in groups if len(group) >= max(files_min, 2))


def joined(group: Sequence[FileName]) -> FileName:
    """Return the name of the file that replaces a group."""
    return FileName(generation=group[0].generation, first=group[0].first, last=group[-1].last)
