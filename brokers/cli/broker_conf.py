"""Read Pulsar's `broker.conf` into the settings of a broker, and report what happened to each entry."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.config import DERIVED
from equipoise.channel.kafka.settings import MASK

FILE_BYTES_MAX: Final = 1 << 20
"""The largest file read. Pulsar's own has 100 KiB."""

# The settings of Pulsar's keys about TLS. Its ports for TLS and without are one port here.
_TLS: Final = {
    "tlsCertificateFilePath": "tls_certificate",
    "tlsKeyFilePath": "tls_key",
    "tlsTrustCertsFilePath": "tls_ca",
    "tlsRequireTrustedClientCertOnConnect": "tls_require_client_certificate",
}
_TLS_NOTE: Final = "with a certificate, all ports accept TLS only"

_logger: Final = logging.getLogger(__name__)

_ENABLED: Final = "authenticationEnabled"
_OWN_PLUGIN: Final = "brokerClientAuthenticationPlugin"
_TOKEN_PLUGIN: Final = "AuthenticationToken"  # noqa: S105 - the name of a class of Pulsar
_AUTHENTICATION: Final = {
    _ENABLED: "authentication",
    "tokenSecretKey": "token_secret_key",
    "tokenPublicKey": "token_public_key",
    "tokenAuthClaim": "token_claim",
    "tokenAudience": "token_audience",
    "brokerClientAuthenticationParameters": "broker_token",
}
"""Our settings of authentication by Pulsar's keys. They count only if `authenticationEnabled` is true."""

# Keys of Pulsar whose values may be secret. Some that match are not; a log does not need their values.
_is_secret: Final = re.compile("secret|password|token|key|credential|authenticationparameters", re.IGNORECASE).search


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConf:
    """A file, the result for each of its entries without secrets, and our settings of `authentication` with them."""

    file: Path
    read: PulsarSettings
    authentication: Mapping[str, str] = field(repr=False)


def read_broker_conf(path: Path) -> BrokerConf:
    """Read a file. Raise `OperatorError` or OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig(problems=(f"--broker-conf: {path} has more than {FILE_BYTES_MAX} bytes, which is no broker.conf",))
    text = data.decode("iso-8859-1")  # Java's encoding of such files.
    read, authentication = _with_tls(read_pulsar_settings(text)), _authentication_in(text)
    without_meaning = tuple(_shown(entry, authentication) for entry in read.without_meaning)
    return BrokerConf(file=path, read=replace(read, without_meaning=without_meaning), authentication=authentication)


def _authentication_in(text: str) -> Mapping[str, str]:
    """Return the settings of authentication in a file; none if it is not enabled. A broker refuses to start if some are missing."""
    values = {entry.key: entry.value.strip() for entry in parse_properties(text)}
    if values.get(_ENABLED, "").lower() != "true":
        return {}
    if values.get("tokenSecretKey"):  # As in Pulsar, it counts if both keys are set.
        values.pop("tokenPublicKey", None)
    if values.get(_OWN_PLUGIN, "").rpartition(".")[2] != _TOKEN_PLUGIN:
        values.pop("brokerClientAuthenticationParameters", None)
    return {ours: values[key] for key, ours in _AUTHENTICATION.items() if values.get(key)}


def _shown(entry: OtherEntry, authentication: Mapping[str, str]) -> OtherEntry:
    """Return an entry without its value if that may be secret, and with what it sets if it is about authentication."""
    setting = _AUTHENTICATION.get(entry.key, "")
    why = f"it is not about balancing; brokers take it as {setting}" if setting in authentication else entry.why
    return replace(entry, value=MASK if _is_secret(entry.key) else entry.value, why=why)


def _with_tls(read: PulsarSettings) -> PulsarSettings:
    """Take the entries about TLS, too. They are settings of a broker, not of balancing."""
    taken = [
        TakenEntry(line=entry.line, key=entry.key, value=entry.value, settings={_TLS[entry.key]: entry.value}, note=_TLS_NOTE)
        for entry in read.without_meaning
        if entry.key in _TLS and entry.why == NOT_ABOUT_BALANCING and entry.value
    ]
    lines = {entry.line for entry in taken}
    return PulsarSettings(
        taken=tuple(sorted((*read.taken, *taken), key=lambda entry: entry.line)),
        without_meaning=tuple(entry for entry in read.without_meaning if entry.line not in lines),
        not_understood=read.not_understood,
    )


def settings_over(conf: BrokerConf | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a file, overridden by those `given`."""
    derived = {name for setting in given for name in DERIVED.get(setting, ())}
    taken = {} if conf is None else {name: format_value(value) for name, value in conf.read.settings.items() if name not in derived}
    return taken | ({} if conf is None else dict(conf.authentication)) | dict(given)


def log_entries(conf: BrokerConf) -> None:
    """Log one line for each entry. Entries that are not about balancing are logged at a lower level."""
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
    """Print the three lists, one entry per line. Entries that are not about balancing are printed without values."""
    read = conf.read
    counts = _counts(read)
    summary = f"{counts['taken']} taken, {counts['without_meaning']} without meaning here, {counts['not_understood']} not understood"
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
    return {"line": entry.line, "key": entry.key, "value": entry.value, "settings": settings, "note": entry.note}


def _counts(read: PulsarSettings) -> Mapping[str, int]:
    lists = {"taken": read.taken, "without_meaning": read.without_meaning, "not_understood": read.not_understood}
    return {name: len(entries) for name, entries in lists.items()}
