"""Define the values that a view holds: entries, changes to them, the verdict on a record,
and the digest of a view: equal views have equal digests, and each record updates it cheaply.

Theory of operation of digests:

* The digest is a multilinear hash (Carter and Wegman, "Universal classes of hash functions"): the
  sum of one part per key, modulo the prime 2**61 - 1. A part is the key's weight times a fixed
  linear form of its numbers. Weights and coefficients are BLAKE2b hashes of their names.
* Two different views have equal digests with a probability of 2**-61, unless somebody searches for
  a collision. Brokers trust each other's records and have no reason to.
* A renewal or a raised sequence changes the digest by one product. A hash per touched key would
  cost half of the whole fold.
* It covers exactly what can change a later verdict: phase, holders, last and token of a bundle;
  incarnation, instance id, supported level, namespaces, status, last and sequence of a broker;
  status and last of a namespace; last of a policy; the level, its last, `removed_at` and the
  genesis. It never covers reasons, counters, or the sequence of a dead incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

from equipoise.channel.core.lifecycle import STATE_OF_PHASE, Phase
from equipoise.channel.core.ranges import bundle_contains, bundle_name
from equipoise.channel.core.records import Document, Joined, Reason, State, blank, hot_frozen

DIGEST_MODULUS: Final = 2**61 - 1


def weight(kind: str, *texts: str) -> int:
    """Return the weight of a key: never 0, and different for each kind and each sequence of
    texts.
    """
    joined = "\n".join((kind, *(f"{len(text)}:{text}" for text in texts)))
    return (
        int.from_bytes(
            blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little"
        )
        % (DIGEST_MODULUS - 1)
        + 1
    )


_PRESENT: Final = weight("coefficient", "present")
_PHASE: Final = {
    phase: (weight("phase", phase) + _PRESENT) % DIGEST_MODULUS
    for phase in (
        "free",
        "assigning",
        "transferring",
        "owned",
        "handing_over",
        "unloading",
        "splitting",
    )
}
_OWNER: Final = weight("coefficient", "owner")
_SOURCE: Final = weight("coefficient", "source")
_LAST: Final = weight("coefficient", "last")
_TOKEN: Final = weight("coefficient", "token")
_STATUS: Final = {
    status: weight("status", status)
    for status in ("up", "draining", "left", "down", "created", "deleting", "policy")
}
_INCARNATION: Final = weight("coefficient", "incarnation")
_SEQUENCE: Final = weight("coefficient", "sequence")
_SCALARS: Final = tuple(
    weight("scalar", name) for name in ("base", "genesis", "level", "level_last", "removed_at")
)


# Names cost a tenth.
def bundle_part(  # noqa: PLR0917
    key_weight: int, phase: str, owner: int | None, source: int | None, last: int, token: int
) -> int:
    """Return a bundle's part. `owner` and `source` are incarnations; an absent one differs from
    0.
    """
    form = _PHASE[phase] + last * _LAST + token * _TOKEN
    if owner is not None:
        form += (owner + 1) * _OWNER
    if source is not None:
        form += (source + 1) * _SOURCE
    return key_weight * form % DIGEST_MODULUS


def broker_part(key_weight: int, status: str, incarnation: int) -> int:
    """Return a broker's part, except its last and its sequence, which change with every record."""
    return key_weight * (_STATUS[status] + incarnation * _INCARNATION) % DIGEST_MODULUS


def last_weight(key_weight: int) -> int:
    """Return what one offset of a broker's last adds."""
    return key_weight * _LAST % DIGEST_MODULUS


def sequence_weight(key_weight: int) -> int:
    """Return what one step of a live incarnation's sequence adds."""
    return key_weight * _SEQUENCE % DIGEST_MODULUS


def status_part(key_weight: int, status: str, last: int) -> int:
    """Return the part of a namespace, or of a policy (with status `policy`)."""
    return key_weight * (_STATUS[status] + last * _LAST) % DIGEST_MODULUS


def scalars_part(
    *, cluster: str, base: int, genesis: int, level: int, level_last: int, removed_at: int
) -> int:
    """Return the part of a view's content beside its keys."""
    numbers = (base, genesis, level, level_last, removed_at)
    form = sum(coefficient * number for coefficient, number in zip(_SCALARS, numbers, strict=True))
    return weight("cluster", cluster) * (form + _PRESENT) % DIGEST_MODULUS


BrokerStatus = Literal["up", "draining", "left", "down"]

# The phases in which the owner serves.
_SERVED_BY_OWNER: Final = frozenset({"owned", "splitting"})
_SERVED_BY_SOURCE: Final = frozenset({"transferring", "handing_over", "unloading"})


@hot_frozen
class BundleEntry:
    """One bundle of a namespace.

    * `owner` and `source` are incarnations.
    * `last` is the offset of the record that changed it last.
    * `token` is the fencing token: the offset at which the present ownership began.
    * `algorithm` and `positions` are set while it is `splitting`: how the owner is to cut it.
    * `weight` and `part` are its contribution to the digest.
    """

    name: str
    namespace: str
    low: int
    high: int
    phase: Phase
    owner: int | None
    source: int | None
    last: int
    token: int
    weight: int
    part: int
    algorithm: str | None = None
    positions: tuple[int, ...] | None = None

    @property
    def state(self) -> State:
        """The state as records write it."""
        return STATE_OF_PHASE[self.phase]

    @property
    def server(self) -> int | None:
        """The incarnation that serves it now; None while nobody does."""
        if self.phase in _SERVED_BY_OWNER:
            return self.owner
        return self.source if self.phase in _SERVED_BY_SOURCE else None

    def contains(self, point: int) -> bool:
        """Return whether this hash point lies in the bundle."""
        return bundle_contains(self.low, self.high, point)


_init_entry: Final = BundleEntry.__init__


def bundle_entry(
    namespace: str,
    low: int,
    high: int,
    phase: Phase,
    *,
    owner: int | None,
    source: int | None,
    last: int,
    token: int,
    algorithm: str | None = None,
    positions: tuple[int, ...] | None = None,
) -> BundleEntry:
    """Return a bundle whose range is new to the view. Its name is made and its weight hashed only
    here.
    """
    name = bundle_name(namespace, low, high)
    key_weight = weight("bundle", name)
    return BundleEntry(
        name=name,
        namespace=namespace,
        low=low,
        high=high,
        phase=phase,
        owner=owner,
        source=source,
        last=last,
        token=token,
        weight=key_weight,
        part=bundle_part(key_weight, phase, owner, source, last, token),
        algorithm=algorithm,
        positions=positions,
    )


def next_entry(
    before: BundleEntry,
    phase: Phase,
    *,
    owner: int | None,
    source: int | None,
    last: int,
    token: int,
    algorithm: str | None = None,
    positions: tuple[int, ...] | None = None,
) -> BundleEntry:
    """Return the same bundle in its next phase."""
    after = blank(BundleEntry)
    _init_entry(
        after,
        name=before.name,
        namespace=before.namespace,
        low=before.low,
        high=before.high,
        phase=phase,
        owner=owner,
        source=source,
        last=last,
        token=token,
        weight=before.weight,
        part=bundle_part(before.weight, phase, owner, source, last, token),
        algorithm=algorithm,
        positions=positions,
    )
    return after


@dataclass(slots=True, kw_only=True)
class BrokerEntry:
    """One broker id and its newest incarnation.

    `joined` is the record that made the incarnation. `digest_after` is the view's digest just after
    this key's last accepted record: the digest that the next renewal must carry.

    This is the one entry that changes in place; only `channel.core.view` writes it. `last` rises
    with every renewal and `sequence` with each of the broker's records, nine tenths of a channel. A
    new entry each time would cost more than the rest of the fold.
    """

    broker: str
    incarnation: int
    status: BrokerStatus
    last: int
    sequence: int
    joined: Joined
    digest_after: int
    last_weight: int
    sequence_weight: int
    part: int

    @property
    def live(self) -> bool:
        """Whether the broker counts as alive: up or draining."""
        return self.status in ("up", "draining")


def broker_entry(
    joined: Joined,
    *,
    incarnation: int,
    status: BrokerStatus,
    last: int,
    sequence: int,
    digest_after: int = 0,
) -> BrokerEntry:
    """Return a broker in a new incarnation or status. Its weights are hashed only here."""
    named = () if joined.namespaces is None else ("namespaces", *joined.namespaces)
    key_weight = weight(
        "broker", joined.key, joined.instance_id, str(joined.supported_level), *named
    )
    return BrokerEntry(
        broker=joined.key,
        incarnation=incarnation,
        status=status,
        last=last,
        sequence=sequence,
        joined=joined,
        digest_after=digest_after,
        last_weight=last_weight(key_weight),
        sequence_weight=sequence_weight(key_weight),
        part=broker_part(key_weight, status, incarnation),
    )


@hot_frozen
class NamespaceEntry:
    """One namespace. Its bundles are entries of their own."""

    name: str
    status: Literal["created", "deleting"]
    last: int
    created: int
    policies: Document


@hot_frozen
class PolicyEntry:
    """One cluster-wide document."""

    name: str
    last: int
    document: Document


@hot_frozen
class BundleChanged:
    """A bundle before and after. None means that it did not exist, or no longer does."""

    name: str
    before: BundleEntry | None
    after: BundleEntry | None


@hot_frozen
class BrokerChanged:
    """A broker's status or incarnation changed. A renewal changes neither.

    `dead` is the incarnation that this record ended, if any.
    """

    name: str
    before: BrokerStatus | None
    after: BrokerEntry | None
    dead: int | None = None


@hot_frozen
class NamespaceChanged:
    """A namespace before and after."""

    name: str
    before: NamespaceEntry | None
    after: NamespaceEntry | None


@hot_frozen
class PolicyChanged:
    """A policy before and after."""

    name: str
    before: PolicyEntry | None
    after: PolicyEntry | None


@hot_frozen
class LevelChanged:
    """The format version before and after; 0 before the genesis."""

    before: int
    after: int


Change = BundleChanged | BrokerChanged | NamespaceChanged | PolicyChanged | LevelChanged


@hot_frozen
class Verdict:
    """The fold's verdict on a record: accepted with its changes (`reason` is None), or rejected
    with the reason.

    `problem` adds details for people. `diverged` is set on an accepted renewal with another digest
    than this view's: two readers of one log hold different views.
    """

    reason: Reason | None = None
    changes: tuple[Change, ...] = ()
    problem: str | None = None
    diverged: bool = False

    @property
    def accepted(self) -> bool:
        """Whether the record changed the view."""
        return self.reason is None


_init_verdict: Final = Verdict.__init__
_init_bundle_changed: Final = BundleChanged.__init__


def bundle_moved(before: BundleEntry, after: BundleEntry) -> Verdict:
    """Return the verdict on an accepted record that changed only this bundle."""
    change = blank(BundleChanged)
    _init_bundle_changed(change, name=after.name, before=before, after=after)
    verdict = blank(Verdict)
    _init_verdict(verdict, changes=(change,))
    return verdict
