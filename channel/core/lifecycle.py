"""Define the life of a bundle as data: the allowed transitions, who may propose them, and the
effects of a death.

`channel.core.view` judges records by these tables, `brokers.agent` acts by them, and `python -m
tests.docs.reference_pages` draws the diagrams in the docs from them.

A *phase* is a bundle's state together with the holders that it names. `assigning` with a source is
a transfer: the source still serves. `assigning` without one has no server.

    phase          record                            who serves
    free           free                              nobody
    assigning      assigning(owner)                  nobody yet
    transferring   assigning(owner, source)          the source
    owned          owned(owner)                      the owner
    handing_over   releasing(owner, source)          the source, until it has closed
    unloading      releasing(source)                 the source, until it has closed
    splitting      splitting(owner)                  the owner
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from equipoise.channel.core.records import State

Phase = Literal[
    "free", "assigning", "transferring", "owned", "handing_over", "unloading", "splitting"
]

STATE_OF_PHASE: Final[Mapping[Phase, State]] = {
    "free": "free",
    "assigning": "assigning",
    "transferring": "assigning",
    "owned": "owned",
    "handing_over": "releasing",
    "unloading": "releasing",
    "splitting": "splitting",
}

# (state, owner is named, source is named) -> phase. Any other shape is malformed.
PHASE_OF_SHAPE: Final[Mapping[tuple[State, bool, bool], Phase]] = {
    ("free", False, False): "free",
    ("assigning", True, False): "assigning",
    ("assigning", True, True): "transferring",
    ("owned", True, False): "owned",
    ("releasing", True, True): "handing_over",
    ("releasing", False, True): "unloading",
    ("splitting", True, False): "splitting",
}


class Actor(Enum):
    """Who may propose a transition. `OWNER` and `SOURCE` are those that the bundle names before
    it.
    """

    ANY_BROKER = "any live broker"
    ADMIN = "an admin"
    OWNER = "the owner"
    SOURCE = "the source"


class Holder(Enum):
    """Where a record's owner or source must come from."""

    NOBODY = "nobody"
    OWNER = "the owner before"
    SOURCE = "the source before"
    TARGET = "a live broker that does not drain, other than the owner before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: from `before` to `after`, by `actors`, naming `owner` and `source`."""

    before: Phase
    after: Phase
    actors: tuple[Actor, ...]
    owner: Holder
    source: Holder
    new_token: bool = False
    refused_while_deleting: bool = False
    meaning: str


_ANYBODY: Final = (Actor.ANY_BROKER, Actor.ADMIN)
_OWNER: Final = (Actor.OWNER,)
_SOURCE: Final = (Actor.SOURCE,)

TRANSITIONS: Final[tuple[Row, ...]] = (
    Row(
        before="free",
        after="assigning",
        actors=_ANYBODY,
        owner=Holder.TARGET,
        source=Holder.NOBODY,
        refused_while_deleting=True,
        meaning="assign",
    ),
    Row(
        before="assigning",
        after="owned",
        actors=_OWNER,
        owner=Holder.OWNER,
        source=Holder.NOBODY,
        new_token=True,
        meaning="the owner has opened it",
    ),
    Row(
        before="assigning",
        after="free",
        actors=_OWNER,
        owner=Holder.NOBODY,
        source=Holder.NOBODY,
        meaning="the owner refuses",
    ),
    Row(
        before="assigning",
        after="assigning",
        actors=_ANYBODY,
        owner=Holder.TARGET,
        source=Holder.NOBODY,
        refused_while_deleting=True,
        meaning="the owner is silent: assign to another",
    ),
    Row(
        before="owned",
        after="transferring",
        actors=_ANYBODY,
        owner=Holder.TARGET,
        source=Holder.OWNER,
        meaning="transfer",
    ),
    Row(
        before="transferring",
        after="handing_over",
        actors=_OWNER,
        owner=Holder.OWNER,
        source=Holder.SOURCE,
        meaning="the destination is warm: release",
    ),
    Row(
        before="transferring",
        after="owned",
        actors=_ANYBODY,
        owner=Holder.SOURCE,
        source=Holder.NOBODY,
        meaning="cancelled",
    ),
    Row(
        before="handing_over",
        after="owned",
        actors=_SOURCE,
        owner=Holder.OWNER,
        source=Holder.NOBODY,
        new_token=True,
        meaning="the source has closed it",
    ),
    Row(
        before="owned",
        after="unloading",
        actors=(*_ANYBODY, Actor.OWNER),
        owner=Holder.NOBODY,
        source=Holder.OWNER,
        meaning="unload without destination",
    ),
    Row(
        before="unloading",
        after="free",
        actors=_SOURCE,
        owner=Holder.NOBODY,
        source=Holder.NOBODY,
        meaning="the source has closed it",
    ),
    Row(
        before="owned",
        after="splitting",
        actors=_ANYBODY,
        owner=Holder.OWNER,
        source=Holder.NOBODY,
        refused_while_deleting=True,
        meaning="split",
    ),
    Row(
        before="splitting",
        after="owned",
        actors=_ANYBODY,
        owner=Holder.OWNER,
        source=Holder.NOBODY,
        meaning="cancelled",
    ),
)

ROWS: Final[Mapping[tuple[Phase, Phase], Row]] = {
    (row.before, row.after): row for row in TRANSITIONS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathRow:
    """What becomes of a bundle in phase `before` when the incarnation that it names as `role`
    dies.
    """

    before: Phase
    role: Literal["owner", "source"]
    after: Phase
    owner: Holder
    new_token: bool = False


DEATHS: Final[tuple[DeathRow, ...]] = (
    DeathRow(before="owned", role="owner", after="free", owner=Holder.NOBODY),
    DeathRow(before="splitting", role="owner", after="free", owner=Holder.NOBODY),
    DeathRow(before="assigning", role="owner", after="free", owner=Holder.NOBODY),
    DeathRow(before="unloading", role="source", after="free", owner=Holder.NOBODY),
    DeathRow(before="transferring", role="owner", after="owned", owner=Holder.SOURCE),
    DeathRow(before="handing_over", role="owner", after="owned", owner=Holder.SOURCE),
    DeathRow(before="transferring", role="source", after="assigning", owner=Holder.OWNER),
    DeathRow(
        before="handing_over", role="source", after="owned", owner=Holder.OWNER, new_token=True
    ),
)

DEATH_ROWS: Final[Mapping[tuple[Phase, str], DeathRow]] = {
    (row.before, row.role): row for row in DEATHS
}
