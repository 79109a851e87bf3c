"""What a handle on Kafka reports where TLS fails. The server speaks TLS, and no Kafka."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.kafka.settings import CONFIG_FILE_VARIABLE, CONFIG_VARIABLE
from equipoise.channel.log.open_log import open_log
from tests.tls.authority import HOST, Authority


@contextmanager
def server(certificate: tuple[Path, Path], *, of_clients: Path | None = None) -> Iterator[str]:
    """The address of a server with a certificate. With `of_clients`, clients need one of this
    CA.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if of_clients is not None:
        context.load_verify_locations(of_clients)
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # The listening socket is shut down at the end.
                while True:
                    connection, _ = listening.accept()
                    with (
                        connection,
                        suppress(OSError),
                        context.wrap_socket(connection, server_side=True) as secure,
                    ):
                        secure.recv(1)

        thread = threading.Thread(target=serve, name="TLS without Kafka")
        thread.start()
        yield f"{HOST}:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def refusal(address: str, ca: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of a handle that trusts `ca`."""
    monkeypatch.delenv(CONFIG_FILE_VARIABLE, raising=False)
    monkeypatch.setenv(CONFIG_VARIABLE, f"security.protocol=SSL;ssl.ca.location={ca}")
    with pytest.raises(OperatorError) as caught:
        open_log(f"kafka://{address}/shop", create=False)
    return str(caught.value)


@pytest.mark.parametrize("wrong", ["CA", "host", "time"])
def test_a_bad_certificate_of_kafka_is_one_sentence(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the host, the file of the CA, and the possible reasons."""
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    certificate = authority.issue(
        "kafka", "kafka.example" if wrong == "host" else HOST, days=-1 if wrong == "time" else 10
    )
    ca = other.ca if wrong == "CA" else authority.ca
    with server(certificate) as address:
        problem = (
            f"the log kafka://{address}/shop denies access: the certificate of Kafka at {address}"
            f" is not valid: it is not of a CA in {ca}, has expired, or does not name that host;"
            " check"
        )
        assert refusal(address, ca, monkeypatch).startswith(problem)


def test_a_missing_certificate_of_the_client_names_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    with server(authority.issue("kafka"), of_clients=authority.ca) as address:
        problem = (
            f"Kafka at {address} does not accept the certificate of this client: set"
            " ssl.certificate.location and ssl.key.location"
        )
        assert problem in refusal(address, authority.ca, monkeypatch)
