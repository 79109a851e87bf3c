"""Tests of what records refer to, and of what follows from damage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from equipoise.spark_jobs.rules.membership.references import (
    BLOCK,
    BLOCKS_MAX,
    References,
    Referred,
    Referring,
)

SUBJECT = "bundle:t/n/0x00000000_0xffffffff"


class Story:
    """References that follow records of one key, with the state taken down and up each time."""

    def __init__(self) -> None:
        self.references = References()
        self.rows: dict[str, bytes] = {}
        self.offset = 0
        self.tell("accepted")

    def tell(
        self,
        verdict: str,
        base: int | None = None,
        *,
        others: Sequence[int] = (),
        agrees: bool | None = None,
        skip: int = 0,
        is_damaged: bool = False,
    ) -> Referred:
        """Tell the next record, after so many missing ones."""
        gap_from = self.offset + 1 if skip else None
        self.offset += 1 + skip
        entry = Referring(
            offset=self.offset,
            verdict=verdict,
            bases=() if base is None else (base,),
            others=others,
            agrees=agrees,
            gap_from=gap_from,
            is_damaged=is_damaged,
        )
        found = self.references.refer(entry, (SUBJECT,))
        for key, data in self.references.changed_rows():
            if data is None:
                del self.rows[key]
            else:
                self.rows[key] = data
        self.references = References()
        self.references.restore(self.rows)
        return found

    def damage(self) -> int:
        """Damage the next entry."""
        self.tell("malformed", is_damaged=True)
        return self.offset


@pytest.mark.parametrize(("base", "nothing_at"), [(1, None), (2, 2), (3, 3), (900, 900)], ids=str)
def test_a_record_is_based_on_an_accepted_one_before_it(base: int, nothing_at: int | None) -> None:
    story = Story()
    story.tell("stale", 1)
    assert Referred(nothing_at=nothing_at) == story.tell("stale", base)


def test_what_was_before_the_reading_or_long_ago_is_not_known() -> None:
    story = Story()
    story.references.begin(100)
    story.offset = 100
    assert Referred() == story.tell("stale", 99)
    story.tell("accepted")
    rejected = story.offset + 1
    story.tell("stale", 99)
    story.offset = 200 + BLOCK * BLOCKS_MAX
    assert rejected == story.tell("stale", rejected).nothing_at
    for _ in range(2):
        story.offset += BLOCK
        story.tell("accepted")
        story.offset += BLOCK * (BLOCKS_MAX - 2)
    for _ in range(BLOCKS_MAX):
        story.offset += BLOCK
        story.tell("accepted")
    assert Referred() == story.tell("stale", rejected)


def test_rejections_follow_from_damage_for_as_long_as_they_refer_to_it() -> None:
    story = Story()
    damage = story.damage()
    first = story.tell("stale", damage)
    assert Referred(follows=damage, events=({"event": "damage_spreads", "damage": damage},)) == (
        first._replace(events=tuple(first.events))
    )
    assert Referred(follows=damage, events=[]) == story.tell("stale", story.offset)
    assert Referred(follows=damage, events=[]) == story.tell("dead_publisher", 1, others=(damage,))
    assert damage == story.references.follows(SUBJECT)
    assert damage == story.references.follows("bundle:other", damage)
    story.tell("accepted", 1)
    assert None is story.references.follows(SUBJECT)


def test_while_digests_differ_verdicts_that_depend_on_the_state_prove_nothing() -> None:
    story = Story()
    damage = story.damage()
    assert damage == story.tell("not_the_actor", 1).follows
    assert None is story.tell("malformed", 1).follows
    unseen = story.tell("unknown_bundle", 1), story.offset
    assert (Referred(), damage) == (unseen[0], story.tell("stale", unseen[1]).follows)
    assert damage == story.tell("accepted", 1, agrees=False).follows
    story.tell("accepted", story.offset, agrees=True)
    assert Referred() == story.tell("accepted", 1, agrees=False)
    assert Referred() == story.tell("not_the_actor", 1)


def test_a_gap_is_a_loss_once_a_record_refers_to_it() -> None:
    story = Story()
    story.tell("accepted", 1, skip=3)
    assert Referred(gap=(2, 4)) == story.tell("accepted", story.offset, agrees=False)
    lost, spreads = story.tell("stale", 3).events
    assert {"event": "entries_missing", "from": 2, "to": 4} == lost
    assert {"event": "damage_spreads", "damage": 2} == spreads
    assert Referred(follows=2) == story.tell("accepted", story.offset - 1, agrees=False)
    assert Referred(follows=2, events=[]) == story.tell("stale", 4)


def test_a_gap_before_an_agreement_is_none() -> None:
    story = Story()
    story.tell("accepted", 1, skip=3)
    story.tell("accepted", story.offset, agrees=True)
    assert Referred() == story.tell("accepted", story.offset, agrees=False)
    assert Referred(nothing_at=3) == story.tell("stale", 3)
