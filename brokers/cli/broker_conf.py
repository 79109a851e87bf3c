"""Read Pulsar's `broker.conf` into the settings of a broker, and report what happened to each
entry.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

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
from equipoise.brokers.runtime.config import DERIVED, SECRET_VARIABLES
from equipoise.brokers.security.identity import BASIC, TLS, TOKEN
from equipoise.channel.kafka.settings import MASK

_logger: Final = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1 << 20
"""The largest file read. Pulsar's own has 100 KiB."""

# Keys of Pulsar whose values may be secret. Some that match are not; a log does not need their
# values.
_is_secret: Final = re.compile(
    "secret|password|token|key|credential|authenticationparameters", re.IGNORECASE
).search


# --- the entries about security ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An entry that is a setting of a broker. With a `method`, it counts only if clients may use
    that method of authentication.
    """

    setting: str
    method: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """An entry that changes nothing here, for the reason `why`, if it has one of these values in
    lower case. None stands for any.
    """

    why: str
    values: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameAs:
    """An entry that must have the value of another one, because brokers have one setting for
    both.
    """

    key: str


EntryRow = Taken | Ignored | SameAs


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityEntries:
    """The result for the entries of a file about security.

    `settings` are ours, with secrets. By key, `taken` are the names of the settings, `ignored` is
    why an entry changes nothing, and `problems` why a broker cannot start with it; none of these
    contains a value.
    """

    settings: Mapping[str, str] = field(repr=False)
    taken: Mapping[str, str]
    ignored: Mapping[str, str]
    problems: Mapping[str, str]


def _only(why: str, *values: str) -> Ignored:
    return Ignored(why=why, values=frozenset(values))


_ENABLED: Final = "authenticationEnabled"
_PROVIDERS: Final = "authenticationProviders"
_AUTHORIZED: Final = "authorizationEnabled"
_SUPER: Final = "superUserRoles"
_PROXIES: Final = "proxyRoles"
_PLUGIN: Final = "brokerClientAuthenticationPlugin"
_PARAMETERS: Final = "brokerClientAuthenticationParameters"
_CERTIFICATE, _KEY, _CA = "tlsCertificateFilePath", "tlsKeyFilePath", "tlsTrustCertsFilePath"

# Pulsar's classes, without their package, and the methods of authentication that they are of.
_METHODS: Final = {
    "AuthenticationProviderToken": TOKEN,
    "AuthenticationProviderBasic": BASIC,
    "AuthenticationProviderTls": TLS,
}
_PLUGINS: Final = {
    "AuthenticationToken": TOKEN,
    "AuthenticationBasic": BASIC,
    "AuthenticationTls": TLS,
    "AuthenticationDisabled": "",
}

_PORTS: Final = "a port accepts TLS and nothing else if there is a certificate"
_VERSIONS: Final = _only("brokers accept TLS 1.2 and 1.3", "tlsv1.2,tlsv1.3", "tlsv1.3,tlsv1.2")
_KEY_STORES: Final = Ignored(why="it counts only with key stores of Java")
_JAVA: Final = Ignored(why="it names a part of Java")
_FACTORY: Final = _only(
    "it names a part of Java", "org.apache.pulsar.common.util.defaultpulsarsslfactory"
)
_OTHER_METHOD: Final = Ignored(
    why="it counts only for methods of authentication that do not exist here"
)

_ROWS: Final[Mapping[str, EntryRow]] = {
    _CERTIFICATE: Taken(setting="tls_certificate"),
    _KEY: Taken(setting="tls_key"),
    _CA: Taken(setting="tls_ca"),
    "tlsRequireTrustedClientCertOnConnect": Taken(setting="tls_require_client_certificate"),
    "brokerClientCertificateFilePath": SameAs(key=_CERTIFICATE),
    "brokerClientKeyFilePath": SameAs(key=_KEY),
    "brokerClientTrustCertsFilePath": SameAs(key=_CA),
    "brokerServicePortTls": Ignored(why=_PORTS),
    "webServicePortTls": Ignored(why=_PORTS),
    "tlsEnabled": Ignored(why=_PORTS),
    "brokerClientTlsEnabled": Ignored(why="a broker uses TLS with each broker that has it"),
    "replicationTlsEnabled": Ignored(why="there is no other cluster"),
    "tlsHostnameVerificationEnabled": Ignored(why="brokers always verify the host of each other"),
    "tlsCertRefreshCheckDurationSec": Ignored(why="changed files are used within a second"),
    "tlsProtocols": _VERSIONS,
    "brokerClientTlsProtocols": _VERSIONS,
    "webServiceTlsProtocols": _VERSIONS,
    "tlsProvider": _JAVA,
    "webServiceTlsProvider": _JAVA,
    "brokerClientSslProvider": _JAVA,
    "sslFactoryPlugin": _FACTORY,
    "brokerClientSslFactoryPlugin": _FACTORY,
    "tlsKeyStoreType": _KEY_STORES,
    "tlsKeyStore": _KEY_STORES,
    "tlsKeyStorePassword": _KEY_STORES,
    "tlsTrustStoreType": _KEY_STORES,
    "tlsTrustStore": _KEY_STORES,
    "tlsTrustStorePassword": _KEY_STORES,
    "brokerClientTlsKeyStoreType": _KEY_STORES,
    "brokerClientTlsKeyStore": _KEY_STORES,
    "brokerClientTlsKeyStorePassword": _KEY_STORES,
    "brokerClientTlsTrustStoreType": _KEY_STORES,
    "brokerClientTlsTrustStore": _KEY_STORES,
    "brokerClientTlsTrustStorePassword": _KEY_STORES,
    _ENABLED: Taken(setting="authentication"),
    _PROVIDERS: Taken(setting="certificate_roles"),
    "tokenSecretKey": Taken(setting="token_secret_key", method=TOKEN),
    "tokenPublicKey": Taken(setting="token_public_key", method=TOKEN),
    "tokenAuthClaim": Taken(setting="token_claim", method=TOKEN),
    "tokenAudience": Taken(setting="token_audience", method=TOKEN),
    "tokenAudienceClaim": _only("the audience is always in the claim aud", "aud"),
    "tokenPublicAlg": _only(
        "the algorithms follow from the key", "rs256", "rs384", "rs512", "es256", "es384", "es512"
    ),
    "basicAuthConf": Taken(setting="basic_passwords", method=BASIC),
    _PLUGIN: Ignored(why="its parameters count"),
    _PARAMETERS: Taken(setting="broker_token"),
    "authenticationRefreshCheckSeconds": Ignored(why="credentials are checked when they expire"),
    "authenticateMetricsEndpoint": Ignored(why="metrics always need authentication"),
    "saslJaasClientAllowedIds": _OTHER_METHOD,
    "saslJaasServerSectionName": _OTHER_METHOD,
    "saslJaasServerRoleTokenSignerSecretPath": _OTHER_METHOD,
    "kinitCommand": _OTHER_METHOD,
    "athenzDomainNames": _OTHER_METHOD,
    _AUTHORIZED: Taken(setting="authorization"),
    _SUPER: Taken(setting="super_roles"),
    _PROXIES: Taken(setting="proxy_roles"),
    "authorizationProvider": _only(
        "rights are those of PulsarAuthorizationProvider",
        "org.apache.pulsar.broker.authorization.pulsarauthorizationprovider",
    ),
    "authorizationAllowWildcardsMatching": _only("rights name roles and topics in full"),
}

# A key that has one of these is about security, unless it begins with one of those: they are parts
# of Pulsar that do not exist here.
_is_about_security: Final = re.compile(
    "auth|tls|ssl|sasl|jaas|kinit|kerberos|openid|token|superuser|proxyroles|anonymous|certificate|credential|password|secret",
    re.IGNORECASE,
).search
_is_elsewhere: Final = re.compile(
    "bookkeeper|managedledger|s3|gcs|filesystem|metadatastore|zookeeper|configurationstore|functions|websocket",
    re.IGNORECASE,
).match

_TLS_PORTS: Final = frozenset({"brokerServicePortTls", "webServicePortTls", "tlsEnabled"})
_OF_AUTHENTICATION: Final = frozenset(
    key for key, row in _ROWS.items() if isinstance(row, Taken) and row.method is not None
) | {_ENABLED, _PROVIDERS, _PARAMETERS, _PROXIES}

# What turns nothing on.
_OFF: Final = frozenset({"", "false"})


def read_security_entries(values: Mapping[str, str]) -> SecurityEntries:
    """Convert the entries about security among those of a `broker.conf`, by key. The values have no
    blanks around them.
    """
    is_on = values.get(_ENABLED, "").lower() == "true"
    methods = _methods_in(values) if is_on else frozenset()
    settings: dict[str, str] = {}
    taken: dict[str, str] = {}
    ignored: dict[str, str] = {}
    problems: dict[str, str] = {}
    for key, value in values.items():
        row = _ROWS.get(key)
        if row is None and not (_is_about_security(key) and not _is_elsewhere(key)):
            continue
        problem = _problem_of(key, values, methods)
        why = (
            "it is empty, so the default stays"
            if not value
            else _why_ignored(key, values, methods, is_on=is_on)
        )
        if value and problem is not None:
            problems[key] = problem
        elif why is not None:
            ignored[key] = why
        else:
            assert isinstance(row, Taken), "the others are ignored"
            settings[row.setting] = _converted(key, values)
            taken[key] = row.setting
    return SecurityEntries(settings=settings, taken=taken, ignored=ignored, problems=problems)


def _methods_in(values: Mapping[str, str]) -> frozenset[str]:
    """Return the methods of authentication that are on; all if none is named."""
    named = _classes(values.get(_PROVIDERS, ""))
    return (
        frozenset(_METHODS[each] for each in named if each in _METHODS)
        if named
        else frozenset((TOKEN, BASIC))
    )


def _classes(value: str) -> list[str]:
    return [name.strip().rpartition(".")[2] for name in value.split(",") if name.strip()]


def _why_ignored(
    key: str, values: Mapping[str, str], methods: frozenset[str], *, is_on: bool
) -> str | None:
    """Return why an entry changes nothing, if it is no problem; None if it is taken."""
    row = _ROWS.get(key)
    if row is None:
        return "it turns nothing on"
    if isinstance(row, SameAs):
        return f"it is the same as {row.key}"
    if isinstance(row, Ignored):
        return row.why
    if key == _SUPER and values.get(_AUTHORIZED, "").lower() != "true":
        return f"it counts only if {_AUTHORIZED} is true"
    if key in _OF_AUTHENTICATION and not is_on:
        return f"it counts only if {_ENABLED} is true"
    if row.method is not None and row.method not in methods:
        return f"{_PROVIDERS} has no class for it"
    if key == "tokenPublicKey" and values.get("tokenSecretKey"):
        return "tokenSecretKey is set, too, and counts"
    if key == _PROVIDERS and TLS not in methods:
        return "what its classes need counts"
    if key == _PARAMETERS and not _plugin(values):
        return f"{_PLUGIN} names no class for it"
    if key == _PARAMETERS and _plugin(values) == TLS:
        return f"a broker presents {_CERTIFICATE} to others"
    return None


def _problem_of(key: str, values: Mapping[str, str], methods: frozenset[str]) -> str | None:
    """Return why a broker cannot start with an entry, without its value; None if it can."""
    row, value = _ROWS.get(key), values[key]
    is_off = value.lower() in _OFF
    if row is None:
        return (
            None
            if is_off
            else (
                "it is about security, and brokers have nothing like it; remove it if the cluster"
                " is safe without it"
            )
        )
    if isinstance(row, SameAs) and value != values.get(row.key):
        return (
            f"it differs from {row.key}, and brokers have one setting for both; set both to the"
            " same, or leave this one out"
        )
    if (
        isinstance(row, Ignored)
        and row.values is not None
        and not is_off
        and value.replace(" ", "").lower() not in row.values
    ):
        return (
            f"brokers have nothing like it ({row.why}); remove it if the cluster is safe without it"
        )
    if key in _TLS_PORTS and not is_off and not values.get(_CERTIFICATE):
        return (
            f"{_CERTIFICATE} is not set, so the broker would not encrypt; set it, or remove this"
            " entry"
        )
    if key in {_ENABLED, _AUTHORIZED} and value.lower() not in {"true", "false"}:
        return "it must be true or false; correct it"
    if values.get(_ENABLED, "").lower() != "true":
        return None
    if key == _PROVIDERS:
        return _problem_of_providers(value, values, methods)
    if key == _PLUGIN:
        return (
            None
            if _plugin(values) is not None
            else f"brokers know only {', '.join(_PLUGINS)}; use one of them"
        )
    if key == _PARAMETERS:
        return _problem_of_parameters(value, values)
    return None


def _problem_of_providers(
    value: str, values: Mapping[str, str], methods: frozenset[str]
) -> str | None:
    if not all(each in _METHODS for each in _classes(value)):
        return f"brokers know only {', '.join(_METHODS)}; use these"
    if TOKEN in methods and not (values.get("tokenSecretKey") or values.get("tokenPublicKey")):
        return "AuthenticationProviderToken needs tokenSecretKey or tokenPublicKey; set one"
    if BASIC in methods and not values.get("basicAuthConf"):
        return "AuthenticationProviderBasic needs basicAuthConf; set it to the password file"
    return None


def _problem_of_parameters(value: str, values: Mapping[str, str]) -> str | None:
    plugin = _plugin(values)
    if plugin == BASIC and _user_and_password(value) is None:
        return 'AuthenticationBasic takes {"userId":"NAME","password":"TEXT"}; correct it'
    if plugin == TLS:
        files = dict(part.split(":", 1) for part in value.split(",") if ":" in part)
        if files != {"tlsCertFile": values.get(_CERTIFICATE), "tlsKeyFile": values.get(_KEY)}:
            return (
                f"it names other files than {_CERTIFICATE} and {_KEY}, which a broker presents to"
                " others; name the same, or leave it out"
            )
    return None


def _plugin(values: Mapping[str, str]) -> str | None:
    """Return the method by which brokers authenticate to each other, empty for none; None for one
    that is unknown.
    """
    named = _classes(values.get(_PLUGIN, ""))
    return _PLUGINS.get(named[0]) if named else ""


def _user_and_password(value: str) -> tuple[str, str] | None:
    try:
        read = orjson.loads(value)
        return str(read["userId"]), str(read["password"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _converted(key: str, values: Mapping[str, str]) -> str:
    """Return the value of our setting."""
    if key == _PROVIDERS:
        return "true"
    if key in {_SUPER, _PROXIES}:
        return ",".join(role.strip() for role in values[key].split(",") if role.strip())
    both = (
        _user_and_password(values[key]) if key == _PARAMETERS and _plugin(values) == BASIC else None
    )
    return values[key] if both is None else f"basic:{both[0]}:{both[1]}"


# --- the file ---


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
