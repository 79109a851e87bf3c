"""Read Pulsar's `broker.conf` into the settings of a broker, and report what happened to each
entry.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from equipoise.brokers.balancing.settings.properties import parse_properties
from equipoise.brokers.balancing.settings.pulsar_settings import (
    NOT_ABOUT_BALANCING,
    OtherEntry,
    PulsarSettings,
    TakenEntry,
    read_pulsar_settings,
)
from equipoise.brokers.balancing.settings.setting_values import format_value
from equipoise.brokers.cli.output import Row, print_line
from equipoise.brokers.cli.security_entries import SecurityEntries, read_security_entries
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.config import DERIVED, SECRET_VARIABLES
from equipoise.channel.kafka.settings import MASK

FILE_BYTES_MAX: Final = 1 << 20
"""The largest file read. Pulsar's own has 100 KiB."""

_logger: Final = logging.getLogger(__name__)

# Keys of Pulsar whose values may be secret. Some that match are not; a log does not need their
# values.
_is_secret: Final = re.compile(
    "secret|password|token|key|credential|authenticationparameters", re.IGNORECASE
).search


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConf:
    """A file, the result for each of its entries without secrets, and the result for those about
    security.
    """

    file: Path
    read: PulsarSettings
    security: SecurityEntries


def read_broker_conf(path: Path) -> BrokerConf:
    """Read a file. Raise `OperatorError` or OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig(
            problems=(
                (
                    f"--broker-conf: {path} has more than {FILE_BYTES_MAX} bytes, which is no"
                    " broker.conf"
                ),
            )
        )
    text = data.decode("iso-8859-1")  # Java's encoding of such files.
    security = read_security_entries(
        {entry.key: entry.value.strip() for entry in parse_properties(text)}
    )
    return BrokerConf(
        file=path, read=_with_security(read_pulsar_settings(text), security), security=security
    )


def _with_security(read: PulsarSettings, security: SecurityEntries) -> PulsarSettings:
    """Move the entries about security to the list that each belongs to, and mask secrets."""
    taken, without_meaning, not_understood = (
        [*read.taken],
        list[OtherEntry](),
        [*read.not_understood],
    )
    for entry in read.without_meaning:
        shown = replace(entry, value=MASK if _is_secret(entry.key) else entry.value)
        setting = security.taken.get(entry.key)
        if entry.why != NOT_ABOUT_BALANCING:
            without_meaning.append(shown)
        elif setting is not None:
            value = MASK if setting in SECRET_VARIABLES else security.settings[setting]
            given = MASK if setting in SECRET_VARIABLES else entry.value
            taken.append(
                TakenEntry(line=entry.line, key=entry.key, value=given, settings={setting: value})
            )
        elif entry.key in security.problems:
            not_understood.append(replace(shown, why=security.problems[entry.key]))
        else:
            without_meaning.append(replace(shown, why=security.ignored.get(entry.key, entry.why)))
    return PulsarSettings(
        taken=tuple(sorted(taken, key=lambda entry: entry.line)),
        without_meaning=tuple(without_meaning),
        not_understood=tuple(sorted(not_understood, key=lambda entry: entry.line)),
    )


def settings_over(conf: BrokerConf | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a file, overridden by those `given`. Raise `InvalidConfig` for entries
    about security that cannot be taken.
    """
    if conf is None:
        return dict(given)
    if conf.security.problems:
        raise InvalidConfig(
            problems=tuple(
                f"--broker-conf: {key}: {problem}"
                for key, problem in conf.security.problems.items()
            )
        )
    derived = {name for setting in given for name in DERIVED.get(setting, ())}
    taken = {
        name: format_value(value)
        for name, value in conf.read.settings.items()
        if name not in derived
    }
    return taken | dict(conf.security.settings) | dict(given)


def log_entries(conf: BrokerConf) -> None:
    """Log one line for each entry. Entries that are not about balancing are logged at a lower
    level.
    """
    _logger.info("a broker.conf was read", extra={"file": str(conf.file), **_counts(conf.read)})
    for taken in conf.read.taken:
        _logger.info("taken from a broker.conf", extra=_taken_row(taken))
    for other in conf.read.without_meaning:
        level = logging.DEBUG if other.why == NOT_ABOUT_BALANCING else logging.INFO
        _logger.log(level, "without meaning here, in a broker.conf", extra=asdict(other))
    for other in conf.read.not_understood:
        _logger.warning("not understood, in a broker.conf", extra=asdict(other))


def document_of(conf: BrokerConf) -> Row:
    """Return the three lists as JSON values."""
    return {
        "file": str(conf.file),
        "taken": [_taken_row(entry) for entry in conf.read.taken],
        "without_meaning": [asdict(entry) for entry in conf.read.without_meaning],
        "not_understood": [asdict(entry) for entry in conf.read.not_understood],
    }


def print_entries(conf: BrokerConf) -> None:
    """Print the three lists, one entry per line. Entries that are not about balancing are printed
    without values.
    """
    read = conf.read
    counts = _counts(read)
    summary = (
        f"{counts['taken']} taken, {counts['without_meaning']} without meaning here,"
        f" {counts['not_understood']} not understood"
    )
    print_line(f"{conf.file}: {summary}")
    meaningless = [entry for entry in read.without_meaning if entry.why != NOT_ABOUT_BALANCING]
    unrelated = [entry.key for entry in read.without_meaning if entry.why == NOT_ABOUT_BALANCING]
    _print_list("taken", [(entry, _effect(entry)) for entry in read.taken])
    _print_list("without meaning here", [(entry, entry.why) for entry in meaningless])
    if unrelated:
        print_line("")
        print_line(f"not about balancing: {', '.join(unrelated)}")
    _print_list("not understood", [(entry, entry.why) for entry in read.not_understood])


def _print_list(heading: str, entries: Sequence[tuple[TakenEntry | OtherEntry, str]]) -> None:
    if entries:
        print_line("")
        print_line(f"{heading}:")
    for entry, text in entries:
        print_line(f"{entry.line:>6}  {entry.key}={entry.value}: {text}")


def _effect(entry: TakenEntry) -> str:
    settings = ", ".join(f"{name}={format_value(value)}" for name, value in entry.settings.items())
    return "; ".join(part for part in (settings, entry.note) if part)


def _taken_row(entry: TakenEntry) -> Row:
    settings = {name: format_value(value) for name, value in entry.settings.items()}
    return {
        "line": entry.line,
        "key": entry.key,
        "value": entry.value,
        "settings": settings,
        "note": entry.note,
    }


def _counts(read: PulsarSettings) -> Mapping[str, int]:
    lists = {
        "taken": read.taken,
        "without_meaning": read.without_meaning,
        "not_understood": read.not_understood,
    }
    return {name: len(entries) for name, entries in lists.items()}
