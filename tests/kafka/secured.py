"""A Kafka with access control: a listener with mutual TLS, where the name in a client's certificate
is its user.

Clients of the plain listener, such as tests, are a super user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from compose.local_kafka.cluster import Cluster
from equipoise.channel.kafka.client import Clients
from equipoise.channel.kafka.rights import Right
from tests.kafka.finding import EAGER_CLEANER, local_kafka
from tests.tls.authority import HOST, Authority

TIMEOUT_MS = 30_000
_LISTENER = "listener.name.proxied."


@dataclass(frozen=True, kw_only=True)
class SecuredKafka:
    """Its addresses (`HOST:PORT`): `plain` for the super user, `secure` for all others."""

    plain: str
    secure: str
    authority: Authority

    def settings(self, user: str, *, ca: Path | None = None) -> str:
        """Return the settings of a client with a new certificate for `user`, as text for
        `EQUIPOISE_KAFKA_CONFIG`.
        """
        certificate, key = self.authority.issue(user, common_name=user)
        files = {
            "ssl.ca.location": ca or self.authority.ca,
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
        }
        return ";".join(
            ["security.protocol=SSL", *(f"{name}={path}" for name, path in files.items())]
        )

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Give rights to a user."""
        with Clients(servers=self.plain, settings={}).administrator() as administrator:
            administrator.grant(rights, principal=f"User:{user}", timeout_ms=TIMEOUT_MS)


@contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """Start a node, and stop it. Raises as `Cluster.start` does."""
    authority = Authority(folder / "ca")
    certificate, key = authority.issue("kafka", common_name="kafka")
    store = folder / "kafka.keystore.pem"  # Java reads no other form of a key.
    unencrypted = load_pem_private_key(key.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    store.write_bytes(unencrypted + certificate.read_bytes())
    secure = f"{HOST}:{Cluster.lay_out(folder / 'node').layout.ports[0].proxied}"
    extra = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SSL",
        f"{_LISTENER}ssl.client.auth": "required",
        f"{_LISTENER}ssl.keystore.type": "PEM",
        f"{_LISTENER}ssl.keystore.location": str(store),
        f"{_LISTENER}ssl.truststore.type": "PEM",
        f"{_LISTENER}ssl.truststore.location": str(authority.ca),
        f"{_LISTENER}ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
    }
    with local_kafka(
        folder / "node", proxies=(secure,), extra={**EAGER_CLEANER, **extra}
    ) as cluster:
        yield SecuredKafka(plain=cluster.address, secure=secure, authority=authority)
