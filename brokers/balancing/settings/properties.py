"""Parse Java's properties files, the format of Pulsar's `broker.conf`, as `java.util.Properties`
does.

Java reads them as ISO-8859-1. The text comes in decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import OperatorError

_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEXADECIMAL_DIGITS: Final = 4

_split_lines: Final = re.compile(r"\r\n|\r|\n").split
# A key ends before the first blank, `=` or `:` without a backslash. One `=` or `:` may separate key
# and value.
_match_entry: Final = re.compile(
    r"((?:[^\\ \t\f=:]|\\.?)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL
).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One entry; `line` is its first line, counted from 1."""

    line: int
    key: str
    value: str


def parse_properties(text: str) -> tuple[Property, ...]:
    """Return the entries in order. A key may occur several times; the last one counts.

    Raises `OperatorError` for an invalid escape, which Java refuses, too.
    """
    return tuple(_entry(line, logical) for line, logical in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with content and its number. Lines that end in a backslash are joined with
    the next.
    """
    begun = ""
    first = 0
    for number, natural in enumerate(_split_lines(text), start=1):
        line = natural.lstrip(_BLANK)
        if not begun:  # Also true after a line with only a backslash.
            if not line or line[0] in "#!":
                continue
            first = number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        begun += line[:-1] if goes_on else line
        if not goes_on:
            yield first, begun
            begun = ""
    if begun:
        yield first, begun


def _entry(line: int, logical: str) -> Property:
    match = _match_entry(logical)
    assert match is not None, "each part of the pattern may be empty, and the last takes anything"
    return Property(line=line, key=_unescaped(line, match[1]), value=_unescaped(line, match[2]))


def _unescaped(line: int, text: str) -> str:
    parts = []
    position = 0
    while (backslash := text.find("\\", position)) >= 0:
        parts.append(text[position:backslash])
        escaped = text[backslash + 1 : backslash + 2]
        position = backslash + 2
        if escaped == "u":
            digits = text[position : position + _HEXADECIMAL_DIGITS]
            position += _HEXADECIMAL_DIGITS
            if re.fullmatch(r"[0-9A-Fa-f]{4}", digits) is None:
                problem = (
                    f"line {line}: after \\u there must be four hexadecimal digits, and there is"
                    f" {digits!r}"
                )
                raise OperatorError(
                    f"the settings cannot be read: {problem}; nothing of them was taken"
                )
            parts.append(chr(int(digits, 16)))
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    return "".join([*parts, text[position:]])
