"""Secure a local cluster: TLS on every port, and tokens for everyone."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from tests.tls.authority import HOST, Authority
from tests.unit.security.signing import SECRET_URL, bearer, token


class Secured:
    """Certificates and a token in `folder`.

    `settings` are those of every broker. `ca` and `token` are the files that clients need.
    """

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self.ca = authority.ca
        self.token = folder / "client.token"
        self.token.write_text(token("client"))
        self.settings: Mapping[str, str] = {
            # Java's client verifies the name that an address has.
            **authority.process_settings("broker", HOST, "localhost"),
            "authentication": "true",
            "token_secret_key": SECRET_URL,
            "broker_token": token("broker"),
        }

    def session(self) -> aiohttp.ClientSession:
        """Return a session that trusts the CA and sends the token."""
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=self.ca))
        return aiohttp.ClientSession(connector=connector, headers=bearer(self.token.read_text()))

    def words(self) -> list[str]:
        """Return the options of the programs with Pulsar's clients."""
        return ["--token", str(self.token), "--ca", str(self.ca)]
