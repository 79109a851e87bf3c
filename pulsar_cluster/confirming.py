"""Confirm that Pulsar's channel is what a cluster's brokers go by: compare it with what they
answer.

A cluster may have moved the states of its bundles to the metadata store. The topic stays, and
nothing on it says that no broker reads it any more. With the admin API, the setting says it, and
each broker names the bundles that it owns. Without it, brokers are asked who serves a sample of
topics, as any client asks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from equipoise.channel.core.errors import OperatorError, PeerError, missing_extra
from equipoise.channel.core.ranges import (
    BundleName,
    bundle_contains,
    bundle_name,
    parse_bundle,
    topic_hash,
)
from equipoise.channel.inspect.story import overlaps
from equipoise.pulsar_cluster.reading import Address
from equipoise.pulsar_cluster.records import (
    DELETED,
    FREE,
    IN_FLIGHT,
    INIT,
    OWNED,
    SYSTEM_NAMESPACE,
    Message,
)
from equipoise.pulsar_cluster.story import state_of
from equipoise.pulsar_cluster.table import is_of_system, overlapping_pairs, server_of

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
    from equipoise.pulsar_cluster.admin import PulsarAdmin

Bundles = Mapping[str, Message]
Ask = Callable[[Bundles], Mapping[str, str]]
"""Returns the bundles about which brokers contradict the channel, each with a sentence."""

_TABLE_VIEW: Final = "loadManagerServiceUnitStateTableViewClassName"
_SYNCER: Final = "loadBalancerServiceUnitTableViewSyncer"
_OF_TOPIC: Final = "ServiceUnitStateTableViewImpl"
_STORE: Final = (
    "list the bundles of each broker with `pulsar-admin brokers namespaces CLUSTER --url BROKER`,"
    " or let the leader copy the states into the topic, within two minutes: `pulsar-admin brokers"
    f" update-dynamic-config --config {_SYNCER} --value MetadataStoreToSystemTopicSyncer`"
)

_ATTEMPTS: Final = 3
_PAUSE_S: Final = 1.0
"""A broker reads the channel within milliseconds. What it still contradicts after two seconds it
does not know from there."""

_SAMPLED_OF_BROKER: Final = 4
_SAMPLED_MAX: Final = 32
_COMPARED_MIN: Final = 2
"""With the bundles of so many brokers compared, no other question is needed."""

_TRIES_MAX: Final = 50_000
_NAMED_MAX: Final = 3
_ASK_S: Final = 10
_PROTOCOL_VERSION: Final = 19
_FRAME_BYTES_MAX: Final = 1 << 20
_SIZE: Final = Struct(">I")
_SIZES: Final = Struct(">II")


def check_store(settings: Mapping[str, str]) -> None:
    """Raise `OperatorError` if a broker with these settings keeps the states of bundles elsewhere
    than in the topic.

    While the leader copies them into the topic, the topic is as good.
    """
    kind, syncer = settings.get(_TABLE_VIEW) or _OF_TOPIC, settings.get(_SYNCER) or "None"
    if not kind.endswith(f".{_OF_TOPIC}") and kind != _OF_TOPIC and syncer == "None":
        raise OperatorError(
            "the cluster keeps the states of its bundles in the metadata store"
            f" ({_TABLE_VIEW}={kind}), which no client can read, and its topic is a leftover;"
            f" {_STORE}"
        )


def confirm(bundles: Bundles, ask: Ask, moved_since: Callable[[], set[str]]) -> None:
    """Raise `OperatorError` if brokers contradict `bundles`, the channel as read to its end.

    `moved_since` returns the bundles that the channel has had messages about since then. What moves
    meanwhile contradicts nothing.
    """
    moved, left = set[str](), dict[str, str]()
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        found = ask({bundle: message for bundle, message in bundles.items() if bundle not in moved})
        moved |= moved_since()
        left = {
            bundle: why
            for bundle, why in found.items()
            if not any(overlaps(each, parse_bundle(bundle)) for each in moved)
        }
        if not left:
            return
    named = "; ".join(list(left.values())[:_NAMED_MAX])
    raise OperatorError(
        f"the cluster's brokers do not go by its topic: {named} ({len(left)} differences); if"
        f" {_TABLE_VIEW} of the brokers names the metadata store, {_STORE}; else restart the"
        " brokers that differ"
    )


@contextmanager
def asking(address: Address, admin: PulsarAdmin | None) -> Iterator[Ask]:
    """Open the way to ask the brokers of a cluster. Raises `PeerError`, and what the admin API
    raises.
    """
    if admin is not None and admin.owned_bundles():
        yield partial(_by_admin, admin)
        return
    with _lookups(address) as ask:
        yield partial(_by_lookups, ask)


def _by_admin(admin: PulsarAdmin, bundles: Bundles) -> Mapping[str, str]:
    """Compare all bundles with those that each broker says it owns. Nothing changes by that."""
    owned = admin.owned_bundles()
    owners = {bundle: broker for broker, each in owned.items() for bundle in each}
    found: dict[str, str] = {}
    for bundle, broker in owners.items():
        message = bundles.get(bundle)
        record = None if message is None else message.record
        if record is None or (record.state not in IN_FLIGHT and server_of(record) != broker):
            where = "has no record" if record is None else f"is {state_of(record)}"
            found[bundle] = f"{broker} owns {bundle}, which {where} on the topic"
    for bundle, message in bundles.items():
        record = message.record
        if (
            record is not None
            and record.state == OWNED
            and record.destination in owned
            and bundle not in owners
        ):
            found[bundle] = (
                f"{record.destination} does not own {bundle}, which it owns on the topic"
            )
    return found


# --- lookups ---


def _by_lookups(ask: Callable[[str], str | None], bundles: Bundles) -> Mapping[str, str]:
    """Compare a sample of bundles with who serves them.

    Brokers answer with their address for clients, and the channel has that of their admin API. So
    each of the one must go with one of the other, and no host with another broker's. If that
    compares too few, a bundle of Pulsar's own that nobody owns gets an owner by the question, and
    the channel must have it then.
    """
    found: dict[str, str] = {}
    servers: dict[str, tuple[str, str]] = {}
    brokers: dict[str, tuple[str, str]] = {}
    sample = _sample_of(bundles)
    hosts = {_host(broker) for _, broker in sample}
    for bundle, broker in sample:
        topic = _topic_in(parse_bundle(bundle))
        server = None if topic is None else ask(topic)
        if server is None:
            continue
        of_broker, of_server = (
            servers.setdefault(broker, (server, bundle)),
            brokers.setdefault(server, (broker, bundle)),
        )
        if _host(server) != _host(broker) and _host(server) in hosts:
            found[bundle] = f"{server} serves {bundle}, which is owned by {broker} on the topic"
        elif of_broker[0] != server:
            found[bundle] = (
                f"{server} serves {bundle} and {of_broker[0]} {of_broker[1]}, which are both owned"
                f" by {broker} on the topic"
            )
        elif of_server[0] != broker:
            found[bundle] = (
                f"{server} serves {bundle} and {of_server[1]}, which are owned by {broker} and"
                f" {of_server[0]} on the topic"
            )
    probe = _probe(bundles) if len(servers) < _COMPARED_MIN else None
    if probe is not None and (server := ask(probe)) is not None:
        point = min(topic_hash(probe), (1 << 32) - 2)
        found[bundle_name(SYSTEM_NAMESPACE, point, point + 1)] = (
            f"{server} serves {probe}, whose bundle has no owner on the topic"
        )
    return found


def _host(address: str) -> str:
    """Return the host of `HOST:PORT` or of a URL."""
    return address.rpartition("/")[2].rpartition(":")[0]


def _sample_of(bundles: Bundles) -> list[tuple[str, str]]:
    """Return owned bundles and their brokers, some of each broker. None of them overlaps another:
    of two, one may be a leftover.
    """
    doubtful = {bundle for pair in overlapping_pairs(bundles) for bundle in pair}
    of_broker: dict[str, list[str]] = {}
    for bundle in sorted(bundles.keys() - doubtful):
        record = bundles[bundle].record
        if record is not None and record.state == OWNED and record.destination is not None:
            of_broker.setdefault(record.destination, []).append(bundle)
    sample = [
        (bundle, broker)
        for broker, owned in of_broker.items()
        for bundle in owned[:: -(-len(owned) // _SAMPLED_OF_BROKER)]
    ]
    return sample[:: -(-len(sample) // _SAMPLED_MAX) or 1]


def _topic_in(bundle: BundleName) -> str | None:
    """Return the name of a topic in a bundle, or None if none was found soon."""
    topics = (
        f"persistent://{bundle.namespace}/equipoise-lookup-{number}" for number in range(_TRIES_MAX)
    )
    return next(
        (topic for topic in topics if bundle_contains(bundle.low, bundle.high, topic_hash(topic))),
        None,
    )


def _probe(bundles: Bundles) -> str | None:
    """Return a topic of Pulsar's own namespace in a bundle without a record, or None."""
    free = {FREE, INIT, DELETED}
    held = [
        parse_bundle(bundle)
        for bundle, message in bundles.items()
        if is_of_system(bundle) and message.record is not None and message.record.state not in free
    ]
    for number in range(16):
        topic = f"persistent://{SYSTEM_NAMESPACE}/equipoise-lookup-{number}"
        if not any(bundle_contains(each.low, each.high, topic_hash(topic)) for each in held):
            return topic
    return None


@contextmanager
def _lookups(address: Address) -> Iterator[Callable[[str], str | None]]:
    """Connect to a broker, and yield the question who serves a topic: an address, or None if the
    brokers do not say.
    """
    try:
        from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
    except ImportError as error:
        raise missing_extra(
            what="asking a Pulsar cluster who serves a topic", extra="pulsar-cluster"
        ) from error

    numbers = iter(range(1 << 31))

    def ask(topic: str) -> str | None:
        number = next(numbers)
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookup.topic, command.lookup.request_id = topic, number
        answer = _exchanged(connection, command, BaseCommand.LOOKUP_RESPONSE).lookup_response
        is_served = answer.response == answer.Connect and answer.request_id == number
        return (
            (answer.brokerServiceUrlTls or answer.brokerServiceUrl or None) if is_served else None
        )

    try:
        with _connection(address) as connection:
            command = BaseCommand(type=BaseCommand.CONNECT)
            command.connect.client_version, command.connect.protocol_version = (
                "equipoise",
                _PROTOCOL_VERSION,
            )
            command.connect.auth_method_name, command.connect.auth_data = (
                address.credentials.method()
            )
            _exchanged(connection, command, BaseCommand.CONNECTED)
            yield ask
    except (OSError, ValueError) as error:
        raise PeerError(
            f"{address.service_url} did not say who serves topics: {error}; try again later"
        ) from error


@contextmanager
def _connection(address: Address) -> Iterator[socket.socket]:
    problem: OSError | None = None
    for host, port in address.hosts:
        try:
            connection = socket.create_connection((host, port), min(_ASK_S, address.timeout_s))
        except OSError as error:
            problem = error
            continue
        with connection:
            if not address.service_url.startswith("pulsar+ssl://"):
                yield connection
                return
            with address.credentials.tls().wrap_socket(connection, server_hostname=host) as secure:
                yield secure
                return
    raise problem or OSError("it names no broker")


def _exchanged(
    connection: socket.socket, command: BaseCommand, wanted: BaseCommand.Type
) -> BaseCommand:
    """Send a command, and return the answer of the type `wanted`. Raise `OSError` for an error or
    the end of the connection.
    """
    content = command.SerializeToString()
    connection.sendall(_SIZES.pack(_SIZE.size + len(content), len(content)) + content)
    while True:
        size, command_size = _SIZES.unpack(_exactly(connection, _SIZES.size))
        if size > _FRAME_BYTES_MAX or command_size > size - _SIZE.size:
            raise OSError("the answer is not one of Pulsar's")
        answer = type(command).FromString(_exactly(connection, size - _SIZE.size)[:command_size])
        if answer.type == wanted:
            return answer
        if answer.type == command.ERROR:
            raise OSError(answer.error.message)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = connection.recv(count - len(found))
        if not chunk:
            raise ConnectionResetError("the broker closed the connection")
        found += chunk
    return found
