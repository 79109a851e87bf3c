"""What the tests of checkers show to them: a log that is made record by record, and stand-ins for what they look at.

May live here: parts that several tests of checkers share.
"""

from __future__ import annotations

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord, Joined
from equipoise.channel.core.view import View

NAMESPACE = "tenant/ns"
MIDDLE = 0x80000000


class History:
    """A log of records, and what a reader made of each."""

    def __init__(self) -> None:
        self.reader = Reader(log="test")
        self.folded: list[Folded] = []
        self.add(propose.genesis(Author(publisher="admin:test"), cluster="test"))

    @property
    def view(self) -> View:
        return self.reader.view

    def add(self, record: AnyRecord) -> Folded:
        self.folded.append(self.reader.feed(Entry(self.reader.position, encode(record))))
        return self.folded[-1]

    def join(self, broker: str) -> int:
        last = self.view.last_of_broker(broker)
        joined = Joined(
            key=broker,
            based_on=last,
            publisher=broker,
            nonce=f"{broker}:1",
            lease_ms=3_000,
            margin_ms=500,
            renew_ms=1_000,
            addresses={},
            labels={},
        )
        return self.add(joined).offset

    def create(self) -> BundleEntry:
        author = Author(publisher="admin:test", as_of=self.view.offset)
        self.add(propose.create_namespace(author, self.view, name=NAMESPACE, boundaries=(0, MIDDLE, HASH_MAX)))
        return self.view.bundles_of(NAMESPACE)[0]

    def author(self, broker: str, sequence: int) -> Author:
        return Author(publisher=broker, incarnation=self.view.brokers[broker].incarnation, sequence=sequence)


class Fake:
    """Whatever a checker looks at, and no more; told apart by identity, as processes are."""

    alive: bool

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)
