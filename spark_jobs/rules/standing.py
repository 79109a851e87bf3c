"""Define what the audit remembers of one broker id between two facts."""

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
"""Accepted offsets of the key to keep. At one renewal per second that is a minute, and no proposal is that late."""
INCARNATIONS_MAX: Final = 16
"""Incarnations to keep. Records from sixteen incarnations ago no longer arrive."""

_STATUS_AFTER: Final[dict[str, Status]] = {"joined": "up", "draining": "draining", "left": "left", "down": "down", "removed": "gone"}


@dataclass(slots=True, kw_only=True)
class Standing:
    """What is known of one broker id.

    * `begun`: the offset from which the audit has read without a gap. What is before it is unknown (None, or `status` `unknown`), and no
      rule uses it.
    * `incarnation`: the newest one, alive or not.
    * `lasts`, `incarnations`: the newest accepted offsets of the key, and of its `joined` records.
    * `attempts`: [sequence, hash, offset] of the newest attempts of the incarnation `attempts_of`.
    * `told`: findings reported, by rule.
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
        """Whether the audit knows this broker's status."""
        return self.status != "unknown"

    def adopt(self, before: Raw) -> None:
        """Take over the fold's state of a broker that is older than the audit's reading."""
        self.status, self.incarnation = before["status"], before["incarnation"]
        self.incarnations = [before["incarnation"]]
        self.lasts = [] if before.get("last") is None else [before["last"]]

    def follow(self, fact: Fact, record: Raw) -> None:
        """Apply an accepted record of this broker's key."""
        status = record["status"]
        self.status = _STATUS_AFTER.get(status, self.status)
        if status == "joined":
            self.incarnation = fact.offset
            self.incarnations = [*self.incarnations, fact.offset][-INCARNATIONS_MAX:]
        # A record after a removal expects the offset of the last removal of any key. This broker's facts do not show that.
        self.lasts = [] if status == "removed" else [*self.lasts, fact.offset][-LASTS_MAX:]


def recall(memory: Memory, *, begun: int | None = None) -> Standing:
    """Return what is remembered of this broker; nothing for a new one, or from before a gap that ends at `begun`."""
    raw = load(memory, NAME)
    if raw is None or (begun is not None and raw["begun"] < begun):
        return Standing(begun=begun or 0)
    return Standing(**{**raw, "rejections": Rejections(**raw["rejections"])})


def remember(memory: Memory, standing: Standing) -> None:
    """Save `standing` for the next fact."""
    save(memory, NAME, standing)
