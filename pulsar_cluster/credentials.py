"""Say who asks a Pulsar cluster, and send one HTTP request. A command has no event loop, so each
call blocks.

All of it can come from Pulsar's own `client.conf`: a token, a certificate, OAuth 2 (client
credentials), or a name and a password.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

from equipoise.brokers.balancing.settings.properties import parse_properties
from equipoise.channel.core.errors import CallerError, OperatorError, PeerError


class Request(NamedTuple):
    """A request to a URL. To connect may take `connect_s`, and each step after it `timeout_s`."""

    method: str
    url: str
    headers: Mapping[str, str]
    connect_s: float
    timeout_s: float
    body: str | None = None


class Reply(NamedTuple):
    """The answer to a request. `location` is where it redirects to, "" if it does not."""

    status: int
    text: str = ""
    reason: str = ""
    location: str = ""


class NotSent(OSError):
    """There was no connection, so nobody can have got the request."""


Exchange = Callable[[Request], Reply]
"""Returns the reply to a request. Raises `NotSent`, `OSError` and `HTTPException` after it was
sent, and `ValueError` for what is no URL. Several threads may call it."""


def exchange_by(tls: ssl.SSLContext) -> Exchange:
    """Return the exchange over the network, with a new connection for each request.

    A server may close a kept connection at any moment. Then nobody knows whether it got the
    request.
    """

    def exchange(request: Request) -> Reply:
        parts = urlsplit(request.url)
        host = parts.hostname
        if parts.scheme not in {"http", "https"} or not host:
            raise ValueError(f"{request.url} is no http:// or https:// address")
        connection = (
            HTTPSConnection(host, parts.port, timeout=request.connect_s, context=tls)
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=request.connect_s)
        )
        with closing(connection):
            try:
                connection.connect()
            except OSError as error:
                raise NotSent(str(error)) from error
            connection.sock.settimeout(request.timeout_s)
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(request.method, target, request.body, dict(request.headers))
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            return Reply(answer.status, text, answer.reason, answer.getheader("Location", ""))

    return exchange


_TOKEN_LEFT_S: Final = 30.0
"""An access token with less time left is renewed before it is used."""

_TOKEN_S: Final = 60.0
"""How long a token counts whose issuer does not say."""

_ISSUER_S: Final = 10.0
_PLUGINS: Final = (
    "AuthenticationToken",
    "AuthenticationTls",
    "AuthenticationOAuth2",
    "AuthenticationBasic",
    "AuthenticationDisabled",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who asks, and which brokers are trusted. Without any of it, nobody in particular asks.

    * `token`: returns the bearer token of the moment. Raises `OperatorError`, `PeerError`.
    * `password`: a name and its password. `certificate`: PEM files with the client's certificate
      and its key. With `is_role` brokers take the role from it.
    * `ca_file`: a PEM file with the authorities that may have signed the brokers' certificates;
      None: those that the machine trusts.
    * `checks_certificates`, `checks_names`: whether a broker must have a trusted certificate, and
      one for its own name.
    """

    token: Callable[[], str] | None = None
    password: tuple[str, str] | None = None
    certificate: tuple[str, str] | None = None
    is_role: bool = False
    ca_file: str | None = None
    checks_certificates: bool = True
    checks_names: bool = True

    def tls(self) -> ssl.SSLContext:
        """Return how to connect with TLS. Raise `OperatorError` for a file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate is not None:
                context.load_cert_chain(*self.certificate)
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(filter(None, (self.ca_file, *(self.certificate or ()))))
            raise OperatorError(
                f"a PEM file cannot be used ({named}): {error.strerror or error}; check --ca-file"
                " and --client-conf"
            ) from error
        context.check_hostname = self.checks_names and self.checks_certificates
        if not self.checks_certificates:
            context.verify_mode = ssl.CERT_NONE
        return context

    def header(self) -> Mapping[str, str]:
        """Return the header of a request to the admin API."""
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token()}"}
        if self.password is not None:
            return {
                "Authorization": (
                    f"Basic {base64.b64encode(':'.join(self.password).encode()).decode()}"
                )
            }
        return {}


NOBODY: Final = Credentials()


class ClientConf(NamedTuple):
    """What Pulsar's `client.conf` says: where the cluster is, None if it does not, and who asks."""

    service_url: str | None
    admin_url: str | None
    credentials: Credentials


def with_files(
    credentials: Credentials, token_file: Path | None, ca_file: Path | None
) -> Credentials:
    """Return credentials with the token and the authorities of these files, if they are given.
    Raises `OperatorError`.
    """
    if token_file is not None:
        token = _FileToken(token_file)
        token()  # Fail now if the file is missing.
        credentials = replace(credentials, token=token, password=None, is_role=False)
    if ca_file is not None:
        try:
            credentials = replace(credentials, ca_file=str(ca_file.resolve(strict=True)))
        except OSError as error:
            raise OperatorError(
                f"the file {ca_file} cannot be read: {error.strerror}; check --ca-file"
            ) from error
    return credentials


def read_client_conf(path: Path) -> ClientConf:
    """Read a `client.conf`. Relative names of files in it are as its reader's, as for Pulsar's own
    tools.

    Raises `OperatorError` for a file that cannot be read, and `CallerError` for entries that are
    not understood.
    """
    try:
        text = path.read_bytes().decode("iso-8859-1")  # Java's encoding of such files.
    except OSError as error:
        raise OperatorError(
            f"the file {path} cannot be read: {error.strerror}; check --client-conf"
        ) from error
    entries = {entry.key: entry.value.strip() for entry in parse_properties(text)}
    if entries.get("useKeyStoreTls") == "true":
        raise CallerError(
            f"{path} names key stores of Java (useKeyStoreTls); write their content into PEM files,"
            " and name these there"
        )
    certificate, key = entries.get("tlsCertificateFilePath"), entries.get("tlsKeyFilePath")
    credentials = Credentials(
        certificate=(certificate, key) if certificate and key else None,
        ca_file=entries.get("tlsTrustCertsFilePath") or None,
        checks_certificates=entries.get("tlsAllowInsecureConnection") != "true",
        # Pulsar's own default, and that of the file it ships.
        checks_names=entries.get("tlsEnableHostnameVerification") == "true",
    )
    plugin, parameters = entries.get("authPlugin", ""), entries.get("authParams", "")
    try:
        credentials = _with_plugin(credentials, plugin.rpartition(".")[2], parameters)
    except (ValueError, KeyError, TypeError) as error:
        raise CallerError(
            f"authPlugin {plugin} of {path} cannot be used: {error}; correct its authParams"
        ) from error
    return ClientConf(
        entries.get("brokerServiceUrl") or None, entries.get("webServiceUrl") or None, credentials
    )


def _with_plugin(credentials: Credentials, plugin: str, parameters: str) -> Credentials:
    """Return credentials with those of a plugin of Pulsar's client. Raise `ValueError` and its kind
    if they are not understood.
    """
    match plugin:
        case "" | "AuthenticationDisabled":
            return credentials
        case "AuthenticationToken":
            return replace(credentials, token=_token_in(parameters))
        case "AuthenticationTls":
            named = _object_or_pairs(parameters)
            return replace(
                credentials, certificate=(named["tlsCertFile"], named["tlsKeyFile"]), is_role=True
            )
        case "AuthenticationBasic":
            named = _object_or_pairs(parameters)
            return replace(credentials, password=(named["userId"], named["password"]))
        case "AuthenticationOAuth2":
            return replace(credentials, token=OAuth2Token(_object_or_pairs(parameters)))
    raise ValueError(f"it is not known here; use one of {', '.join(_PLUGINS)}")


def _object_or_pairs(text: str) -> dict[str, str]:
    """Return parameters that are a JSON object, or `NAME:VALUE` separated by commas, as Pulsar's
    clients take them.
    """
    if text.startswith("{"):
        return {str(name): str(value) for name, value in json.loads(text).items()}
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _token_in(parameters: str) -> Callable[[], str]:
    """Return the token of parameters: `token:TOKEN`, `file:///PATH`, a JSON object with `token`, or
    the token itself.
    """
    if parameters.startswith("file:"):
        return _FileToken(Path(unquote(urlsplit(parameters).path)))
    token = (
        str(json.loads(parameters)["token"])
        if parameters.startswith("{")
        else parameters.removeprefix("token:")
    )
    if not token.isascii() or not token:
        raise ValueError("it holds no token")
    return lambda: token


class _FileToken:
    """The token that a file holds now. The program that renews tokens writes new ones there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> str:
        try:
            return self._path.read_text(encoding="ascii").strip()
        except OSError as error:
            raise OperatorError(
                f"the file {self._path} cannot be read: {error.strerror}; check --token-file"
            ) from error
        except UnicodeDecodeError as error:
            raise OperatorError(
                f"the file {self._path} holds no token: it has other characters than ASCII; check"
                " --token-file"
            ) from error


class OAuth2Token:
    """Access tokens by OAuth 2's client credentials, each for as long as its issuer says. For
    several threads.

    Their parameters are those of Pulsar's `AuthenticationOAuth2`: `issuerUrl`, `privateKey` (a file
    with `client_id` and `client_secret`), and `audience` and `scope` if they are needed.
    """

    def __init__(self, parameters: Mapping[str, str], *, exchange: Exchange | None = None) -> None:
        """`exchange` replaces the network in tests. Raises `ValueError` for parameters that are
        missing.
        """
        kind = parameters.get("type", "client_credentials")
        if kind != "client_credentials":
            raise ValueError(f"its type is {kind}, and only client_credentials is known")
        self._issuer = parameters["issuerUrl"].rstrip("/")
        self._key = parameters["privateKey"]
        self._wanted = {
            name: parameters[name] for name in ("audience", "scope") if parameters.get(name)
        }
        self._trusted = parameters.get("trustCertsFilePath")
        self._exchange = exchange
        self._lock = threading.Lock()
        self._token, self._until_s = "", 0.0

    def __call__(self) -> str:
        """Return an access token. Raises `OperatorError` if the issuer refuses it, and `PeerError`
        if it does not answer.
        """
        with self._lock:
            if time.monotonic() > self._until_s - _TOKEN_LEFT_S:
                self._token, lives_s = self._new()
                self._until_s = time.monotonic() + lives_s
            return self._token

    def _new(self) -> tuple[str, float]:
        exchange = self._exchange or exchange_by(Credentials(ca_file=self._trusted).tls())
        try:
            known = self._asked_of(
                exchange, "GET", f"{self._issuer}/.well-known/openid-configuration"
            )
            form = {"grant_type": "client_credentials", **self._private_key(), **self._wanted}
            answer = self._asked_of(exchange, "POST", known["token_endpoint"], urlencode(form))
            return str(answer["access_token"]), float(answer.get("expires_in", _TOKEN_S))
        except (OSError, HTTPException) as error:
            raise PeerError(
                f"the issuer of tokens {self._issuer} did not answer: {error}; try again later"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorError(
                f"{self._issuer} gave no access token: {error!r}; check authParams of --client-conf"
            ) from error

    @staticmethod
    def _asked_of(exchange: Exchange, method: str, url: str, form: str | None = None) -> Any:  # noqa: ANN401 - JSON
        headers = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        reply = exchange(Request(method, url, headers, _ISSUER_S, _ISSUER_S, form))
        if reply.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise OperatorError(
                f"{url} answered {reply.status}: no access token; check authParams of --client-conf"
            )
        return json.loads(reply.text)

    def _private_key(self) -> Mapping[str, str]:
        try:
            if self._key.startswith("data:"):
                content = base64.b64decode(self._key.partition("base64,")[2])
            else:
                content = Path(
                    unquote(urlsplit(self._key).path)
                    if self._key.startswith("file:")
                    else self._key
                ).read_bytes()
        except OSError as error:
            raise OperatorError(
                f"the file {error.filename} cannot be read: {error.strerror}; check authParams of"
                " --client-conf"
            ) from error
        document = json.loads(content)
        return {name: str(document[name]) for name in ("client_id", "client_secret")}
