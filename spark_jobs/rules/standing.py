"""What the audit remembers of one broker id between two facts: one value under one name, as one JSON object.

May live here: the value, its spelling, and how it follows the accepted records of the broker's key. What is judged by it stands
in the modules named for what they judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.memory import Memory, load, save
from equipoise.spark_jobs.rules.rejections import Rejections
from equipoise.spark_jobs.rules.telling import Marks

Status = Literal["unknown", "up", "draining", "left", "down", "gone"]

NAME: Final = "standing"
LASTS_MAX: Final = 64
"""Accepted offsets of the key that are kept: at one renewal a second a proposal is known for a minute, longer than any is late."""
INCARNATIONS_MAX: Final = 16
"""Incarnations that are kept: what a broker wrote sixteen lives ago does not arrive any more."""

_STATUS_AFTER: Final[dict[str, Status]] = {"joined": "up", "draining": "draining", "left": "left", "down": "down", "removed": "gone"}


@dataclass(slots=True, kw_only=True)
class Standing:
    """One broker id. `incarnation` is the newest, alive or not.

    `begun` is from where the audit has read without a gap. What it has not seen, because it stands before that, is None
    (`status`: `unknown`), and nothing is concluded from it. `lasts` and `incarnations` are the newest accepted offsets of the key, and
    of its joinings. `attempts` are [sequence, hash, offset] of the newest attempts of the incarnation `attempts_of`. `told` counts
    findings by rule.
    """

    begun: int = 0
    status: Status = "unknown"
    incarnation: int | None = None
    lasts: list[int] = field(default_factory=list)
    incarnations: list[int] = field(default_factory=list)
    attempts_of: int | None = None
    attempts: list[list[int]] = field(default_factory=list)
    rejections: Rejections = field(default_factory=Rejections)
    told: Marks = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the audit has seen, or been told of, how it stands."""
        return self.status != "unknown"

    def adopt(self, before: Raw) -> None:
        """Take over how the fold says that it stood, where the audit began later than this broker."""
        self.status, self.incarnation = before["status"], before["incarnation"]
        self.incarnations = [before["incarnation"]]
        self.lasts = [] if before.get("last") is None else [before["last"]]

    def follow(self, fact: Fact, record: Raw) -> None:
        """Take in an accepted record of this broker's key."""
        status = record["status"]
        self.status = _STATUS_AFTER.get(status, self.status)
        if status == "joined":
            self.incarnation = fact.offset
            self.incarnations = [*self.incarnations, fact.offset][-INCARNATIONS_MAX:]
        # What comes after a removal is based on any key's removal, of which this broker's facts know nothing.
        self.lasts = [] if status == "removed" else [*self.lasts, fact.offset][-LASTS_MAX:]


def recall(memory: Memory, *, begun: int | None = None) -> Standing:
    """What is remembered of this broker; nothing of one that is met for the first time, nor from before a gap that ends at `begun`."""
    raw = load(memory, NAME)
    if raw is None or (begun is not None and raw["begun"] < begun):
        return Standing(begun=begun or 0)
    return Standing(**{**raw, "rejections": Rejections(**raw["rejections"])})


def remember(memory: Memory, standing: Standing) -> None:
    """Keep it for the next fact."""
    save(memory, NAME, standing)
