"""Convert, check and format the values of the balancing settings.

Types and defaults come from the fields in `balancing_settings`, meanings and ranges from
`setting_meanings`.

A text is `true` or `false`, a number, a name, or comma-separated namespaces. `none` is no limit, or
no namespace. A formatted value reads back as the same value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType, NoneType
from typing import Final, get_args, get_type_hints

from equipoise.brokers.balancing.settings.balancing_settings import (
    PLACEMENTS,
    SHEDDERS,
    UNUSABLE,
    BalancingSettings,
)
from equipoise.brokers.balancing.settings.setting_meanings import MEANINGS
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.errors import InvalidSetting, UnknownSetting
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import check_namespace
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.policy import MEANING, Meaning

Value = bool | int | float | str | frozenset[str] | None

NONE: Final = "none"
"""The text of an absent value: no limit, or no namespaces."""

NAMESPACES_MAX: Final = 128
"""The most namespaces of one setting. All settings share one document with `DOCUMENT_ENTRIES_MAX`
entries."""

CHOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "balancing.shedder": tuple(SHEDDERS),
        "balancing.placement": tuple(PLACEMENTS),
        # An automatic split has no operator who names positions.
        "balancing.split_algorithm": tuple(
            name for name in ALGORITHMS if name != SPECIFIED_POSITIONS_DIVIDE
        ),
    }
)
"""The allowed values of settings that are names."""

LEGIBLE: Final = 200
"""Characters of a name or value that an error quotes."""

_TRUTHS: Final = {"true": True, "false": False}
_NEAR: Final = 0.6
# Longer names are not compared: the time grows with both lengths.
_NAME_CHARACTERS_MAX: Final = 100

_match_integer: Final = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_match_decimal: Final = re.compile(
    r"[+-]?([0-9]{1,19}\.?[0-9]{0,19}|\.[0-9]{1,19})([eE][+-]?[0-9]{1,3})?"
).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `kind` is bool, int, float, str or frozenset; an `optional` one may be None."""

    name: str
    kind: type
    optional: bool
    default: Value
    meaning: Meaning

    @property
    def expected(self) -> str:
        """What is allowed, to complete the sentence "it must be ..."."""
        allowed = {
            bool: "true or false",
            int: f"an integer, {self.meaning.range}",
            float: f"a number, {self.meaning.range}",
            str: f"one of {', '.join(CHOICES.get(self.name, ()))}{self._unusable}",
            frozenset: f"up to {NAMESPACES_MAX} namespaces with commas between them, or {NONE}",
        }[self.kind]
        return f"{allowed}, or {NONE}" if self.optional else allowed

    @property
    def _unusable(self) -> str:
        """The installed policies that cannot be used, and why."""
        problems = UNUSABLE.items() if self.name == "balancing.shedder" else ()
        return "".join(f"; {policy} cannot be used: {why}" for policy, why in problems)

    def read(self, given: Value) -> Value:
        """Return `given`, parsed if it is a text, as a value of this setting. Raises
        `InvalidSetting`.
        """
        if given is None or given == NONE:
            if not self.optional and self.kind is not frozenset:
                raise self._wrong(given)
            return None if self.optional else frozenset()
        value = _READERS[self.kind](given)
        if value is None or not self._is_inside(value):
            raise self._wrong(given)
        return value

    def _is_inside(self, value: Value) -> bool:
        if self.kind in (int, float):
            assert isinstance(value, int | float), "what was read as a number is one"
            return self.meaning.range.holds(value)
        if isinstance(value, frozenset):
            return len(value) <= NAMESPACES_MAX
        return self.kind is not str or value in CHOICES[self.name]

    def _wrong(self, given: Value) -> InvalidSetting:
        listed = sorted(given) if isinstance(given, frozenset) else given
        shown = listed if isinstance(listed, bool | int | float | None) else str(listed)[:LEGIBLE]
        return InvalidSetting(setting=self.name, value=shown, expected=self.expected)


def format_value(value: Value) -> str:
    """Return a value as text, as people write it."""
    if value is None or value == frozenset():
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return (
        ",".join(sorted(value)) if isinstance(value, frozenset) else str(value).removesuffix(".0")
    )


def nearest(name: str, known: Iterable[str], *, cutoff: float = _NEAR) -> str | None:
    """Return the known name that is most similar, if one is similar enough. `cutoff` is a
    similarity from 0 to 1.
    """
    found = (
        difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
        if len(name) <= _NAME_CHARACTERS_MAX
        else ()
    )
    return next(iter(found), None)


def setting_named(name: str) -> Setting:
    """Return the setting of this name. Raises `UnknownSetting`."""
    if name not in SETTINGS:
        raise UnknownSetting(setting=name[:LEGIBLE], nearest=nearest(name, SETTINGS))
    return SETTINGS[name]


def value_of(name: str, given: Value) -> Value:
    """Return `given`, parsed if it is a text, as a value of the setting `name`. Raises
    `UnknownSetting`, `InvalidSetting`.
    """
    return value_in(with_value(_DEFAULTS, name, given), name)


def value_in(settings: BalancingSettings, name: str) -> Value:
    """Return the value of an existing setting in `settings`."""
    group, _, field = name.partition(".")
    value: Value = getattr(settings.groups()[group], field)
    return value


def with_value(settings: BalancingSettings, name: str, given: Value) -> BalancingSettings:
    """Return `settings` with one value changed. Raises `UnknownSetting`, `InvalidSetting`."""
    value = setting_named(name).read(given)
    group, _, field = name.partition(".")
    return settings.with_group(group, **{field: value})


def with_values(settings: BalancingSettings, given: Mapping[str, Value]) -> BalancingSettings:
    """Return `settings` with several values changed. Raises as `with_value` does."""
    for name, value in given.items():
        settings = with_value(settings, name, value)
    return settings


def _boolean(given: Value) -> bool | None:
    return (
        given
        if isinstance(given, bool)
        else _TRUTHS.get(given.lower())
        if isinstance(given, str)
        else None
    )


def _integer(given: Value) -> int | None:
    if isinstance(given, str):
        return int(given) if _match_integer(given) else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _decimal(given: Value) -> float | None:
    if isinstance(given, str):
        return float(given) if _match_decimal(given) else None
    if isinstance(given, float):
        return given
    # A larger integer is in no range, and may not fit a float.
    return (
        float(given)
        if isinstance(given, int) and not isinstance(given, bool) and abs(given) <= INTEGER_MAX
        else None
    )


def _text(given: Value) -> str | None:
    return given if isinstance(given, str) else None


def _namespaces(given: Value) -> frozenset[str] | None:
    names = (
        given.split(",")
        if isinstance(given, str)
        else given
        if isinstance(given, frozenset)
        else ("",)
    )
    try:
        return frozenset(check_namespace(name.strip()) for name in names)
    except InvalidName:
        return None


_READERS: Final = MappingProxyType(
    {bool: _boolean, int: _integer, float: _decimal, str: _text, frozenset: _namespaces}
)

_DEFAULTS: Final = BalancingSettings()


def _settings() -> Iterator[Setting]:
    """Yield all settings, in the order of groups and fields. Skip groups inside a group."""
    for group, of_group in _DEFAULTS.groups().items():
        hints = get_type_hints(type(of_group))
        for field in fields(of_group):
            default = getattr(of_group, field.name)
            if is_dataclass(default):
                continue
            name = f"{group}.{field.name}"
            kinds = [
                kind
                for kind in get_args(hints[field.name]) or (hints[field.name],)
                if kind is not NoneType
            ]
            kind = frozenset if isinstance(default, frozenset) else kinds[0]
            yield Setting(
                name=name,
                kind=kind,
                optional=NoneType in get_args(hints[field.name]),
                default=float(default) if kind is float and default is not None else default,
                meaning=field.metadata.get(MEANING) or MEANINGS[name],
            )


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in _settings()}
)
"""Every setting by its name GROUP.FIELD."""
