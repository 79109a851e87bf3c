"""The digest of a view: equal views have equal digests, and a record changes it by a few multiplications.

May live here: the weights of keys, and the part that one key's content has in the sum. No rule of the fold.

The digest is a multilinear hash (Carter and Wegman, "Universal classes of hash functions"): the sum, modulo the prime
2**61 - 1, of one part per key, and a part is the key's weight times a fixed linear form of its numbers. Weights and
coefficients are BLAKE2b of what they stand for. Two views that differ get the same digest with a chance of 2**-61, as long
as nobody searches for a collision, which brokers that trust each other's records have no reason to do. What it buys: a
renewal or a raised sequence changes the digest by one product, where a hash per touched key cost half of the whole fold.

It covers all that can change a later verdict, and nothing else: phase, holders, last and token of a bundle; incarnation,
nonce, supported level, status, last and sequence of a broker; status and last of a namespace; last of a policy; the level,
its last, `removed_at` and the genesis. Never reasons, counters, or the sequence of an incarnation that is dead.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

DIGEST_MODULUS: Final = 2**61 - 1


def weight(kind: str, *texts: str) -> int:
    """The weight of a key: never 0, and another one for each kind and each sequence of texts."""
    spelled = "\n".join((kind, *(f"{len(text)}:{text}" for text in texts)))
    return int.from_bytes(blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little") % (DIGEST_MODULUS - 1) + 1


_PRESENT: Final = weight("coefficient", "present")
_PHASE: Final = {
    phase: (weight("phase", phase) + _PRESENT) % DIGEST_MODULUS
    for phase in ("free", "assigning", "transferring", "owned", "handing_over", "unloading", "splitting")
}
_OWNER: Final = weight("coefficient", "owner")
_SOURCE: Final = weight("coefficient", "source")
_LAST: Final = weight("coefficient", "last")
_TOKEN: Final = weight("coefficient", "token")
_STATUS: Final = {status: weight("status", status) for status in ("up", "draining", "left", "down", "created", "deleting", "policy")}
_INCARNATION: Final = weight("coefficient", "incarnation")
_SEQUENCE: Final = weight("coefficient", "sequence")
_SCALARS: Final = tuple(weight("scalar", name) for name in ("base", "genesis", "level", "level_last", "removed_at"))


def bundle_part(key_weight: int, phase: str, owner: int | None, source: int | None, last: int, token: int) -> int:  # noqa: PLR0917 - names cost a tenth
    """What one bundle adds to the sum; `owner` and `source` are incarnations, and an absent one differs from 0."""
    form = _PHASE[phase] + last * _LAST + token * _TOKEN
    if owner is not None:
        form += (owner + 1) * _OWNER
    if source is not None:
        form += (source + 1) * _SOURCE
    return key_weight * form % DIGEST_MODULUS


def broker_part(key_weight: int, status: str, incarnation: int) -> int:
    """What one broker adds to the sum, but for its last and its sequence, which change with every record."""
    return key_weight * (_STATUS[status] + incarnation * _INCARNATION) % DIGEST_MODULUS


def last_weight(key_weight: int) -> int:
    """What one offset of a broker's last adds to the sum."""
    return key_weight * _LAST % DIGEST_MODULUS


def sequence_weight(key_weight: int) -> int:
    """What one step of a live incarnation's sequence adds to the sum."""
    return key_weight * _SEQUENCE % DIGEST_MODULUS


def status_part(key_weight: int, status: str, last: int) -> int:
    """What a namespace, or a policy (its status is `policy`), adds to the sum."""
    return key_weight * (_STATUS[status] + last * _LAST) % DIGEST_MODULUS


def scalars_part(*, cluster: str, base: int, genesis: int, level: int, level_last: int, removed_at: int) -> int:
    """What a view's content beside its keys adds to the sum."""
    numbers = (base, genesis, level, level_last, removed_at)
    form = sum(coefficient * number for coefficient, number in zip(_SCALARS, numbers, strict=True))
    return weight("cluster", cluster) * (form + _PRESENT) % DIGEST_MODULUS
