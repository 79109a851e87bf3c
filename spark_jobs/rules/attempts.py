"""Check the sequence numbers of one broker's attempts, and the offsets that its records refer to.

Each attempt, also a retry, has a new, rising number. Late, repeated or reordered records are normal; the fold rejects them. Two different
records with one number are not: two processes write under one name, or records are forged.
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
"""Attempts to remember. A broker has far fewer in flight, except when it places many bundles at once."""


def check_attempt(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Check the incarnation and sequence number of a record signed with this broker's name."""
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
    """Check that a record of this broker's key expects an offset where a record was accepted."""
    based_on, lasts = record.get("based_on"), standing.lasts
    if type(based_on) is not int:
        return
    if based_on >= fact.offset:
        yield from told(standing.told, fact, "baseless", f"it is based on offset {based_on}, which lies ahead of it")
    elif lasts and lasts[0] < based_on < lasts[-1] and based_on not in lasts:
        text = f"it is based on offset {based_on}, where no record of its key was accepted"
        yield from told(standing.told, fact, "baseless", text, offsets=(based_on,))


def _never_was(standing: Standing, fact: Fact, incarnation: int) -> Iterator[Finding]:
    """Check that the incarnation existed: a broker uses it only after it has read its accepted `joined` record."""
    known = standing.incarnations
    if incarnation >= fact.offset or (known and incarnation > known[0] and incarnation not in known):
        yield from told(standing.told, fact, "baseless", f"it is signed as incarnation {incarnation}, which this broker never was")


def _hash(record: Raw) -> int:
    # 56 bits fit in a JSON number without loss.
    return int.from_bytes(blake2b(orjson.dumps(record, option=orjson.OPT_SORT_KEYS), digest_size=7).digest(), "little")
