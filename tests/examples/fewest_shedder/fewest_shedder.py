"""A balancing policy in a package of its own."""

from dataclasses import dataclass

from equipoise.shedder.plan import Idle, Move, Plan, Stay
from equipoise.shedder.policy import Policy, setting
from equipoise.shedder.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestShedder(Policy):
    """Even out the number of bundles, not their cost."""

    difference_max: int = setting("Difference of bundles that is allowed.", default=1)

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, object]:
        """Move a bundle from the broker with the most bundles to the one with the fewest."""
        brokers = {each.broker: each.bundles for each in snapshot.brokers if each.barred is None}
        counts = {broker: len(bundles) for broker, bundles in brokers.items()}
        stays = [
            Stay(subject=name, reason=f"it has {count} bundles") for name, count in counts.items()
        ]
        source = max(counts, key=counts.__getitem__, default="")
        for bundle in brokers.get(source, ()):
            takers = counts.keys() & snapshot.candidates(bundle.name).allowed
            taker = min(sorted(takers), key=counts.__getitem__, default=source)
            more = counts[source] - counts[taker]
            if more > self.difference_max and bundle.barred is None and not bundle.rests:
                reason = f"{source} has {more} bundles more than {taker}"
                move = Move(bundle=bundle.name, source=source, destination=taker, reason=reason)
                others = tuple(stay for stay in stays if stay.subject != source)
                return Plan(moves=(move,), stays=others), memory
        idle = Idle(result="Skip", cause="NoBundles", reason="no bundle should move, and may")
        return Plan(stays=tuple(stays), idle=idle), memory
