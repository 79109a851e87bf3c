"""Connect a load worker to Kafka with Faust: topics, tables, and agents that pass messages to
`steps` and send the results.

* Decisions about messages belong in `steps`. `running` starts and stops the app, which handles no
  signals and has no web server.
* Keys and values are bytes to Faust. Its tables are in memory: some kilobytes per broker, and some
  hundred bytes per bundle that was among the busiest in the last hour.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import faust
from faust.auth import Credentials, OAuthCredentials, SASLCredentials, SSLCredentials
from faust.types import TP, AppT, EventT, StreamT, TableT, TopicT

from equipoise.brokers.load.bus import LOADS, SAMPLES, group_of, worker_topics
from equipoise.brokers.load.worker.access import KafkaAccess, Password, Tls, TokenProvider, Tokens
from equipoise.brokers.load.worker.steps import (
    Arrived,
    BrokerUpdate,
    LeftOut,
    Troubles,
    is_forgotten,
    on_handover,
    on_sample,
    on_sighting,
)
from equipoise.channel.core.side_log import SideTopic

logger = logging.getLogger(__name__)

SESSION_S: Final = 6.0
"""How long a worker may be silent before others take over its partitions: the shortest that Kafka
allows by default."""

_HEARTBEAT_S: Final = 1.5
# After a kill, messages of this time are read again, without a second effect.
_COMMIT_S: Final = 1.0

# Rows checked per message, twice as many as a message creates: so old rows go as fast as new ones
# come.
_LOOKED_AT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a load worker works: Kafka's addresses (`HOST:PORT,HOST:PORT`), how to connect, the
    topic of the log, and the partitions of the topics that workers share.
    """

    servers: str
    access: KafkaAccess
    log: str
    partitions: int


class Streams:
    """The Faust app and its agents."""

    def __init__(self, place: Place, *, folder: Path) -> None:
        """Set up the app without connecting. `folder` is for Faust's files.

        Raises OSError for a file of certificates or keys that cannot be read, including
        `ssl.SSLError`.
        """
        self.app = _app(place, folder)
        self._place = place
        self._troubles = Troubles()
        partitions, shared = place.partitions, worker_topics(place.partitions)
        self._brokers = self._table("brokers", partitions)
        self._bundles = self._table("bundles", partitions)
        self._old_brokers = _Round(self._brokers)
        self._old_bundles = _Round(self._bundles)
        self._loads = self._topic(LOADS)
        self._sightings = self._topic(shared["sightings"])
        self._handovers = self._topic(shared["handovers"])
        samples = self._topic(SAMPLES)
        self.app.on_partitions_assigned.connect(self._tell_partitions, weak=False)
        self.app.agent(samples, name="samples")(self._on_samples)
        self.app.agent(self._sightings, name="sightings")(self._on_sightings)
        self.app.agent(self._handovers, name="handovers")(self._on_handovers)

    def _topic(self, topic: SideTopic) -> TopicT:
        name = topic.beside(self._place.log)
        return self.app.topic(name, key_type=bytes, value_type=bytes, allow_empty=True)

    def _table(self, name: str, partitions: int) -> TableT[bytes, bytes]:
        return self.app.Table(name, key_type=bytes, value_type=bytes, partitions=partitions)

    async def _tell_partitions(
        self, _: AppT, /, *assigned: AbstractSet[TP], signal: object, **__: object
    ) -> None:
        del signal  # Faust passes its signal; there is only one.
        mine = sorted(
            place.partition
            for places in assigned
            for place in places
            if place.topic == SAMPLES.beside(self._place.log)
        )
        logger.info("load worker has partitions", extra={"partitions": mine})

    async def _on_samples(self, stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            message, now_ms = _arrived(event), _now_ms()
            self._old_brokers.forget(message.partition, now_ms)
            key = message.key or b""
            outcome = on_sample(self._brokers.get(key), message, now_ms=now_ms)
            if isinstance(outcome, LeftOut):
                self._leave_out(outcome)
                continue
            if outcome.problem is not None:
                self._warn("load cannot be so", key.decode(), outcome.problem)
            await self._publish(key, outcome)

    async def _on_sightings(self, stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            message, now_ms = _arrived(event), _now_ms()
            self._old_bundles.forget(message.partition, now_ms)
            key = message.key or b""
            outcome = on_sighting(
                self._bundles.get(key), message, now_ms=now_ms, partitions=self._place.partitions
            )
            if isinstance(outcome, LeftOut):
                self._leave_out(outcome)
                continue
            self._bundles[key] = outcome.row
            if outcome.handover is not None:
                partition, broker, value = outcome.handover
                await self._handovers.send(key=broker, value=value, partition=partition)

    async def _on_handovers(self, stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            message = _arrived(event)
            key = message.key or b""
            outcome = on_handover(self._brokers.get(key), message, now_ms=_now_ms())
            if isinstance(outcome, LeftOut):
                self._leave_out(outcome)
                continue
            await self._publish(key, outcome)

    async def _publish(self, broker: bytes, update: BrokerUpdate) -> None:
        """Store and send the results. Nothing awaits between reading and writing a row, so agents
        do not interfere.
        """
        if update.row is not None:
            self._brokers[broker] = update.row
        elif broker in self._brokers:
            del self._brokers[broker]
        await self._loads.send(key=broker, value=update.load)
        for bundle, sighting in update.sightings:
            await self._sightings.send(key=bundle, value=sighting)

    def _leave_out(self, message: LeftOut) -> None:
        if message.problem is not None:
            self._warn("load left out", message.subject, message.problem)

    def _warn(self, event: str, broker: str, problem: str) -> None:
        times = self._troubles.count(broker, now_ms=time.monotonic_ns() // 1_000_000)
        if times is not None:
            logger.warning(
                event,
                extra={
                    "broker": broker,
                    "problem": problem,
                    "times": times,
                    "total": self._troubles.total,
                },
            )


class _Round:
    """Goes through a table repeatedly, some rows per message, and deletes rows that are too old.

    A row can be deleted only while handling a message of its partition: Faust writes the changelog
    there.
    """

    def __init__(self, table: TableT[bytes, bytes]) -> None:
        self._table = table
        self._keys: Iterator[bytes] = iter(())

    def forget(self, partition: int, now_ms: int) -> None:
        """Check the next rows."""
        for _ in range(_LOOKED_AT):
            key = next(self._keys, None)
            if key is None:
                self._keys = iter(list(self._table.keys()))
                return
            row = self._table.get(key)
            if row is not None and is_forgotten(row, partition=partition, now_ms=now_ms):
                del self._table[key]


def _app(place: Place, folder: Path) -> faust.App:
    return faust.App(
        group_of(place.log),
        autodiscover=False,
        broker=[f"kafka://{server}" for server in place.servers.split(",")],
        broker_client_id="equipoise-load-worker",
        broker_commit_interval=_COMMIT_S,
        broker_credentials=_credentials(place.access),
        broker_heartbeat_interval=_HEARTBEAT_S,
        broker_session_timeout=SESSION_S,
        datadir=str(folder),
        key_serializer="raw",
        store="memory://",
        stream_wait_empty=False,
        table_standby_replicas=0,
        topic_disable_leader=True,
        value_serializer="raw",
        web_enabled=False,
    )


def _credentials(access: KafkaAccess) -> Credentials | None:
    context = None if access.tls is None else _context(access.tls)
    match access.login:
        case Password(mechanism=mechanism, username=username, password=password):
            return SASLCredentials(
                username=username, password=password, mechanism=mechanism, ssl_context=context
            )
        case Tokens() as tokens:
            return OAuthCredentials(oauth_cb=TokenProvider(tokens), ssl_context=context)
    return None if context is None else SSLCredentials(context)


def _context(tls: Tls) -> ssl.SSLContext:
    authorities = None if tls.authorities is None else Path(tls.authorities)
    is_folder = authorities is not None and authorities.is_dir()
    context = ssl.create_default_context(
        cafile=None if is_folder else tls.authorities, capath=tls.authorities if is_folder else None
    )
    context.check_hostname = tls.verifies_host
    context.verify_mode = ssl.CERT_REQUIRED if tls.verifies_certificate else ssl.CERT_NONE
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key, tls.key_password)
    return context


def _arrived(event: EventT[bytes]) -> Arrived:
    message = event.message
    return Arrived(
        partition=message.partition, offset=message.offset, key=message.key, value=message.value
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
