"""A channel in memory for tests of the fold: proposals go through bytes, and every reader must come
to the same view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BrokerEntry, BundleEntry, Verdict
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import AnyRecord, Joined, LevelRecord
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View, apply

CLUSTER = "test"
NAMESPACE = "tenant/ns"
MIDDLE = 0x80000000


def joined(
    broker: str,
    view: View,
    *,
    instance_id: str,
    replaces: str | None = None,
    after_silence: bool = False,
    supports: int = 1,
    serves: Sequence[str] | None = None,
) -> Joined:
    """The record by which a process joins as `broker`, made against `view`."""
    return Joined(
        key=broker,
        expected_offset=view.last_of_broker(broker),
        publisher=broker,
        instance_id=instance_id,
        lease_ms=3_000,
        grace_ms=500,
        renew_ms=1_000,
        addresses={"http": f"http://{broker}"},
        labels={"zone": "a"},
        namespaces=None if serves is None else tuple(serves),
        supported_level=supports,
        replaces=replaces,
        after_silence=after_silence,
    )


def raise_level(author: Author, view: View, *, level: int) -> LevelRecord:
    """The record that raises the level of the rules, made against `view`; as long as there is one
    level nobody else writes it.
    """
    return LevelRecord(
        key="level", expected_offset=view.level_last, **author.signature, raises_to=level
    )


class Channel:
    """One log with its live view. `check` folds it again from zero and over a snapshot, and
    compares.
    """

    def __init__(self) -> None:
        self.view = View()
        self.entries: list[tuple[int, bytes]] = []
        self._attempts: dict[int, int] = {}

    def put(self, record: AnyRecord, *, offset: int | None = None) -> Verdict:
        """Append a record, at the next offset if none is given (the first is 1), and return what
        the fold says of it.
        """
        return self.put_bytes(encode(record), offset=offset)

    def put_bytes(self, data: bytes, *, offset: int | None = None) -> Verdict:
        """Append any bytes."""
        place = max(self.view.offset, 0) + 1 if offset is None else offset
        self.entries.append((place, data))
        return apply(self.view, place, decode(data))

    def accept(self, record: AnyRecord) -> int:
        """Append a record that must be accepted; its offset."""
        verdict = self.put(record)
        assert verdict.accepted, (verdict, record)
        return self.view.offset

    def author(self, broker: str) -> Author:
        """A live broker, with the number of a new attempt."""
        incarnation = self.view.brokers[broker].incarnation
        self._attempts[incarnation] = self._attempts.get(incarnation, 0) + 1
        return Author(
            publisher=broker, incarnation=incarnation, sequence=self._attempts[incarnation]
        )

    def admin(self) -> Author:
        """An admin who has read the whole log."""
        return Author(publisher="admin:ops", as_of=self.view.offset)

    def genesis(self) -> None:
        """Append the first record."""
        self.accept(propose.genesis(Author(publisher="admin:ops"), cluster=CLUSTER))

    def join(self, *brokers: str, serves: Sequence[str] | None = None) -> None:
        """Let brokers join, each with the instance id `instance_id of BROKER`, whose programs serve
        namespaces of these patterns.
        """
        for broker in brokers:
            self.accept(
                joined(broker, self.view, instance_id=f"instance_id of {broker}", serves=serves)
            )

    def create(
        self, boundaries: Sequence[int] = (0, HASH_MAX), *, namespace: str = NAMESPACE
    ) -> None:
        """Create a namespace."""
        self.accept(
            propose.create_namespace(self.admin(), self.view, name=namespace, boundaries=boundaries)
        )

    def incarnation(self, broker: str) -> int:
        """The newest incarnation of a broker."""
        return self.view.brokers[broker].incarnation

    def broker(self, broker: str) -> BrokerEntry:
        """The entry of a broker, as it is now: entries of brokers change in place."""
        return replace(self.view.brokers[broker])

    def bundle(self, point: int = 0, *, namespace: str = NAMESPACE) -> BundleEntry:
        """The bundle that holds a point."""
        bundle = self.view.bundle_at(namespace, point)
        assert bundle is not None
        return bundle

    def own(self, broker: str, point: int = 0) -> None:
        """Give the free bundle at a point to a broker, and let it open it."""
        self.accept(
            propose.assign(self.admin(), self.bundle(point), owner=self.incarnation(broker))
        )
        self.accept(propose.opened(self.author(broker), self.bundle(point)))

    def die(self, broker: str) -> None:
        """Let an admin prove that a broker is dead."""
        entry = self.view.brokers[broker]
        self.accept(propose.down(self.admin(), entry, instance_id=entry.joined.instance_id))

    def check(self) -> None:
        """The fold from zero, and the one over a snapshot taken in the middle, give the live
        view.
        """
        again = View()
        middle = len(self.entries) // 2
        for place, (offset, data) in enumerate(self.entries):
            if place == middle:
                again = from_bytes(to_bytes(again))
            apply(again, offset, decode(data))
        assert to_bytes(self.view) == to_bytes(again)


def channel_with(*brokers: str, bundles: int = 1) -> Channel:
    """A channel with these brokers alive, and one namespace of so many free bundles."""
    channel = Channel()
    channel.genesis()
    channel.join(*brokers)
    channel.create(even_boundaries(bundles))
    return channel


def channel_in(phase: Phase, *brokers: str) -> Channel:
    """A channel whose only bundle is in a phase: `owner` and `source` are the brokers that it
    names, `brokers` others.

    In `unloading` only `source` is named; a phase in which `source` serves had it as its owner
    before.
    """
    channel = channel_with("owner", "source", *brokers)
    if phase == "free":
        return channel
    first = "source" if phase in ("transferring", "handing_over", "unloading") else "owner"
    channel.accept(
        propose.assign(channel.admin(), channel.bundle(), owner=channel.incarnation(first))
    )
    if phase == "assigning":
        return channel
    channel.accept(propose.opened(channel.author(first), channel.bundle()))
    if phase == "unloading":
        channel.accept(propose.unload(channel.admin(), channel.bundle()))
    if phase == "splitting":
        channel.accept(
            propose.start_split(
                channel.admin(),
                channel.bundle(),
                algorithm="specified_positions_divide",
                positions=(MIDDLE,),
            )
        )
    if phase in ("transferring", "handing_over"):
        channel.accept(
            propose.transfer(
                channel.admin(), channel.bundle(), destination=channel.incarnation("owner")
            )
        )
    if phase == "handing_over":
        channel.accept(propose.prepared(channel.author("owner"), channel.bundle()))
    assert phase == channel.bundle().phase
    return channel
