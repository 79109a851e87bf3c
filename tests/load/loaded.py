"""Channels with load for tests of the command line: owners, and a load report of each broker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core.ranges import even_boundaries
from equipoise.shedder.loads import BundleTraffic, Load, Resources, Traffic, Use
from tests.channels.folding import Channel
from tests.unit.cli.fabricated import write

BUNDLES: Final = 8
MEGABYTE: Final = 1_000_000.0


def uneven_channel(
    owners: Sequence[str] = "aaaaaabb", *, brokers: Sequence[str] = "abc"
) -> Channel:
    """Live brokers, and a namespace with one bundle for each of `owners`, in the order of their
    ranges.
    """
    channel = Channel()
    channel.genesis()
    channel.join(*brokers)
    boundaries = even_boundaries(len(owners))
    channel.create(boundaries)
    for owner, low in zip(owners, boundaries, strict=False):
        channel.own(owner, low)
    return channel


def loaded(
    channel: Channel,
    folder: Path,
    percents: Mapping[str, float],
    *,
    age_ms: int = 0,
    memory: Mapping[str, float] | None = None,
) -> str:
    """The URL of the channel in a file, with load reports: this use, and 1, 2, ... MB/s for the
    bundles of each broker. `memory`: how much of it some have in use, in percent.
    """
    log = write(channel.entries, folder)
    for broker in percents:
        load = sample(channel, broker, percents[broker], age_ms=age_ms)
        if memory is not None:
            used = Use(used=memory.get(broker, 0.0), limit=100)
            load = replace(load, resources=replace(load.resources, memory=used))
        LoadBus(log).publish(load)
    return log


def sample(channel: Channel, broker: str, percent: float, *, age_ms: int = 0) -> Load:
    """A sample of all bundles of a broker."""
    owned = [bundle.name for bundle in channel.view.held_by(channel.incarnation(broker))]
    bundles = tuple(
        BundleTraffic(bundle=name, traffic=traffic(place), topics=1, cost=0.01 + 0.06 * place)
        for place, name in enumerate(sorted(owned), start=1)
    )
    rate = sum(range(1, len(owned) + 1))
    return Load(
        broker=broker,
        at_ms=time.time_ns() // 1_000_000 - age_ms,
        resources=Resources(cpu=Use(used=percent, limit=100)),
        average_use=percent / 100,
        traffic=traffic(rate),
        bundle_count=len(bundles),
        topics=len(bundles),
        cost=sum(bundle.cost for bundle in bundles),
        bundles=bundles,
    )


def traffic(megabytes: float) -> Traffic:
    """In messages of 1,000 bytes."""
    return Traffic(
        bytes_in_per_second=megabytes * MEGABYTE, messages_in_per_second=megabytes * 1_000
    )
