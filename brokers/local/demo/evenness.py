"""Calculate how evenly brokers are used, from their load reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from equipoise.channel.core.view import View
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.spread import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Evenness:
    """The average use of each live broker's resources, by id. `silent` brokers have not reported."""

    used: Mapping[str, float]
    silent: tuple[str, ...] = ()

    @property
    def deviation(self) -> float | None:
        """The deviation of all uses, as `TransferShedder` calculates it; None if a broker is silent."""
        return None if self.silent or not self.used else Spread(self.used.values(), pulsar_exact=False).deviation

    def within(self, target: float) -> bool:
        """Return whether the deviation is known and at most `target`."""
        return self.deviation is not None and self.deviation <= target

    @property
    def text(self) -> str:
        """The uses and their deviation in one line."""
        uses = ", ".join(f"{broker} {used:.0%}" for broker, used in self.used.items()) or "nobody says anything"
        if self.silent:
            return f"{uses}; nothing is known of {', '.join(self.silent)}"
        return f"{uses}; deviation {self.deviation:.1%}"


def evenness_of(view: View, summaries: Iterable[Summary]) -> Evenness:
    """Return how evenly the live brokers of `view` are used."""
    told = {summary.broker: summary.load.averages.weighted_max for summary in summaries}
    live = sorted(broker.broker for broker in view.live_brokers())
    return Evenness(
        used={broker: told[broker] for broker in live if broker in told},
        silent=tuple(broker for broker in live if broker not in told),
    )


def busiest(view: View, summaries: Iterable[Summary], namespace: str) -> BundleTraffic | None:
    """Return the bundle of a namespace with the most messages that can be split, by its owner's report; None if there is none."""
    fit = [
        bundle
        for summary in summaries
        for bundle in summary.load.bundles or ()
        if bundle.topics != 1 and _is_owned(view, bundle.bundle, namespace, summary.broker)
    ]
    return max(fit, key=lambda bundle: (bundle.traffic.messages_per_second, bundle.bundle), default=None)


def _is_owned(view: View, name: str, namespace: str, broker: str) -> bool:
    bundle = view.bundles.get(name)
    owner = None if bundle is None or bundle.owner is None else view.live.get(bundle.owner)
    return bundle is not None and bundle.namespace == namespace and owner is not None and owner.broker == broker
