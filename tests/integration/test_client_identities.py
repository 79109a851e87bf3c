"""Who a client is: clients of Pulsar and our own with passwords, certificates and tokens, at
brokers that take all three.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.gate import Gate
from equipoise.brokers.security.identity import Credentials, Identity, Refusal, Surface
from equipoise.brokers.security.tls import TlsFiles, client_context
from tests.pulsar.programs import Language, admin_command, require
from tests.tls.authority import HOST, Authority
from tests.tls.brokers import NAMESPACE, TOPIC, secure_brokers
from tests.unit.security.signing import SECRET_URL, USERS, basic, bearer, token

# Building the program of Java for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

ITSELF: Final = {("http", "tls", "broker-0")}
"""A broker that starts calls its own address."""

AUTH: Final = "org.apache.pulsar.client.impl.auth.Authentication"

# Sends a message. The arguments: URL, CA, a method, and what that needs.
PYTHON = """
import sys, pulsar
url, ca, method, *needed = sys.argv[1:]
ways = {"basic": pulsar.AuthenticationBasic, "tls": pulsar.AuthenticationTLS, "none": lambda: None}
client = pulsar.Client(url, authentication=ways[method](*needed), tls_trust_certs_file_path=ca, tls_validate_hostname=True,
                       operation_timeout_seconds=3)
try:
    client.create_producer("non-persistent://public/default/orders").send(b"hello")
    print("sent")
    client.close()
except pulsar.PulsarException as error:
    print("failed:", type(error).__name__)
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Site:
    """Running brokers, and the certificate of a client."""

    workers: Sequence[Worker]
    authority: Authority
    certificate: Path
    key: Path

    @property
    def http(self) -> str:
        return self.workers[0].profile.addresses["https"]

    @property
    def pulsar(self) -> str:
        return self.workers[0].profile.addresses["pulsar+ssl"]


@asynccontextmanager
async def site(folder: Path, *, brokers: int = 1) -> AsyncIterator[Site]:
    """Run brokers that have no token: they know each other by their certificates."""
    authority = Authority(folder / "ca")
    certificate, key = authority.issue("orders", "orders@test", common_name="orders")
    # The client of Java reads no other form. `openssl req` writes this one.
    made = load_pem_private_key(key.read_bytes(), password=None)
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    users = folder / "passwords"
    users.write_text(USERS, encoding="utf-8")
    settings = {
        "authentication": True,
        "token_secret_key": SECRET_URL,
        "basic_passwords": str(users),
        "certificate_roles": True,
    }
    services = [PulsarService() for _ in range(brokers)]
    # The client of Java verifies the name that the address has on this machine.
    async with secure_brokers(
        folder, authority, services, HOST, "localhost", settings=settings
    ) as workers:
        yield Site(workers=workers, authority=authority, certificate=certificate, key=key)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str, str]]:
    """Who was let in and who was refused: the surface, the method or `refused`, and the role or the
    reason.
    """
    found: set[tuple[str, str, str]] = set()
    noted = Gate._noted  # noqa: SLF001 - every verdict passes it

    def noting(
        self: Gate, surface: Surface, checked: Identity | Refusal, credentials: Credentials | None
    ) -> Identity | Refusal:
        if isinstance(checked, Identity):
            found.add((surface, checked.method, checked.role))
        else:
            found.add((surface, "refused", checked.fault))
        return noted(self, surface, checked, credentials)

    monkeypatch.setattr(Gate, "_noted", noting)
    return found


async def ran(*words: object) -> str:
    """Run a command, and return all that it prints."""
    process = await asyncio.create_subprocess_exec(*map(str, words), stdout=PIPE, stderr=STDOUT)
    printed, _ = await process.communicate()
    return printed.decode()


async def test_http_takes_each_method_and_a_request_says_which(
    tmp_path: Path, seen: set[tuple[str, str, str]]
) -> None:
    """A certificate is optional, and counts for requests without credentials of their own."""
    async with site(tmp_path) as on:
        files = TlsFiles(ca=on.authority.ca)
        without, with_ = (
            client_context(files),
            client_context(TlsFiles(ca=files.ca, certificate=on.certificate, key=on.key)),
        )
        nameless, its_key = on.authority.issue("nameless")
        unnamed = client_context(TlsFiles(ca=files.ca, certificate=nameless, key=its_key))
        asked = [
            (200, without, basic("me", "secret"), ("http", "basic", "me")),
            (200, without, bearer(token("billing")), ("http", "token", "billing")),
            (200, with_, {}, ("http", "tls", "orders")),
            (200, with_, basic("me", "secret"), ("http", "basic", "me")),
            (401, with_, basic("me", "wrong"), ("http", "refused", "wrong")),
            (401, without, {}, ("http", "refused", "missing")),
            (401, unnamed, {}, ("http", "refused", "malformed")),
        ]
        for status, tls, headers, verdict in asked:
            seen.clear()
            async with (
                aiohttp.ClientSession(on.http) as http,
                http.get("/admin/v2/tenants", ssl=tls, headers=headers) as answer,
            ):
                assert (status, {verdict}) == (answer.status, seen)


async def test_brokers_know_each_other_by_their_certificates(
    tmp_path: Path, seen: set[tuple[str, str, str]]
) -> None:
    """One asks the others for their topics, and has no token."""
    async with site(tmp_path, brokers=2) as on, aiohttp.ClientSession() as http:
        for worker in on.workers:
            url = f"{worker.profile.addresses['https']}/admin/v2/non-persistent/{NAMESPACE}"
            async with http.get(
                url, ssl=client_context(TlsFiles(ca=on.authority.ca)), headers=bearer(token())
            ) as answer:
                assert (200, []) == (answer.status, await answer.json())
        assert ("http", "tls", "broker-0") in seen or ("http", "tls", "broker-1") in seen
        assert not [each for each in seen if each[1] == "refused"]


async def test_the_python_client_connects_with_a_password_or_a_certificate(
    tmp_path: Path, seen: set[tuple[str, str, str]]
) -> None:
    async with site(tmp_path) as on:
        program = (sys.executable, "-c", PYTHON, on.pulsar, on.authority.ca)
        ways = (
            ("basic", "me", "secret"),
            ("tls", on.certificate, on.key),
            ("basic", "me", "wrong"),
            ("none",),
        )
        printed = await asyncio.gather(*(ran(*program, *way) for way in ways))
        assert [True, True, False, False] == ["sent\n" in text for text in printed], printed
        assert {
            ("pulsar", "basic", "me"),
            ("pulsar", "tls", "orders"),
            ("pulsar", "refused", "wrong"),
            ("pulsar", "refused", "missing"),
        } == seen - ITSELF


async def test_tools_of_java_connect_with_a_password_or_a_certificate(
    tmp_path: Path, seen: set[tuple[str, str, str]]
) -> None:
    """pulsar-admin over HTTP, and pulsar-client on the Pulsar port, with the options that they have
    for it.
    """
    require(Language.JAVA)
    conf = tmp_path / "client.conf"
    async with site(tmp_path) as on:
        conf.write_text(
            f"tlsTrustCertsFilePath={on.authority.ca}\ntlsEnableHostnameVerification=true\n",
            encoding="utf-8",
        )
        password = (
            "--auth-plugin",
            f"{AUTH}Basic",
            "--auth-params",
            json.dumps({"userId": "me", "password": "secret"}),
        )
        certificate = (
            "--auth-plugin",
            f"{AUTH}Tls",
            "--auth-params",
            f"tlsCertFile:{on.certificate},tlsKeyFile:{on.key}",
        )
        java = admin_command()[:-1]
        admin = (*java, "org.apache.pulsar.admin.cli.PulsarAdminTool", conf, "--admin-url", on.http)
        client = (*java, "org.apache.pulsar.client.cli.PulsarClientTool", conf, "--url", on.pulsar)
        for way in (password, certificate):
            shown, sent = await asyncio.gather(
                ran(*admin, *way, "tenants", "list"),
                ran(*client, *way, "produce", TOPIC, "--messages", "x"),
            )
            assert ("public" in shown, "HTTP 401" in shown) == (True, False), shown
            assert {method for surface, method, _ in seen if surface == "pulsar"}, sent
        assert {
            ("http", "basic", "me"),
            ("http", "tls", "orders"),
            ("pulsar", "basic", "me"),
            ("pulsar", "tls", "orders"),
        } == seen - ITSELF
