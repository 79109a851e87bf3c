"""Check the credentials of clients at one broker: read keys and users, also when they change, take
the time, and count refusals.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.security.identity import (
    BASIC,
    TLS,
    TOKEN,
    Credentials,
    Fault,
    Identity,
    Refusal,
    Surface,
    behind_proxy,
    is_role,
)
from equipoise.brokers.security.own_token import OwnToken
from equipoise.channel.core.errors import missing_extra

if TYPE_CHECKING:
    from equipoise.brokers.security.passwords import PasswordVerifier
    from equipoise.brokers.security.tokens import TokenVerifier

_logger: Final = logging.getLogger(__name__)

KEYS_MAX: Final = 8
"""The most keys in a folder. A forged token costs a check by each, of about 0.1 ms."""

_METHOD_CHARACTERS_MAX: Final = 16

# 10,000 users with hashes of bcrypt.
_FILE_BYTES_MAX: Final = 1 << 20

# What a client may do, by its method.
_WAYS: Final = {
    TOKEN: "send a token",
    BASIC: "send a user and a password",
    TLS: "connect with a certificate",
}

Certificate = Mapping[str, Any]
"""The verified certificate of a connection, as `ssl.SSLSocket.getpeercert` returns it."""

# The keys or the password file of each setting, or why they cannot be read.
_Contents = Mapping[str, tuple[bytes, ...] | ValueError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """How clients may prove who they are. The fields are the settings of these names, as
    `WorkerConfig` has them.
    """

    token_secret_key: str | None = field(default=None, repr=False)
    token_public_key: str | None = None
    token_claim: str = "sub"  # noqa: S105 - the name of a claim
    token_audience: str | None = None
    basic_passwords: str | None = field(default=None, repr=False)
    certificate_roles: bool = False
    proxy_roles: tuple[str, ...] = ()


class Gate:
    """The check that all clients of one broker pass."""

    def __init__(
        self,
        proofs: Proofs,
        *,
        broker: str,
        counted: Callable[[Surface, Fault], None],
        reload_failed: Callable[[], None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`counted` takes each refusal, `reload_failed` each change of files that cannot be used;
        `now_s` is Unix time.

        Raise `InvalidConfig` for unusable keys and users, and `CallerError` without the extra
        `auth`.
        """
        self._proofs = proofs
        self._broker = broker
        self._counted = counted
        self._reload_failed = reload_failed
        self.now_s = now_s
        self._tokens: TokenVerifier | None = None
        self._passwords: PasswordVerifier | None = None
        contents = self._read()
        self._seen = _fingerprint(contents)
        self._load(contents)

    @property
    def takes_passwords(self) -> bool:
        """Whether clients may send a user and a password."""
        return self._passwords is not None

    @property
    def takes_certificates(self) -> bool:
        """Whether clients may prove who they are with a certificate."""
        return self._proofs.certificate_roles

    def check(
        self,
        surface: Surface,
        credentials: Credentials | None,
        certificate: Certificate | None = None,
    ) -> Identity | Refusal | None:
        """Return who sent the credentials at `surface`, or why they are refused; None if a hash
        must be computed: then await `checked`.

        Without credentials, or with the method `tls`, the certificate of the connection counts.
        Refusals are counted.
        """
        checked = self._checked(credentials, certificate)
        return None if checked is None else self._noted(surface, checked, credentials)

    async def checked(
        self,
        surface: Surface,
        credentials: Credentials | None,
        certificate: Certificate | None = None,
        *,
        client: str,
    ) -> Identity | Refusal:
        """Return the same, and compute a hash in a thread. `client` is the address of the
        sender.
        """
        passwords, checked = self._passwords, self._checked(credentials, certificate)
        if checked is None:
            assert passwords is not None, "only passwords have hashes"
            assert credentials is not None, "a password was sent"
            checked = await passwords.verify(credentials, self.now_s(), client=client)
        return self._noted(surface, checked, credentials)

    def check_own(self, token: OwnToken, certificate: Certificate | None = None) -> Identity:
        """Return who the broker is to others, which have the same keys and users, by `token`, or
        else by its certificate.

        Raise `InvalidConfig`, or `PeerError` for the file of the token.
        """
        sent = token.credentials()
        checked = self._checked(sent, certificate)
        if checked is None:
            assert self._passwords is not None, "only passwords have hashes"
            assert sent is not None, "a password was sent"
            checked = self._passwords.verify_now(sent, self.now_s())
        if isinstance(checked, Refusal):
            raise InvalidConfig(
                problems=(
                    f"broker_token: other brokers would refuse this broker: {checked.problem}",
                )
            )
        return checked

    def look(self) -> None:
        """Use changed keys and users. If they cannot be used, log that, and keep what is in use.
        Connections stay as they are.
        """
        contents = self._read()
        seen = _fingerprint(contents)
        if seen == self._seen:
            return
        self._seen = seen
        about = {"broker": self._broker}
        try:
            self._load(contents)
        except InvalidConfig as error:
            self._reload_failed()
            problem = "; ".join(error.problems)
            # No traceback: the problem is in the files.
            _logger.error(  # noqa: TRY400
                "keys and users not reloaded, the former ones stay in use: %s",
                problem,
                extra=about | {"problem": problem},
            )
        else:
            _logger.info("keys and users reloaded", extra=about)

    def _read(self) -> _Contents:
        given = {
            name: getattr(self._proofs, name)
            for name in ("token_secret_key", "token_public_key", "basic_passwords")
        }
        return {name: _keys_in(value) for name, value in given.items() if value is not None}

    def _load(self, contents: _Contents) -> None:
        """Replace all keys and users, or none. Raise `InvalidConfig`."""
        proofs, tokens, passwords = self._proofs, None, None
        for setting, read in contents.items():
            try:
                if isinstance(read, ValueError):
                    raise read
                if setting == "basic_passwords":
                    passwords = _password_verifier(read)
                else:
                    tokens = _token_verifier(proofs, read)
            except ValueError as error:
                raise InvalidConfig(problems=(f"{setting}: {error}",)) from None
        self._tokens, self._passwords = tokens, passwords

    def _checked(
        self, credentials: Credentials | None, certificate: Certificate | None
    ) -> Identity | Refusal | None:
        ways = {
            TOKEN: self._tokens is not None,
            BASIC: self._passwords is not None,
            TLS: self._proofs.certificate_roles,
        }
        advice = ", or ".join(way for method, way in _WAYS.items() if ways[method])
        if credentials is None and (certificate is None or not ways[TLS]):
            return Refusal(fault=Fault.MISSING, problem=f"there are no credentials; {advice}")
        method = TLS if credentials is None else credentials.method
        if not ways.get(method):
            # A client that forgets the method may have sent a secret in its place.
            named = (
                f" {method!r}"
                if method.isascii() and method.isalpha() and len(method) <= _METHOD_CHARACTERS_MAX
                else ""
            )
            problem = f"this broker does not accept this method of authentication{named}; {advice}"
            return Refusal(fault=Fault.UNKNOWN, problem=problem)
        now_s = self.now_s()
        if method == TLS:
            return certificate_identity(certificate, now_s)
        assert credentials is not None, "only a certificate needs none"
        if method == BASIC:
            assert self._passwords is not None, "checked above"
            return self._passwords.check(credentials, now_s)
        assert self._tokens is not None, "checked above"
        return self._tokens.check(credentials, now_s)

    def _noted(
        self, surface: Surface, checked: Identity | Refusal, credentials: Credentials | None
    ) -> Identity | Refusal:
        """Return for whom the sender asks, or why it is refused, which is counted."""
        if isinstance(checked, Identity):
            checked = behind_proxy(
                checked,
                None if credentials is None else credentials.original,
                self._proofs.proxy_roles,
            )
        if isinstance(checked, Refusal):
            self._counted(surface, checked.fault)
        return checked


def certificate_identity(certificate: Certificate | None, now_s: float) -> Identity | Refusal:
    """Return the client of a verified certificate: its role is the common name of the subject, as
    in Pulsar.

    Names in `subjectAltName` do not count: they name hosts, and may be several.
    """
    if not certificate:
        return Refusal(
            fault=Fault.MISSING,
            problem=(
                "the connection has no certificate of the client; connect by TLS, and present one"
            ),
        )
    names = [
        value
        for part in certificate.get("subject", ())
        for name, value in part
        if name == "commonName"
    ]
    if len(names) != 1 or not is_role(names[0]):
        problem = (
            "the subject of the certificate has no common name (CN) that is a role; use one with"
            " exactly one, of printable characters"
        )
        return Refusal(fault=Fault.MALFORMED, problem=problem)
    left_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - now_s
    if left_s <= 0:
        return Refusal(fault=Fault.EXPIRED, problem="the certificate has expired; renew it")
    return Identity(role=names[0], method=TLS, valid_ms=int(left_s * 1_000))


def _token_verifier(proofs: Proofs, keys: tuple[bytes, ...]) -> TokenVerifier:
    """Raise ValueError with the problem, and `CallerError` without the extra `auth`."""
    try:
        from equipoise.brokers.security.tokens import (  # noqa: PLC0415
            TokenVerifier,
            public_key,
            secret_key,
        )
    except ModuleNotFoundError:
        raise missing_extra(what="authentication", extra="auth") from None
    parse = public_key if proofs.token_secret_key is None else secret_key
    return TokenVerifier(
        [parse(key) for key in keys], claim=proofs.token_claim, audience=proofs.token_audience
    )


def _password_verifier(files: tuple[bytes, ...]) -> PasswordVerifier:
    """Raise the same."""
    if len(files) != 1:
        raise ValueError("it is a folder of several files; name one password file")
    try:
        from equipoise.brokers.security.passwords import (  # noqa: PLC0415
            PasswordVerifier,
            parse_users,
        )
    except ModuleNotFoundError:
        raise missing_extra(what="authentication by passwords", extra="auth") from None
    return PasswordVerifier(parse_users(files[0]))


# --- files ---


def read_key(given: str) -> bytes:
    """Return the bytes of a key, given as in Pulsar: `file:///PATH`, `data:;base64,TEXT`, the path
    of a file, or base64 without a slash.

    Raise ValueError with the problem. It never contains what was given, which may be the key.
    """
    path = _path_in(given)
    return path if isinstance(path, bytes) else _bytes_of(path)


def read_keys(given: str) -> tuple[bytes, ...]:
    """Return the same, or the bytes of each file in a folder, by name. Names that begin with a dot
    are skipped. Raise ValueError.
    """
    path = _path_in(given)
    if isinstance(path, bytes):
        return (path,)
    try:
        files = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    except NotADirectoryError:
        return (_bytes_of(path),)
    except OSError as error:
        raise _unreadable(error) from None
    if not 0 < len(files) <= KEYS_MAX:
        raise ValueError(
            f"its folder has {len(files)} files; put 1 to {KEYS_MAX} keys into it, and nothing else"
        )
    return tuple(_bytes_of(each) for each in files)


def _keys_in(given: str) -> tuple[bytes, ...] | ValueError:
    try:
        return read_keys(given)
    except ValueError as error:
        return error


def _fingerprint(contents: _Contents) -> bytes:
    """Return a digest by which changed contents are found, so that no key is kept for that."""
    return hashlib.sha256(
        repr(sorted((name, str(read)) for name, read in contents.items())).encode()
    ).digest()


def _path_in(given: str) -> Path | bytes:
    """Return the path that is given, or the bytes. Raise ValueError."""
    if given.startswith("data:"):
        head, comma, text = given.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ValueError("a data URL must be data:;base64,TEXT")
        return _decoded(unquote(text))
    is_url = given.startswith("file:")
    path = Path(unquote(given.removeprefix("file:").removeprefix("//")) if is_url else given)
    if is_url or _exists(path):
        return path
    # Base64 may have a slash, too. The path of a missing file must not become a key.
    if "/" in given:
        raise ValueError(
            "it has a slash, but is not the path of a file; name a file that exists, or give base64"
            " as data:;base64,TEXT"
        )
    return _decoded(given)


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(error) from None
    if len(data) > _FILE_BYTES_MAX:
        raise ValueError(f"its file has more than {_FILE_BYTES_MAX} bytes, which is no key")
    return data


def _unreadable(error: OSError) -> ValueError:
    return ValueError(
        f"its file cannot be read: {error.strerror}; name a file, or data:;base64,TEXT"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # Base64 may be too long for a path.
        return False


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(
            "it is neither the path of a file nor base64; name a file, or data:;base64,TEXT"
        ) from None
