"""Check that each quarantine has evidence against its bundle, and that few bundles are in
quarantine.

This counts on its own how often each owner has renewed its lease with a bundle.
"""

from __future__ import annotations

from equipoise.brokers.balancing.policies import Quarantine, parse_policy
from equipoise.brokers.balancing.quarantine import QuarantineRules, quarantined_in
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, PolicyChanged
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord, Renewed
from equipoise.channel.core.view import View
from tests.simulation.checkers.violation import InvariantViolated


class Quarantines:
    """Knows which deaths came soon after their broker had got a bundle, and which opens failed, by
    offset and bundle.
    """

    def __init__(self) -> None:
        self._rules = QuarantineRules()
        self._renewals: dict[str, int] = {}
        self._soon: dict[tuple[int, str], str] = {}
        self._failed: set[tuple[int, str]] = set()

    def folded(self, folded: Folded, view: View) -> None:
        """Check an accepted record."""
        if isinstance(folded.record, Renewed):
            for bundle in view.bundles.values():
                if bundle.server == folded.record.incarnation:
                    self._renewals[bundle.name] = self._renewals.get(bundle.name, 0) + 1
        left = isinstance(folded.record, BrokerRecord) and folded.record.status == "left"
        dead = (
            {}
            if left
            else {
                each.dead: each.name
                for each in folded.verdict.changes
                if isinstance(each, BrokerChanged)
            }
        )
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before is not None:
                before, key = change.before, (folded.offset, change.name)
                served_by = before.owner if before.server is None else before.server
                if (
                    served_by in dead
                    and served_by is not None
                    and self._renewals.get(change.name, 0) < self._rules.renewals
                ):
                    self._soon[key] = dead[served_by]
                if is_refusal(folded.record, before):
                    self._failed.add(key)
                if change.after is None or change.after.server != before.server:
                    self._renewals.pop(change.name, None)
            elif isinstance(change, PolicyChanged) and change.after is not None:
                policy = parse_policy(change.name, change.after.document)
                if isinstance(policy, Quarantine):
                    self._check(policy, view)

    def _check(self, policy: Quarantine, view: View) -> None:
        keys = [(offset, policy.subject) for offset in policy.evidence]
        killed = {self._soon[key] for key in keys if key in self._soon}
        is_killer = len(killed) >= self._rules.deaths and all(key in self._soon for key in keys)
        if not is_killer and not (
            len(keys) >= self._rules.failed_opens and all(key in self._failed for key in keys)
        ):
            what = (
                f"{policy.subject} is in quarantine by {policy.evidence}, which speak against it"
                f" for {len(killed)} owners that died soon"
            )
            raise InvariantViolated(invariant="8 a quarantine has evidence", what=what)
        # One more, because bundles may have been merged since somebody found that it fits.
        held = sum(each.subject in view.bundles for each in quarantined_in(view))
        if held > self._rules.room(view) + 1:
            raise InvariantViolated(
                invariant="8 a quarantine has evidence",
                what=f"{held} bundles of {len(view.bundles)} are held",
            )
