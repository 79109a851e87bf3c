"""Attempts of one broker: their numbers, and whether what they refer to was ever there.

May live here: the rules `sequence_reused` and `baseless`.

A broker gives each attempt a number of its own, which rises, and a retry is a new attempt. On the log its records may still be late,
double or out of order, since the way there is not reliable: that is normal, and the fold rejects them. What no honest broker does is to
use one number for two records: then two processes write in one name, or somebody forges its records.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import orjson

from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.standing import Standing
from equipoise.spark_jobs.rules.telling import told

ATTEMPTS_MAX: Final = 64
"""Attempts whose bytes are remembered: a broker has far fewer under way at a time, but for a herd of placements."""


def check_attempt(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """What is wrong with the signature of a record that this broker has published, or is said to have."""
    incarnation, sequence = record.get("incarnation"), record.get("sequence")
    if type(incarnation) is not int or type(sequence) is not int:
        return
    if fact.verdict == "dead_publisher":
        yield from _never_was(standing, fact, incarnation)
        return
    if incarnation != standing.attempts_of:
        standing.attempts_of, standing.attempts = incarnation, []
    bytes_hash = _hash(record)
    for known, known_hash, offset in standing.attempts:
        if known == sequence and known_hash != bytes_hash:
            text = (
                f"two records that differ are signed as attempt {sequence} of {record.get('publisher')} (incarnation {incarnation}), "
                f"at {offset} and here: one of them is forged, or two processes write in this name"
            )
            yield from told(standing.told, fact, "sequence_reused", text, offsets=(offset,))
            break
    standing.attempts = [*standing.attempts, [sequence, bytes_hash, fact.offset]][-ATTEMPTS_MAX:]


def check_ties(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Whether a record of this broker's key is based on one that was there: its author has read that it was accepted."""
    based_on, lasts = record.get("based_on"), standing.lasts
    if type(based_on) is not int:
        return
    if based_on >= fact.offset:
        yield from told(standing.told, fact, "baseless", f"it is based on offset {based_on}, which lies ahead of it")
    elif lasts and lasts[0] < based_on < lasts[-1] and based_on not in lasts:
        text = f"it is based on offset {based_on}, where no record of its key was accepted"
        yield from told(standing.told, fact, "baseless", text, offsets=(based_on,))


def _never_was(standing: Standing, fact: Fact, incarnation: int) -> Iterator[Finding]:
    """A broker signs as an incarnation only after it has read that its `joined` was accepted there."""
    known = standing.incarnations
    if incarnation >= fact.offset or (known and incarnation > known[0] and incarnation not in known):
        yield from told(standing.told, fact, "baseless", f"it is signed as incarnation {incarnation}, which this broker never was")


def _hash(record: Raw) -> int:
    # Of 56 bits: JSON spells it as a number without loss.
    return int.from_bytes(blake2b(orjson.dumps(record, option=orjson.OPT_SORT_KEYS), digest_size=7).digest(), "little")
