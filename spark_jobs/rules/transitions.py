"""The bundle's transition tables, written a second time from the protocol.

A phase is a state together with the parties that are set (`spark_jobs.rules.forms.PHASES`). In the
cells, `o` is the owner before, `s` the source before, and `d` a live broker that does not drain and
is not the owner before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Who = Literal["anybody", "broker", "admin", "owner", "source"]
"""Who may write the record; `anybody` is any live broker and any admin."""

Whom = Literal["-", "o", "s", "d"]
"""The party that a phase names after a step."""


class Step(NamedTuple):
    """One row: who writes it, the owner and source after it, whether an ownership begins, and
    whether a namespace deletion forbids it.
    """

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
"""(phase before, phase after) -> the conditions of the step. A pair that is missing is illegal."""


class Death(NamedTuple):
    """What becomes of a bundle: its next phase and owner, and whether an ownership begins."""

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
"""(phase, role of the dead incarnation) -> what becomes of the bundle."""

SERVED_BY: Final[Mapping[str, Literal["owner", "source"]]] = {
    "owned": "owner",
    "splitting": "owner",
    "transferring": "source",
    "handing_over": "source",
    "unloading": "source",
}
"""Who serves in each phase. In phases that are missing nobody serves."""
# fmt: on
