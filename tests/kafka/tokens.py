"""A Kafka whose users log in by tokens (OAUTHBEARER), and the endpoint that they get them from."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from compose.local_kafka.cluster import Cluster
from compose.local_kafka.node import HOST
from tests.kafka.finding import EAGER_CLEANER, local_kafka

_LIFE_S: Final = 3_600
_LISTENER: Final = "listener.name.proxied."
_MODULE: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    " unsecuredLoginStringClaim_sub=kafka;"
)


class _Endpoint(BaseHTTPRequestHandler):
    """Gives a token to all who ask. It has no signature, which Kafka takes where nothing else is
    configured.
    """

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        now_s = int(time.time())
        parts = ({"alg": "none"}, {"sub": "equipoise", "iat": now_s, "exp": now_s + _LIFE_S})
        token = (
            ".".join(
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in parts
            )
            + "."
        )
        body = json.dumps(
            {"access_token": token, "token_type": "Bearer", "expires_in": _LIFE_S}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def kafka_with_tokens(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The address of a Kafka, and the settings of its clients. Raises as `Cluster.start` does."""
    server = ThreadingHTTPServer((HOST, 0), _Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"{HOST}:{Cluster.lay_out(folder).layout.ports[0].proxied}"
    extra = {
        "listener.security.protocol.map": (
            "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT"
        ),
        f"{_LISTENER}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{_LISTENER}oauthbearer.sasl.jaas.config": _MODULE,
    }
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"http://{HOST}:{server.server_port}/token",
        "sasl.oauthbearer.client.id": "equipoise",
        "sasl.oauthbearer.client.secret": "any",
    }
    try:
        with local_kafka(folder, proxies=(address,), extra={**EAGER_CLEANER, **extra}):
            yield address, settings
    finally:
        server.shutdown()
        server.server_close()
