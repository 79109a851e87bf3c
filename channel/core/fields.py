"""Check the fields of a record, as decoded from JSON, for type, range and bound.

Each function returns a field's value, or raises `MalformedError` with a problem that names the
field.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final, NoReturn, cast

from equipoise.channel.core.records import (
    DOCUMENT_ENTRIES_MAX,
    HANDOVER_BYTES_MAX,
    INTEGER_MAX,
    KEY_CHARACTERS_MAX,
    PATTERNS_MAX,
    TEXT_CHARACTERS_MAX,
    Document,
    Scalar,
)

Raw = dict[str, object]

# How much of a wrong value a problem repeats: enough to recognise it, short enough for a log line.
_SHOWN_CHARACTERS_MAX: Final = 200


class MalformedError(Exception):
    """Raised at the first wrong field. Only the codec catches it."""


def fail(problem: str) -> NoReturn:
    """Raise `MalformedError` with this problem."""
    raise MalformedError(problem)


def shown(value: object) -> str:
    """Return a value as a problem shows it. Lists and objects show only their type: `repr` fails on
    deep nesting.
    """
    return (
        repr(value)[:_SHOWN_CHARACTERS_MAX]
        if value is None or isinstance(value, str | int | float)
        else f"of type {type(value).__name__}"
    )


def integer(raw: Raw, name: str) -> int:
    """Return an integer from 0 to 2**63 - 1; `true` is not an integer."""
    value = raw.get(name)
    if type(value) is not int or value < 0 or value > INTEGER_MAX:
        fail(f"{name} must be an integer from 0 to 2**63 - 1")
    return value


def optional_integer(raw: Raw, name: str, absent: int | None = None) -> int | None:
    """Return an integer, or `absent` if there is none."""
    return absent if raw.get(name) is None else integer(raw, name)


def text(raw: Raw, name: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return a non-empty text."""
    value = raw.get(name)
    if type(value) is not str or not value or len(value) > characters_max:
        fail(f"{name} must be a text of 1 to {characters_max} characters")
    return value


def optional_text(raw: Raw, name: str) -> str | None:
    """Return a text, or None if there is none."""
    return None if raw.get(name) is None else text(raw, name)


def choice(raw: Raw, name: str, choices: frozenset[str]) -> str:
    """Return one of `choices`."""
    value = raw.get(name)
    if type(value) is not str or value not in choices:
        fail(f"{name} must be one of {', '.join(sorted(choices))}")
    return value


def integers(raw: Raw, name: str, count_max: int) -> tuple[int, ...]:
    """Return a list of integers."""
    value = raw.get(name)
    if type(value) is not list or len(value) > count_max:
        fail(f"{name} must be a list of at most {count_max} integers")
    for item in value:
        if type(item) is not int or item < 0 or item > INTEGER_MAX:
            fail(f"{name} must hold integers from 0 to 2**63 - 1")
    return tuple(value)


def optional_patterns(raw: Raw, name: str) -> tuple[str, ...] | None:
    """Return a list of patterns of namespaces, or None if there is none."""
    value = raw.get(name)
    if value is None:
        return None
    if type(value) is not list or len(value) > PATTERNS_MAX:
        fail(f"{name} must be a list of at most {PATTERNS_MAX} texts")
    for item in value:
        if type(item) is not str or not 0 < len(item) <= KEY_CHARACTERS_MAX:
            fail(f"{name} must hold texts of 1 to {KEY_CHARACTERS_MAX} characters")
    return tuple(value)


def document(raw: Raw, name: str) -> Document:
    """Return a flat object of texts, integers and booleans."""
    value = raw.get(name)
    if type(value) is not dict or len(value) > DOCUMENT_ENTRIES_MAX:
        fail(f"{name} must be an object of at most {DOCUMENT_ENTRIES_MAX} entries")
    for field, item in value.items():
        if len(field) > TEXT_CHARACTERS_MAX:
            fail(f"{name} has a field name of over {TEXT_CHARACTERS_MAX} characters")
        if type(item) is str:
            fits = len(item) <= TEXT_CHARACTERS_MAX
        else:
            fits = type(item) is bool or (type(item) is int and 0 <= item <= INTEGER_MAX)
        if not fits:
            fail(
                f"{name}[{shown(field)}] must be a text of at most {TEXT_CHARACTERS_MAX}"
                " characters, an integer or a boolean"
            )
    return cast("dict[str, Scalar]", value)


def texts(raw: Raw, name: str) -> Mapping[str, str]:
    """Return a flat object of texts; empty if there is none."""
    if raw.get(name) is None:
        return {}
    mapped = document(raw, name)
    if any(type(value) is not str for value in mapped.values()):
        fail(f"{name} must map names to texts")
    return cast("Mapping[str, str]", mapped)


def boolean(raw: Raw, name: str) -> bool:
    """Return a boolean; false if there is none."""
    value = raw.get(name)
    if value is not None and type(value) is not bool:
        fail(f"{name} must be true or false")
    return value is True


def handover(raw: Raw) -> bytes:
    """Return the bytes of a base64 field."""
    value = raw.get("handover")
    if type(value) is not str or len(value) > (HANDOVER_BYTES_MAX + 2) // 3 * 4:
        fail(f"handover must be at most {HANDOVER_BYTES_MAX} bytes in base64")
    try:
        decoded = b64decode(value, validate=True)
    except ValueError:
        fail("handover must be base64")
    # Accept only the canonical form: what else a decoder accepts differs from version to version.
    if b64encode(decoded).decode() != value:
        fail("handover must be base64")
    if len(decoded) > HANDOVER_BYTES_MAX:
        fail(f"handover must be at most {HANDOVER_BYTES_MAX} bytes in base64")
    return decoded
