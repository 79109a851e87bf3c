"""The tables of the life of a bundle: that they are whole, and that each can be read as what it
stands for.
"""

from __future__ import annotations

from typing import get_args

from equipoise.channel.core.entries import bundle_part
from equipoise.channel.core.lifecycle import (
    DEATH_ROWS,
    DEATHS,
    PHASE_OF_SHAPE,
    ROWS,
    STATE_OF_PHASE,
    TRANSITIONS,
    Actor,
    Holder,
    Phase,
)
from equipoise.channel.core.records import State

# Whether a bundle in this phase names an owner, and a source.
NAMED = {phase: (owner, source) for (_, owner, source), phase in PHASE_OF_SHAPE.items()}


def test_every_phase_is_spelled_in_one_way() -> None:
    """Each phase has one shape, each shape one phase, and each state is the spelling of at least
    one.
    """
    assert set(get_args(Phase)) == set(PHASE_OF_SHAPE.values()) == set(STATE_OF_PHASE)
    assert len(PHASE_OF_SHAPE) == len(set(PHASE_OF_SHAPE.values()))
    assert {phase: STATE_OF_PHASE[phase] for phase in NAMED} == {
        phase: state for (state, _, _), phase in PHASE_OF_SHAPE.items()
    }
    assert set(get_args(State)) == set(STATE_OF_PHASE.values())


def test_no_row_stands_twice() -> None:
    """The tables have one row for each pair of phases, and for each role of the dead."""
    assert len(TRANSITIONS) == len(ROWS)
    assert len(DEATHS) == len(DEATH_ROWS)


def test_a_row_names_whom_its_phase_names() -> None:
    """Owner and source of a row are there exactly if the phase after it has them."""
    for row in TRANSITIONS:
        assert NAMED[row.after] == (
            row.owner is not Holder.NOBODY,
            row.source is not Holder.NOBODY,
        ), row
    for death in DEATHS:
        assert NAMED[death.after] == (death.owner is not Holder.NOBODY, False), death


def test_a_row_asks_only_for_who_is_there() -> None:
    """A row that takes its owner, source or actor from the phase before finds it there."""
    for row in TRANSITIONS:
        needs = (
            {Holder.OWNER, Actor.OWNER} & {row.owner, row.source, *row.actors},
            {Holder.SOURCE, Actor.SOURCE} & {row.owner, row.source, *row.actors},
        )
        for named, needed in zip(NAMED[row.before], needs, strict=True):
            assert named or not needed, row


def test_every_phase_can_be_left_and_reached() -> None:
    """From each phase a way leads to `owned`, and from `free` a way leads to each."""
    reached: list[Phase] = ["free"]
    for phase in reached:  # Grows while it is walked.
        reached += [
            row.after for row in TRANSITIONS if row.before == phase and row.after not in reached
        ]
    assert set(get_args(Phase)) == set(reached)
    for phase in get_args(Phase):
        ways = [phase]
        for step in ways:
            ways += [
                row.after for row in TRANSITIONS if row.before == step and row.after not in ways
            ]
        assert "owned" in ways


def test_a_death_is_foreseen_for_each_who_is_named() -> None:
    """For each phase and each of the two that it may name there is a row."""
    named = {
        (phase, role)
        for phase, pair in NAMED.items()
        for role, there in zip(("owner", "source"), pair, strict=True)
        if there
    }
    assert named == set(DEATH_ROWS)


def test_a_new_token_comes_with_a_new_server() -> None:
    """A transition begins an ownership exactly if it makes somebody serve who did not serve before
    it.
    """
    serves = {"owned": Holder.OWNER, "splitting": Holder.OWNER}
    served = serves | dict.fromkeys(("transferring", "handing_over", "unloading"), Holder.SOURCE)
    for row in TRANSITIONS:
        server = {Holder.OWNER: row.owner, Holder.SOURCE: row.source, None: None}[
            served.get(row.after)
        ]
        assert row.new_token == (server is not None and server is not served.get(row.before)), row


def test_the_digest_knows_every_phase() -> None:
    """Each phase gives a bundle another part in the digest."""
    parts = {bundle_part(1, phase, 1, 2, 3, 4) for phase in get_args(Phase)}
    assert len(get_args(Phase)) == len(parts)
