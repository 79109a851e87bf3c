"""How an answer of ours is compared with Pulsar's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

RELATIVE_TOLERANCE: Final = 1e-9


def difference(expected: object, actual: object, where: str = "") -> str | None:
    """The first difference between two JSON values, with the way to it; None if they are equal."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if expected.keys() != actual.keys():
            return f"{where}: expected the names {sorted(expected)}, got {sorted(actual)}"
        pairs = [(f"{where}.{name}", expected[name], actual[name]) for name in expected]
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            return (
                f"{where}: expected {len(expected)} of them, got {len(actual)}: {expected!r},"
                f" {actual!r}"
            )
        pairs = [
            (f"{where}[{place}]", *pair)
            for place, pair in enumerate(zip(expected, actual, strict=True))
        ]
    else:
        return (
            None if _same(expected, actual) else f"{where}: expected {expected!r}, got {actual!r}"
        )
    return next(filter(None, (difference(one, other, way) for way, one, other in pairs)), None)


def _same(expected: object, actual: object) -> bool:
    if isinstance(actual, float) and not math.isfinite(actual):
        return expected == (
            "NaN" if math.isnan(actual) else "Infinity" if actual > 0 else "-Infinity"
        )
    if isinstance(expected, float) and isinstance(actual, float):
        return math.isclose(expected, actual, rel_tol=RELATIVE_TOLERANCE)
    return type(expected) is type(actual) and expected == actual
