"""How the files of the archive are named, which of them count, and which are worth joining.

May live here: names, and what can be told from names and sizes alone.

    ARCHIVE/TABLE/day=2026-11-22/g0001-b0000000012.parquet               what batch 12 of generation 1 wrote
    ARCHIVE/TABLE/day=2026-11-22/g0001-b0000000000-0000000099.parquet    what batches 0 to 99 wrote, joined

A *generation* is the life of one checkpoint: within it the number of a batch says what is in it, so a batch that is done again
replaces its own files. Three rules tell which files of a folder count:

1. A file whose batches lie within those of another file of its generation is not read: it has been joined into that one.
2. A file of one batch above the last that the writer has finished is not read: it is being written, or was never finished.
3. Names that are no such names are passed over. While a file is written its name begins with a dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

Item = TypeVar("Item")

SUFFIX: Final = ".parquet"
PART_SUFFIX: Final = ".part"

# Ten digits are enough for a batch each second for three centuries.
_match_name: Final = re.compile(r"g(\d{4})-b(\d{10})(?:-(\d{10}))?\.parquet", re.ASCII).fullmatch
_match_day: Final = re.compile(r"day=(\d{4}-\d{2}-\d{2})", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileName:
    """One file: its generation, and the first and last batch in it."""

    generation: int
    first: int
    last: int

    @property
    def text(self) -> str:
        """As it is spelled."""
        joined = f"-{self.last:010}" if self.last != self.first else ""
        return f"g{self.generation:04}-b{self.first:010}{joined}{SUFFIX}"

    def covers(self, other: FileName) -> bool:
        """Whether all batches of another file are in this one too."""
        within = self.first <= other.first and other.last <= self.last
        return self.generation == other.generation and within and (self.first, self.last) != (other.first, other.last)


def parse_name(text: str) -> FileName | None:
    """The name that `FileName.text` spelled; None for anything else."""
    match = _match_name(text)
    if match is None:
        return None
    first = int(match[2])
    last = first if match[3] is None else int(match[3])
    return FileName(generation=int(match[1]), first=first, last=last) if first <= last else None


def part_name(text: str) -> str:
    """What a file is called until it is whole: no reader of ours or of others takes it for a file of the table."""
    return f".{text}{PART_SUFFIX}"


def parse_part(text: str) -> FileName | None:
    """The name that a file was to have that is still called as `part_name` says; None for anything else."""
    is_part = text.startswith(".") and text.endswith(PART_SUFFIX)
    return parse_name(text[1 : -len(PART_SUFFIX)]) if is_part else None


def day_folder(day: str) -> str:
    """The folder of a day, given as `YYYY-MM-DD`."""
    return f"day={day}"


def parse_day(folder: str) -> str | None:
    """The day whose folder this is; None for anything else."""
    match = _match_day(folder)
    return None if match is None else match[1]


def is_finished(name: FileName, finished: Mapping[int, int]) -> bool:
    """Whether a file is of finished batches alone. `finished` says of each generation which batch is its last.

    Only finished batches are joined, maybe since `finished` was read: their own files are gone then.
    """
    return name.first != name.last or name.last <= finished.get(name.generation, -1)


def resolved(names: Iterable[str], finished: Mapping[int, int]) -> tuple[FileName, ...]:
    """The files of one folder that count, in the order in which they were written; each row of it is in exactly one of them."""
    files = sorted(
        (name for name in map(parse_name, names) if name is not None and is_finished(name, finished)),
        key=lambda name: (name.generation, name.first, -name.last),
    )
    found: list[FileName] = []
    for name in files:
        # Sorted so, whatever covers a file stands before it, and of those the last taken reaches furthest.
        if not found or not found[-1].covers(name):
            found.append(name)
    return tuple(found)


def covered(names: Iterable[str]) -> tuple[FileName, ...]:
    """The files of one folder that have been joined into others, and are only still there because nobody has removed them yet."""
    files = sorted({name for name in map(parse_name, names) if name is not None})
    return tuple(name for name in files if any(other.covers(name) for other in files))


def joins(
    files: Sequence[tuple[Item, int]], *, size_max: int, files_min: int, kind: Callable[[Item], object]
) -> tuple[tuple[Item, ...], ...]:
    """Which files of one folder to join, each group into one file, given those that count with their sizes in bytes.

    A group is a run of neighbours of one `kind`, of at least `files_min` files and, together, of at most `size_max` bytes.
    """
    groups: list[tuple[Item, ...]] = []
    run: list[Item] = []
    run_bytes = 0
    for name, size in files:
        if run and (kind(name) != kind(run[-1]) or run_bytes + size > size_max):
            groups.append(tuple(run))
            run, run_bytes = [], 0
        if size <= size_max:
            run.append(name)
            run_bytes += size
    groups.append(tuple(run))
    return tuple(group for group in groups if len(group) >= max(files_min, 2))


def joined(group: Sequence[FileName]) -> FileName:
    """The name of the file that a group is joined into."""
    return FileName(generation=group[0].generation, first=group[0].first, last=group[-1].last)
