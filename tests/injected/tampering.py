"""Tampered channels: stored records are changed, removed or moved. It shows where the honest rest
no longer fits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import orjson

from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import Renewed
from equipoise.channel.core.snapshot import to_bytes
from equipoise.spark_jobs.sequence.rows import Arrival
from tests.injected.honest import busy_channel
from tests.injected.injection import Injected, Kind, injected

_BACK_MS: Final = 600_000
REMOVED: Final = 11
_AHEAD_MS: Final = 365 * 86_400_000


def _channel(seed: int) -> list[Arrival]:
    return list(busy_channel(seed))


def _folded(channel: list[Arrival]) -> list[Folded]:
    reader = Reader(log="injected")
    return [reader.feed(Entry(arrival.offset, arrival.value or b"")) for arrival in channel]


def _place(channel: list[Arrival], rng: Random, fits: Callable[[Folded], bool]) -> int:
    """Return a random place in the middle half whose record fits. A busy channel has many."""
    folded = _folded(channel)
    return rng.choice(
        [place for place in range(len(folded) // 4, len(folded) * 3 // 4) if fits(folded[place])]
    )


def _is_renewal(folded: Folded) -> bool:
    return folded.verdict.accepted and isinstance(folded.record, Renewed)


def _changes_one_bundle(folded: Folded) -> bool:
    return (
        folded.verdict.accepted
        and len(folded.verdict.changes) == 1
        and folded.record.key.count("/") == 2  # type: ignore[union-attr]
    )


def _first_that_differs(
    channel: list[Arrival], after: int, rules: frozenset[str]
) -> Injected | None:
    """Return the violation at the first renewal beyond the offset `after` whose digest is not the
    fold's.
    """
    for folded in _folded(channel):
        if folded.offset > after and folded.verdict.diverged:
            return Injected(
                arrivals=channel,
                rules=rules,
                subjects=frozenset({f"broker:{folded.record.publisher}"}),
                offsets=frozenset({folded.offset}),
            )
    return None


_DIFFERS: Final = frozenset({"digest_differs"})


def _alters_a_digest(seed: int, rng: Random) -> Injected | None:
    channel = _channel(seed)
    place = _place(channel, rng, _is_renewal)
    raw = orjson.loads(channel[place].value or b"")
    raw["digest"] ^= 1 << rng.randrange(60)
    channel[place] = channel[place]._replace(value=orjson.dumps(raw))
    return _first_that_differs(channel, channel[place].offset - 1, _DIFFERS)


def _alters_an_accepted_record(seed: int, rng: Random) -> Injected | None:
    """Change the owner in one accepted record."""
    channel = _channel(seed)
    place = _place(
        channel,
        rng,
        lambda folded: _changes_one_bundle(folded) and b'"assigning"' in _spelled(channel, folded),
    )
    raw = orjson.loads(channel[place].value or b"")
    joined = [
        folded.offset
        for folded in _folded(channel[:place])
        if b'"joined"' in _spelled(channel, folded)
    ]
    raw["owner"] = rng.choice([offset for offset in joined if offset != raw["owner"]])
    channel[place] = channel[place]._replace(value=orjson.dumps(raw))
    return _first_that_differs(channel, channel[place].offset, _DIFFERS)


def _spelled(channel: list[Arrival], folded: Folded) -> bytes:
    return next(
        (arrival.value or b"" for arrival in channel if arrival.offset == folded.offset), b""
    )


def _takes_a_record_away(seed: int, rng: Random) -> Injected | None:
    channel = _channel(seed)
    place = _place(channel, rng, _changes_one_bundle)
    gone = channel.pop(place)
    differs = _first_that_differs(channel, gone.offset, _DIFFERS)
    return differs and Injected(
        arrivals=channel,
        rules=differs.rules | {"entries_missing"},
        subjects=differs.subjects | {"log:"},
        offsets=differs.offsets | set(range(channel[place - 1].offset, channel[place].offset)),
    )


def _takes_many_records_away(seed: int, rng: Random) -> Injected:
    """Remove eleven neighbouring entries, renewals and steps of bundles."""
    channel = _channel(seed)
    place = _place(channel, rng, _is_renewal)
    gone = channel[place : place + REMOVED]
    del channel[place : place + REMOVED]
    return Injected(
        arrivals=channel,
        rules=frozenset({"entries_missing"}),
        subjects=frozenset({"log:"}),
        offsets=frozenset(range(channel[place - 1].offset, gone[-1].offset + 1)),
    )


def _flips_a_byte(seed: int, rng: Random) -> Injected:
    """A stored record does not match its checksum, so the reader knows only where it is."""
    channel = _channel(seed)
    place = _place(channel, rng, lambda folded: folded.verdict.accepted)
    channel[place] = channel[place]._replace(value=None)
    return injected(channel, "entry_damaged", "log:", channel[place].offset)


def _swaps_two_records(seed: int, rng: Random) -> Injected | None:
    """Swap two neighbouring records."""
    channel = _channel(seed)
    place = _place(channel, rng, _changes_one_bundle)
    first, second = channel[place], channel[place + 1]
    channel[place], channel[place + 1] = (
        first._replace(value=second.value),
        second._replace(value=first.value),
    )
    return _first_that_differs(channel, first.offset, _DIFFERS)


def _lets_time_fall(seed: int, rng: Random) -> Injected | None:
    channel = _channel(seed)
    place = rng.randrange(len(channel) // 4, len(channel) * 3 // 4)
    channel[place:] = [
        arrival._replace(at_ms=arrival.at_ms - _BACK_MS) for arrival in channel[place:]
    ]
    return injected(channel, "time_fell", "log:", channel[place].offset)


def _lets_time_leap(seed: int, rng: Random) -> Injected:
    """Give one record a time that is a year ahead."""
    channel = _channel(seed)
    place = rng.randrange(len(channel) // 4, len(channel) * 3 // 4)
    channel[place] = channel[place]._replace(at_ms=channel[place].at_ms + _AHEAD_MS)
    return injected(channel, "time_leapt", "log:", channel[place + 1].offset)


def _puts_nothing_between(seed: int, rng: Random) -> Injected | None:
    """An empty entry, as a compacted topic has for what was removed, and a channel never."""
    channel = _channel(seed)
    gaps = [
        place
        for place in range(len(channel) // 4, len(channel) * 3 // 4)
        if channel[place + 1].offset > channel[place].offset + 1
    ]
    place = rng.choice(gaps)
    before = channel[place]
    channel.insert(place + 1, before._replace(offset=before.offset + 1, value=b""))
    return injected(channel, "malformed", "log:", before.offset + 1)


def _cuts_records_off(seed: int, rng: Random) -> Injected | None:
    """The log was truncated above where the audit has read: what storage still has begins with a
    view.
    """
    channel = _channel(seed)
    first = rng.randrange(len(channel) // 4, len(channel) // 2)
    end = first + rng.randrange(20, 200)
    reader = Reader(log="injected")
    for arrival in channel[:end]:
        reader.feed(Entry(arrival.offset, arrival.value or b""))
    view, position = to_bytes(reader.view), channel[end].offset
    del channel[first:end]
    return Injected(
        arrivals=channel,
        rules=frozenset({"records_lost"}),
        subjects=frozenset({"log:"}),
        offsets=frozenset(range(channel[first - 1].offset, position + 1)),
        lost=lambda _from, to: view if to == position else None,
    )


TAMPERINGS: Final = (
    Kind(name="alters_a_digest", inject=_alters_a_digest),
    Kind(name="alters_an_accepted_record", inject=_alters_an_accepted_record),
    Kind(name="takes_a_record_away", inject=_takes_a_record_away),
    Kind(name="takes_many_records_away", inject=_takes_many_records_away),
    Kind(name="flips_a_byte", inject=_flips_a_byte),
    Kind(name="swaps_two_records", inject=_swaps_two_records),
    Kind(name="lets_time_fall", inject=_lets_time_fall),
    Kind(name="lets_time_leap", inject=_lets_time_leap),
    Kind(name="puts_nothing_between", inject=_puts_nothing_between),
    Kind(name="cuts_records_off", inject=_cuts_records_off),
)
