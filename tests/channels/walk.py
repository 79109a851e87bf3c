"""Generate random streams of mostly plausible records from several publishers, each with a view of
its own.

A publisher reads the log with a lag, so its proposals are often stale. It usually knows the number
of its own attempts, and sometimes proposes an illegal transition. In between come late duplicates,
records with a broken field, garbage, gaps between offsets, and jumps that make admins late.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import orjson

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import (
    ADMIN_WINDOW_OFFSETS,
    AnyRecord,
    BundleTransition,
    Joined,
    Merge,
    Split,
)
from equipoise.channel.core.view import View, apply
from tests.channels.folding import raise_level

BROKERS = ("a:1", "b:1", "c:1", "d:1")
ADMINS = ("admin:ops", "admin:eve")
NAMESPACES = ("t/one", "t/two")
POLICIES = ("isolation", "groups")
CUTS = tuple(0x10000000 * sixteenth for sixteenth in range(1, 16))
BUNDLES_MAX = 24

# Values for a field of a broken record.
STRANGE: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**63 - 1,
    2**63,
    0.5,
    "",
    "x",
    "admin:x",
    "a:1",
    [],
    [1],
    [True],
    {},
    {"a": 1},
    {"a": []},
)

Proposals = list[Callable[[], AnyRecord]]


class Reader:
    """A publisher: a name, a view that lags behind the log, and the number of attempts of each
    incarnation.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.view = View()
        self.position = 0
        self.attempts: dict[int, int] = {}

    def read(self, entries: list[tuple[int, bytes]], until: int) -> None:
        """Fold the entries before the index `until`."""
        for offset, data in entries[self.position : until]:
            apply(self.view, offset, decode(data))
        self.position = max(self.position, until)

    def author(self, rng: random.Random) -> Author:
        """Return the author of the next record. Sometimes its attempt or its view is too old."""
        if self.name.startswith("admin:"):
            behind = rng.choice((0, 0, 0, 1, 7, ADMIN_WINDOW_OFFSETS))
            return Author(publisher=self.name, as_of=max(0, self.view.offset - behind))
        entry = self.view.brokers.get(self.name)
        incarnation = entry.incarnation if entry else rng.randrange(1, 9)
        attempt = self.attempts.get(incarnation, 0) + rng.choice((1, 1, 1, 1, 1, 1, 1, 3, 0))
        self.attempts[incarnation] = attempt
        return Author(
            publisher=self.name,
            incarnation=incarnation,
            sequence=attempt,
            timestamp_ms=rng.choice((0, 1_700_000_000_000)),
        )


class Walk:
    """A stream of entries. The same seed gives the same entries."""

    def __init__(self, seed: int, *, levels: bool = False) -> None:
        """Seed the stream. With `levels` it may contain records that raise the format version,
        after which old brokers are refused.
        """
        self.rng = random.Random(seed)
        self.levels = levels
        self.entries: list[tuple[int, bytes]] = []
        self.readers = [Reader(name) for name in (*BROKERS, *ADMINS)]

    def step(self) -> tuple[int, bytes]:
        """Append the next entry. Return its offset and its bytes."""
        rng = self.rng
        leap = rng.choice((1,) * 60 + (2, 9, ADMIN_WINDOW_OFFSETS + 5))
        offset = (self.entries[-1][0] if self.entries else 0) + leap
        self.entries.append((offset, self.next_data()))
        return self.entries[-1]

    def next_data(self) -> bytes:
        """Return the bytes of the next entry. The caller chooses the offset and appends it to
        `entries`.
        """
        rng = self.rng
        chance = rng.random()
        if not self.entries or (chance < 0.02 and len(self.entries) < 20):
            return encode(
                propose.genesis(
                    Author(publisher="admin:ops"), cluster=rng.choice(("test",) * 9 + ("other",))
                )
            )
        if chance < 0.07:
            return rng.choice(self.entries)[1]
        if chance < 0.09:
            return rng.randbytes(rng.randrange(40))
        record = encode(self._record())
        return self._broken(record) if chance < 0.15 else record

    def _broken(self, data: bytes) -> bytes:
        fields: dict[str, object] = orjson.loads(data)
        for _ in range(self.rng.choice((1, 1, 2))):
            fields[self.rng.choice((*fields, "level", "as_of"))] = self.rng.choice(STRANGE)
        return orjson.dumps(fields)

    def _record(self) -> AnyRecord:
        rng = self.rng
        reader = rng.choice(self.readers)
        reader.read(self.entries, len(self.entries) - rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 8)))
        view = reader.view
        live = [entry for entry in view.live_brokers() if entry.broker == reader.name]
        if not reader.name.startswith("admin:") and (not live or rng.random() < 0.02):
            return self._join(reader)
        author = reader.author(rng)
        topic = rng.random()
        if topic < 0.25:
            return rng.choice(self._about_brokers(author, view))()
        if topic < 0.35 or not view.bundles:
            return rng.choice(self._about_names(author, view))()
        bundle = rng.choice(self._interesting(view, live))
        record = rng.choice(self._about_bundle(author, view, bundle))()
        return self._misnamed(record, view) if rng.random() < 0.03 else record

    def _interesting(self, view: View, live: list[BrokerEntry]) -> list[BundleEntry]:
        """Return mostly the bundles that wait for this publisher, or those that wait for nobody."""
        chance = self.rng.random()
        mine = [
            entry
            for entry in view.unsettled()
            if live and live[0].incarnation in (entry.owner, entry.source)
        ]
        if mine and chance < 0.6:
            return mine
        anybodys = [entry for entry in view.bundles.values() if entry.phase in ("free", "owned")]
        return anybodys if anybodys and chance < 0.85 else list(view.bundles.values())

    def _misnamed(self, record: AnyRecord, view: View) -> AnyRecord:
        """Replace an incarnation in a transition by a random one."""
        if not isinstance(record, BundleTransition):
            return record
        anybody = self.rng.choice([entry.incarnation for entry in view.brokers.values()] or [0])
        if record.owner is not None and self.rng.random() < 0.5:
            return replace(record, owner=anybody)
        return record if record.source is None else replace(record, source=anybody)

    def _join(self, reader: Reader) -> Joined:
        rng = self.rng
        before = reader.view.brokers.get(reader.name)
        alive = before is not None and before.live
        return Joined(
            key=reader.name,
            expected_offset=reader.view.last_of_broker(reader.name),
            publisher=reader.name,
            instance_id=f"instance_id {rng.randrange(10**6)}",
            lease_ms=3_000,
            grace_ms=500,
            renew_ms=1_000,
            addresses={"http": f"http://{reader.name}"},
            labels={},
            namespaces=rng.choice((None, None, None, ("t/one",), ("t/one", "t/t*"), ("*wo",), ())),
            level=max(1, reader.view.level),
            supported_level=rng.choice((1, 2, 2, 2, 2)) if self.levels else 1,
            replaces=before.joined.instance_id if alive and before and rng.random() < 0.5 else None,
            after_silence=alive and rng.random() < 0.3,
        )

    def _about_brokers(self, author: Author, view: View) -> Proposals:
        rng = self.rng
        others: list[BrokerEntry] = list(view.brokers.values())
        if not others:
            return self._about_names(author, view)
        own = view.brokers.get(author.publisher, rng.choice(others))
        other = rng.choice(others)
        renewals: Proposals = [lambda: propose.renewed(author, own)] * 8
        return [
            *renewals,
            lambda: propose.renewed(author, other),
            lambda: propose.draining(author, own),
            lambda: propose.left(author, own if rng.random() < 0.5 else other),
            lambda: propose.down(author, other),
            lambda: propose.down(author, other, instance_id=other.joined.instance_id),
            lambda: propose.down(author, other, instance_id="a guess"),
            lambda: propose.remove_broker(author, other),
            lambda: replace(
                propose.remove_broker(author, other), key="nobody", expected_offset=view.removed_at
            ),
        ]

    def _about_names(self, author: Author, view: View) -> Proposals:
        rng = self.rng
        namespace, policy = rng.choice((*NAMESPACES, *NAMESPACES, "t")), rng.choice(POLICIES)
        cuts = sorted(rng.sample(CUTS, rng.randrange(4)))
        raising: Proposals = (
            [lambda: raise_level(author, view, level=rng.choice((1, 2)))] if self.levels else []
        )
        proposals: Proposals = [
            *raising,
            lambda: propose.set_policy(
                author, view, name=policy, document={"limit": rng.randrange(3)}
            ),
            lambda: propose.remove_policy(author, view, name=policy),
        ]
        if namespace not in view.namespaces:
            boundaries = rng.choice(
                ((0, *cuts, HASH_MAX),) * 5 + ((0, *cuts), (0, HASH_MAX, *cuts))
            )
            create: Proposals = [
                lambda: propose.create_namespace(
                    author, view, name=namespace, boundaries=boundaries
                )
            ] * 6
            return proposals + create
        proposals += [
            lambda: propose.create_namespace(
                author, view, name=namespace, boundaries=(0, *cuts, HASH_MAX)
            ),
            lambda: propose.set_namespace_policies(
                author, view, name=namespace, policies={"limit": 1}
            ),
            lambda: propose.set_namespace_policies(author, view, name=namespace, policies={}),
            partial(
                propose.start_deleting_namespace
                if rng.random() < 0.5
                else propose.delete_namespace,
                author,
                view,
                name=namespace,
            ),
            lambda: propose.delete_namespace(author, view, name=namespace),
        ]
        if view.namespaces[namespace].status == "deleting":
            proposals += [
                partial(propose.unload, author, entry)
                for entry in view.bundles_of(namespace)
                if entry.phase == "owned"
            ]
            proposals += [lambda: propose.delete_namespace(author, view, name=namespace)] * 3
        return proposals

    def _about_bundle(self, author: Author, view: View, bundle: BundleEntry) -> Proposals:
        rng = self.rng
        brokers = [entry.incarnation for entry in view.brokers.values()] or [0]
        target = rng.choice(brokers)
        cuts = sorted(rng.sample(CUTS, rng.choice((1, 1, 2))))
        right = view.right_neighbour(bundle) or bundle
        by_phase: dict[Phase, Proposals] = {
            "free": [lambda: propose.assign(author, bundle, owner=target)],
            "assigning": [
                lambda: propose.opened(author, bundle),
                lambda: propose.opened(author, bundle),
                lambda: propose.refuse(author, bundle, reason="no room"),
                lambda: propose.assign(author, bundle, owner=target),
            ],
            "owned": [
                lambda: propose.transfer(author, bundle, destination=target),
                lambda: propose.transfer(author, bundle, destination=target),
                lambda: propose.unload(author, bundle),
                lambda: propose.start_split(author, bundle, algorithm="x", positions=cuts),
                lambda: propose.merge(author, bundle, right),
                lambda: propose.merge(author, bundle, right),
            ],
            "transferring": [
                lambda: propose.prepared(author, bundle),
                lambda: propose.prepared(author, bundle),
                lambda: propose.cancel(author, bundle, reason="too long"),
            ],
            "handing_over": [lambda: propose.hand_over(author, bundle, handover=b"state")],
            "unloading": [lambda: propose.released(author, bundle)],
            "splitting": [
                lambda: self._split(author, view, bundle),
                lambda: self._split(author, view, bundle),
                lambda: propose.cancel(author, bundle, reason="too long"),
            ],
        }
        return (
            by_phase[bundle.phase] if rng.random() < 0.9 else by_phase[rng.choice(sorted(by_phase))]
        )

    def _split(self, author: Author, view: View, bundle: BundleEntry) -> Split | Merge:
        """Return a split, mostly with cuts inside the bundle; a merge if there are many bundles
        already.
        """
        rng = self.rng
        inside = [cut for cut in CUTS if bundle.low < cut < bundle.high] or [bundle.low + 1]
        if len(view.bundles) > BUNDLES_MAX:
            return propose.merge(author, bundle, view.right_neighbour(bundle) or bundle)
        return propose.split(
            author,
            bundle,
            cuts=rng.choice(((rng.choice(inside),), tuple(inside[:2]), (bundle.low,))),
        )
