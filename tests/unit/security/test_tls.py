"""Certificates of brokers and clients: what is refused at a start, and what happens when files
change.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.security.tls import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    Certificates,
    TlsFiles,
    client_context,
    client_context_of_environment,
)
from tests.tls.authority import HOST, Authority, replaced

DAY_S = 86_400


def files_of(authority: Authority, pair: tuple[Path, Path], *, is_mutual: bool = False) -> TlsFiles:
    """Return the files of a broker."""
    return TlsFiles(
        certificate=pair[0], key=pair[1], ca=authority.ca, requires_client_certificate=is_mutual
    )


def in_use(files: TlsFiles, host: str = HOST) -> Certificates:
    """Return the contexts of a broker."""
    return Certificates(files, broker="b", host=host)


def test_without_files_nothing_is_encrypted() -> None:
    """Clients trust the CAs of the system."""
    plain = in_use(TlsFiles())
    assert (None, True, None) == (plain.server, plain.client, plain.expires_s)
    plain.look()
    assert plain.reload_failures == 0


def test_a_certificate_is_checked_and_its_end_is_known(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    used = in_use(files_of(authority, authority.issue("b", days=10), is_mutual=True))
    assert used.server is not None
    assert ssl.TLSVersion.TLSv1_2 == used.server.minimum_version
    assert ssl.CERT_REQUIRED == used.server.verify_mode
    assert used.client is not True
    assert used.client.check_hostname
    assert used.expires_s is not None
    assert abs(used.expires_s - time.time() - 10 * DAY_S) < DAY_S


def test_a_name_in_the_certificate_may_stand_for_many(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    used = in_use(
        files_of(authority, authority.issue("b", "*.brokers.test")), host="one.brokers.test."
    )
    assert used.server is not None


# Fields of the dataclass.
def of(authority: Authority, *names: str, days: float = 1, **changes: Any) -> TlsFiles:  # noqa: ANN401
    """Return the files of a broker `b`, with some of them changed."""
    return replace(files_of(authority, authority.issue("b", *names, days=days)), **changes)


def damaged(files: TlsFiles, name: str, content: bytes) -> TlsFiles:
    """Return the files, one of which now has another content."""
    path = getattr(files, name)
    assert isinstance(path, Path)
    path.write_bytes(content)
    return files


def foreign(authority: Authority) -> Authority:
    return Authority(authority.ca.parent / "foreign")


def revoked(authority: Authority) -> TlsFiles:
    files = of(authority)
    assert files.certificate is not None
    return replace(files, crl=authority.revoke(files.certificate))


# The header alone makes OpenSSL ask for the password.
ENCRYPTED = b"""-----BEGIN RSA PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF

AAAA
-----END RSA PRIVATE KEY-----
"""
REFUSED = r"tls_certificate: other brokers would refuse .*b\.pem of 127\.0\.0\.1: certificate"
NO_LISTS = "must hold revocation lists, and no certificates"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (lambda authority: of(authority, days=-1), rf"{REFUSED} has expired; renew it"),
        (
            lambda authority: of(authority, "other.test"),
            (
                r"tls_certificate: .*mismatch, certificate is not valid for '127\.0\.0\.1'; use a"
                r" certificate that has this host"
            ),
        ),
        (
            lambda authority: files_of(authority, foreign(authority).issue("b")),
            r"tls_certificate: .*unable to get local issuer certificate; trust its CA",
        ),
        (
            lambda authority: of(authority, ca=None),
            r"tls_certificate: .*(issuer|self-signed).*; trust its CA",
        ),
        (
            lambda authority: of(authority, key=authority.issue("other")[1]),
            r"tls_key: .*other\.key is not the key of .*b\.pem",
        ),
        (
            lambda authority: of(authority, key=authority.ca.parent / "nowhere"),
            r"tls_key: .*nowhere cannot be read: No such file",
        ),
        (
            lambda authority: damaged(of(authority), "certificate", b"no"),
            r"tls_certificate: .*b\.pem and .*b\.key are no certificate and key in PEM format",
        ),
        (
            lambda authority: damaged(of(authority), "ca", b""),
            r"tls_ca: .*ca\.pem has no certificates in PEM format",
        ),
        (
            lambda authority: damaged(of(authority), "ca", b"#" * (1 << 21)),
            r"tls_ca: .*ca\.pem has more than 1048576 bytes",
        ),
        (revoked, rf"{REFUSED} revoked; use another one"),
        (
            lambda authority: of(authority, crl=authority.revoke(days=-1)),
            (
                r"tls_certificate: .*CRL has expired; replace tls_crl by the current revocation"
                r" list of its CA"
            ),
        ),
        (
            lambda authority: of(authority, crl=foreign(authority).revoke()),
            (
                r"tls_certificate: .*unable to get certificate CRL; put the current revocation list"
                r" of its CA into tls_crl"
            ),
        ),
        (
            lambda authority: damaged(
                of(authority, crl=authority.revoke()),
                "crl",
                authority.revoke().read_bytes() + foreign(authority).ca.read_bytes(),
            ),
            rf"tls_crl: .*crl\.pem {NO_LISTS}",
        ),
        (lambda authority: of(authority, crl=authority.ca), rf"tls_crl: .*ca\.pem {NO_LISTS}"),
        (
            lambda authority: of(authority, crl=authority.ca.parent / "nowhere"),
            r"tls_crl: .*nowhere cannot be read: No such file",
        ),
        (
            lambda authority: damaged(of(authority), "key", ENCRYPTED),
            r"tls_key: .*b\.key is encrypted; decrypt it",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused_at_the_start(
    files: Callable[[Authority], TlsFiles], problem: str, tmp_path: Path
) -> None:
    given = files(Authority(tmp_path))
    with pytest.raises(InvalidConfig, match=problem):
        in_use(given)


def test_changed_files_are_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("b", days=10)
    used = in_use(files_of(authority, pair))
    before = used.server
    used.look()
    assert used.server is before
    replaced(pair, authority.issue("renewed", days=90))
    with caplog.at_level(logging.INFO):
        used.look()
        used.look()
    assert used.server is not before
    assert used.expires_s is not None
    assert used.expires_s > time.time() + 80 * DAY_S
    assert ["certificates reloaded"] == [record.message for record in caplog.records]


def test_changed_files_that_cannot_be_used_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are logged and counted once. A half-replaced pair is used once it is whole."""
    authority = Authority(tmp_path)
    pair, renewed = authority.issue("b"), authority.issue("renewed")
    used = in_use(files_of(authority, pair))
    before = used.server, used.client
    renewed[0].replace(pair[0])
    used.look()
    used.look()
    assert before == (used.server, used.client)
    assert used.reload_failures == 1
    assert ["certificates not reloaded, the former ones stay in use: tls_key: "] == [
        record.message.partition(str(tmp_path))[0] for record in caplog.records
    ]
    renewed[1].replace(pair[1])
    used.look()
    assert used.server is not before[0]
    pair[0].unlink()
    used.look()
    assert used.server is not None
    assert used.reload_failures == 2


def test_commands_take_their_files_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("operator", "operator@test")
    for variable in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert client_context_of_environment() is True
    monkeypatch.setenv(CA_VARIABLE, str(authority.ca))
    context = client_context_of_environment()
    assert context is not True
    assert (True, ssl.CERT_REQUIRED) == (context.check_hostname, context.verify_mode)
    assert len(context.get_ca_certs()) == 1
    monkeypatch.setenv(CERTIFICATE_VARIABLE, str(certificate))
    with pytest.raises(
        InvalidConfig, match=f"{KEY_VARIABLE}: it is missing, but {CERTIFICATE_VARIABLE} is set"
    ):
        client_context_of_environment()
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    assert client_context_of_environment() is not True
    monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(InvalidConfig, match=f"{CA_VARIABLE}: .*nowhere cannot be read"):
        client_context_of_environment()


def test_a_client_with_a_certificate_may_trust_the_system(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("c")
    context = client_context(TlsFiles(certificate=certificate, key=key))
    assert context is not True
    assert context.verify_mode is ssl.CERT_REQUIRED
