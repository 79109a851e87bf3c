"""A cluster with TLS: its ports, its handovers, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import aiohttp
import pytest

from equipoise.brokers.agent.requests import Transfer
from equipoise.brokers.client.client import Client
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.tls import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    ClientTls,
    TlsFiles,
    client_context,
)
from equipoise.channel.system.clocks import Deadline
from tests.tls.authority import HOST, Authority, replaced
from tests.tls.brokers import NAMESPACE, PATIENCE_MS, TOPIC, secure_brokers
from tests.waiting import all_owned

pytestmark = pytest.mark.integration

STATE = b"0123456789abcdef" * 8_192
"""128 KiB: too large for a record, so the next owner fetches it."""

PULSAR_CLIENT = """
import sys, pulsar
url, topic, ca = sys.argv[1:]
options = {"tls_trust_certs_file_path": ca, "tls_validate_hostname": True, "tls_allow_insecure_connection": False}
pulsar.Client(url, operation_timeout_seconds=15, **options).subscribe(topic, "s")
print("ready", flush=True)
"""  # noqa: E501


class Heavy(Service):
    """A service with a large state. It notes the states that it opens with."""

    def __init__(self) -> None:
        self.received: dict[str, tuple[bytes | None, str | None]] = {}

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.received[ownership.bundle.name] = handover, ownership.handover_problem

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        return STATE


async def transfer(workers: list[Worker]) -> Worker:
    """Move the bundle to the other broker, and return that."""
    for worker in workers:
        await worker.until(all_owned, timeout_ms=PATIENCE_MS, what="an owner")
    (bundle,) = workers[0].view.bundles_of(NAMESPACE)
    owner, destination = sorted(workers, key=lambda each: each.agent.incarnation != bundle.owner)
    # A bundle that its owner has not opened yet has no state to hand over.
    await owner.until(
        lambda _: bundle.name in owner.open_bundles or None,
        timeout_ms=PATIENCE_MS,
        what="the open bundle",
    )
    await destination.request(
        Transfer(bundle=bundle.name, destination=destination.broker_id, reason="test"),
        timeout_ms=PATIENCE_MS,
    )
    await destination.until(
        lambda _: bundle.name in destination.open_bundles or None,
        timeout_ms=PATIENCE_MS,
        what="the bundle",
    )
    return destination


async def test_a_peer_with_a_certificate_of_another_ca_is_not_trusted(tmp_path: Path) -> None:
    """The state is lost, as if its owner were dead, and the reason is there for the service."""
    services = [Heavy(), Heavy()]
    own, foreign = Authority(tmp_path / "ca"), Authority(tmp_path / "foreign")
    async with secure_brokers(tmp_path, own, list(services)) as workers:
        certificate, key = own.issue("x")
        trusted = client_context(TlsFiles(certificate=certificate, key=key, ca=foreign.ca))
        for worker in workers:
            worker.access.certificates.client = trusted
        destination = await transfer(workers)
        ((state, problem),) = services[workers.index(destination)].received.values()
        assert state is None
        assert problem is not None
        assert "certificate verify failed" in problem


async def once_trusted(session: aiohttp.ClientSession, url: str, tls: ClientTls) -> str:
    """Return an answer once the broker presents a certificate that is good for the host."""
    while True:
        try:
            async with session.get(url, ssl=tls) as answer:
                return await answer.text()
        except aiohttp.ClientConnectorCertificateError:
            await asyncio.sleep(0.05)


async def test_http_serves_clients_that_trust_the_ca(tmp_path: Path) -> None:
    """Others notice the wrong CA or host; a renewed certificate is used without a restart."""
    authority = Authority(tmp_path / "ca")
    async with (
        secure_brokers(tmp_path, authority, [Heavy()]) as (worker,),
        aiohttp.ClientSession() as session,
    ):
        url = worker.profile.addresses["https"]
        trusted = client_context(TlsFiles(ca=authority.ca))
        async with session.get(
            f"{url}/lookup/v2/topic/non-persistent/{NAMESPACE}/orders", ssl=trusted
        ) as answer:
            found = await answer.json()
        assert ("", url) == (found["httpUrl"], found["httpUrlTls"])
        async with session.get(f"{url}/admin/v2/clusters/equipoise", ssl=trusted) as answer:
            assert url == (await answer.json())["serviceUrlTls"]
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(url, ssl=True)
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="Hostname mismatch"):
            await session.get(url.replace(HOST, "localhost"), ssl=trusted)
        with pytest.raises(aiohttp.ClientError):
            await session.get(url.replace("https:", "http:"))
        replaced(
            (tmp_path / "ca" / "broker-0.pem", tmp_path / "ca" / "broker-0.key"),
            authority.issue("renewed", HOST, "localhost"),
        )
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            metrics = await once_trusted(
                session, f"{url.replace(HOST, 'localhost')}/metrics", trusted
            )
        assert re.search(
            r'equipoise_tls_handshakes_failed_total\{broker="broker-0",port="http",reason="plain"\}'
            r" [1-9]",
            metrics,
        )
        assert "equipoise_tls_certificate_expiry_timestamp_seconds" in metrics


async def test_a_pulsar_client_that_does_not_trust_the_ca_is_refused(tmp_path: Path) -> None:
    """The broker counts it."""
    foreign = Authority(tmp_path / "foreign")
    async with secure_brokers(tmp_path, Authority(tmp_path / "ca"), [PulsarService()]) as (worker,):
        words = (worker.profile.addresses["pulsar+ssl"], TOPIC, foreign.ca)
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PULSAR_CLIENT, *map(str, words)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await client.communicate()
        assert client.returncode
        assert b"ready\n" not in printed
        failed = next(
            metric
            for metric in worker.access.handshakes.collect()
            if metric.name == "equipoise_tls_handshakes_failed"
        )
        assert (
            sum(sample.value for sample in failed.samples if sample.labels["port"] == "pulsar") > 0
        )


async def test_commands_and_clients_use_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With mutual TLS they need the CA and a certificate, and say so."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("operator", "operator@test")
    async with secure_brokers(tmp_path, authority, [Heavy()], is_mutual=True) as (worker,):
        url = worker.profile.addresses["https"]
        code, row = await status(url, {})
        assert (3, True) == (code, "its certificate is refused" in row and CA_VARIABLE in row)
        code, row = await status(url, {CA_VARIABLE: authority.ca})
        assert (3, True) == (code, CERTIFICATE_VARIABLE in row)
        variables = {
            CA_VARIABLE: authority.ca,
            CERTIFICATE_VARIABLE: certificate,
            KEY_VARIABLE: key,
        }
        code, row = await status(url, variables)
        assert (0, True) == (code, json.loads(row)[0]["status"] == "ready")
        for name, path in variables.items():
            monkeypatch.setenv(name, str(path))
        async with Client(url) as client:
            owner = await client.owner(NAMESPACE, "key", timeout_ms=PATIENCE_MS)
        assert {"https": url} == owner.addresses


async def status(url: str, variables: dict[str, Path]) -> tuple[int | None, str]:
    """Return the exit code and the output of `equipoise brokers status`."""
    environment = os.environ | {name: str(path) for name, path in variables.items()}
    command = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "equipoise.brokers.cli",
            "brokers",
            "status",
            "--url",
            url,
            "--json",
        ),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    printed, _ = await command.communicate()
    return command.returncode, printed.decode()
