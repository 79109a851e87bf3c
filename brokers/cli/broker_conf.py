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

from equipoise.brokers.balancing.settings.pulsar_settings import (
    NOT_ABOUT_BALANCING,
    OtherEntry,
    PulsarSettings,
    TakenEntry,
    read_pulsar_settings,
)
from equipoise.brokers.balancing.settings.setting_values import format_value
from equipoise.brokers.cli.output import Row, print_line
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.config import DERIVED
from equipoise.channel.kafka.settings import MASK

_logger: Final = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1 << 20
"""The largest file read. Pulsar's own has 100 KiB."""

# Keys of Pulsar whose values may be secret. Some that match are not; a log does not need their
# values.
_is_secret: Final = re.compile(
    "secret|password|token|key|credential|authenticationparameters", re.IGNORECASE
).search


# What makes Pulsar's brokers secure, and the setting that does so here. A broker that dropped such
# an entry would let everyone in.
_OF_SECURITY: Final[Mapping[str, str]] = {
    "authenticationEnabled": "authentication",
    "authorizationEnabled": "authorization",
    "tlsCertificateFilePath": "tls_certificate",
    "tlsRequireTrustedClientCertOnConnect": "tls_require_client_certificate",
}
_OFF: Final = frozenset({"", "false"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConf:
    """A file, and the result for each of its entries, without secrets. `unsafe` are the entries
    that make Pulsar's brokers secure, by key, and the setting that does so here.
    """

    file: Path
    read: PulsarSettings
    unsafe: Mapping[str, str]


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
    read = read_pulsar_settings(data.decode("iso-8859-1"))  # Java's encoding of such files.
    unsafe = {
        entry.key: _OF_SECURITY[entry.key]
        for entry in read.without_meaning
        if entry.key in _OF_SECURITY and entry.value.strip().lower() not in _OFF
    }
    shown = tuple(_shown(entry, unsafe.get(entry.key)) for entry in read.without_meaning)
    return BrokerConf(file=path, read=replace(read, without_meaning=shown), unsafe=unsafe)


def _shown(entry: OtherEntry, setting: str | None) -> OtherEntry:
    """Return an entry as it may be shown. `setting` is the one that makes brokers here secure."""
    return replace(
        entry,
        value=MASK if _is_secret(entry.key) else entry.value,
        why=entry.why if setting is None else f"it is about security: set {setting}",
    )


def settings_over(conf: BrokerConf | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a file, overridden by those `given`. Raise `InvalidConfig` if brokers
    would be less secure than the file says.
    """
    if conf is None:
        return dict(given)
    dropped = tuple(
        f"--broker-conf: {key}: only settings of balancing are taken from a file; give"
        f" --set {setting}=VALUE too, or remove the entry"
        for key, setting in conf.unsafe.items()
        if setting not in given
    )
    if dropped:
        raise InvalidConfig(problems=dropped)
    derived = {name for setting in given for name in DERIVED.get(setting, ())}
    taken = {
        name: format_value(value)
        for name, value in conf.read.settings.items()
        if name not in derived
    }
    return taken | dict(given)


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
