"""Shorten texts for stories: bundles by the first digits of their range, and moments.
`channel.inspect.story` describes the records.
"""

from __future__ import annotations

import re

from equipoise.channel.core.ranges import HASH_MAX, bundle_name

# Bundles of this namespace are named by their range alone.
NAMESPACE = "t/n"

_RANGE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")
_POINT = re.compile(r"\b0x([0-9a-f]{8})\b")


def shortened(text: str) -> str:
    """Shorten each range in a text to its leading digits: `t/n/0x00000000_0x80000000` becomes
    `00_80`.
    """
    text = _RANGE.sub(lambda found: f"{_digits(found[1])}_{_digits(found[2])}", text)
    return _POINT.sub(lambda found: f"0x{_digits(found[1])}", text).replace(f"{NAMESPACE}/", "")


def full_name(short: str) -> str:
    """The channel's name of a bundle that a story calls `00_80`, or `t/other/00_80`."""
    namespace, _, ends = short.rpartition("/")
    low, _, high = ends.partition("_")
    return bundle_name(
        namespace or NAMESPACE, point(low), HASH_MAX if high == "ff" else point(high)
    )


def point(digits: str) -> int:
    """The hash point that begins with these hexadecimal digits."""
    return int(digits.ljust(8, "0"), 16)


def duration_ms(text: str) -> int:
    """Return `1500ms`, `30s` or `24h` in milliseconds."""
    # The language lets nothing else through.
    number, unit = re.fullmatch(r"(\d+)(ms|s|h)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"ms": 1, "s": 1_000, "h": 3_600_000}[unit]


def moment(now_ms: int) -> str:
    """Return the line with the time that has passed in the story."""
    return f"after {now_ms / 1_000:g} s:"


def _digits(eight: str) -> str:
    digits = "ff" if eight == "ffffffff" else eight.rstrip("0")
    return digits.ljust(2, "0") if len(digits) < 2 else digits
