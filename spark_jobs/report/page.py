"""Render a report as HTML: findings first, then what happened, which moves were made and why, and
what they cost.

`page.html` is the template. Every section states when there is nothing to show, and how many items
it leaves out.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from functools import cache, partial
from importlib.resources import files
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from equipoise.spark_jobs.report.figures import (
    BINS,
    MARKS,
    NONE,
    REPORTS_MISSED,
    Report,
    Row,
    format_count,
    format_duration,
    format_share,
    format_time,
    format_zone,
)
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import command_on

if TYPE_CHECKING:
    from equipoise.spark_jobs.report.plots import Plot

_OFFSETS_SHOWN: Final = 6
_BROKERS_OF_LANE: Final = 4


def page(report: Report, drawn: tuple[Plot, ...], *, zone: tzinfo, written_ms: int) -> str:
    """Return the whole page. Times are shown in `zone`; `written_ms` is the Unix time of its
    creation.
    """
    return _template().render(
        report=report,
        key=summary(report),
        pictures={plot.name: plot for plot in drawn},
        brokers=_brokers(report),
        recovery=_recovery(report.deaths.shown),
        results=_results(report),
        time=partial(format_time, zone=zone),
        zone=format_zone(zone),
        written_ms=written_ms,
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "base64": _base64,
        "count": format_count,
        "duration": format_duration,
        "kind_of_reason": _kind_of_reason,
        "quote": quote,
    }
    environment.filters |= filters
    environment.globals |= {
        "bins": BINS,
        "command_on": command_on,
        "marks": MARKS,
        "offsets_shown": _OFFSETS_SHOWN,
        "reasons_of": _reasons_of,
        "reports_missed": REPORTS_MISSED,
        "served_by": _served_by,
        "severity": _severity,
        "share": format_share,
        "statement_and_remedy": _statement_and_remedy,
    }
    return environment.from_string(
        files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    )


def _shown(value: object) -> object:
    """Return a value as the page shows it, before Jinja escapes it. Control characters, line breaks
    and direction marks are shown as their code points, so that no record can disguise itself.
    """
    if value is None:
        return NONE
    if isinstance(value, Markup):  # What a macro has written: its values were shown already.
        return value
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in str(value))


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def summary(report: Report) -> dict[str, Any]:
    """Return the key figures as a document for programs."""
    period = report.period
    return {
        "archive": report.archive,
        "log": report.url,
        "from_ms": None if period is None else period.from_ms,
        "to_ms": None if period is None else period.to_ms,
        "audited": report.is_whole,
        "audited_to": None if report.reach is None else report.reach.audited,
        "findings": report.findings.count,
        "records": sum(each.count for each in report.records),
        "rejected": sum(each.count - each.accepted for each in report.records),
        "moves": report.moves.count,
        "moves_done": report.moves.results.get("done", 0),
        "pause_p50_ms": report.moves.pause_p50_ms,
        "pause_p99_ms": report.moves.pause_p99_ms,
        "pause_max_ms": report.moves.pause_max_ms,
        "unserved_ms": report.unserved_ms,
        "deaths": report.deaths.count,
        "divisions": report.splits_and_merges.count,
    }


def _severity(rule: str) -> str:
    return RULES[rule].severity if rule in RULES else "warning"


def _statement_and_remedy(rule: str) -> tuple[str, str]:
    if rule not in RULES:
        return (
            "This version does not know this rule.",
            "Upgrade Equipoise, and read the table findings.",
        )
    says, source = RULES[rule].says, RULES[rule].source
    return f"{says} Source: {source}." if source else says, RULES[rule].remedy


def _recovery(deaths: Sequence[Row]) -> str:
    """Describe how long the bundles of dead brokers had no owner."""
    if not any(death.bundles for death in deaths):
        return "none owned a bundle"
    healed = max((death.healed_ms for death in deaths if death.healed_ms is not None), default=None)
    if healed is None:
        return "none of their bundles has a new owner"
    which = (
        "some of their bundles" if any(death.waiting for death in deaths) else "all their bundles"
    )
    return f"{which} had new owners within {format_duration(healed)}"


def _served_by(lane: Row) -> str:
    """Describe which brokers served a bundle for how long, the longest first."""
    served = Counter[str]()
    for ownership in lane.ownerships:
        served[ownership.broker] += ownership.to_ms - ownership.from_ms
    longest = served.most_common(_BROKERS_OF_LANE)
    return ", ".join(f"{broker} {format_duration(length)}" for broker, length in longest) or NONE


def _brokers(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield a row for each broker: served bundles and CPU use, the average and the maximum."""
    cpu = dict(zip(report.cpu.brokers, report.cpu.rows, strict=True))
    for broker, row in zip(report.owned.brokers, report.owned.rows, strict=True):
        used = cpu.get(broker, ())
        yield (
            broker,
            *_average_and_maximum(row, ".1f", ".0f"),
            *_average_and_maximum(used, ".0%", ".0%"),
        )


def _average_and_maximum(
    row: tuple[float | None, ...], average_form: str, maximum_form: str
) -> tuple[str, str]:
    known = [cell for cell in row if cell is not None]
    return (
        (format(sum(known) / len(known), average_form), format(max(known), maximum_form))
        if known
        else (NONE, NONE)
    )


def _results(report: Report) -> str:
    """Describe how moves ended, the most frequent result first."""
    results = sorted(report.moves.results.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{format_count(count)} {name.replace('_', ' ')}" for name, count in results)


def _kind_of_reason(reason: str) -> str:
    """Return the text before the first colon. The rest are the figures of one case."""
    return reason.partition(": ")[0]


def _reasons_of(moves: Row) -> str:
    return ", ".join(
        f"{format_count(count)} {_kind_of_reason(reason)}" for reason, count in moves.reasons
    )
