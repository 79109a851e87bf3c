"""The public API of Equipoise: everything that users import.

Each name is imported from its module at first use, so that `import equipoise.channel` does not
import a web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from equipoise.brokers.client.calls import Response
    from equipoise.brokers.client.client import Client, ClientInThread
    from equipoise.brokers.http.caller import identity_of
    from equipoise.brokers.runtime.embedding.by_key import current_work
    from equipoise.brokers.runtime.embedding.embedded import WorkerInThread
    from equipoise.brokers.runtime.service import (
        Bundle,
        Ownership,
        Peer,
        Service,
        ServiceHost,
        Work,
    )
    from equipoise.brokers.security.identity import Identity
    from equipoise.brokers.sharded.keyed import Keyed
    from equipoise.brokers.sharded.program import Equipoise
    from equipoise.brokers.sharded.saving import Store
    from equipoise.brokers.sharded.stores import PostgresStore, RedisStore, SqliteStore
    from equipoise.brokers.sharded.tasks import Shard, Tasks
    from equipoise.brokers.testing.virtual_cluster import Cluster
    from equipoise.channel.core.ranges import key_hash
    from equipoise.channel.system.clocks import Deadline
    from equipoise.shedder.loads import BundleLoad, Messaging

__all__ = [
    "Bundle",
    "BundleLoad",
    "Client",
    "ClientInThread",
    "Cluster",
    "Deadline",
    "Equipoise",
    "Identity",
    "Keyed",
    "Messaging",
    "Ownership",
    "Peer",
    "PostgresStore",
    "RedisStore",
    "Response",
    "Service",
    "ServiceHost",
    "Shard",
    "SqliteStore",
    "Store",
    "Tasks",
    "Work",
    "WorkerInThread",
    "current_work",
    "identity_of",
    "key_hash",
]

_MODULES: Final = {
    "Bundle": "brokers.runtime.service",
    "BundleLoad": "shedder.loads",
    "Client": "brokers.client.client",
    "ClientInThread": "brokers.client.client",
    "Cluster": "brokers.testing.virtual_cluster",
    "Deadline": "channel.system.clocks",
    "Equipoise": "brokers.sharded.program",
    "Identity": "brokers.security.identity",
    "Keyed": "brokers.sharded.keyed",
    "Messaging": "shedder.loads",
    "Ownership": "brokers.runtime.service",
    "Peer": "brokers.runtime.service",
    "PostgresStore": "brokers.sharded.stores",
    "RedisStore": "brokers.sharded.stores",
    "Response": "brokers.client.calls",
    "Service": "brokers.runtime.service",
    "ServiceHost": "brokers.runtime.service",
    "Shard": "brokers.sharded.tasks",
    "SqliteStore": "brokers.sharded.stores",
    "Store": "brokers.sharded.saving",
    "Tasks": "brokers.sharded.tasks",
    "Work": "brokers.runtime.service",
    "WorkerInThread": "brokers.runtime.embedding.embedded",
    "current_work": "brokers.runtime.embedding.by_key",
    "identity_of": "brokers.http.caller",
    "key_hash": "channel.core.ranges",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module. Raises `AttributeError` for any other name."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
