"""Short stories of facts about one bundle."""

from __future__ import annotations

from typing import Any, Final

from equipoise.spark_jobs.rules.bundle import BundleMemory, State
from equipoise.spark_jobs.rules.facts import subject
from tests.unit.spark.rules.broker_facts import Story

NAMESPACE: Final = "t/n"
BUNDLE: Final = "t/n/0x40000000_0x80000000"
LEFT: Final = "t/n/0x40000000_0x60000000"
RIGHT: Final = "t/n/0x60000000_0x80000000"

OWNER: Final = 11
SOURCE: Final = 12
OTHER: Final = 13
TOKEN: Final = 20
LAST: Final = 30

ADMIN: Final = "admin:ops"

STATES: Final[dict[str, dict[str, Any]]] = {
    "free": {"state": "free"},
    "assigning": {"state": "assigning", "owner": OWNER},
    "transferring": {"state": "assigning", "owner": OWNER, "source": SOURCE},
    "owned": {"state": "owned", "owner": OWNER},
    "handing_over": {"state": "releasing", "owner": OWNER, "source": SOURCE},
    "unloading": {"state": "releasing", "source": SOURCE},
    "splitting": {"state": "splitting", "owner": OWNER},
}
"""The fields of a record that asks for each phase."""


def entry(
    phase: str,
    *,
    owner: int | None = None,
    source: int | None = None,
    last: int = LAST,
    token: int = TOKEN,
) -> dict[str, Any]:
    """Return a bundle as in facts."""
    return {"phase": phase, "owner": owner, "source": source, "last": last, "token": token}


def standing_in(phase: str) -> dict[str, Any]:
    """Return a bundle in a phase, with the incarnations that the phase names."""
    state = STATES[phase]
    return entry(phase, owner=state.get("owner"), source=state.get("source"))


def transition(
    phase: str,
    *,
    by: int | str,
    owner: int | None = None,
    source: int | None = None,
    expected_offset: int = LAST,
) -> dict[str, Any]:
    """A record of kind `bundle`, by an incarnation or by an admin."""
    whom = {name: who for name, who in (("owner", owner), ("source", source)) if who is not None}
    signed = (
        {"publisher": ADMIN, "as_of": 99}
        if by == ADMIN
        else {"publisher": f"b{by}", "incarnation": by, "sequence": 5}
    )
    return {
        "kind": "bundle",
        "key": BUNDLE,
        "expected_offset": expected_offset,
        "state": STATES[phase]["state"],
        **whom,
        **signed,
    }


class BundleStory(Story):
    """The story of a bundle."""

    def __init__(self, name: str = BUNDLE) -> None:
        super().__init__(subject("bundle", name))
        self.offset = 99

    def begin(self, phase: str) -> BundleStory:
        """Let the audit know the bundle in this phase."""
        known = standing_in(phase)
        self.audit.memory = BundleMemory(
            state=State(phase, known["owner"], known["source"], LAST, TOKEN)
        )
        return self

    # As a context has it.
    def accepted(
        self,
        record: dict[str, Any],
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        **context: Any,  # noqa: ANN401
    ) -> BundleStory:
        """Check an accepted record that changed the bundle. In `after`, `last` becomes the record's
        offset.
        """
        made = None if after is None else {**after, "last": self.offset + 1}
        self.tell(record, before=before, after=made, context=context)
        return self

    # As a context has it.
    def rejected(self, record: dict[str, Any], verdict: str, **context: Any) -> BundleStory:  # noqa: ANN401
        """Check a rejected record."""
        self.tell(record, verdict=verdict, context=context)
        return self
