"""Report where unloaded bundles went, and why a bundle is not at its destination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.agent.requests import nobody_else
from equipoise.brokers.errors import Cancelled
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

PLACED_MS: Final = 5_000
"""How long an unload waits for a released bundle's next owner.

A service that refuses is asked again after 0.75 s, 1.5 s, and so on. If a bundle has no owner by then, the unload reports the reason.
"""

SETTLED_MS: Final = 500
"""How long a new owner must keep a bundle. A failed opening is on the channel; a successful one is not."""

# The channel keeps the full reason.
_PROBLEM_CHARACTERS_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one bundle: `source` owned it before, `owner` owns it now under `token` (None: no owner).

    `problem` is why the bundle is back at its source, why it has no owner, or which broker refused it.
    """

    bundle: str
    source: str
    owner: str | None
    token: int | None
    problem: str | None

    def document(self) -> dict[str, str | int | None]:
        """Return this outcome as a JSON object."""
        return {"bundle": self.bundle, "source": self.source, "owner": self.owner, "token": self.token, "problem": self.problem}

    def sentence(self) -> str:
        """Return this outcome as a sentence."""
        if self.owner is None:
            told = f"{self.source} has released {self.bundle}, and nobody owns it now"
        elif self.owner == self.source:
            told = f"{self.bundle} came back to {self.source}, token {self.token}"
        else:
            told = f"{self.bundle} is owned by {self.owner}, token {self.token}"
        return told if self.problem is None else f"{told}: {self.problem}"


class Outcomes:
    """Follows bundles from before their unload. The caller passes every record to `folded`."""

    def __init__(self, view: View, bundles: Iterable[BundleEntry]) -> None:
        """Take the `bundles` to be unloaded, and ignore those without an owner."""
        self._sources = {bundle.name: view.live[bundle.owner].broker for bundle in bundles if bundle.owner is not None}
        self._refusals: dict[str, str] = {}
        self._quiet = Deadline.after(timeout_ms=SETTLED_MS)

    def folded(self, folded: Folded) -> None:
        """Note a record."""
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.name in self._sources:
                self._quiet = Deadline.after(timeout_ms=SETTLED_MS)
                refusal = _refusal(folded, change)
                if refusal is not None:
                    self._refusals[change.name] = refusal

    def are_settled(self, view: View) -> bool:
        """Return whether each bundle has kept its owner for `SETTLED_MS`, or is gone."""
        entries = (view.bundles.get(name) for name in self._sources)
        return not self._quiet.remaining_ms() and all(entry is None or entry.phase == "owned" for entry in entries)

    def of(self, name: str, view: View) -> Outcome:
        """Return what became of a bundle that had an owner."""
        source, refusal = self._sources[name], self._refusals.get(name)
        entry = view.bundles.get(name)
        if entry is None:
            return Outcome(bundle=name, source=source, owner=None, token=None, problem="it is gone: split, merged or deleted")
        if entry.phase != "owned" or entry.owner is None:
            return Outcome(bundle=name, source=source, owner=None, token=None, problem=refusal or f"it is {entry.state}")
        owner = view.live[entry.owner].broker
        if refusal is None and owner == source:
            refusal = (nobody_else(view, entry) or f"see equipoise channel why {name}")[:_PROBLEM_CHARACTERS_MAX]
        return Outcome(bundle=name, source=source, owner=owner, token=entry.token, problem=refusal)

    def all(self, view: View) -> list[Outcome]:
        """Return what became of each bundle."""
        return [self.of(name, view) for name in self._sources]

    def is_refused(self, name: str) -> bool:
        """Return whether a destination refused the bundle or gave it up."""
        return name in self._refusals

    def check(self, name: str, view: View, *, destination: str | None) -> Outcome:
        """Return what became of a transferred bundle.

        Raises `Cancelled` if a broker refused it and it is now at its source, has no owner, or is not at its named `destination`.
        """
        outcome = self.of(name, view)
        if name in self._refusals and (outcome.owner in (None, outcome.source) or destination not in (None, outcome.owner)):
            raise Cancelled(bundle=name, move="transfer", problem=outcome.sentence())
        return outcome


def _refusal(folded: Folded, change: BundleChanged) -> str | None:
    """Return which broker refused a bundle that it was to own, and why. Return None if the record is not a refusal."""
    record, before = folded.record, change.before
    if not isinstance(record, BundleTransition) or before is None or not is_refusal(record, before):
        return None
    reason = (record.reason or "")[:_PROBLEM_CHARACTERS_MAX]
    return f"{record.publisher} refused it: {reason}" if before.phase == "assigning" else f"{record.publisher} {reason}"
