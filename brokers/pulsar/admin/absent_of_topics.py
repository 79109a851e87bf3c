"""List the features of Pulsar's topics that this server does not have. Paths of persistent topics
are refused before (`refused`).
"""

from __future__ import annotations

from typing import Final

from equipoise.brokers.http.admin.absent import Feature
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT

_TOPIC: Final = f"/admin/v2/{NON_PERSISTENT}/{{tenant}}/{{namespace}}/{{topic}}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"

# Pulsar's policies of one topic, by the last part of their path.
_POLICIES: Final = (
    *(
        "autoSubscriptionCreation",
        "backlogQuota",
        "backlogQuotaMap",
        "compactionThreshold",
        "deduplicationEnabled",
    ),
    *(
        "deduplicationSnapshotInterval",
        "delayedDelivery",
        "dispatchRate",
        "dispatcherPauseOnAckStatePersistent",
        "entryFilters",
    ),
    *(
        "inactiveTopicPolicies",
        "maxConsumers",
        "maxConsumersPerSubscription",
        "maxMessageSize",
        "maxProducers",
    ),
    *(
        "maxSubscriptionsPerTopic",
        "maxUnackedMessagesOnConsumer",
        "maxUnackedMessagesOnSubscription",
        "messageTTL",
        "offloadPolicies",
    ),
    *(
        "persistence",
        "policies",
        "publishRate",
        "replication",
        "replicatorDispatchRate",
        "retention",
        "schemaCompatibilityStrategy",
    ),
    *("subscribeRate", "subscriptionDispatchRate", "subscriptionTypesEnabled"),
)

_NO_BACKLOG: Final = (
    "this server stores no messages, so a subscription has no backlog and no position to change"
)
_NO_STORAGE: Final = "this server stores no messages, so a topic has nothing in storage"
_NO_PROPERTIES: Final = "this server keeps no properties of topics and subscriptions"
_NO_TOPIC_RIGHTS: Final = (
    "this server has no rights on single topics; grant them in the namespace (`namespaces"
    " grant-permission`)"
)

FEATURES_OF_TOPICS: Final = (
    Feature(
        methods="GET POST DELETE",
        path=f"{_TOPIC}/{{policy:{'|'.join(_POLICIES)}}}",
        why=(
            "this server has no policies of single topics, and those of Pulsar that it has are of"
            " namespaces"
        ),
        default=None,
    ),
    Feature(
        methods="GET POST",
        path=f"{_TOPIC}/schemaValidationEnforced",
        why="this server accepts producers without a schema on every topic",
        default=False,
    ),
    Feature(methods="GET", path=f"{_TOPIC}/permissions", why=_NO_TOPIC_RIGHTS, default={}),
    Feature(methods="POST DELETE", path=f"{_TOPIC}/permissions/{{role}}", why=_NO_TOPIC_RIGHTS),
    Feature(methods="GET PUT DELETE", path=f"{_TOPIC}/properties", why=_NO_PROPERTIES, default={}),
    Feature(methods="GET PUT", path=f"{_SUBSCRIPTION}/properties", why=_NO_PROPERTIES, default={}),
    Feature(
        methods="POST",
        path=f"{_SUBSCRIPTION}/{{change:skip_all|expireMessages|resetcursor}}",
        why=_NO_BACKLOG,
    ),
    Feature(
        methods="POST",
        path=f"{_SUBSCRIPTION}/{{change:skip|expireMessages|resetcursor}}/{{value}}",
        why=_NO_BACKLOG,
    ),
    Feature(
        methods="POST",
        path=f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}",
        why=_NO_BACKLOG,
    ),
    Feature(
        methods="GET",
        path=f"{_SUBSCRIPTION}/{{question:analyzeBacklog|replicatedSubscriptionStatus}}",
        why=_NO_BACKLOG,
    ),
    Feature(
        methods="POST",
        path=f"{_SUBSCRIPTION}/{{question:analyzeBacklog|replicatedSubscriptionStatus}}",
        why=_NO_BACKLOG,
    ),
    Feature(
        methods="GET",
        path=f"{_SUBSCRIPTION}/position/{{number}}",
        why="this server stores no messages, so there are none to peek at",
    ),
    Feature(
        methods="GET",
        path=f"{_TOPIC}/{{question:examinemessage|internal-info|lastMessageId}}",
        why=_NO_STORAGE,
    ),
    Feature(methods="GET", path=f"{_TOPIC}/messageid/{{time}}", why=_NO_STORAGE),
    Feature(methods="GET", path=f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}", why=_NO_STORAGE),
    Feature(methods="DELETE", path=f"{_TOPIC}/truncate", why=_NO_STORAGE),
    Feature(methods="POST", path=f"{_TOPIC}/{{change:trim|terminate}}", why=_NO_STORAGE),
    Feature(methods="POST", path=f"{_TOPIC}/terminate/partitions", why=_NO_STORAGE),
    Feature(
        methods="GET PUT",
        path=f"{_TOPIC}/{{change:backlogSize|compaction|offload}}",
        why=_NO_STORAGE,
    ),
    Feature(methods="GET PUT DELETE", path=f"{_TOPIC}/shadowTopics", why=_NO_STORAGE),
    Feature(
        methods="GET",
        path="/admin/v2/schemas/{tenant}/{namespace}/{topic}/metadata",
        why=(
            "brokers keep schemas in memory and not in ledgers, so there is no metadata; use"
            " 'schemas get'"
        ),
    ),
)
"""The features of topics that are absent, in the order of Pulsar's documentation."""
