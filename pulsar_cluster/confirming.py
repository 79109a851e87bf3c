"""Confirm that Pulsar's channel is what a cluster's brokers go by: compare it with what they
answer.

A cluster may have moved the states of its bundles to the metadata store. The topic stays, and
nothing on it says that no broker reads it any more. The admin API has the setting, and each broker
names the bundles that it owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.core.ranges import parse_bundle
from equipoise.channel.inspect.story import overlaps
from equipoise.pulsar_cluster.records import IN_FLIGHT, OWNED, Message
from equipoise.pulsar_cluster.story import state_of
from equipoise.pulsar_cluster.table import server_of

if TYPE_CHECKING:
    from equipoise.pulsar_cluster.admin import PulsarAdmin

Bundles = Mapping[str, Message]

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

_NAMED_MAX: Final = 3


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


def confirm(bundles: Bundles, admin: PulsarAdmin, moved_since: Callable[[], set[str]]) -> None:
    """Raise `OperatorError` if brokers contradict `bundles`, the channel as read to its end, and
    what the admin API raises.

    `moved_since` returns the bundles that the channel has had messages about since then. What moves
    meanwhile contradicts nothing.
    """
    moved, left = set[str](), dict[str, str]()
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        found = _contradicted(
            admin, {bundle: message for bundle, message in bundles.items() if bundle not in moved}
        )
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


def _contradicted(admin: PulsarAdmin, bundles: Bundles) -> Mapping[str, str]:
    """Compare all bundles with those that each broker says it owns. Return those that differ, each
    with a sentence. Brokers that a proxy hides are not compared.
    """
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
