"""Channels with brokers, namespaces and policies, for tests of who may have a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from equipoise.brokers.balancing.namespace_policies import ANTI_AFFINITY_GROUP
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import Document
from equipoise.shedder.loads import BundleTraffic, Load, Traffic
from tests.channels.folding import Channel, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A broker as it joins."""

    broker: str
    domain: str | None = None
    version: str = "1.0.0"
    capacity: int = 100


def ruled_channel(
    members: Iterable[Member | str], namespaces: Mapping[str, str | None], *, bundles: int = 1
) -> Channel:
    """A channel with these brokers, and namespaces of free bundles, each with its anti-affinity
    group or None.
    """
    channel = Channel()
    channel.genesis()
    for member in members:
        told = Member(broker=member) if isinstance(member, str) else member
        record = joined(told.broker, channel.view, instance_id=f"instance_id of {told.broker}")
        channel.accept(
            replace(
                record, failure_domain=told.domain, version=told.version, capacity=told.capacity
            )
        )
    for namespace, group in namespaces.items():
        policies: Document = {} if group is None else {ANTI_AFFINITY_GROUP: group}
        boundaries = even_boundaries(bundles)
        channel.accept(
            propose.create_namespace(
                channel.admin(),
                channel.view,
                name=namespace,
                boundaries=boundaries,
                policies=policies,
            )
        )
    return channel


def set_policy(channel: Channel, key: str, document: Document) -> None:
    """Write a policy without checks."""
    channel.accept(propose.set_policy(channel.admin(), channel.view, name=key, document=document))


def give(channel: Channel, bundle: str, broker: str) -> None:
    """Let a broker own a free bundle."""
    channel.accept(
        propose.assign(
            channel.admin(), channel.view.bundles[bundle], owner=channel.incarnation(broker)
        )
    )
    channel.accept(propose.opened(channel.author(broker), channel.view.bundles[bundle]))


def bundle_of(channel: Channel, namespace: str, place: int = 0) -> BundleEntry:
    return channel.view.bundles_of(namespace)[place]


def load(
    used: float = 0.0,
    *,
    topics: int = 0,
    messages: float = 0.0,
    throughput: float = 0.0,
    bundles: Mapping[str, float] | None = None,
) -> Load:
    """A report: use as a fraction, and of each bundle the same number of bytes and messages per
    second.
    """
    traffic = {
        name: Traffic(bytes_in_per_second=rate, messages_in_per_second=rate)
        for name, rate in (bundles or {}).items()
    }
    return Load(
        broker="a",
        at_ms=0,
        average_use=used,
        average_bytes_per_second=throughput,
        traffic=Traffic(bytes_in_per_second=throughput, messages_in_per_second=messages),
        topics=topics,
        bundle_count=len(traffic),
        bundles=tuple(BundleTraffic(bundle=name, traffic=told) for name, told in traffic.items()),
    )
