"""Write a view as bytes and load it, so that a restart need not fold the log from its first record.

A snapshot carries two proofs:

* A checksum of its own bytes. The digest does not cover all of them: not the offset, nor what a
  broker declared on joining.
* The digest of the view. The loader rebuilds the view through the same writers as the fold, and
  refuses another digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import (
    BrokerEntry,
    BrokerStatus,
    BundleEntry,
    NamespaceEntry,
    PolicyEntry,
    broker_entry,
    bundle_entry,
)
from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.records import Joined
from equipoise.channel.core.table import View

# Raised with each change of the layout below. A snapshot of another format is refused, and the log
# is folded instead.
FORMAT: Final = 1

# Input from outside: every wrong shape ends in one of the errors that `from_bytes` expects, or in
# another digest.
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """An immutable copy of a view: another thread may encode it while the fold goes on.

    For 100,000 bundles it takes 2 ms to make and 80 ms to encode.
    """

    scalars: Mapping[str, object]
    namespaces: tuple[NamespaceEntry, ...]
    policies: tuple[PolicyEntry, ...]
    brokers: tuple[tuple[int, BrokerStatus, int, int, int, Joined], ...]
    bundles: tuple[BundleEntry, ...]

    def to_bytes(self) -> bytes:
        """Return a line with a checksum and one JSON object; `from_bytes` returns an equal view."""
        body = orjson.dumps(
            {
                **self.scalars,
                "namespaces": [
                    [n.name, n.status, n.last, n.created, n.policies] for n in self.namespaces
                ],
                "policies": [[p.name, p.last, p.document] for p in self.policies],
                "brokers": [
                    [*numbers, encode(joined).decode()] for *numbers, joined in self.brokers
                ],
                "bundles": [
                    [
                        b.namespace,
                        b.low,
                        b.high,
                        b.phase,
                        b.owner,
                        b.source,
                        b.last,
                        b.token,
                        b.algorithm,
                        b.positions,
                    ]
                    for b in self.bundles
                ],
            }
        )
        return b"%s\n%s" % (_checksum(body), body)


def still(view: View) -> Still:
    """Return an immutable copy of the view."""
    return Still(
        scalars={
            "format": FORMAT,
            "offset": view.offset,
            "cluster": view.cluster,
            "base": view.base,
            "genesis": view.genesis,
            "level": view.level,
            "level_last": view.level_last,
            "removed_at": view.removed_at,
            "digest": view.digest(),
        },
        namespaces=tuple(view.namespaces.values()),
        policies=tuple(view.policies.values()),
        # As tuples, because broker entries change in place.
        brokers=tuple(
            (b.incarnation, b.status, b.last, b.sequence, b.digest_after, b.joined)
            for b in view.brokers.values()
        ),
        bundles=tuple(view.bundles.values()),
    )


def to_bytes(view: View) -> bytes:
    """Return the view as a snapshot; `from_bytes` returns an equal view."""
    return still(view).to_bytes()


def from_bytes(data: bytes) -> View:
    """Return the view in these bytes. Raises `SnapshotDamaged` if they are not a snapshot, or do
    not match its proofs.
    """
    checksum, _, body = data.partition(b"\n")
    if checksum != _checksum(body):
        raise SnapshotDamaged(
            problem="its checksum does not match: it is cut off, altered, or not a snapshot"
        )
    try:
        raw = orjson.loads(body)
        if raw["format"] != FORMAT:
            raise SnapshotDamaged(
                problem=f"its format is not {FORMAT}, the only one that this version reads"
            )
        view = _build(raw)
        digest = raw["digest"]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise SnapshotDamaged(
            problem=f"it is not a snapshot: {type(error).__name__}: {error}"
        ) from error
    if digest != view.digest():
        raise SnapshotDamaged(
            problem=f"its digest is {digest}, but its view has digest {view.digest()}"
        )
    return view


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()


def _build(raw: Raw) -> View:
    view = View()
    view.offset, view.base = raw["offset"], raw["base"]
    view.cluster = raw["cluster"]
    view.genesis = raw["genesis"]
    view.level, view.level_last, view.removed_at = (
        raw["level"],
        raw["level_last"],
        raw["removed_at"],
    )
    if view.genesis is not None:
        view.scalars_changed()
    for name, status, last, created, policies in raw["namespaces"]:
        view.put_namespace(
            name,
            NamespaceEntry(name=name, status=status, last=last, created=created, policies=policies),
        )
    for name, last, document in raw["policies"]:
        view.put_policy(name, PolicyEntry(name=name, last=last, document=document))
    for row in raw["brokers"]:
        view.put_broker(_broker(*row))
    for namespace, low, high, phase, owner, source, last, token, algorithm, positions in raw[
        "bundles"
    ]:
        view.insert_bundle(
            bundle_entry(
                namespace,
                low,
                high,
                phase,
                owner=owner,
                source=source,
                last=last,
                token=token,
                algorithm=algorithm,
                positions=None if positions is None else tuple(positions),
            )
        )
    return view


# The columns of a row.
def _broker(  # noqa: PLR0917
    incarnation: int, status: BrokerStatus, last: int, sequence: int, digest_after: int, record: str
) -> BrokerEntry:
    joined = decode(record.encode())
    if not isinstance(joined, Joined):
        raise TypeError("a broker without its joined record")
    return broker_entry(
        joined,
        incarnation=incarnation,
        status=status,
        last=last,
        sequence=sequence,
        digest_after=digest_after,
    )
