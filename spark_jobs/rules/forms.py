"""Check the form of a record against one table, independently of the codec and of any state."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

from equipoise.spark_jobs.rules.facts import Raw

Check = Callable[[Any], bool]

_LARGEST: Final = 2**63 - 1
_KEY_CHARACTERS_MAX: Final = 600
_TEXT_CHARACTERS_MAX: Final = 1_024
_DOCUMENT_ENTRIES_MAX: Final = 256
_PATTERNS_MAX: Final = 256
_CUTS_MAX: Final = 63
_BOUNDARIES_MAX: Final = 2**16 + 1
_HANDOVER_BYTES_MAX: Final = 2**14
_HANDOVER_CHARACTERS_MAX: Final = (_HANDOVER_BYTES_MAX + 2) // 3 * 4
ADMIN: Final = "admin:"


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether the value is an integer from 0 to 2**63 - 1. A boolean is not."""
    return type(value) is int and 0 <= value <= _LARGEST


def is_key(value: object) -> TypeGuard[str]:
    """Return whether the value is a string that can be a key or a publisher."""
    return type(value) is str and 0 < len(value) <= _KEY_CHARACTERS_MAX


def _is_text(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= _TEXT_CHARACTERS_MAX


def _is_positive(value: object) -> bool:
    return is_integer(value) and value != 0


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _is_one_of(*words: str) -> Check:
    return lambda value: type(value) is str and value in words


def _is_list_of(count_max: int) -> Check:
    return lambda value: (
        type(value) is list and len(value) <= count_max and all(map(is_integer, value))
    )


def _is_patterns(value: object) -> bool:
    return type(value) is list and len(value) <= _PATTERNS_MAX and all(map(is_key, value))


def _is_short_text(value: object) -> bool:
    return type(value) is str and len(value) <= _TEXT_CHARACTERS_MAX


def _is_document(value: object) -> bool:
    return (
        type(value) is dict
        and len(value) <= _DOCUMENT_ENTRIES_MAX
        and all(_is_short_text(name) for name in value)
        and all(
            _is_short_text(item) or _is_flag(item) or is_integer(item) for item in value.values()
        )
    )


def _is_document_of_texts(value: object) -> bool:
    return _is_document(value) and all(type(item) is str for item in value.values())  # type: ignore[attr-defined]


def _is_handover(value: object) -> bool:
    if type(value) is not str or len(value) > _HANDOVER_CHARACTERS_MAX:
        return False
    try:
        decoded = b64decode(value, validate=True)
    except ValueError:
        return False
    return len(decoded) <= _HANDOVER_BYTES_MAX and b64encode(decoded).decode() == value


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


_WHO_PUBLISHES: Final[Mapping[str, Check]] = {
    "key": is_key,
    "expected_offset": is_integer,
    "publisher": is_key,
    "level": _optional(_is_positive),
    "timestamp_ms": _optional(is_integer),
}

# Fields of each kind besides the envelope; for `broker`, also by status.
_OWN: Final[Mapping[str, Mapping[str, Check]]] = {
    "genesis": {"cluster": _is_text, "base": _optional(is_integer)},
    "bundle": {
        "state": lambda value: type(value) is str,
        "owner": _optional(is_integer),
        "source": _optional(is_integer),
        "reason": _optional(_is_text),
        "algorithm": _optional(_is_text),
        "positions": _optional(_is_list_of(_CUTS_MAX)),
        "handover": _optional(_is_handover),
    },
    "split": {"positions": _is_list_of(_CUTS_MAX), "reason": _optional(_is_text)},
    "merge": {"right": is_key, "expected_offset_right": is_integer, "reason": _optional(_is_text)},
    "namespace": {
        "status": _is_one_of("created", "policies", "deleting", "deleted"),
        "boundaries": _optional(_is_list_of(_BOUNDARIES_MAX)),
        "policies": _optional(_is_document),
    },
    "policy": {"status": _is_one_of("set", "removed"), "document": _optional(_is_document)},
    "level": {"raises_to": is_integer},
    "broker": {
        "status": _is_one_of("draining", "left", "down", "removed"),
        "instance_id": _optional(_is_text),
        "reason": _optional(_is_text),
    },
    "broker renewed": {"digest": is_integer},
    "broker joined": {
        "instance_id": _is_text,
        "lease_ms": _is_positive,
        "grace_ms": _is_positive,
        "renew_ms": _is_positive,
        "extend_ms": _optional(is_integer),
        "addresses": _optional(_is_document_of_texts),
        "capacity": _optional(_is_positive),
        "failure_domain": _optional(_is_text),
        "labels": _optional(_is_document_of_texts),
        "namespaces": _optional(_is_patterns),
        "version": _optional(_is_text),
        "supported_level": _optional(_is_positive),
        "replaces": _optional(_is_text),
        "after_silence": _optional(_is_flag),
        "lock": _optional(_is_text),
    },
}

_FORMS: Final = {kind: (*_WHO_PUBLISHES.items(), *own.items()) for kind, own in _OWN.items()}

# (state, owner is set, source is set) -> phase.
PHASES: Final[Mapping[tuple[str, bool, bool], str]] = {
    ("free", False, False): "free",
    ("assigning", True, False): "assigning",
    ("assigning", True, True): "transferring",
    ("owned", True, False): "owned",
    ("releasing", True, True): "handing_over",
    ("releasing", False, True): "unloading",
    ("splitting", True, False): "splitting",
}


def is_well_formed(raw: Raw) -> bool:
    """Return whether a JSON object has the form of a record. Unknown fields are ignored; null means
    absent.
    """
    form = form_of(raw)
    if form is None:
        return False
    get = raw.get
    for name, check in _FORMS[form]:
        if not check(get(name)):
            return False
    if form in _BEFORE_MEMBERSHIP:
        return _BEFORE_MEMBERSHIP[form](raw)
    if not _is_signed(raw):
        return False
    if form == "bundle":
        return phase_of(raw) is not None
    return form != "level" or raw["key"] == "level"


def form_of(raw: Raw) -> str | None:
    """Return the record's row in the table: its kind, with the status for `joined` and `renewed`.
    Return None if it is no record.
    """
    kind = raw.get("kind")
    if kind == "broker":
        status = raw.get("status")
        return f"broker {status}" if status in ("renewed", "joined") else kind
    return kind if type(kind) is str and kind in _OWN and " " not in kind else None


def phase_of(raw: Raw) -> str | None:
    """Return the phase that a `bundle` record asks for; None if its state does not fit the parties
    that it names.
    """
    return PHASES.get((raw["state"], raw.get("owner") is not None, raw.get("source") is not None))


def _is_signed(raw: Raw) -> bool:
    """Return whether a broker gives its incarnation and attempt number, and an admin only the
    offset of its view.
    """
    get = raw.get
    incarnation, sequence, as_of = get("incarnation"), get("sequence"), get("as_of")
    if raw["publisher"].startswith(ADMIN):
        return incarnation is None and sequence is None and is_integer(as_of)
    return is_integer(incarnation) and is_integer(sequence) and (as_of is None or is_integer(as_of))


def _is_unsigned(raw: Raw) -> bool:
    return (
        raw.get("incarnation") is None and raw.get("sequence") is None and raw.get("as_of") is None
    )


def _is_genesis(raw: Raw) -> bool:
    return _is_unsigned(raw) and raw["key"] == "genesis" and raw["expected_offset"] == 0


def _is_joined(raw: Raw) -> bool:
    return _is_unsigned(raw) and raw["key"] == raw["publisher"] and not raw["key"].startswith(ADMIN)


_BEFORE_MEMBERSHIP: Final[Mapping[str, Callable[[Raw], bool]]] = {
    "genesis": _is_genesis,
    "broker joined": _is_joined,
}
