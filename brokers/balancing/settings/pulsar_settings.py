"""Convert the balancing settings of a Pulsar `broker.conf` to ours.

Every entry is taken, has no meaning here, or is not understood. The last two carry a reason. Our
default stays for an entry that is not understood.

Keys, types and meanings follow Pulsar 4.0.8 and 4.2.4, and values are converted as Pulsar does. One
exception: where Pulsar accepts nonsense (any word but `true` is false), the entry is not
understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.settings.properties import Property, parse_properties
from equipoise.brokers.balancing.settings.pulsar_keys import (
    ENABLED,
    EXTENSIBLE,
    MANAGER,
    MANAGERS,
    MEANINGLESS,
    NOOP,
    OLD_SPELLINGS,
    OLD_SPELLINGS_YIELD_TO,
    PLACING_SHEDDER,
    STRATEGIES,
    TAKEN,
    Misfit,
    Taken,
    express,
)
from equipoise.brokers.balancing.settings.setting_values import (
    LEGIBLE,
    Value,
    format_value,
    nearest,
    value_of,
)
from equipoise.brokers.errors import InvalidSetting, UnknownSetting

NOT_ABOUT_BALANCING: Final = "it is not about balancing"
"""Why most entries of a `broker.conf` have no meaning here."""

# The beginnings of Pulsar's balancing keys. An unknown key that starts so is probably misspelled.
_BEGINNINGS: Final = ("loadbalanc", "loadmanager")
_SIMILAR: Final = 0.9
_PLACEMENT: Final = "loadBalancerLoadPlacementStrategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenEntry:
    """An entry that was taken, with the values of our `settings`. `note` is for people."""

    line: int
    key: str
    value: str
    settings: Mapping[str, Value]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEntry:
    """An entry that was not taken, and why."""

    line: int
    key: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """The result for a `broker.conf`, each list in the order of the file."""

    taken: tuple[TakenEntry, ...]
    without_meaning: tuple[OtherEntry, ...]
    not_understood: tuple[OtherEntry, ...]

    @property
    def settings(self) -> Mapping[str, Value]:
        """All values by setting. If two keys set the same setting, the later counts."""
        return {setting: value for entry in self.taken for setting, value in entry.settings.items()}


def read_pulsar_settings(text: str) -> PulsarSettings:
    """Return the settings of a `broker.conf`. Raises `OperatorError` if the file is malformed."""
    entries = [
        Property(line=each.line, key=each.key, value=each.value.strip())
        for each in parse_properties(text)
    ]
    values = {entry.key: entry.value for entry in entries}
    last = {entry.key: entry.line for entry in entries}
    taken, without_meaning, not_understood = [], [], []
    for entry in entries:
        why = (
            f"line {last[entry.key]} sets it again, and the last counts"
            if entry.line != last[entry.key]
            else _why_meaningless(entry, values)
        )
        if why is not None:
            without_meaning.append(_other(entry, why))
            continue
        try:
            taken.append(_taken(entry))
        except Misfit as misfit:
            not_understood.append(_other(entry, str(misfit)))
    return PulsarSettings(
        taken=tuple(taken),
        without_meaning=tuple(without_meaning),
        not_understood=tuple(not_understood),
    )


DYNAMIC_KEYS: Final = (*TAKEN, MANAGER)
"""The keys that can be set one by one."""


def settings_of_key(key: str, value: str) -> Mapping[str, Value]:
    """Return the settings that one key sets, converted from its value. Raises `UnknownSetting`,
    `InvalidSetting`.
    """
    names_of_key(key)
    try:
        return _taken(Property(line=1, key=key, value=value.strip())).settings
    except Misfit as misfit:
        raise InvalidSetting(
            setting=key, value=value[:LEGIBLE], expected=f"as Pulsar has it ({misfit})"
        ) from None


def keys_of_settings(values: Mapping[str, Value]) -> Mapping[str, str]:
    """Return values by setting as Pulsar's keys and texts. A setting without a key, or only with
    others of its key, keeps its name.
    """
    keys = {
        key: row for key, row in TAKEN.items() if all(setting in values for setting in row.settings)
    }
    expressed = {key: express(row, values[row.settings[0]]) for key, row in keys.items()}
    covered = {setting for row in keys.values() for setting in row.settings}
    return expressed | {
        setting: format_value(value) for setting, value in values.items() if setting not in covered
    }


def names_of_key(key: str) -> tuple[str, ...]:
    """Return the names of the settings of one key. Raises `UnknownSetting`."""
    if key in TAKEN:
        return TAKEN[key].settings
    if key == MANAGER:
        return tuple(sorted({setting for settings in MANAGERS.values() for setting in settings}))
    raise UnknownSetting(setting=key[:LEGIBLE], nearest=nearest(key, DYNAMIC_KEYS))


def _why_meaningless(entry: Property, values: Mapping[str, str]) -> str | None:
    """Return why an entry has no meaning, alone or beside the other entries; None if it is
    taken.
    """
    key = entry.key
    if key in MEANINGLESS:
        return MEANINGLESS[key]
    if key not in TAKEN and key not in OLD_SPELLINGS and key != MANAGER:
        return None if _is_about_balancing(key) else NOT_ABOUT_BALANCING
    if not entry.value:
        return "it is empty, so the default stays"
    manager = _class_in(values.get(MANAGER, ""))
    if key == ENABLED and manager == NOOP:
        return f"{NOOP} balances nothing, so this has no effect"
    if key in STRATEGIES and manager == EXTENSIBLE:
        return (
            None
            if _class_in(entry.value) == STRATEGIES[key]
            else f"{EXTENSIBLE} uses {STRATEGIES[key]}, so this has no effect"
        )
    if key == _PLACEMENT and _class_in(entry.value) == PLACING_SHEDDER:
        return (
            f"{PLACING_SHEDDER} names the destinations of its moves itself here; the default places"
            " other bundles"
        )
    if key in OLD_SPELLINGS:
        new = OLD_SPELLINGS[key]
        return (
            f"{new} is set, too, and counts"
            if not _is_default_weight(values.get(new, ""))
            else None
        )
    old = next((old for old, new in OLD_SPELLINGS.items() if new == key), "")
    if values.get(old) and _is_default_weight(entry.value):
        return (
            f"{old} is set, too, and in Pulsar it counts as long as this is"
            f" {OLD_SPELLINGS_YIELD_TO}"
        )
    return None


def _taken(entry: Property) -> TakenEntry:
    """Return the entry as our settings. Raises `Misfit` if there is no such key, or the value is
    invalid.
    """
    if entry.key == MANAGER:
        return _taken_manager(entry)
    row = TAKEN.get(OLD_SPELLINGS.get(entry.key, entry.key))
    if row is None:
        near = nearest(entry.key, (*TAKEN, *OLD_SPELLINGS, *MEANINGLESS, MANAGER))
        raise Misfit("Pulsar has no such key" + (f"; it has {near}" if near else ""))
    settings = _settings(row, entry.value)
    note = (
        f"the old spelling of {OLD_SPELLINGS[entry.key]}"
        if entry.key in OLD_SPELLINGS
        else row.note
    )
    return TakenEntry(
        line=entry.line, key=entry.key, value=entry.value, settings=settings, note=note
    )


def _settings(row: Taken, text: str) -> Mapping[str, Value]:
    value = row.convert(text)
    try:
        return {setting: value_of(setting, value) for setting in row.settings}
    except InvalidSetting as error:
        raise Misfit(f"here {error.setting} must be {error.expected}") from None


def _taken_manager(entry: Property) -> TakenEntry:
    settings = MANAGERS.get(_class_in(entry.value))
    if settings is None:
        raise Misfit(f"there is no such load manager; there are {', '.join(MANAGERS)}")
    note = "there is one load manager here, with the strategies of all of Pulsar's"
    return TakenEntry(
        line=entry.line, key=entry.key, value=entry.value, settings=settings, note=note
    )


def _class_in(value: str) -> str:
    """Return the name of a Java class without its package."""
    return value.rpartition(".")[2]


def _is_default_weight(value: str) -> bool:
    """Return whether Pulsar treats a weight as not set."""
    try:
        return not value or float(value) == OLD_SPELLINGS_YIELD_TO
    except ValueError:
        return False


def _is_about_balancing(key: str) -> bool:
    return key.lower().startswith(_BEGINNINGS) or nearest(key, TAKEN, cutoff=_SIMILAR) is not None


def _other(entry: Property, why: str) -> OtherEntry:
    return OtherEntry(
        line=entry.line, key=entry.key[:LEGIBLE], value=entry.value[:LEGIBLE], why=why
    )
