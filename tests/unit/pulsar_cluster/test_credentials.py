"""Who asks a cluster comes from Pulsar's own client.conf, in the forms that its two protocols
take.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from equipoise.channel.core.errors import CallerError, EquipoiseError, OperatorError, PeerError
from equipoise.pulsar_cluster.credentials import (
    NOBODY,
    Credentials,
    OAuth2Token,
    read_client_conf,
    with_files,
)

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


@pytest.mark.parametrize(
    "parameters", ["token:abc", "file:///FOLDER/token", '{"token": "abc"}', "abc"]
)
def test_a_token(tmp_path: Path, parameters: str) -> None:
    (tmp_path / "token").write_text("abc\n")
    parameters = parameters.replace("/FOLDER", str(tmp_path))
    who = read_client_conf(
        conf(tmp_path, f"authPlugin={PLUGIN}.AuthenticationToken", f"authParams={parameters}")
    ).credentials
    assert (("token", b"abc"), {"Authorization": "Bearer abc"}) == (who.method(), who.header())


def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    who = with_files(NOBODY, path, None)
    path.write_text("new")
    assert {"Authorization": "Bearer new"} == who.header()


@pytest.mark.parametrize(
    "parameters", ['{"userId":"me","password":"a:b"}', "userId:me,password:a:b"]
)
def test_a_name_and_a_password(tmp_path: Path, parameters: str) -> None:
    who = read_client_conf(
        conf(tmp_path, f"authPlugin={PLUGIN}.AuthenticationBasic", f"authParams={parameters}")
    ).credentials
    assert (
        ("basic", b"me:a:b"),
        {"Authorization": f"Basic {base64.b64encode(b'me:a:b').decode()}"},
    ) == (who.method(), who.header())


def test_a_certificate(tmp_path: Path) -> None:
    line = "authParams=tlsCertFile:/a/c.pem,tlsKeyFile:/a/k.pem"
    who = read_client_conf(
        conf(tmp_path, f"authPlugin={PLUGIN}.AuthenticationTls", line)
    ).credentials
    assert (("tls", b""), ("/a/c.pem", "/a/k.pem")) == (who.method(), who.certificate)
    with pytest.raises(
        OperatorError, match=r"a PEM file cannot be used \(/a/c.pem, /a/k.pem\): No such file"
    ):
        who.tls()


def issuer(answer: Callable[[httpx.Request], httpx.Response], **more: str) -> OAuth2Token:
    key = "data:application/json;base64," + base64.b64encode(json.dumps(KEY).encode()).decode()
    return OAuth2Token(
        {"issuerUrl": "https://id/", "privateKey": key, **more},
        transport=httpx.MockTransport(answer),
    )


def test_access_tokens_are_asked_for_once_and_renewed_before_they_end() -> None:
    asked: list[str] = []
    lives_s = iter((3_600, 3_600, 1, 3_600))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            assert "https://id/.well-known/openid-configuration" == str(request.url)
            return httpx.Response(200, json={"token_endpoint": "https://id/token"})
        asked.append(request.content.decode())
        return httpx.Response(
            200, json={"access_token": f"t{len(asked)}", "expires_in": next(lives_s)}
        )

    token = issuer(answer, audience="urn:x")
    assert (
        ["t1", "t1"],
        ["grant_type=client_credentials&client_id=me&client_secret=secret&audience=urn%3Ax"],
    ) == (
        [token(), token()],
        asked,
    )
    next(lives_s)
    short = issuer(answer)
    assert ["t2", "t3"] == [short(), short()]


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (
            lambda _: httpx.Response(401),
            OperatorError,
            "answered 401: no access token; check authParams",
        ),
        (lambda _: httpx.Response(200, json={}), OperatorError, "gave no access token: KeyError"),
    ],
)
def test_an_issuer_that_gives_no_token_is_named(
    answer: Callable[[httpx.Request], httpx.Response], kind: type[EquipoiseError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        issuer(answer)()


def test_an_issuer_that_is_away_is_no_wrong_setting() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(PeerError, match="the issuer of tokens https://id did not answer: refused"):
        issuer(answer)()


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


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for number, token in enumerate((b"\xff\xfe", "t\u00f6ken".encode())):
        path = tmp_path / f"token{number}"
        path.write_bytes(token)
        with pytest.raises(
            OperatorError, match="it has other characters than ASCII; check --token-file"
        ):
            with_files(NOBODY, path, None)
    with pytest.raises(
        OperatorError, match="gone cannot be read: No such file or directory; check --token-file"
    ):
        with_files(NOBODY, tmp_path / "gone", None)
    with pytest.raises(OperatorError, match="check --ca-file"):
        with_files(NOBODY, None, tmp_path / "gone")
    with pytest.raises(OperatorError, match="check --client-conf"):
        read_client_conf(tmp_path / "gone")
