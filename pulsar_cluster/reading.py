"""Read the topics of a real Pulsar cluster. Nothing here writes: it has no producer, and keeps no
subscription.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    OperatorError,
    PeerError,
    missing_extra,
)
from equipoise.channel.system.clocks import Deadline
from equipoise.pulsar_cluster.credentials import NOBODY, Credentials
from equipoise.pulsar_cluster.records import (
    BROKER_LOADS,
    CHANNEL_TOPIC,
    SYSTEM_NAMESPACE,
    TOP_BUNDLES,
    Message,
    message_of,
)

if TYPE_CHECKING:
    import pulsar

_SCHEMES: Final = ("pulsar://", "pulsar+ssl://")
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
_CONNECT_S: Final = 5
_CONNECT_LEAST_S: Final = 0.1

_QUEUE: Final = 10_000
"""Messages that the client fetches ahead: 3 MB of records."""

BATCH: Final = 5_000
"""Messages in a transaction of an archive: 0.1 s of reading."""

_POLL_MS: Final = 100
_READY_MS: Final = 20
_ASK_MS: Final = 1_000
OPERATION_S: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a cluster is, and who asks.

    * `service_url`: `pulsar://HOST:PORT` or `pulsar+ssl://HOST:PORT`, several hosts separated by
      commas; or the name of an archive.
    * `admin_urls`: those of the admin API, if it may be asked.
    * `credentials`: who asks, and which brokers are trusted.
    * `timeout_s`: the time for one question to the cluster, from connecting to the answer.
    """

    service_url: str
    admin_urls: tuple[str, ...] = ()
    credentials: Credentials = NOBODY
    timeout_s: int = OPERATION_S

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """The hosts and ports of the service URL. Raises `ValueError` for one that is malformed."""
        scheme, _, hosts = self.service_url.partition("://")
        found = [urlsplit(f"//{host}") for host in hosts.partition("/")[0].split(",")]
        return [(parts.hostname or "", parts.port or _PORTS[scheme]) for parts in found]


class Read(NamedTuple):
    """One message as Pulsar's client returned it.

    * `message_id`: `LEDGER:ENTRY`, and `:PLACE` in a batch.
    * `position`: the same for the client, to go on after this message.
    * `value`: None for a tombstone.
    * `begins_anew`: messages before this one are lost: Pulsar compacted and deleted them unread.
      From here on all records follow again.
    """

    message_id: str
    position: bytes
    key: str
    producer: str
    published_ms: int
    value: bytes | None
    begins_anew: bool = False

    def message(self, offset: int) -> Message:
        """Return the message at its place among those that were read, with its value parsed."""
        row = (offset, self.message_id, self.key, self.published_ms, self.value, self.producer)
        return message_of(row, begins_anew=self.begins_anew)


def is_url(source: str) -> bool:
    """Return whether a source is meant as a URL, and not as the name of an archive."""
    return "://" in source


@contextmanager
def connected(address: Address) -> Iterator[pulsar.Client]:
    """Open a client. It connects when it is used.

    Raises `OperatorError` for a file that cannot be read, `CallerError` for another URL or without
    the extra `pulsar-cluster`, and `PeerError` if no broker of the URL can be reached: the client
    itself would try for `timeout_s`.
    """
    if not address.service_url.startswith(_SCHEMES):
        raise CallerError(
            f"{address.service_url!r} is not the service URL of a Pulsar cluster: write"
            " pulsar://HOST:PORT"
        )
    try:
        import pulsar
    except ImportError as error:
        raise missing_extra(what="reading a Pulsar cluster", extra="pulsar-cluster") from error
    who = address.credentials
    certificate, key = who.certificate or (None, None)
    authentication: pulsar.Authentication | None = None
    if who.token is not None:
        authentication = pulsar.AuthenticationToken(newest_of(who.token))
    elif who.password is not None:
        authentication = pulsar.AuthenticationBasic(*who.password)
    elif who.is_role:
        authentication = pulsar.AuthenticationTLS(certificate, key)
    _check_reachable(address)
    try:
        client = pulsar.Client(
            address.service_url,
            authentication=authentication,
            operation_timeout_seconds=address.timeout_s,
            tls_trust_certs_file_path=who.ca_file,
            tls_allow_insecure_connection=not who.checks_certificates,
            tls_validate_hostname=who.checks_names and who.checks_certificates,
            tls_certificate_file_path=certificate,
            tls_private_key_file_path=key,
            # The client logs each connection. What matters to us comes as an error.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )
    except ValueError as error:
        raise CallerError(
            f"{address.service_url!r} is not the service URL of a Pulsar cluster: {error}; write"
            " pulsar://HOST:PORT"
        ) from error
    try:
        yield client
    finally:
        client.close()


def newest_of(token: Callable[[], str]) -> Callable[[], str]:
    """Return a source of tokens that never fails: it returns the last one while `token` raises.
    Raises what `token` raises now.

    The client asks in a thread of its own, where an error would end the process. Brokers refuse a
    token that is too old.
    """
    newest = token()

    def ask() -> str:
        nonlocal newest
        with suppress(EquipoiseError):
            newest = token()
        return newest

    return ask


def _check_reachable(address: Address) -> None:
    """Raise `PeerError` if no broker of a service URL accepts a connection in time. Leave a
    malformed URL to the client.
    """
    deadline = Deadline.after(timeout_ms=round(1_000 * min(_CONNECT_S, address.timeout_s)))
    try:
        hosts = address.hosts
    except ValueError:
        return
    problems = []
    for name, port in hosts:
        try:
            socket.create_connection(
                (name, port), max(_CONNECT_LEAST_S, deadline.remaining_ms() / 1_000)
            ).close()
        except UnicodeError:
            return
        except OSError as error:
            problems.append(f"{name}:{port}: {error.strerror or error}")
        else:
            return
    raise PeerError(
        f"no broker of {address.service_url} can be reached ({', '.join(problems)}); check the"
        " service URL, or try again later"
    )


class TopicReader:
    """Reads one topic of a cluster in order. For one thread."""

    def __init__(
        self,
        client: pulsar.Client,
        topic: str,
        *,
        after: bytes | None,
        compacted: bool = False,
        newest: bool = False,
    ) -> None:
        """Begin after the position `after`, or with the first message, or with `newest` after the
        last.

        With `compacted` the topic's compacted part is read in place of the messages that it was
        made of.

        Raises `OperatorError` without permission or topic, and `PeerError` if the cluster does not
        answer.
        """
        import pulsar

        self.topic, self.name = topic, topic.rpartition("/")[2]
        self._pulsar = pulsar
        start = pulsar.MessageId.latest if newest else pulsar.MessageId.earliest
        with self._explained():
            self._reader = client.create_reader(
                topic,
                start if after is None else pulsar.MessageId.deserialize(after),
                receiver_queue_size=_QUEUE,
                reader_name="equipoise",
                is_read_compacted=compacted,
            )

    def at_end(self) -> bool:
        """Return whether all messages have been read that the topic has now. Raises `PeerError`."""
        with self._explained():
            return not self._reader.has_message_available()

    def next(self, timeout_ms: int = _POLL_MS) -> Read | None:
        """Return the next message, or None if there is none within `timeout_ms`. Raises
        `PeerError`.
        """
        try:
            message = self._reader.read_next(timeout_millis=timeout_ms)
        except self._pulsar.Timeout:
            return None
        except self._pulsar.PulsarException as error:
            raise _explained(self.topic, error) from error
        found = message.message_id()
        place = found.batch_index()
        return Read(
            f"{found.ledger_id()}:{found.entry_id()}" + (f":{place}" if place >= 0 else ""),
            found.serialize(),
            message.partition_key(),
            message.producer_name(),
            message.publish_timestamp(),
            message.data() or None,
        )

    def close(self) -> None:
        """Close the reader. A cluster that is away is no error here."""
        try:
            self._reader.close()
        except self._pulsar.PulsarException:
            return

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._pulsar.PulsarException as error:
            raise _explained(self.topic, error) from error


def read_channel(
    client: pulsar.Client, *, after: bytes | None = None, deadline: Deadline
) -> Iterator[Read]:
    """Yield the messages of the channel after the position `after`, or all, up to its end.

    Pulsar compacts the channel, and then deletes the oldest messages. What is left of them in its
    compacted part comes first. If messages after `after` were deleted, the whole compacted part
    comes, and its first message has `begins_anew`.

    Raises `PeerError` after the deadline, and what `TopicReader` raises.
    """
    with closing(TopicReader(client, CHANNEL_TOPIC, after=after)) as reader:
        first = next(_up_to_end(reader, deadline), None)
        # A reader of the compacted part that begins at `after` sees an older message than `first`
        # only if that was deleted from the topic.
        is_hole = (
            after is not None
            and next(_compacted_before(client, first, after, deadline), None) is not None
        )
        if after is None or is_hole:
            for number, read in enumerate(_compacted_before(client, first, None, deadline)):
                yield read._replace(begins_anew=is_hole and not number)
        if first is not None:
            yield first
            yield from _up_to_end(reader, deadline)


def _compacted_before(
    client: pulsar.Client, first: Read | None, after: bytes | None, deadline: Deadline
) -> Iterator[Read]:
    """Yield the messages of the compacted part after the position `after` that are older than
    `first`, the next message of the topic.
    """
    with closing(TopicReader(client, CHANNEL_TOPIC, after=after, compacted=True)) as reader:
        for read in _up_to_end(reader, deadline):
            if first is not None and _order_of(read) >= _order_of(first):
                return
            yield read


def _order_of(read: Read) -> tuple[int, ...]:
    """Return the ledger and the entry of a message, in whose order the topic is."""
    return tuple(int(part) for part in read.message_id.split(":")[:2])


def _up_to_end(reader: TopicReader, deadline: Deadline) -> Iterator[Read]:
    """Yield the messages up to the present end of a topic.

    Ask for the end only while no message is ready, and every second of a topic that never pauses:
    it costs more than a message.
    """
    asked = Deadline.after(timeout_ms=_ASK_MS)
    while deadline.remaining_ms() > 0:
        read = reader.next(_READY_MS)
        if read is not None:
            yield read
        if read is None or not asked.remaining_ms():
            if reader.at_end():
                return
            asked = Deadline.after(timeout_ms=_ASK_MS)
    raise PeerError(
        f"{reader.topic} was not read to its end in time; give the command more time (--timeout),"
        " or record the cluster first (equipoise pulsar record)"
    )


def moved_after(
    client: pulsar.Client, position: bytes | None, deadline: Deadline
) -> Callable[[], set[str]]:
    """Return the question which bundles the channel has had messages about since `position`."""

    def moved() -> set[str]:
        with closing(TopicReader(client, CHANNEL_TOPIC, after=position)) as reader:
            return {read.key for read in _up_to_end(reader, deadline)}

    return moved


def ready(reader: TopicReader, *, first_ms: int = 1) -> list[Read]:
    """Return the messages that are there, at most a batch, and wait `first_ms` for the first."""
    found: list[Read] = []
    while len(found) < BATCH and (read := reader.next(first_ms if not found else 1)) is not None:
        found.append(read)
    return found


def load_readers(client: pulsar.Client) -> tuple[TopicReader, TopicReader]:
    """Return readers of the load reports of brokers and of their busiest bundles, from now on. Both
    topics keep nothing.
    """
    loads, bundles = (
        TopicReader(client, f"non-persistent://{SYSTEM_NAMESPACE}/{name}", after=None, newest=True)
        for name in (BROKER_LOADS, TOP_BUNDLES)
    )
    return loads, bundles


def _explained(topic: str, error: Exception) -> OperatorError | PeerError:
    """Return an error of Pulsar's client as a sentence: what happened, and what to do."""
    import pulsar

    if isinstance(error, pulsar.AuthorizationError | pulsar.AuthenticationError):
        return OperatorError(
            f"the cluster does not let this client read {topic}: {error}; give it credentials"
            " (--token-file, --client-conf) with the permission to consume from the namespace"
            " pulsar/system"
        )
    if isinstance(error, pulsar.TopicNotFound):
        return OperatorError(f"{no_channel()} ({error})")
    return PeerError(
        f"the cluster did not answer while {topic} was read: {error}; check the service URL, or try"
        " again later"
    )


def no_channel() -> str:
    """Return why a cluster has no bundle state channel, and how to tell."""
    return (
        f"the cluster has no topic {CHANNEL_TOPIC}: its brokers have the modular load manager, or"
        " keep the states of bundles in the metadata store"
        " (loadManagerServiceUnitStateTableViewClassName); only the extensible load manager with"
        " its default writes them to a topic"
    )
