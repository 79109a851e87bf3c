"""Keep the ownership of a run: a real view, folded from the records that brokers would write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from equipoise.channel.core import propose
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord, Joined
from equipoise.channel.core.view import View, apply

_NAMESPACE: Final = "lab/trace"


class LabChannel:
    """The channel of a run. `names` are the bundles in the order of the trace's columns."""

    def __init__(self, bundles: int) -> None:
        self.view = View()
        self._put(propose.genesis(Author(publisher="admin:lab"), cluster="lab"))
        boundaries = even_boundaries(bundles)
        self._put(
            propose.create_namespace(
                self._admin(), self.view, name=_NAMESPACE, boundaries=boundaries
            )
        )
        self.names = tuple(sorted(self.view.bundles))
        self._sequences: dict[str, int] = {}

    @property
    def live(self) -> Mapping[str, BrokerEntry]:
        """The live brokers, by id."""
        return {broker.broker: broker for broker in self.view.live_brokers()}

    def join(self, broker: str, *, capacity: int) -> None:
        """Let a broker join."""
        self._put(
            Joined(
                key=broker,
                expected_offset=self.view.last_of_broker(broker),
                publisher=broker,
                instance_id=f"{self.view.offset:032x}",
                lease_ms=3_000,
                grace_ms=500,
                renew_ms=1_000,
                addresses={"http": f"http://{broker}"},
                labels={},
                capacity=capacity,
            )
        )

    def leave(self, broker: str) -> None:
        """Let a broker go without a farewell: the first live broker declares it dead, and its
        bundles are free.
        """
        other = next(each for each in sorted(self.live) if each != broker)
        self._put(propose.down(self._author(other), self.live[broker]))

    def own(self, bundle: str, broker: str) -> None:
        """Assign a free bundle to a broker, which opens it."""
        self._put(
            propose.assign(
                self._admin(), self.view.bundles[bundle], owner=self.live[broker].incarnation
            )
        )
        self._put(propose.opened(self._author(broker), self.view.bundles[bundle]))

    def begin_move(self, bundle: str, destination: str) -> None:
        """Request a transfer."""
        self._put(
            propose.transfer(
                self._admin(),
                self.view.bundles[bundle],
                destination=self.live[destination].incarnation,
            )
        )

    def end_move(self, bundle: str) -> str | None:
        """Finish a transfer. Return the new owner, or None if a death ended the move otherwise."""
        entry = self.view.bundles[bundle]
        if entry.phase == "transferring" and entry.owner is not None and entry.source is not None:
            destination, source = (
                self.view.live[entry.owner].broker,
                self.view.live[entry.source].broker,
            )
            self._put(propose.prepared(self._author(destination), entry))
            self._put(propose.hand_over(self._author(source), self.view.bundles[bundle]))
            return destination
        if entry.phase == "assigning" and entry.owner is not None:
            destination = self.view.live[entry.owner].broker
            self._put(propose.opened(self._author(destination), entry))
            return destination
        return None

    def _admin(self) -> Author:
        return Author(publisher="admin:lab", as_of=self.view.offset)

    def _author(self, broker: str) -> Author:
        self._sequences[broker] = self._sequences.get(broker, 0) + 1
        return Author(
            publisher=broker,
            incarnation=self.live[broker].incarnation,
            sequence=self._sequences[broker],
        )

    def _put(self, record: AnyRecord) -> None:
        verdict = apply(self.view, self.view.offset + 1, record)
        assert verdict.accepted, verdict
