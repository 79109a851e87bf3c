"""Wrap confluent-kafka: create clients, make requests, and translate the library's errors into
`KafkaFailed`.

This is the only module that imports confluent-kafka.

* Each client belongs to one thread at a time. Since 2.16 the library refuses a consumer that two
  threads use.
* Never fork a process with a client: its threads do not survive, and its locks may be held.
* The library logs to Python's logging, not to standard error.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    TopicDescription,
)

from equipoise.channel.core.errors import OperatorError, invalid_kafka_setting
from equipoise.channel.kafka.answers import (
    Bounds,
    Complaints,
    KafkaFailed,
    Sent,
    TopicFacts,
    Trouble,
)
from equipoise.channel.kafka.lines import LIBRARY_LOGGER, NotAgain
from equipoise.channel.kafka.rights import GROUP, Resource, Right
from equipoise.channel.kafka.settings import without_secrets

__all__ = [
    "Administrator",
    "Clients",
    "Message",
    "PartitionConsumer",
    "PartitionProducer",
    "Taken",
    "TransactionalProducer",
]

PARTITION: Final = 0
"""The topics of a log, its snapshot and its history snapshot have one partition, which makes their
order total."""

REQUEST_BYTES_MAX: Final = 2 << 20
"""The largest message: a record of 1 MiB, its key and Kafka's framing, with room. Topics are
created to accept it."""

QUEUED_KIB_MAX: Final = 8 * 1_024
"""What the library fetches ahead per reader, in KiB: 30,000 records of 270 bytes, a third of a
second of folding."""

FETCH_WAIT_MS: Final = 500
"""How long Kafka holds an empty fetch: an idle reader sends two requests a second. A record ends
the wait at once."""

LOADING_WAIT_MS: Final = 10
"""The same for a reader that reads to the end of a transaction. That end is no message; only an
empty answer shows it."""

RECONNECT_MS_MIN: Final = 50
RECONNECT_MS_MAX: Final = 500
"""The pause between attempts to reach a broker. Brokers that come back from an outage one after the
other by more than `reconnect_ms` cannot assure each other until the last is back."""

ANSWER_MS_MAX: Final = 1_500
"""How long a request may stay unanswered before its connection is closed, and how long one may take
to open: a vanished host sends no error.

Nor does a node that was cut off from the others and takes itself for the leader: it never
acknowledges. The rest of a lease is time to find the leader and to renew. The library needs a
second more than an empty fetch takes."""

UNDER_WAY_MS_MAX: Final = 10_000
"""How long the library may try to deliver a record that was sent once.

The append was reported as in doubt long before. Retrying keeps the producer's sequence numbers
intact, and a late record gets the same verdict as one that was on its way.
"""

NUMBER_MS_MAX: Final = 2_000
"""The extra time for a producer's first record.

A producer first gets an id from Kafka, which identifies its retries. The library requests it only
half a second after its creation.
"""

_POLL_S: Final = 0.05  # The interval at which a wait for an answer lets callbacks run.

_library_logger: Final = logging.getLogger(LIBRARY_LOGGER)
_library_logger.addFilter(NotAgain())

Answer = TypeVar("Answer")


_TROUBLES: Final[Mapping[int, Trouble]] = {
    **dict.fromkeys(
        (
            # The library's own errors are named so, and are public.
            KafkaError._AUTHENTICATION,  # noqa: SLF001
            KafkaError._SSL,  # noqa: SLF001
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
            KafkaError.ILLEGAL_SASL_STATE,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        Trouble.DENIED,
    ),
    **dict.fromkeys(
        (
            KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
            KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.UNKNOWN_TOPIC_ID,
            KafkaError.INCONSISTENT_TOPIC_ID,
        ),
        Trouble.NO_TOPIC,
    ),
    **dict.fromkeys(
        (
            KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
            KafkaError._LOG_TRUNCATION,  # noqa: SLF001
            KafkaError.OFFSET_OUT_OF_RANGE,
        ),
        Trouble.OUT_OF_RANGE,
    ),
    **dict.fromkeys(
        (
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.INVALID_RECORD,
            KafkaError.RECORD_LIST_TOO_LARGE,
            KafkaError.POLICY_VIOLATION,
        ),
        Trouble.REFUSED,
    ),
    **dict.fromkeys(
        (
            KafkaError._FENCED,  # noqa: SLF001
            KafkaError.PRODUCER_FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
        ),
        Trouble.FENCED,
    ),
    KafkaError._BAD_MSG: Trouble.DAMAGED,  # noqa: SLF001
    KafkaError._BAD_COMPRESSION: Trouble.DAMAGED,  # noqa: SLF001
    KafkaError.INVALID_MSG: Trouble.DAMAGED,
    KafkaError._FATAL: Trouble.BROKEN,  # noqa: SLF001
    KafkaError._MAX_POLL_EXCEEDED: Trouble.BROKEN,  # noqa: SLF001
}


_RIGHT_MISSING: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        # Also where an idempotent producer may write no topic.
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

# `ssl://HOST:PORT/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify
# failed: broker certificate could ...`
_match_untrusted: Final = re.compile(r"\w+://([^/]+)/.*certificate verify failed", re.DOTALL).match
# `ssl://HOST:PORT/bootstrap: Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate
# required: SSL alert number 116`
_match_unwelcome: Final = re.compile(
    r"\w+://([^/]+)/.* alert [\w ]*(?:certificate|unknown ca)", re.DOTALL
).match

_RESOURCES: Final[Mapping[Resource, ResourceType]] = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS: Final[Mapping[str, AclOperation]] = {
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}

_PRODUCING: Final[Mapping[str, object]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "message.max.bytes": REQUEST_BYTES_MAX,
    "message.timeout.ms": UNDER_WAY_MS_MAX,
}


class Clients:
    """Creates the clients of one handle, and remembers their last complaint."""

    def __init__(self, *, servers: str, settings: Mapping[str, str]) -> None:
        """`settings` are the user's, checked."""
        self._settings = settings
        self.complaints = Complaints()
        self._options: dict[str, object] = {
            "client.id": "equipoise",
            "reconnect.backoff.ms": RECONNECT_MS_MIN,
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            "retry.backoff.ms": RECONNECT_MS_MIN,
            "retry.backoff.max.ms": RECONNECT_MS_MAX,
            "socket.keepalive.enable": True,
            "socket.nagle.disable": True,
            "socket.timeout.ms": ANSWER_MS_MAX,
            "socket.connection.setup.timeout.ms": ANSWER_MS_MAX,
            "api.version.request.timeout.ms": ANSWER_MS_MAX,
            "log.connection.close": False,
            "log_level": 4,
            **settings,
            "bootstrap.servers": servers,
        }

    def _complain(self, needed: str, error: KafkaError) -> None:
        """Remember an unsolicited error, unless it is no reason of a silence: "all brokers down"
        hides one, and no group is joined.
        """
        if error.code() not in {
            KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
            KafkaError.GROUP_AUTHORIZATION_FAILED,
        }:
            self.complaints.take(self.failed(error, needed=needed), now_ns=time.monotonic_ns())

    def failed(self, error: KafkaError, *, needed: str) -> KafkaFailed:
        """Translate an error of the library. `needed` is the right without which Kafka refuses the
        request: `Read on the topic shop`.
        """
        code = error.code()
        trouble = _TROUBLES.get(code, Trouble.BROKEN if error.fatal() else Trouble.AWAY)
        problem = without_secrets(error.str(), self._settings)
        if code in _RIGHT_MISSING:
            problem = f"its user needs the right {needed} ({problem})"
        elif (tls := _tls_problem(problem, self._settings)) is not None:
            trouble, problem = Trouble.DENIED, tls
        return KafkaFailed(trouble=trouble, problem=problem)

    def silence(self, problem: str) -> KafkaFailed:
        """Return the failure for a missing answer, with the last complaint if there is one."""
        return self.explained(KafkaException(KafkaError(KafkaError._TIMED_OUT, problem)), needed="")  # noqa: SLF001

    def explained(self, error: KafkaException, *, needed: str) -> KafkaFailed:
        """Translate a raised error as `failed` does. Silence is explained by the last complaint."""
        cause, *_ = error.args
        return self.complaints.explained(
            self.failed(cause, needed=needed), now_ns=time.monotonic_ns()
        )

    def administrator(self) -> Administrator:
        """Return a client for topics. Raises `CallerError`."""
        return Administrator(
            self, self._made(AdminClient, {}, needed="Describe on the log's topics")
        )

    def consumer(self, topic: str, *, committed: bool = False) -> PartitionConsumer:
        """Return a consumer without a position. With `committed` it skips open and aborted
        transactions.

        Raises `CallerError`.
        """
        options = {
            # The library requires one. No group is joined, and no offset is committed.
            "group.id": GROUP,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "error",  # A reader that is cut off must notice it.
            "check.crcs": True,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "fetch.error.backoff.ms": 100,
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": LOADING_WAIT_MS if committed else FETCH_WAIT_MS,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "queued.max.messages.kbytes": QUEUED_KIB_MAX,
        }
        return PartitionConsumer(self, self._made(Consumer, options, needed=_read_of(topic)), topic)

    def producer(self, topic: str) -> PartitionProducer:
        """Return a producer to a topic's partition. Raises `CallerError`."""
        return PartitionProducer(
            self, self._made(Producer, _PRODUCING, needed=_write_of(topic)), topic
        )

    def transactions(self, topic: str) -> TransactionalProducer:
        """Return a producer of transactions, one at a time per topic. Raises
        `CallerError`.
        """
        # A short linger packs thousands of rows into few requests.
        options = {**_PRODUCING, "linger.ms": 5, "transactional.id": topic}
        return TransactionalProducer(
            self, self._made(Producer, options, needed=_transactions_of(topic)), topic
        )

    def _made(
        self, kind: Callable[..., Answer], options: Mapping[str, object], *, needed: str
    ) -> Answer:
        try:
            return kind(
                {**self._options, "error_cb": partial(self._complain, needed), **options},
                logger=_library_logger,
            )
        except KafkaException as error:
            cause, *_ = error.args
            problem = without_secrets(cause.str(), self._settings)
            raise invalid_kafka_setting(
                setting=_named(problem, self._settings), problem=problem
            ) from error


def _tls_problem(problem: str, settings: Mapping[str, str]) -> str | None:
    """Return what a failure of TLS means. The library gives the same reason for every bad
    certificate, and alerts without their meaning.
    """
    if untrusted := _match_untrusted(problem):
        authorities = settings.get(
            "ssl.ca.location", "this machine, since ssl.ca.location is not set"
        )
        return (
            f"the certificate of Kafka at {untrusted[1]} is not valid: it is not of a CA in"
            f" {authorities}, has expired, or does not name that host"
        )
    if unwelcome := _match_unwelcome(problem):
        return (
            f"Kafka at {unwelcome[1]} does not accept the certificate of this client: set"
            " ssl.certificate.location and ssl.key.location to a valid one of its CA"
        )
    return None


def _read_of(topic: str) -> str:
    return f"Read on the topic {topic}"


def _write_of(topic: str) -> str:
    return f"Write on the topic {topic}"


def _transactions_of(topic: str) -> str:
    return f"Write on the topic {topic} and on the transactional id {topic}"


def _named(problem: str, settings: Mapping[str, str]) -> str:
    """Return the setting that the library complains about and quotes."""
    return next((setting for setting in settings if f'"{setting}"' in problem), "of the client")


class Administrator:
    """A short-lived client for topics, closed at the end of its context."""

    def __init__(self, clients: Clients, client: AdminClient) -> None:
        """Use `Clients.administrator` instead."""
        self._clients = clients
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.__exit__(kind, error, trace)

    def describe(self, topic: str, *, timeout_ms: int) -> TopicFacts | None:
        """Return the facts about a topic, or None if there is none. Raises `KafkaFailed`."""
        try:
            description = self._description(topic, timeout_ms)
            resource = ConfigResource(ResourceType.TOPIC, topic)
            asked = self._client.describe_configs([resource], request_timeout=timeout_ms / 1_000)[
                resource
            ]
            entries = self._answer(
                asked, timeout_ms, needed=f"DescribeConfigs on the topic {topic}"
            )
        except KafkaFailed as failed:
            if failed.trouble is Trouble.NO_TOPIC:
                return None
            raise
        return TopicFacts(
            id=str(description.topic_id),
            partitions=len(description.partitions),
            replication=min(
                (len(partition.replicas) for partition in description.partitions), default=0
            ),
            settings={name: entry.value for name, entry in entries.items()},
        )

    def identity(self, topic: str, *, timeout_ms: int) -> str | None:
        """Return the id of a topic, which changes if the topic is recreated, or None if there is
        none. Raises `KafkaFailed`.
        """
        try:
            return str(self._description(topic, timeout_ms).topic_id)
        except KafkaFailed as failed:
            if failed.trouble is Trouble.NO_TOPIC:
                return None
            raise

    def _description(self, topic: str, timeout_ms: int) -> TopicDescription:
        asked = self._client.describe_topics(
            TopicCollection([topic]), request_timeout=timeout_ms / 1_000
        )
        future: Future[TopicDescription] = asked[topic]
        return self._answer(
            future,
            timeout_ms,
            needed=f"Describe (which Read and Write include) on the topic {topic}",
        )

    def brokers(self, *, timeout_ms: int) -> int:
        """Return how many brokers the Kafka cluster has now. Raises `KafkaFailed`."""
        asked = self._client.describe_cluster(request_timeout=timeout_ms / 1_000)
        return len(self._answer(asked, timeout_ms, needed="Describe on the cluster").nodes)

    def create(
        self,
        topic: str,
        *,
        replication: int,
        settings: Mapping[str, str],
        timeout_ms: int,
    ) -> None:
        """Create a topic of one partition. An existing one stays as it is. Raises `KafkaFailed`."""
        wanted = NewTopic(
            topic, num_partitions=1, replication_factor=replication, config=dict(settings)
        )
        seconds = timeout_ms / 1_000
        future = self._client.create_topics(
            [wanted], operation_timeout=seconds, request_timeout=seconds
        )[topic]
        try:
            self._answer(future, timeout_ms, needed=f"Create on the topic {topic}")
        except KafkaFailed as failed:
            cause = failed.__cause__
            if (
                not isinstance(cause, KafkaException)
                or cause.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS
            ):
                raise

    def delete_below(self, topic: str, below: int, *, timeout_ms: int) -> None:
        """Delete all messages with an offset below `below`. Raises `KafkaFailed`."""
        place = TopicPartition(topic, PARTITION, below)
        seconds = timeout_ms / 1_000
        future = self._client.delete_records(
            [place], request_timeout=seconds, operation_timeout=seconds
        )[place]
        self._answer(future, timeout_ms, needed=f"Delete on the topic {topic}")

    def grant(self, rights: Iterable[Right], *, principal: str, timeout_ms: int) -> None:
        """Give rights to a user, such as `User:broker`, from any host.

        Raises `KafkaFailed`, and `OperatorError` if Kafka checks no rights.
        """
        bindings = [
            AclBinding(
                _RESOURCES[right.resource],
                right.name,
                ResourcePatternType.LITERAL,
                principal,
                "*",
                _OPERATIONS[operation],
                AclPermissionType.ALLOW,
            )
            for right in rights
            for operation in right.operations
        ]
        for future in self._client.create_acls(
            bindings, request_timeout=timeout_ms / 1_000
        ).values():
            try:
                self._answer(future, timeout_ms, needed="Alter on the cluster")
            except KafkaFailed as failed:
                cause = failed.__cause__
                if (
                    isinstance(cause, KafkaException)
                    and cause.args[0].code() == KafkaError.SECURITY_DISABLED
                ):
                    problem = (
                        "this Kafka checks no rights, so it cannot grant any; set"
                        " authorizer.class.name on its nodes"
                    )
                    raise OperatorError(problem) from failed
                raise

    def _answer(self, future: Future[Answer], timeout_ms: int, *, needed: str) -> Answer:
        """Wait for an answer. Meanwhile run callbacks, which report why there is none. `needed` is
        as for `Clients.failed`.
        """
        give_up_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while True:
            self._client.poll(0)
            self._clients.complaints.check(now_ns=time.monotonic_ns())
            try:
                return future.result(_POLL_S)
            except FutureTimeoutError:
                if time.monotonic_ns() >= give_up_ns:
                    raise self._clients.silence(f"no answer within {timeout_ms} ms") from None
            except KafkaException as error:
                self._client.poll(0)
                raise self._clients.explained(error, needed=needed) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Messages with their offsets, and what else Kafka said with them.

    Everything below `reached` is here, came before or is a gap; it is -1 if Kafka told no offset.
    `failure` is why no more messages will come.
    """

    messages: Sequence[tuple[int, Message]] = ()
    reached: int = -1
    failure: KafkaFailed | None = None


class PartitionConsumer:
    """A consumer of the one partition of a topic. One thread at a time."""

    def __init__(self, clients: Clients, consumer: Consumer, topic: str) -> None:
        """Use `Clients.consumer` instead."""
        self._clients = clients
        self._consumer = consumer
        self._topic = topic
        self._is_started = False

    def start_at(self, offset: int) -> None:
        """Start to fetch from `offset`."""
        self._is_started = True
        self._consumer.assign([TopicPartition(self._topic, PARTITION, offset)])

    def take(self, limit: int, *, timeout_ms: int) -> Taken | None:
        """Wait for a message, then return it and others already fetched, at most `limit`. Return
        None after `timeout_ms`.

        Two errors are no failure: one that passes, as the library tries again, and one about the
        coordinator of a group, which is not needed.
        """
        first = self._consumer.poll(timeout_ms / 1_000)
        if first is None:
            return None
        messages: list[tuple[int, Message]] = []
        reached, failure = -1, None
        for message in (first, *self._consumer.consume(limit - 1, 0)):
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None, "an event that is no message has an error"
                messages.append((offset, message))
                reached = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                reached = max(reached, offset or 0)
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                failed = self._clients.failed(error, needed=_read_of(self._topic))
                failure = failure if failed.trouble is Trouble.AWAY else failed
        return Taken(messages=messages, reached=reached, failure=failure)

    def bounds(self, *, timeout_ms: int) -> Bounds:
        """Return the bounds of the partition, as its leader reports them now. Raises
        `KafkaFailed`.
        """
        place = TopicPartition(self._topic, PARTITION)
        if not self._is_started:
            self._consumer.poll(0)  # Lets callbacks run; takes no message.
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=timeout_ms / 1_000)
        except KafkaException as error:
            raise self._clients.explained(error, needed=_read_of(self._topic)) from error
        return Bounds(low=low, high=high)

    def offset_at(self, time_ms: int, *, timeout_ms: int) -> int | None:
        """Return the first offset appended at or after a Unix time, or None if there is none.
        Raises `KafkaFailed`.
        """
        place = TopicPartition(self._topic, PARTITION, time_ms)
        try:
            (found,) = self._consumer.offsets_for_times([place], timeout=timeout_ms / 1_000)
        except KafkaException as error:
            raise self._clients.explained(error, needed=_read_of(self._topic)) from error
        if found.error is not None:
            raise self._clients.failed(found.error, needed=_read_of(self._topic))
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        """Close the consumer with its threads and connections."""
        self._consumer.close()


class PartitionProducer:
    """An idempotent producer to one partition of a topic. One thread at a time."""

    def __init__(self, clients: Clients, producer: Producer, topic: str) -> None:
        """Use `Clients.producer` instead."""
        self._clients = clients
        self._producer = producer
        self._topic = topic
        self._has_number_by_ns = time.monotonic_ns() + NUMBER_MS_MAX * 1_000_000

    def send(
        self, values: Sequence[bytes | None], *, timeout_ms: int, key: bytes | None = None
    ) -> Sent:
        """Send records in order and wait for their acknowledgements. A value of None is a
        tombstone.

        A record not sent within `timeout_ms` never will be. A record sent but not acknowledged is
        in doubt.
        """
        outcomes: list[int | KafkaError | None] = [None] * len(values)
        open_count = 0

        def settle(place: int, error: KafkaError | None, message: Message) -> None:
            nonlocal open_count
            outcomes[place] = message.offset() if error is None else error
            open_count -= 1

        give_up_ns = max(time.monotonic_ns() + timeout_ms * 1_000_000, self._has_number_by_ns)
        for place, value in enumerate(values):
            try:
                self._producer.produce(
                    self._topic, value, key, PARTITION, on_delivery=partial(settle, place)
                )
            except KafkaException as error:
                outcomes[place] = error.args[0]
                break
            except BufferError:
                outcomes[place] = KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001
                break
            open_count += 1
        queued = open_count
        fatal: KafkaError | None = None
        while (
            open_count and fatal is None and (remaining_ns := give_up_ns - time.monotonic_ns()) > 0
        ):
            fatal = self._poll(remaining_ns / 1e9)
        if open_count:
            self._producer.purge(in_queue=True, in_flight=False)
            self._poll(0)
        if fatal is not None:
            outcomes = [outcome if isinstance(outcome, int) else fatal for outcome in outcomes]
        failed = partial(self._clients.failed, needed=_write_of(self._topic))
        reported = [
            failed(outcome) if isinstance(outcome, KafkaError) else outcome for outcome in outcomes
        ]
        sent = Sent.of(
            reported,
            queued=queued,
            silence=partial(self._clients.silence, "no acknowledgement in time"),
        )
        if sent.failure is None:
            self._has_number_by_ns = 0
        return sent

    def _poll(self, wait_s: float) -> KafkaError | None:
        """Let callbacks run. Return the error that makes the producer unusable, such as a denied
        right: the library raises it here.
        """
        try:
            self._producer.poll(wait_s)
        except KafkaException as error:
            fatal: KafkaError = error.args[0]
            return fatal
        return None

    def drain(self) -> None:
        """Let callbacks run. The next `send` reports an error that makes the producer unusable."""
        self._poll(0)

    def close(self) -> None:
        """Close the producer. Unsent records are dropped."""
        self._producer.purge(blocking=False)
        with suppress(KafkaException):  # A broken producer raises again here.
            self._producer.close()


class TransactionalProducer:
    """A producer of transactions that fences earlier producers with its id. One thread at a
    time.
    """

    def __init__(self, clients: Clients, producer: Producer, topic: str) -> None:
        """Use `Clients.transactions` instead."""
        self._clients = clients
        self._producer = producer
        self._topic = topic
        self._is_open = False
        self._last_offset = -1

    def claim(self, *, timeout_ms: int) -> None:
        """Fence other producers and end their open transactions. Raises `KafkaFailed`."""
        # After a failure, too, the library's `close` would try to end a transaction.
        self._is_open = True
        self._call(self._producer.init_transactions, timeout_ms)
        self._is_open = False

    def write(self, messages: Iterable[tuple[bytes, bytes | None]], *, timeout_ms: int) -> int:
        """Write messages (key, value), at least one, in one transaction. Return the offset of the
        last.

        Readers of committed messages see them once their end is above that offset: Kafka commits a
        transaction at its coordinator before it ends it on the partition.

        The producer is unusable after an error. `KafkaFailed` leaves in doubt whether the messages
        are there; an error raised by `messages` aborts the transaction.
        """
        self._is_open = True
        try:
            self._producer.begin_transaction()
            for key, value in messages:
                self._produce(key, value, timeout_ms)
        except KafkaException as error:
            raise self._clients.explained(error, needed=_transactions_of(self._topic)) from error
        except Exception:
            # Otherwise it would stay open until another claim, or for a minute.
            with suppress(KafkaException):
                self._producer.abort_transaction(timeout_ms / 1_000)
                self._is_open = False
            raise
        self._call(self._producer.commit_transaction, timeout_ms)
        self._is_open = False
        return self._last_offset

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._last_offset = message.offset() or 0

    def _produce(self, key: bytes, value: bytes | None, timeout_ms: int) -> None:
        give_up_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, PARTITION, on_delivery=self._delivered
                )
            except BufferError:  # The library's queue is full.
                if time.monotonic_ns() >= give_up_ns:
                    raise self._clients.silence(
                        f"no row was acknowledged within {timeout_ms} ms"
                    ) from None
                self._producer.poll(_POLL_S)
            else:
                return

    def _call(self, call: Callable[[float], None], timeout_ms: int) -> None:
        try:
            call(timeout_ms / 1_000)
        except KafkaException as error:
            with suppress(KafkaException):  # After a fatal error it raises that again.
                self._producer.poll(0)
            raise self._clients.explained(error, needed=_transactions_of(self._topic)) from error

    def close(self) -> None:
        """Close the producer. Unsent records are dropped."""
        if self._is_open:
            # The library's `close` would wait for a transaction that cannot end.
            self._producer.purge(blocking=False)
        else:
            self._producer.close()
