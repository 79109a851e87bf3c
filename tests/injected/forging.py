"""Write one forged record to the log of a running cluster, and return where the audit must find
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import orjson

from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from equipoise.spark_jobs.sequence.rows import Arrival
from tests.injected.honest import BUSY_SECONDS, Forger, busy, play
from tests.injected.injection import Injected

T = TypeVar("T")

ADMIN: Final = "admin:impostor"
LOG: Final = "log:"

# Forged sequences jump ahead of everything that the honest broker still has in flight.
LEAP: Final = 1


class UnfitError(Exception):
    """A scene lacks what a forgery needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The state of the cluster at the moment of the forgery. What chooses from it raises
    `UnfitError`.
    """

    view: View
    entries: list[Entry]
    now_ms: int
    rng: random.Random

    def owned(self) -> BundleEntry:
        """Return a random bundle in the phase `owned`."""
        return self.one(bundle for bundle in self.view.bundles.values() if bundle.phase == "owned")

    def in_flight(self, *phases: str) -> BundleEntry:
        """Return a random bundle in one of these phases."""
        return self.one(bundle for bundle in self.view.unsettled() if bundle.phase in phases)

    def up(self, *, without: Iterable[int | None] = ()) -> BrokerEntry:
        """Return a random broker that is up, other than these incarnations."""
        left_out = set(without)
        return self.one(
            broker
            for broker in self.view.live_brokers()
            if broker.status == "up" and broker.incarnation not in left_out
        )

    def one(self, choices: Iterable[T]) -> T:
        """Return a random choice. Raises `UnfitError` if there is none."""
        chosen = list(choices)
        if not chosen:
            raise UnfitError
        return self.rng.choice(chosen)

    def as_broker(self, broker: BrokerEntry, *, ahead: int = LEAP) -> Author:
        """Return an author with this broker's incarnation and the next number that the broker has
        not used.
        """
        return Author(
            publisher=broker.broker,
            incarnation=broker.incarnation,
            sequence=broker.sequence + ahead,
            timestamp_ms=self.now_ms,
        )

    def as_admin(self) -> Author:
        """Return an admin who has read the whole log."""
        return Author(publisher=ADMIN, as_of=self.view.offset, timestamp_ms=self.now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forged:
    """What to write, and the subjects under which it may be found. The last of `data` breaks the
    rule.
    """

    data: tuple[bytes, ...]
    subjects: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery:
    """One kind of forgery: `make` returns what to write, and one of `rules` must name it. It raises
    `UnfitError`.

    With `echoes`, a finding may also be at the next record of the impersonated broker, which has
    the same number.
    """

    name: str
    make: Callable[[Scene], Forged]
    rules: frozenset[str]
    echoes: bool = False


def inject(forgery: Forgery, seed: int, rng: random.Random) -> Injected | None:
    """Write the forgery to a busy cluster at a random moment. Return None if the scene never
    allowed it.
    """
    pen = Pen(forgery, rng)
    run = play(
        busy(), seed, forger=pen, forge_after_ms=rng.randrange(4_000, BUSY_SECONDS * 1_000 - 3_000)
    )
    if pen.forged is None:
        return None
    offsets = {run.forged_at[-1]} if len(run.forged_at) == 1 else set(run.forged_at)
    if forgery.echoes:
        offsets |= _echoes(run.channel, run.forged_at[-1])
    subjects = pen.forged.subjects
    # An admin is no subject. Findings about its records are under the log.
    if broker_subject(ADMIN) in subjects:
        subjects = subjects - subjects_of(broker_subject(ADMIN)) | subjects_of(LOG)
    return Injected(
        arrivals=run.channel, rules=forgery.rules, subjects=subjects, offsets=frozenset(offsets)
    )


def _echoes(channel: list[Arrival], forged_at: int) -> set[int]:
    """Return the offsets of all records with the number of the forged one."""
    signatures = [(arrival.offset, _signature(arrival.value)) for arrival in channel]
    forged = next(signature for offset, signature in signatures if offset == forged_at)
    return {offset for offset, signature in signatures if signature == forged}


def _signature(data: bytes | None) -> tuple[object, ...]:
    raw = orjson.loads(data or b"")
    return raw["publisher"], raw.get("incarnation"), raw.get("sequence")


class Pen(Forger):
    """Write one forgery as soon as the scene allows it."""

    def __init__(self, forgery: Forgery, rng: random.Random) -> None:
        self.forgery = forgery
        self.forged: Forged | None = None
        self._rng = rng

    def write(
        self, view: View, entries: list[Entry], now_ms: int, append: Callable[[bytes], None]
    ) -> bool:
        """See `Forger`."""
        scene = Scene(view=view, entries=entries, now_ms=now_ms, rng=self._rng)
        with suppress(UnfitError):
            self.forged = self.forgery.make(scene)
            for data in self.forged.data:
                append(data)
        return self.forged is not None


def subjects_of(*subjects: str) -> frozenset[str]:
    """These subjects."""
    return frozenset(subjects)


def bundle_subject(name: str) -> str:
    """Return the subject of a bundle."""
    return f"bundle:{name}"


def broker_subject(name: str | None) -> str:
    """Return the subject of a broker or an admin."""
    return f"broker:{name}"


def about_bundle(bundle: BundleEntry, record: AnyRecord) -> Forged:
    """Return a record about a bundle. It may be found under the bundle or under its writer."""
    return Forged(
        data=(encode(record),),
        subjects=subjects_of(bundle_subject(bundle.name), broker_subject(record.publisher)),
    )
