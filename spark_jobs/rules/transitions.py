"""The life of a bundle, written a second time from the protocol's own table: which step is whose, and what a death makes of it.

May live here: the two tables and the types of their cells. They are read by `spark_jobs.rules.bundle`.

A phase is a state together with who is named in it (`spark_jobs.rules.forms.PHASES`). `o` below is the owner before, `s` the
source before, `d` a live broker that does not drain and is not the owner before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Who = Literal["anybody", "broker", "admin", "owner", "source"]
"""Who may write the record; `anybody` is any live broker and an admin."""

Whom = Literal["-", "o", "s", "d"]
"""Whom a phase names after a step."""


class Step(NamedTuple):
    """One row: who writes it, whom it names as owner and as source, whether it begins an ownership, and whether a deletion bars it."""

    who: Who
    owner: Whom
    source: Whom
    ownership: bool = False
    barred_by_deletion: bool = False


# fmt: off
STEPS: Final[Mapping[tuple[str, str], Step]] = {
    ("free",         "assigning"):    Step("anybody", "d", "-", barred_by_deletion=True),
    ("assigning",    "owned"):        Step("owner",   "o", "-", ownership=True),
    ("assigning",    "free"):         Step("owner",   "-", "-"),
    ("assigning",    "assigning"):    Step("anybody", "d", "-", barred_by_deletion=True),
    ("owned",        "transferring"): Step("anybody", "d", "o"),
    ("transferring", "handing_over"): Step("owner",   "o", "s"),
    ("transferring", "owned"):        Step("anybody", "s", "-"),
    ("handing_over", "owned"):        Step("source",  "o", "-", ownership=True),
    ("owned",        "unloading"):    Step("anybody", "-", "o"),
    ("unloading",    "free"):         Step("source",  "-", "-"),
    ("owned",        "splitting"):    Step("anybody", "o", "-", barred_by_deletion=True),
    ("splitting",    "owned"):        Step("anybody", "o", "-"),
}
"""(phase before, phase after) -> what makes the step legal. What is not here is illegal."""


class Death(NamedTuple):
    """What becomes of a bundle: the phase after, who owns it then, and whether an ownership begins."""

    after: str
    owner: Whom
    ownership: bool = False


DEATHS: Final[Mapping[tuple[str, str], Death]] = {
    ("owned",        "owner"):  Death("free",      "-"),
    ("splitting",    "owner"):  Death("free",      "-"),
    ("assigning",    "owner"):  Death("free",      "-"),
    ("unloading",    "source"): Death("free",      "-"),
    ("transferring", "owner"):  Death("owned",     "s"),
    ("handing_over", "owner"):  Death("owned",     "s"),
    ("transferring", "source"): Death("assigning", "o"),
    ("handing_over", "source"): Death("owned",     "o", ownership=True),
}
"""(phase, whether the dead incarnation was its owner or its source) -> what becomes of it."""

SERVED_BY: Final[Mapping[str, Literal["owner", "source"]]] = {
    "owned": "owner",
    "splitting": "owner",
    "transferring": "source",
    "handing_over": "source",
    "unloading": "source",
}
"""Who serves in each phase. In one that is not here nobody does."""

ACCEPTED_ALTHOUGH: Final[Mapping[str, str]] = {
    "stale": "stale_accepted",
    "late": "sequence_fell",
    "dead_publisher": "dead_publisher_accepted",
    "illegal_transition": "illegal_step",
    "not_the_actor": "wrong_actor",
    "dead_target": "unfit_target",
    "draining_target": "unfit_target",
    "namespace_deleting": "unfit_target",
    "bad_boundary": "hole",
    "not_adjacent": "hole",
    "bundles_in_use": "namespace_deleted_in_use",
    "malformed": "malformed",
    "level": "above_level",
    "foreign_genesis": "foreign_genesis",
}
"""The verdict that the second rules expect -> the rule that is broken if the fold accepted the record all the same."""

ACCEPTED_ALTHOUGH_OF: Final[Mapping[tuple[str, str], str]] = {
    ("broker down", "still_alive"): "false_proof",
    ("broker joined", "still_alive"): "premature_join",
    ("level", "level"): "level_raised_early",
    ("genesis", "stale"): "genesis_twice",
}
"""The same for kinds of record that have a rule of their own; what is in neither is a `verdict_differs`."""
# fmt: on
