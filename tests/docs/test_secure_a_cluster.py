"""The commands of the page on TLS make files that a broker and a client can use."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.x509 import BasicConstraints, load_pem_x509_certificate

from equipoise.brokers.security.tls import Certificates, TlsFiles, client_context
from tests.docs.code_blocks import blocks
from tests.house.house_rules import ROOT

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs" / "how-to" / "secure-a-cluster.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_commands_make_usable_certificates(tmp_path: Path) -> None:
    commands = [
        command
        for block in blocks(PAGE)
        for command in block.commands()
        if command.startswith("openssl ")
    ]
    for command in commands:
        # It is our own documentation.
        subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True)  # noqa: S602
    ca, (certificate, key) = (
        tmp_path / "ca.pem",
        (tmp_path / "broker-1.pem", tmp_path / "broker-1.key"),
    )
    files = TlsFiles(certificate=certificate, key=key, ca=ca, requires_client_certificate=True)
    for host in ("broker-1.example.com", "127.0.0.1"):
        assert Certificates(files, broker="broker-1", host=host).server is not None
    operator = TlsFiles(certificate=tmp_path / "operator.pem", key=tmp_path / "operator.key", ca=ca)
    assert client_context(operator) is not True
    for file in (certificate, operator.certificate):
        assert file is not None
        extensions = load_pem_x509_certificate(file.read_bytes()).extensions
        # Its holder cannot make others.
        assert not extensions.get_extension_for_class(BasicConstraints).value.ca
    assert not [command for command in commands if "copy_extensions" in command]
