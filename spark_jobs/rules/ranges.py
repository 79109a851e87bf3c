"""Parse bundle names and compute with ranges of the hash space, independently of the package that
brokers use.

A range includes `low` and excludes `high`. `HASH_END` itself belongs to the range that ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

HASH_END: Final = 2**32 - 1
BUNDLES_AT_CREATION_MAX: Final = 2**16
NAME_CHARACTERS_MAX: Final = 255

_RANGE_CHARACTERS: Final = len("0x00000000_0x00000000")
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_DIGITS: Final = slice(2, 10), slice(13, 21)
_NAME_CHARACTERS: Final = frozenset(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-=:."
)


class Range(NamedTuple):
    """The parts of a bundle's name."""

    namespace: str
    low: int
    high: int


def parse_bundle(name: str) -> Range | None:
    """Return the namespace and range of `tenant/namespace/0xLOW_0xHIGH`; None unless the name has
    exactly this form.
    """
    namespace, slash, span = name.rpartition("/")
    if not slash or len(span) != _RANGE_CHARACTERS or not is_namespace(namespace):
        return None
    low, high = span[_DIGITS[0]], span[_DIGITS[1]]
    if (
        not _HEXADECIMAL.issuperset(low + high)
        or bundle_name(namespace, int(low, 16), int(high, 16)) != name
        or low >= high
    ):
        return None
    return Range(namespace, int(low, 16), int(high, 16))


def bundle_name(namespace: str, low: int, high: int) -> str:
    """Return the name of a bundle."""
    return f"{namespace}/0x{low:08x}_0x{high:08x}"


def is_namespace(name: str) -> bool:
    """Return whether this is `tenant/namespace`, each of 1 to 255 ASCII letters, digits, and `_`,
    `-`, `=`, `:`, `.`.
    """
    tenant, slash, rest = name.partition("/")
    return bool(slash) and all(
        0 < len(part) <= NAME_CHARACTERS_MAX and _NAME_CHARACTERS.issuperset(part)
        for part in (tenant, rest)
    )


def is_broker_id(name: str) -> bool:
    """Return whether this can be a broker id: 1 to 255 printable ASCII characters without blank and
    `/`, and not an admin's name.
    """
    printable = all("!" <= character <= "~" and character != "/" for character in name)
    return 0 < len(name) <= NAME_CHARACTERS_MAX and printable and not name.startswith("admin:")


def pieces(low: int, high: int, cuts: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return the ranges into which `cuts` split one; None unless there are cuts and they rise
    strictly inside it.
    """
    edges = [low, *cuts, high]
    cut = list(pairwise(edges))
    return cut if cuts and all(first < second for first, second in cut) else None


def whole_space(boundaries: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return the ranges between `boundaries`; None unless these rise strictly from 0 to the end of
    the hash space.
    """
    if (
        not 1 < len(boundaries) <= BUNDLES_AT_CREATION_MAX + 1
        or boundaries[0] != 0
        or boundaries[-1] != HASH_END
    ):
        return None
    spans = list(pairwise(boundaries))
    return spans if all(low < high for low, high in spans) else None


def joined_up(
    ranges: Iterable[tuple[int, int]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the union of `ranges` as the fewest sorted ranges, and the parts that more than one of
    them covers.
    """
    covered: list[tuple[int, int]] = []
    twice: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if covered and low < covered[-1][1]:
            twice.append((low, min(high, covered[-1][1])))
        if covered and low <= covered[-1][1]:
            covered[-1] = covered[-1][0], max(high, covered[-1][1])
        else:
            covered.append((low, high))
    return covered, twice
