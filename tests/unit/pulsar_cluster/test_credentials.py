"""Who asks a cluster comes from Pulsar's own client.conf, in the forms that its two protocols
take.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError, EquipoiseError, OperatorError, PeerError
from equipoise.pulsar_cluster.credentials import (
    NOBODY,
    Credentials,
    Exchange,
    NotSent,
    OAuth2Token,
    Reply,
    Request,
    read_client_conf,
    with_files,
)
from tests.unit.pulsar_cluster.made_clusters import replied

PLUGIN = "org.apache.pulsar.client.impl.auth"
KEY = {"client_id": "me", "client_secret": "secret"}


def conf(folder: Path, *lines: str) -> Path:
    path = folder / "client.conf"
    path.write_text("\n".join(lines))
    return path


def test_addresses_and_tls_are_those_of_the_file(tmp_path: Path) -> None:
    lines = (
        "webServiceUrl=https://b:8443",
        "brokerServiceUrl=pulsar+ssl://b:6651",
        "tlsTrustCertsFilePath=ca.pem",
        "authPlugin=",
        "authParams=",
    )
    more = (
        "tlsEnableHostnameVerification=true",
        "tlsCertificateFilePath=c.pem",
        "tlsKeyFilePath=k.pem",
        "useKeyStoreTls=false",
    )
    found = read_client_conf(conf(tmp_path, *lines, *more))
    assert ("pulsar+ssl://b:6651", "https://b:8443") == (found.service_url, found.admin_url)
    assert Credentials(ca_file="ca.pem", certificate=("c.pem", "k.pem")) == found.credentials
    assert {} == found.credentials.header()


BASIC = f"Basic {base64.b64encode(b'me:a:b').decode()}"


@pytest.mark.parametrize(
    ("line", "checks"),
    [
        ("", (ssl.CERT_REQUIRED, False)),
        ("tlsEnableHostnameVerification=true", (ssl.CERT_REQUIRED, True)),
        ("tlsAllowInsecureConnection=true", (ssl.CERT_NONE, False)),
    ],
)
def test_what_is_checked_of_a_broker(tmp_path: Path, line: str, checks: tuple[int, bool]) -> None:
    context = read_client_conf(conf(tmp_path, line)).credentials.tls()
    assert checks == (context.verify_mode, context.check_hostname)


@pytest.mark.parametrize(
    ("plugin", "parameters", "header"),
    [
        ("Token", "token:abc", "Bearer abc"),
        ("Token", "file:///FOLDER/token", "Bearer abc"),
        ("Token", '{"token": "abc"}', "Bearer abc"),
        ("Token", "abc", "Bearer abc"),
        ("Basic", '{"userId":"me","password":"a:b"}', BASIC),
        ("Basic", "userId:me,password:a:b", BASIC),
        ("Tls", "tlsCertFile:/a/c.pem,tlsKeyFile:/a/k.pem", None),
    ],
)
def test_who_asks_by_each_plugin(
    tmp_path: Path, plugin: str, parameters: str, header: str | None
) -> None:
    (tmp_path / "token").write_text("abc\n")
    parameters = parameters.replace("/FOLDER", str(tmp_path))
    who = read_client_conf(
        conf(tmp_path, f"authPlugin={PLUGIN}.Authentication{plugin}", f"authParams={parameters}")
    ).credentials
    assert header == who.header().get("Authorization")
    if plugin == "Tls":
        with pytest.raises(
            OperatorError, match=r"a PEM file cannot be used \(/a/c.pem, /a/k.pem\): No such file"
        ):
            who.tls()


def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    who = with_files(NOBODY, path, None)
    path.write_text("new")
    assert {"Authorization": "Bearer new"} == who.header()


def issuer(answer: Exchange, **more: str) -> OAuth2Token:
    key = "data:application/json;base64," + base64.b64encode(json.dumps(KEY).encode()).decode()
    return OAuth2Token({"issuerUrl": "https://id/", "privateKey": key, **more}, exchange=answer)


def test_access_tokens_are_asked_for_once_and_renewed_before_they_end() -> None:
    asked: list[str | None] = []
    lives_s = iter((3_600, 1, 3_600))

    def answer(request: Request) -> Reply:
        if request.method == "GET":
            assert "https://id/.well-known/openid-configuration" == request.url
            return replied({"token_endpoint": "https://id/token"})
        asked.append(request.body)
        return replied({"access_token": f"t{len(asked)}", "expires_in": next(lives_s)})

    token = issuer(answer, audience="urn:x")
    form = "grant_type=client_credentials&client_id=me&client_secret=secret&audience=urn%3Ax"
    assert (["t1", "t1"], [form]) == ([token(), token()], asked)
    short = issuer(answer)
    assert ["t2", "t3"] == [short(), short()]


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (Reply(401), OperatorError, "answered 401: no access token; check authParams"),
        ({}, OperatorError, "gave no access token: KeyError"),
        (NotSent("refused"), PeerError, "issuer of tokens https://id did not answer: refused"),
    ],
)
def test_an_issuer_that_gives_no_token_is_named(
    answer: object, kind: type[EquipoiseError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        issuer(lambda _: replied(answer))()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("useKeyStoreTls=true",), "names key stores of Java"),
        (
            (f"authPlugin={PLUGIN}.AuthenticationAthenz", "authParams={}"),
            "it is not known here; use one of AuthenticationToken",
        ),
        (
            (f"authPlugin={PLUGIN}.AuthenticationBasic", "authParams={"),
            "AuthenticationBasic of .* cannot be used",
        ),
        ((f"authPlugin={PLUGIN}.AuthenticationTls", "authParams="), "'tlsCertFile'"),
        ((f"authPlugin={PLUGIN}.oauth2.AuthenticationOAuth2", "authParams={}"), "'issuerUrl'"),
        ((f"authPlugin={PLUGIN}.AuthenticationToken", "authParams="), "it holds no token"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, lines: tuple[str, ...], told: str
) -> None:
    with pytest.raises(CallerError, match=told):
        read_client_conf(conf(tmp_path, *lines))


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (
            lambda folder: with_files(NOBODY, folder / "bytes", None),
            "it has other characters than ASCII; check --token-file",
        ),
        (
            lambda folder: with_files(NOBODY, folder / "gone", None),
            "gone cannot be read: No such file or directory; check --token-file",
        ),
        (lambda folder: with_files(NOBODY, None, folder / "gone"), "check --ca-file"),
        (lambda folder: read_client_conf(folder / "gone"), "check --client-conf"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, read: Callable[[Path], object], told: str
) -> None:
    (tmp_path / "bytes").write_bytes("t\u00f6ken".encode())
    with pytest.raises(OperatorError, match=told):
        read(tmp_path)
