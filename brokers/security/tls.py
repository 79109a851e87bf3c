"""Make TLS contexts from files, check a broker's certificate by a handshake with itself, and
replace contexts when files change.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.security import own_token

_logger: Final = logging.getLogger(__name__)

CA_VARIABLE: Final = own_token.CA_VARIABLE
CERTIFICATE_VARIABLE: Final = "EQUIPOISE_TLS_CERTIFICATE"
KEY_VARIABLE: Final = "EQUIPOISE_TLS_KEY"
VARIABLES: Final = f"{CA_VARIABLE}, {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} name the files"

# Far more than certificates need. A wrong path (a device, a log) must not fill the memory.
_FILE_BYTES_MAX: Final = 1 << 20

# Flights of a handshake: TLS 1.2 takes four.
_FLIGHTS_MAX: Final = 16

# What to do about a certificate that OpenSSL refuses, by a part of its reason.
_ADVICE: Final[Mapping[str, str]] = {
    "mismatch": "use a certificate that has this host in its subjectAltName",
    "certificate CRL": "put the current revocation list of its CA into tls_crl",
    "CRL": "replace tls_crl by the current revocation list of its CA",
    "expired": "renew it",
    "not yet valid": "check the clock of this machine",
    "issuer": "trust its CA",
    "self-signed": "trust its CA",
    "self signed": "trust its CA",
    "purpose": "use a certificate for servers and clients (extendedKeyUsage)",
}

# What a failed connection means to the side that began it, by OpenSSL's reason.
_PROBLEMS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS; use its http:// address",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it accepts only clients with a certificate; present one",
    "TLSV1_ALERT_UNKNOWN_CA": (
        "it does not trust the CA of the presented certificate; present another one"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the presented certificate has expired; renew it",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the presented certificate is revoked; present another one",
}

# Contexts of clients: the files of the settings, or `True`: HTTP clients then trust the CAs of the
# system.
ClientTls = ssl.SSLContext | Literal[True]


_CRL: Final = "tls_crl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files in PEM format: a chain with its unencrypted key, and the CAs to trust instead of those
    of the system.

    `crl` holds the revocation lists of these CAs. `names` are the names of the others in errors: of
    settings or variables. With `requires_client_certificate`, servers accept only clients whose
    certificate is signed by one of the CAs. With `asks_client_certificate`, they also accept
    clients without one.
    """

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    crl: Path | None = None
    requires_client_certificate: bool = False
    asks_client_certificate: bool = False
    names: tuple[str, str, str] = ("tls_certificate", "tls_key", "tls_ca")

    def paths(self) -> Mapping[str, Path]:
        """Return the given files by their names in errors."""
        given = zip(
            (*self.names, _CRL), (self.certificate, self.key, self.ca, self.crl), strict=True
        )
        return {name: path for name, path in given if path is not None}

    def missing(self) -> Mapping[str, str]:
        """Return what the given files need besides, by name."""
        certificate, key, ca = self.names
        problems = {}
        if self.certificate is None and self.key is not None:
            problems[certificate] = f"it is missing, but {key} is set; set both, or none"
        if self.key is None and self.certificate is not None:
            problems[key] = f"it is missing, but {certificate} is set; set both, or none"
        if self.crl is not None and self.ca is None:
            problems[ca] = (
                f"it is missing, but {_CRL} is set; set the CAs whose revocation lists it holds"
            )
        if self.requires_client_certificate or self.asks_client_certificate:
            may = "must" if self.requires_client_certificate else "may"
            if self.certificate is None:
                problems[certificate] = (
                    f"it is missing, but clients {may} present a certificate, which takes TLS;"
                    " set it"
                )
            if self.ca is None:
                problems[ca] = (
                    f"it is missing, but clients {may} present a certificate; set the CAs that sign"
                    " those of clients"
                )
        return problems


# --- contexts ---


def server_context(files: TlsFiles) -> ssl.SSLContext | None:
    """Return the context of a listening port, TLS 1.2 or newer; None without a certificate. Raise
    `InvalidConfig`.
    """
    if files.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_certificate(context, files)
    if files.requires_client_certificate or files.asks_client_certificate:
        context.verify_mode = (
            ssl.CERT_REQUIRED if files.requires_client_certificate else ssl.CERT_OPTIONAL
        )
        _load_ca(context, files)
    return context


def client_context(files: TlsFiles) -> ClientTls:
    """Return the context for connections to brokers, which verifies their certificates and hosts.
    Raise `InvalidConfig`.
    """
    _check_readable(files)
    if files.certificate is None and files.ca is None:
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, files)
    if files.certificate is not None:
        _load_certificate(context, files)
    return context


def client_context_of_environment() -> ClientTls:
    """Return the context for commands and clients: as the variables `EQUIPOISE_TLS_*` say. Raise
    `InvalidConfig`.
    """
    names = (CERTIFICATE_VARIABLE, KEY_VARIABLE, CA_VARIABLE)
    certificate, key, ca = (
        Path(value) if (value := os.environ.get(name)) else None for name in names
    )
    files = TlsFiles(certificate=certificate, key=key, ca=ca, names=names)
    problems = files.missing()
    if problems:
        raise InvalidConfig(
            problems=tuple(f"{name}: {problem}" for name, problem in problems.items())
        )
    return client_context(files)


def _check_readable(files: TlsFiles) -> None:
    for name, path in files.paths().items():
        try:
            with path.open("rb") as file:
                if len(file.read(_FILE_BYTES_MAX + 1)) > _FILE_BYTES_MAX:
                    raise InvalidConfig(
                        problems=(
                            (
                                f"{name}: {path} has more than {_FILE_BYTES_MAX} bytes, which is no"
                                " certificate"
                            ),
                        )
                    )
        except OSError as error:
            raise InvalidConfig(
                problems=(f"{name}: {path} cannot be read: {error.strerror or error}",)
            ) from error


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    certificate, key, _ = files.names
    assert files.certificate is not None, "checked by the caller"

    def is_encrypted() -> NoReturn:  # Otherwise OpenSSL would ask at the terminal.
        raise InvalidConfig(
            problems=(
                (
                    f"{key}: {files.key} is encrypted; decrypt it (openssl pkey), and protect it by"
                    " its file mode"
                ),
            )
        )

    try:
        context.load_cert_chain(files.certificate, files.key, password=is_encrypted)
    except ssl.SSLError as error:
        problem = (
            f"{certificate}: {files.certificate} and {files.key} are no certificate and key in PEM"
            f" format ({error.reason or error})"
        )
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"{key}: {files.key} is not the key of {files.certificate}"
        raise InvalidConfig(problems=(problem,)) from error
    except OSError as error:  # They are being replaced.
        raise InvalidConfig(
            problems=(
                (
                    f"{certificate}: {files.certificate} or {files.key} cannot be read:"
                    f" {error.strerror}"
                ),
            )
        ) from error


def _load_ca(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        problem = (
            f"{files.names[2]}: {files.ca} has no certificates in PEM format"
            f" ({error.reason or error})"
        )
        raise InvalidConfig(problems=(problem,)) from error
    except OSError as error:
        raise InvalidConfig(
            problems=(f"{files.names[2]}: {files.ca} cannot be read: {error.strerror}",)
        ) from error
    if files.crl is not None:
        _load_crl(context, files.crl)


def _load_crl(context: ssl.SSLContext, crl: Path) -> None:
    """Refuse revoked certificates, and those of a CA without a revocation list."""
    trusted = context.cert_store_stats()["x509"]
    try:
        context.load_verify_locations(crl)
    except ssl.SSLError as error:
        raise InvalidConfig(
            problems=(
                f"{_CRL}: {crl} has no revocation lists in PEM format ({error.reason or error})",
            )
        ) from error
    except OSError as error:
        raise InvalidConfig(
            problems=(f"{_CRL}: {crl} cannot be read: {error.strerror}",)
        ) from error
    # OpenSSL would trust a certificate in this file.
    if context.cert_store_stats()["x509"] != trusted or not context.cert_store_stats()["crl"]:
        raise InvalidConfig(
            problems=(f"{_CRL}: {crl} must hold revocation lists, and no certificates",)
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


# --- checks ---


def certificate_problem(error: ssl.SSLCertVerificationError) -> str:
    """Return why OpenSSL refuses a certificate, and what to do."""
    reason = error.verify_message.rstrip(".")
    advice = next((advice for part, advice in _ADVICE.items() if part in reason), "use another one")
    begin = reason[:1] if reason.startswith("CRL") else reason[:1].lower()
    return f"{begin}{reason[1:]}; {advice}"


def connection_problem(error: ssl.SSLError) -> str:
    """Return why a connection to a broker by the files of the environment fails, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = f"its certificate is refused: {certificate_problem(error)}"
    else:
        problem = _PROBLEMS.get(error.reason or "", f"TLS fails: {error.reason or error}")
    return f"{problem} ({VARIABLES})"


def _check_own(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str, files: TlsFiles
) -> Mapping[str, Any]:
    """Let a broker connect to itself in memory, as its peers will at `host`. Return its
    certificate, as `getpeercert` does.

    Raise `InvalidConfig` if a peer would refuse the certificate, or it would refuse that of a peer.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [asking, answering]
    try:
        for _ in range(_FLIGHTS_MAX):
            waiting = [side for side in waiting if not _is_done(side)]
    except ssl.SSLCertVerificationError as error:
        problem = (
            f"{files.names[0]}: other brokers would refuse {files.certificate} of {host}:"
            f" {certificate_problem(error)}"
        )
        raise InvalidConfig(problems=(problem,)) from error
    except ssl.SSLError as error:
        problem = (
            f"{files.names[0]}: {files.certificate} cannot be used for TLS"
            f" ({error.reason or error})"
        )
        raise InvalidConfig(problems=(problem,)) from error
    assert not waiting, "a handshake takes few flights"
    certificate = asking.getpeercert()
    assert certificate, "the client requires one"
    return certificate


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


# --- contexts in use ---


class Certificates:
    """The contexts of one broker, replaced when their files change.

    * `server`: for its ports; None without TLS.
    * `client`: for connections to other brokers.
    * `own`: its certificate, as `getpeercert` returns it to others; None without TLS.
    * `expires_s`: when that expires, in seconds of the epoch.
    * `reload_failures`: how often changed files could not be used.

    Connections keep the context that they began with.
    """

    def __init__(self, files: TlsFiles, *, broker: str, host: str) -> None:
        """`host` is where other brokers connect. Raise `InvalidConfig` if the files cannot be
        used.
        """
        self._files = files
        self._broker = broker
        self._host = host.rstrip(".")
        self.server: ssl.SSLContext | None = None
        self.client: ClientTls = True
        # The same without the broker's certificate, for requests that are not its own.
        self.nobody: ClientTls = True
        self.own: Mapping[str, Any] | None = None
        self.expires_s: float | None = None
        self.reload_failures = 0
        self._seen = self._stamps()
        self._load()

    def look(self) -> None:
        """Use changed files from the next handshake on. If they cannot be used, log that, and keep
        what is in use.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        about = {
            "broker": self._broker,
            "files": [str(path) for path in self._files.paths().values()],
        }
        try:
            self._load()
        except InvalidConfig as error:
            self.reload_failures += 1
            problem = "; ".join(error.problems)
            # No traceback: the problem is in the files.
            _logger.error(  # noqa: TRY400
                "certificates not reloaded, the former ones stay in use: %s",
                problem,
                extra=about | {"problem": problem},
            )
        else:
            _logger.info("certificates reloaded", extra=about)

    def _load(self) -> None:
        """Replace all contexts, or none."""
        client, server = client_context(self._files), server_context(self._files)
        own = None
        if server is not None:
            assert client is not True, "it presents the certificate"
            own = _check_own(server, client, self._host, self._files)
        self.client, self.server, self.own = client, server, own
        self.nobody = client_context(replace(self._files, certificate=None, key=None))
        self.expires_s = (
            None if own is None else float(ssl.cert_time_to_seconds(str(own["notAfter"])))
        )

    def _stamps(self) -> Mapping[str, tuple[int, ...]]:
        """Return what changes when a file is written, replaced, or removed."""
        stamps: dict[str, tuple[int, ...]] = {}
        for name, path in self._files.paths().items():
            try:
                status = path.stat()
            except OSError:
                stamps[name] = ()
            else:
                stamps[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return stamps
