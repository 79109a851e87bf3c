"""Compute the digest of a view: equal views have equal digests, and each record updates it cheaply.

Theory of operation:

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

from hashlib import blake2b
from typing import Final

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
