"""Read, check and change the settings of balancing that the channel holds.

One `policy` record with the key `KEY` holds all of them. Its document has one entry GROUP.FIELD per
setting that was set. `changed_by` is who requested the last change. The format:

* A number with a fraction is a text, because the channel has no fractions.
* An absent value is the text `none`.
* Namespaces are numbered, like lists in policies: `transfer.excluded_namespaces.0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import (
    LEGIBLE,
    SETTINGS,
    Value,
    format_value,
    setting_named,
    value_of,
    with_value,
)
from equipoise.brokers.errors import InvalidSetting
from equipoise.channel.core.entries import PolicyChanged
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, Document, Scalar, Unreadable
from equipoise.channel.core.view import View

KEY: Final = "balancing/settings"
"""The key of the record."""

CHANGED_BY: Final = "changed_by"

Changes = Mapping[str, Scalar | None]
"""New values by setting, as text for `brokers.balancing.settings.setting_values`; None removes a
setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The change of one setting: its text before and after; None: not set.

    As a string it is `transfer.target_deviation: 0.25 (default) -> 0.1`.
    """

    setting: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.setting}: {self._shown(self.before)} -> {self._shown(self.after)}"

    def _shown(self, text: str | None) -> str:
        if text is not None:
            return text
        return (
            f"{format_value(SETTINGS[self.setting].default)} (default)"
            if self.setting in SETTINGS
            else "not set"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """The changes that the record at `offset` made, and their author."""

    offset: int
    by: str | None
    made: tuple[Changed, ...]

    @property
    def document(self) -> Mapping[str, object]:
        """The same as a JSON document."""
        changes = {one.setting: {"before": one.before, "after": one.after} for one in self.made}
        return {"offset": self.offset, "changes": changes}


def settings_in(view: View, base: BalancingSettings) -> BalancingSettings:
    """Return the settings in force: the channel's, and `base` for all that is unset or
    unreadable.
    """
    return _read(document_of(view), base)[0]


def problems_in(view: View, base: BalancingSettings) -> tuple[str, ...]:
    """Return why settings on the channel cannot be read; `base` applies to them."""
    return _read(document_of(view), base)[1]


def document_of(view: View) -> Document:
    """Return the document on the channel; empty if there is none."""
    entry = view.policies.get(KEY)
    return {} if entry is None else entry.document


def settings_of(document: Document) -> dict[str, Scalar]:
    """Return the settings in a document by name, readable or not. Numbered items are joined into
    one text.
    """
    settings: dict[str, Scalar] = {}
    for entry in sorted(document.keys() - {CHANGED_BY}):
        name = _setting_of(entry)
        item = document[entry]
        settings[name] = (
            item if name == entry else f"{settings[name]},{item}" if name in settings else str(item)
        )
    return settings


def changed(document: Document, changes: Changes, by: str | None) -> Document:
    """Return the document after all of these changes. Raises `NotFound`, `InvalidSetting`.

    Unreadable settings stay in the document unless they are changed or removed.
    """
    if by is not None and len(by) > TEXT_CHARACTERS_MAX:
        raise InvalidSetting(
            setting=CHANGED_BY,
            value=by[:LEGIBLE],
            expected=f"at most {TEXT_CHARACTERS_MAX} characters",
        )
    entries = {
        entry: scalar
        for entry, scalar in document.items()
        if entry != CHANGED_BY and _setting_of(entry) not in changes
    }
    was = settings_of(document)
    for name in sorted(changes):
        given = changes[name]
        if given is not None:
            entries |= _entries(name, value_of(name, given))
        elif name not in was:
            setting_named(name)  # Nothing was set under this name, so it may be misspelled.
    return entries if by is None else {**entries, CHANGED_BY: by}


def check_changes(view: View, changes: Changes) -> None:
    """Raise `NotFound` or `InvalidSetting` if the changes cannot be made to what the channel
    holds.
    """
    changed(document_of(view), changes, None)


def differences(before: Document, after: Document) -> tuple[Changed, ...]:
    """Return how settings changed between two documents, by name."""
    was, now = settings_of(before), settings_of(after)
    return tuple(
        Changed(setting=name, before=_text(was.get(name)), after=_text(now.get(name)))
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    )


def change_in(folded: Folded) -> SettingsChange | None:
    """Return what a record changed; None if it was rejected, or concerns something else."""
    for change in folded.verdict.changes:
        if isinstance(change, PolicyChanged) and change.name == KEY:
            before, after = (
                {} if entry is None else entry.document for entry in (change.before, change.after)
            )
            requester = None if isinstance(folded.record, Unreadable) else folded.record.requester
            return SettingsChange(
                offset=folded.offset,
                by=changed_by(after) or requester,
                made=differences(before, after),
            )
    return None


def changed_by(document: Document) -> str | None:
    """Return who made the last change, if the document names anybody."""
    by = document.get(CHANGED_BY)
    return None if by is None else str(by)


def _read(document: Document, base: BalancingSettings) -> tuple[BalancingSettings, tuple[str, ...]]:
    settings, problems = base, []
    for name, given in settings_of(document).items():
        try:
            settings = with_value(settings, name, given)
        except NotFound as error:
            problems.append(str(error))
        except InvalidSetting as error:
            problems.append(
                f"{error.setting} is {error.value!r} on the channel, and must be {error.expected}"
            )
    return settings, tuple(problems)


def _setting_of(entry: str) -> str:
    """Return the setting of a document's entry, which may be one of its numbered items."""
    name, _, number = entry.rpartition(".")
    return (
        name
        if number.isdecimal() and name in SETTINGS and SETTINGS[name].kind is frozenset
        else entry
    )


def _entries(name: str, value: Value) -> dict[str, Scalar]:
    """Return the entries of one setting. Numbers stay numbers, for readers in other languages."""
    if isinstance(value, frozenset) and value:
        return {f"{name}.{number}": namespace for number, namespace in enumerate(sorted(value))}
    return {name: value if isinstance(value, bool | int) else format_value(value)}


def _text(scalar: Scalar | None) -> str | None:
    return None if scalar is None else format_value(scalar)
