"""A port with TLS: who is let in, who is refused under which reason, and that half-open handshakes
keep nobody out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from equipoise.brokers.runtime import listening as module
from equipoise.brokers.runtime.listening import (
    HANDSHAKES_MAX,
    PROBLEMS,
    SHARE,
    Began,
    Handshakes,
    gives_way,
    listen,
)
from equipoise.brokers.security.audit import Audit
from equipoise.brokers.security.tls import Certificates, ClientTls, TlsFiles, client_context
from tests.tls.authority import HOST, Authority, replaced

pytestmark = pytest.mark.integration

FAILED = "equipoise_tls_handshakes_failed_total"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> object:
    """Run a test on the loop of asyncio, and on that of uvloop: each has its own TLS."""
    return request.param


class Echo(asyncio.Protocol):
    """Sends everything back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined] # it is a transport of a stream


@dataclass
class Port:
    """A listening port, and what it counts."""

    authority: Authority
    certificates: Certificates
    number: int
    metrics: CollectorRegistry

    def failed(self) -> dict[str, float]:
        """Return the counts by reason, without those of 0."""
        values = {
            each: self.metrics.get_sample_value(
                FAILED, {"broker": "b", "port": "pulsar", "reason": each}
            )
            for each in PROBLEMS
        }
        return {reason: value for reason, value in values.items() if value}

    async def until(self, **reasons: float) -> None:
        """Wait until exactly these failures are counted."""
        while self.failed() != reasons:  # noqa: ASYNC110 - the counts are read, as Prometheus does
            await asyncio.sleep(0.001)

    async def echo(self, tls: ClientTls | None = None) -> str:
        """Return the common name's first host of the certificate of a connection that answers."""
        context = client_context(TlsFiles(ca=self.authority.ca)) if tls is None else tls
        reader, writer = await asyncio.open_connection(HOST, self.number, ssl=context)
        try:
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            return str(writer.get_extra_info("peercert")["notAfter"])
        finally:
            writer.transport.abort()


@asynccontextmanager
async def port(
    folder: Path, *, is_mutual: bool = False, has_crl: bool = False
) -> AsyncIterator[Port]:
    """Listen with a new certificate."""
    authority = Authority(folder)
    certificate, key = authority.issue("b")
    crl = authority.revoke() if has_crl else None
    files = TlsFiles(
        certificate=certificate,
        key=key,
        ca=authority.ca,
        crl=crl,
        requires_client_certificate=is_mutual,
    )
    certificates = Certificates(files, broker="b", host=HOST)
    handshakes = Handshakes(certificates, Audit(broker="b", now_ms=lambda: 0), broker="b")
    metrics = CollectorRegistry()
    metrics.register(handshakes)
    bound = socket.create_server((HOST, 0))
    bound.setblocking(False)  # noqa: FBT003 - the standard library takes it by position only
    listener = await listen(
        bound, Echo, port="pulsar", certificates=certificates, handshakes=handshakes
    )
    try:
        yield Port(authority, certificates, bound.getsockname()[1], metrics)
    finally:
        listener.close()
        while bound.fileno() >= 0:  # noqa: ASYNC110 - the socket tells nobody that it is closed
            await asyncio.sleep(0)


def shake(number: int, ca: Path) -> None:
    """Connect as most programs do, which send the reason if they refuse a certificate. asyncio only
    disconnects.
    """
    context = client_context(TlsFiles(ca=ca))
    assert context is not True
    with (
        socket.create_connection((HOST, number)) as plain,
        context.wrap_socket(plain, server_hostname=HOST),
    ):
        pass


async def raw(number: int, data: bytes) -> bytes:
    """Return what a port answers to bytes that are no TLS, until it disconnects."""
    reader, writer = await asyncio.open_connection(HOST, number)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.usefixtures("new_loop")
async def test_a_client_is_refused_once_its_certificate_is_revoked(tmp_path: Path) -> None:
    """Also one that resumes its session. A replaced list is used without a restart. Others are
    served.
    """
    async with port(tmp_path, is_mutual=True, has_crl=True) as served:
        ca, issue = served.authority.ca, served.authority.issue
        (lost, lost_key), (kept, kept_key) = (
            issue("lost", "lost@test"),
            issue("kept", "kept@test"),
        )
        thief = client_context(TlsFiles(certificate=lost, key=lost_key, ca=ca))
        other = client_context(TlsFiles(certificate=kept, key=kept_key, ca=ca))
        await served.echo(thief)
        served.authority.revoke(lost)
        served.certificates.look()
        for context in (thief, client_context(TlsFiles(certificate=lost, key=lost_key, ca=ca))):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await served.echo(context)
        await served.until(untrusted=2)
        await served.echo(other)


@pytest.mark.usefixtures("new_loop")
async def test_refusals_are_counted_by_reason_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are served meanwhile. No refusal writes a traceback."""
    caplog.set_level(logging.INFO)
    async with port(tmp_path / "own", is_mutual=True) as served:
        ca, foreign = served.authority.ca, Authority(tmp_path / "foreign")
        for data in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x00\x00\x00\x10\x00\x00\x00\x0c",
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            await raw(served.number, data)
        await served.until(plain=3)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await served.echo(client_context(TlsFiles(ca=ca)))
        await served.until(plain=3, no_certificate=1)
        certificate, key = foreign.issue("c")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await served.echo(client_context(TlsFiles(certificate=certificate, key=key, ca=ca)))
        certificate, key = served.authority.issue("late", days=-1)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await served.echo(client_context(TlsFiles(certificate=certificate, key=key, ca=ca)))
        await served.until(plain=3, no_certificate=1, untrusted=2)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(shake, served.number, foreign.ca)
        await served.until(plain=3, no_certificate=1, untrusted=2, refused=1)
        _, writer = await asyncio.open_connection(HOST, served.number)
        writer.close()
        await served.until(plain=3, no_certificate=1, untrusted=2, refused=1, disconnected=1)
        certificate, key = served.authority.issue("c", "client@test")
        await served.echo(client_context(TlsFiles(certificate=certificate, key=key, ca=ca)))
    lines = [record for record in caplog.records if record.message == "refused a TLS connection"]
    assert ["plain", "no_certificate", "untrusted", "refused", "disconnected"] == [
        record.__dict__["reason"] for record in lines
    ]
    assert not [
        record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING
    ]


async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    async with port(tmp_path) as served:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(served.authority.ca)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served.echo(old)
        await served.until(version=1)


async def test_a_new_certificate_is_presented_at_once(tmp_path: Path) -> None:
    """Without a new port."""
    async with port(tmp_path) as served:
        before = await served.echo()
        replaced(
            (tmp_path / "b.pem", tmp_path / "b.key"), served.authority.issue("renewed", days=90)
        )
        served.certificates.look()
        assert before != await served.echo()


@pytest.mark.usefixtures("new_loop")
async def test_half_open_handshakes_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there may be handshakes are cut off, the oldest first, and a client that
    comes last is served.
    """
    monkeypatch.setattr(module, "_CROWDED_S", 0.0)

    async with port(tmp_path) as served:
        silent = [
            await asyncio.open_connection(HOST, served.number) for _ in range(HANDSHAKES_MAX + 3)
        ]
        await served.echo()
        assert served.failed()["timeout"] >= 3
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.transport.abort()


async def test_an_address_within_its_share_keeps_its_handshake_while_another_takes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow client begins a handshake first. Then one address floods the port, and the slow one
    finishes nevertheless.
    """
    monkeypatch.setattr(module, "_CROWDED_S", 0.0)
    async with port(tmp_path) as served:
        slow = socket.socket()
        slow.bind(("127.0.0.2", 0))
        slow.connect((HOST, served.number))
        flood = [
            await asyncio.open_connection(HOST, served.number) for _ in range(2 * HANDSHAKES_MAX)
        ]
        while served.failed().get("timeout", 0) < HANDSHAKES_MAX:  # noqa: ASYNC110 - as in `until`
            await asyncio.sleep(0.001)
        context = client_context(TlsFiles(ca=served.authority.ca))
        assert context is not True
        slow.setblocking(False)  # noqa: FBT003 - the standard library takes it by position only
        reader, writer = await asyncio.open_connection(sock=slow, ssl=context, server_hostname=HOST)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        for each in (writer, *(other for _, other in flood)):
            each.transport.abort()


def full(addresses: int) -> st.SearchStrategy[list[str]]:
    """Return the addresses of all handshakes of a full port."""
    return st.lists(
        st.integers(1, addresses).map(str), min_size=HANDSHAKES_MAX, max_size=HANDSHAKES_MAX
    )


@given(addresses=st.sampled_from([1, 3, 9, 99]).flatmap(full))
def test_who_gives_way(addresses: list[str]) -> None:
    """An address within its share never gives way to one above it, and nobody has longer than the
    ordinary time.
    """
    began = [Began(address=address, at_s=float(place)) for place, address in enumerate(addresses)]
    place, until_s = gives_way(began, 1.0)
    count = addresses.count(addresses[place])
    assert place == addresses.index(addresses[place]), "it is the oldest of its address"
    if any(addresses.count(each) > SHARE for each in addresses):
        assert count == max(map(addresses.count, addresses))
    else:
        assert place == 0
    assert until_s == place + (1.0 if count <= SHARE else SHARE / count)


@pytest.mark.usefixtures("new_loop")
async def test_a_half_open_handshake_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.05)

    async with port(tmp_path) as served:
        reader, writer = await asyncio.open_connection(HOST, served.number)
        writer.write(b"\x16\x03\x01")  # The beginning of a handshake.
        assert await reader.read() == b""
        await served.until(timeout=1)
        writer.transport.abort()


async def test_the_end_of_the_port_is_no_failure(tmp_path: Path) -> None:
    """Handshakes in progress are cut off. Accepted connections stay."""
    async with port(tmp_path) as served:
        context = client_context(TlsFiles(ca=served.authority.ca))
        reader, writer = await asyncio.open_connection(HOST, served.number, ssl=context)
        half, other = await asyncio.open_connection(HOST, served.number)
    assert await half.read() == b""
    writer.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    assert not served.failed()
    for each in (writer, other):
        each.transport.abort()


async def test_without_a_certificate_nothing_is_exported() -> None:
    plain = Certificates(TlsFiles(), broker="b", host=HOST)
    assert not list(Handshakes(plain, Audit(broker="b", now_ms=lambda: 0), broker="b").collect())
