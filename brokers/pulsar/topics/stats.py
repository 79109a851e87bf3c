"""Build the stats of a topic for `GET /admin/v2/non-persistent/{tenant}/{namespace}/{topic}/stats`.

Names follow Pulsar's NonPersistentTopicStatsImpl, PublisherStatsImpl, SubscriptionStatsImpl and
ConsumerStatsImpl. Fields about storage, replication or acknowledgement are included only if tools
read them, with their values for a non-persistent topic. Rates are those of the last closed window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeGuard

from equipoise.brokers.pulsar.topics.clients import Consumer, Meter, Producer
from equipoise.brokers.pulsar.topics.dispatch import Subscription
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind

Value: TypeAlias = "float | str | bool | Stats | Sequence[Stats] | None"
Stats: TypeAlias = Mapping[str, Value]

_KINDS: Final = {
    SubscriptionKind.EXCLUSIVE: "Exclusive",
    SubscriptionKind.SHARED: "Shared",
    SubscriptionKind.FAILOVER: "Failover",
    SubscriptionKind.KEY_SHARED: "Key_Shared",
}
_ACCESS_MODES: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")


def kind_name(kind: SubscriptionKind | None) -> str:
    """Return Pulsar's name of a subscription kind, or "" for None."""
    return "" if kind is None else _KINDS[kind]


def topic_stats(topic: Topic, *, owner_broker: str) -> Stats:
    """Return the stats of one topic. Sums over subscriptions count a message once per subscription.

    `owner_broker` is the id of this broker.
    """
    subscriptions = [topic.subscriptions[name] for name in sorted(topic.subscriptions)]
    published = topic.published
    waiting = [
        subscription.arrivals for subscription in subscriptions if subscription.arrivals is not None
    ]
    return {
        "msgRateIn": published.message_rate,
        "msgThroughputIn": published.byte_rate,
        "msgRateOut": topic.delivered.message_rate,
        "msgThroughputOut": topic.delivered.byte_rate,
        "bytesInCounter": published.bytes,
        "msgInCounter": published.messages,
        "bytesOutCounter": topic.delivered.bytes,
        "msgOutCounter": topic.delivered.messages,
        "averageMsgSize": _quotient(published.byte_rate, published.message_rate),
        "msgDropRate": 0.0,
        "msgChunkPublished": False,
        "storageSize": 0,
        "backlogSize": sum(arrivals.bytes for arrivals in waiting),
        "publishers": [_producer_stats(topic.producers[name]) for name in sorted(topic.producers)],
        "waitingPublishers": 0,
        "subscriptions": {
            subscription.name: _subscription_stats(subscription) for subscription in subscriptions
        },
        "replication": {},
        "ownerBroker": owner_broker,
    }


def metadata_of(partitions: int) -> Stats:
    """Return Pulsar's PartitionedTopicMetadata."""
    return {"partitions": partitions, "deleted": False, "properties": {}}


def internal_stats(topic: Topic) -> Stats:
    """Return the internal stats of one topic: Pulsar's PersistentTopicInternalStats, as of a topic
    without ledgers.
    """
    return {
        "entriesAddedCounter": topic.last_entry_id,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "ledgers": [],
        "cursors": {name: {} for name in sorted(topic.subscriptions)},
        "schemaLedgers": [],
    }


def producers_in(stats: Stats) -> int:
    """Return the number of producers in the stats of a topic."""
    publishers = stats.get("publishers")
    return len(publishers) if isinstance(publishers, Sequence) else 0


def consumers_in(stats: Stats) -> Mapping[str, int]:
    """Return the number of consumers of each subscription in the stats of a topic."""
    subscriptions = stats.get("subscriptions")
    counts = {}
    for name, subscription in subscriptions.items() if isinstance(subscriptions, Mapping) else ():
        consumers = subscription.get("consumers") if isinstance(subscription, Mapping) else None
        counts[name] = len(consumers) if isinstance(consumers, Sequence) else 0
    return counts


def partitioned_stats(
    partitions_: Mapping[str, Stats], *, partitions: int, is_each_wanted: bool
) -> Stats:
    """Combine the stats of the partitions in use, by name, into those of the topic, as
    PartitionedTopicStatsImpl does.

    Numbers are added, publishers and consumers with the same name are merged, and averages are
    computed from the sums.
    """
    total: dict[str, Value] = {}
    for name in sorted(partitions_):
        _add(total, partitions_[name])
    _average_again(total)
    total["metadata"] = metadata_of(partitions)
    total["partitions"] = dict(partitions_) if is_each_wanted else {}
    return total


# Numbers whose sum is meaningless.
_IDENTITIES: Final = frozenset({"producerId"})

# Fields that identify a row of a list.
_ROW_NAMES: Final = ("producerName", "consumerName")


def _add(total: dict[str, Value], more: Stats) -> None:
    """Add the stats of a partition to a total. Values that are not numbers keep the first one."""
    for name, value in more.items():
        before = total.get(name)
        if isinstance(value, Mapping):
            inner: dict[str, Value] = dict(before) if isinstance(before, Mapping) else {}
            _add(inner, value)
            total[name] = inner
        elif isinstance(value, Sequence) and not isinstance(value, str):
            rows = before if isinstance(before, Sequence) and not isinstance(before, str) else ()
            total[name] = _added_rows(rows, value)
        elif name in _IDENTITIES or not _is_number(value) or not _is_number(before):
            total[name] = value if before is None else before
        else:
            total[name] = before + value


def _is_number(value: Value) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _added_rows(rows: Sequence[Stats], more: Sequence[Stats]) -> list[Stats]:
    """Merge two lists of rows. Rows of the same producer or consumer become one."""
    by_name: dict[tuple[Value, ...], dict[str, Value]] = {}
    for row in (*rows, *more):
        key = tuple(row.get(name) for name in _ROW_NAMES)
        if key in by_name:
            _add(by_name[key], row)
            _average_again(by_name[key])
        else:
            by_name[key] = dict(row)
    return list(by_name.values())


def _average_again(stats: dict[str, Value]) -> None:
    byte_rate, message_rate = stats.get("msgThroughputIn"), stats.get("msgRateIn")
    if "averageMsgSize" in stats and _is_number(byte_rate) and _is_number(message_rate):
        stats["averageMsgSize"] = _quotient(byte_rate, message_rate)


def _producer_stats(producer: Producer) -> Stats:
    published = producer.published
    return {
        "accessMode": _ACCESS_MODES[producer.access_mode],
        "msgRateIn": published.message_rate,
        "msgThroughputIn": published.byte_rate,
        "averageMsgSize": _quotient(published.byte_rate, published.message_rate),
        "msgDropRate": 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.id,
        "producerName": producer.name,
        "address": producer.address,
        "connectedSince": producer.connected_since,
        "clientVersion": producer.client_version,
        "metadata": dict(producer.properties),
    }


def _subscription_stats(subscription: Subscription) -> Stats:
    arrivals = subscription.arrivals
    active = subscription.active
    return {
        **_delivered_stats(subscription.delivered),
        "msgBacklog": arrivals.messages if arrivals is not None else 0,
        "backlogSize": arrivals.bytes if arrivals is not None else 0,
        "msgDropRate": subscription.dropped.message_rate,
        "blockedSubscriptionOnUnackedMsgs": False,
        "unackedMessages": 0,
        "msgRateExpired": 0.0,
        "type": _KINDS[subscription.kind],
        "activeConsumerName": active.name if active is not None else None,
        "consumers": [_consumer_stats(consumer) for consumer in subscription.consumers],
        "isDurable": False,  # As Pulsar says of every subscription whose topic stores nothing.
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "keySharedMode": _key_shared_mode(subscription),
    }


def _key_shared_mode(subscription: Subscription) -> str | None:
    if subscription.kind is not SubscriptionKind.KEY_SHARED:
        return None
    return "STICKY" if subscription.is_sticky else "AUTO_SPLIT"


def _consumer_stats(consumer: Consumer) -> Stats:
    return {
        **_delivered_stats(consumer.delivered),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": 0,
        "blockedConsumerOnUnackedMsgs": False,
        "address": consumer.address,
        "connectedSince": consumer.connected_since,
        "clientVersion": consumer.client_version,
        "metadata": dict(consumer.properties),
    }


def _delivered_stats(delivered: Meter) -> Stats:
    return {
        "msgRateOut": delivered.message_rate,
        "msgThroughputOut": delivered.byte_rate,
        "bytesOutCounter": delivered.bytes,
        "msgOutCounter": delivered.messages,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
    }


def _quotient(total: float, count: float) -> float:
    return total / count if count else 0.0
