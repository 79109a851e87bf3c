"""Say what is wrong with a cluster now, each in a sentence with its remedy.

These are the rules of the alerts (`compose/prometheus/alerts.yaml`), as far as one look at a view
shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.brokers.balancing.controls import controls_in
from equipoise.brokers.balancing.quarantine import quarantined_in
from equipoise.brokers.errors import counted
from equipoise.brokers.http.page.sections import Rows, Seen
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.inspect.story import why_unserved

PROBLEMS_MAX: Final = 50

_FREE_MS: Final = 10_000
_MOVING_MS: Final = 60_000
_CERTIFICATE_MS: Final = 7 * 86_400_000
_LAG_RECORDS_MAX: Final = 1_000

_Problem = tuple[str, str, str]
"""How bad it is (`bad`, `warn` or `note`), the sentence, and the remedy."""


def problem_rows(seen: Seen, unsettled: Sequence[BundleEntry]) -> Rows:
    """Return what is wrong now, the worst first: a sentence with its remedy each."""
    found = [
        *(("bad", *each) for each in seen.at_broker),
        *_problems_of_bundles(seen, unsettled),
        *_problems_of_brokers(seen),
        *_balancing(seen),
    ]
    return {
        f"{place:02}": {"level": level, "text": text, "remedy": remedy}
        for place, (level, text, remedy) in enumerate(found[:PROBLEMS_MAX])
    }


def problems_at_broker(
    *, broker: str, lost_ms: int | None, problem: str, lag: int, expires_ms: int | None, now_ms: int
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the broker that answers. `lost_ms`: for how long it has lost the
    channel; `expires_ms`: when its certificate expires.
    """
    if lost_ms is not None:
        since = f"{broker} lost the channel {lost_ms // 1_000} s ago"
        text = f"{since}, and this page shows the state of then: {problem}"
        yield text, "Check the log (Kafka, or the disk) and the network."
    if lag > _LAG_RECORDS_MAX:
        yield (
            f"{broker} is {lag:,} records behind the log",
            "It is overloaded, and is about to lose its lease. Move bundles away from it.",
        )
    if expires_ms is not None and expires_ms - now_ms < _CERTIFICATE_MS:
        days = max(0, (expires_ms - now_ms) // 86_400_000)
        yield (
            f"the certificate of {broker} expires in {counted(days, 'day')}",
            "Renew its file. It needs no restart.",
        )


def _problems_of_bundles(seen: Seen, unsettled: Sequence[BundleEntry]) -> Iterator[_Problem]:
    view = seen.view
    for each in quarantined_in(view):
        text = f"{each.subject} is in quarantine, and nobody serves it: {each.reason}"
        release = f"equipoise bundles quarantine release {each.subject}"
        yield "bad", text, f"Mend its cause, then release it: {release}"
    for bundle in unsettled:
        waited_ms = seen.now_ms - seen.since_ms.get(bundle.name, seen.now_ms)
        if bundle.phase != "free" and waited_ms >= _MOVING_MS:
            text = f"{bundle.name} has been {bundle.state} for {waited_ms // 1_000} s"
            yield "bad", text, "Cancel its move, and read what both brokers log about it."
    for namespace, (number, since_ms) in sorted(seen.free.items()):
        if seen.now_ms - since_ms < _FREE_MS:
            continue
        have = "has" if number == 1 else "have"
        text = f"{counted(number, 'bundle')} of {namespace} {have} no owner"
        unserved = why_unserved(view, namespace)
        if unserved is not None:
            yield "bad", f"{text}: {unserved}", "Start a program that serves it."
        else:
            remedy = "Look at one of them with equipoise channel why, and at what brokers log."
            yield "bad", text, remedy


def _problems_of_brokers(seen: Seen) -> Iterator[_Problem]:
    for name in sorted(seen.view.brokers):
        broker = seen.view.brokers[name]
        joined_ms = seen.now_ms - broker.joined.timestamp_ms
        if broker.status == "down":
            remedy = "Look at its process and its log, and start it again. It is forgotten in time."
            yield "warn", f"{name} was declared dead", remedy
        elif broker.live and name in seen.suspects:
            remedy = (
                "Look at its process, its log and its network. If it stays silent for its lease,"
            )
            yield "bad", f"{name} is late with its renewal", f"{remedy} others take its bundles."
        elif broker.live and seen.knows_loads and name not in seen.fresh and joined_ms > _FREE_MS:
            text = f"{name} sends no load reports, so nothing is balanced with it"
            yield "warn", text, "Read what it logs about its reports, and check its clock."
        elif broker.live and name in seen.fresh and seen.fresh[name].problem is not None:
            text = f"the load of the bundles of {name} is not known: {seen.fresh[name].problem}"
            yield "warn", text, "Mend load() of its service."


def _balancing(seen: Seen) -> Iterator[_Problem]:
    controls, rounds = controls_in(seen.view, seen.now_ms), seen.settings.balancing
    budget = None if seen.last_round is None else seen.last_round.plan.budget
    if budget is not None and budget.blocks:
        yield "warn", budget.reason, "Wait, or raise balanced.churn_max."
    if controls.why_paused is not None:
        yield (
            "note",
            controls.why_paused,
            "It resumes at its end, or by equipoise balancing resume.",
        )
    for name in ("enabled", "shedding"):
        if not getattr(rounds, name):
            remedy = f"Turn it on: equipoise balancing set balancing.{name}=true"
            yield "note", f"the balancer moves nothing: balancing.{name} is false", remedy
            return
