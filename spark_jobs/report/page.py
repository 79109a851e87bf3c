"""Render a report as HTML: findings first, then what happened, which moves were made and why, and
what they cost.

Every section states when there is nothing to show, and how many items it leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from importlib.resources import files
from shlex import quote
from string import Template
from typing import TYPE_CHECKING, Any, Final

from equipoise.spark_jobs.report.figures import (
    BINS,
    MARKS,
    REPORTS_MISSED,
    Death,
    Few,
    Found,
    Grid,
    Period,
    Report,
)
from equipoise.spark_jobs.report.formats import (
    NONE,
    format_count,
    format_duration,
    format_share,
    format_time,
    format_zone,
)
from equipoise.spark_jobs.report.html import (
    EMPTY,
    Html,
    joined,
    paragraph,
    picture,
    section,
    table,
    tag,
    text,
)
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import ACCEPTED, command_on

if TYPE_CHECKING:
    from equipoise.spark_jobs.report.plots import Plot

_KIND_OF_DEATH: Final[Mapping[str, str]] = {
    "down": "declared dead",
    "left": "left",
    "joined": "joined again",
}
_OFFSETS_SHOWN: Final = 6
_BROKERS_OF_LANE: Final = 4


def page(report: Report, drawn: tuple[Plot, ...], *, zone: tzinfo, written_ms: int) -> str:
    """Return the whole page. Times are shown in `zone`; `written_ms` is the Unix time of its
    creation.
    """
    pictures = {plot.name: plot for plot in drawn}
    sections = [_verdict(report, zone)]
    if report.period is not None:
        sections += [
            _cards(report),
            _served(report, report.period, pictures),
            _brokers(report, pictures),
            _moves(report, pictures),
            _deaths(report, zone),
            _splits_and_merges(report, zone),
            _decisions(report),
            _records(report),
        ]
    body = joined([_header(report, zone), *sections, _footer(report, zone, written_ms)])
    frame = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return frame.substitute(log=text(report.url), body=body)


def summary(report: Report) -> dict[str, Any]:
    """Return the key figures as a document for programs."""
    period = report.period
    return {
        "archive": report.archive,
        "log": report.url,
        "from_ms": None if period is None else period.from_ms,
        "to_ms": None if period is None else period.to_ms,
        "audited": report.is_audited,
        "findings": report.findings.count,
        "records": sum(each.count for each in report.records),
        "rejected": sum(each.count for each in report.records if each.verdict != ACCEPTED),
        "moves": report.moves.count,
        "moves_done": report.moves.results.get("done", 0),
        "pause_p50_ms": report.moves.pause_p50_ms,
        "pause_p99_ms": report.moves.pause_p99_ms,
        "pause_max_ms": report.moves.pause_max_ms,
        "unserved_ms": report.unserved_ms,
        "deaths": report.deaths.count,
        "divisions": report.splits_and_merges.count,
    }


# --- head, verdict, cards
# --------------------------------------------------------------------------------------------------


def _header(report: Report, zone: tzinfo) -> Html:
    period = report.period
    if period is None:
        shown = "Nothing to report"
    else:
        first, last = format_time(period.from_ms, zone), format_time(period.to_ms - 1, zone)
        shown = (
            f"{first} to {last} ({format_duration(period.length_ms)}), times in {format_zone(zone)}"
        )
    parts = [tag("h1", text("Channel report")), tag("p", text(shown))]
    parts.append(
        tag(
            "p",
            text("Log "),
            tag("code", text(report.url)),
            text(", archive "),
            tag("code", text(report.archive)),
            kind="soft",
        )
    )
    if period is not None:
        names = {
            "served": "Who served what",
            "brokers": "Brokers",
            "moves": "Moves",
            "deaths": "Deaths",
            "divisions": "Splits and merges",
            "decisions": "Decisions",
            "records": "Records",
        }
        links = [Html(f'<a href="#{anchor}">{text(name)}</a>') for anchor, name in names.items()]
        parts.append(tag("nav", *links))
    return tag("header", *parts)


def _verdict(report: Report, zone: tzinfo) -> Html:
    """Render the findings, or the reason why there are none."""
    if report.held is None:
        problem = (
            "The archive has no records and no findings yet. Run `equipoise spark archive`, then"
            " run the report again."
        )
        return section(
            "findings", "The archive is empty", paragraph(problem), kind="verdict unknown"
        )
    if report.period is None:
        ends = [format_time(at_ms, zone) for at_ms in (report.held.from_ms, report.held.to_ms - 1)]
        problem = (
            f"The archive covers {ends[0]} to {ends[1]} ({format_zone(zone)}). The requested period"
            " is outside."
        )
        advice = paragraph("Choose other times for --from and --to, or omit both.")
        return section(
            "findings",
            "The archive does not cover this period",
            paragraph(problem),
            advice,
            kind="verdict unknown",
        )
    notes = []
    if not report.is_archived:
        notes = [
            paragraph(
                "No archive job has written this archive, so the report shows only findings. Run"
                " `equipoise spark archive`."
            )
        ]
    if not report.is_audited:
        problem = "No audit has checked the records of this archive. To check them, run:"
        command = tag(
            "code",
            text(
                f"equipoise spark audit --log {quote(report.url)} --archive {quote(report.archive)}"
            ),
            kind="command",
        )
        return section(
            "findings", "Not audited", paragraph(problem), command, *notes, kind="verdict unknown"
        )
    if not report.findings.count:
        verdict = (
            "The audit checked every record with an independent implementation of the rules, and"
            " found no violation in this period."
        )
        return section("findings", "No findings", paragraph(verdict), *notes, kind="verdict")
    columns = {
        "severity": "text",
        "rule": "name",
        "findings": "number",
        "statement": "text",
        "what to do": "text",
    }
    rows = [
        (
            _severity(each.rule),
            each.rule,
            format_count(each.count),
            *_statement_and_remedy(each.rule),
        )
        for each in report.broken
    ]
    shown = joined(_finding(found, report.url, zone) for found in report.findings.shown)
    is_alarm = bool(report.broken) and _severity(report.broken[0].rule) == "alarm"
    return section(
        "findings",
        format_count(report.findings.count, "finding"),
        *notes,
        table("By rule", columns, rows),
        Html(f'<ol class="findings">{shown}</ol>'),
        _left_out(
            report.findings,
            "finding",
            "the most severe are shown; the archive's table findings has all",
        ),
        kind=f"verdict {'alarm' if is_alarm else 'warning'}",
    )


def _finding(found: Found, url: str, zone: tzinfo) -> Html:
    offsets = [str(offset) for offset in found.offsets[-_OFFSETS_SHOWN:]]
    more = "… " if len(found.offsets) > len(offsets) else ""
    where = (
        f"{format_time(found.at_ms, zone)} · {found.subject} ·"
        f" offset{'' if len(offsets) == 1 else 's'} {more}{', '.join(offsets)}"
    )
    who = f" · written by {found.publisher}" if found.publisher else ""
    severity = _severity(found.rule)
    return tag(
        "li",
        tag("span", text(severity), kind=f"tag {severity}"),
        Html(" "),
        tag("strong", text(found.rule)),
        tag("div", text(found.text)),
        tag("div", text(where + who), kind="soft"),
        tag("code", text(command_on(url, found.command)), kind="command"),
    )


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


def _cards(report: Report) -> Html:
    moves, records = report.moves, sum(each.count for each in report.records)
    rejected = sum(each.count for each in report.records if each.verdict != ACCEPTED)
    waiting = sum(death.waiting for death in report.deaths.shown)
    done = moves.results.get("done", 0)
    kinds = Counter(each.kind for each in report.splits_and_merges.shown)
    divided = (
        "the latest are listed below"
        if report.splits_and_merges.left_out
        else f"{kinds['split']} splits, {kinds['merge']} merges"
    )
    pauses = (
        f"p99 {format_duration(moves.pause_p99_ms)}, longest {format_duration(moves.pause_max_ms)}"
    )
    brokers = len(report.owned.brokers) + report.owned.left_out
    cards = (
        ("Moves completed", format_count(done), f"of {format_count(moves.count)} that ended"),
        ("Pause of a move, p50", format_duration(moves.pause_p50_ms), pauses),
        ("Total pause", format_duration(moves.pause_sum_ms), "of all moves"),
        (
            "Not served",
            format_duration(report.unserved_ms),
            "summed over bundles, including first placements",
        ),
        (
            "Brokers that died or left",
            format_count(report.deaths.count),
            _recovery(report.deaths.shown),
        ),
        ("Splits and merges", format_count(report.splits_and_merges.count), divided),
        (
            "Bundles, brokers",
            f"{format_count(report.lanes.count)}, {format_count(brokers)}",
            "active in this period",
        ),
        (
            "Records",
            format_count(records),
            f"{format_count(rejected)} rejected ({format_share(rejected, records)})",
        ),
    )
    found = [
        tag("div", tag("dt", text(name)), tag("dd", text(value), tag("small", text(more))))
        for name, value, more in cards
    ]
    orphaned = (
        f"{format_count(waiting, 'bundle')} of brokers that died or left still had no owner at the"
        " end of the archive."
    )
    return joined([tag("dl", *found, kind="cards"), paragraph(orphaned) if waiting else EMPTY])


def _recovery(deaths: Sequence[Death]) -> str:
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


# --- ownerships, brokers
# --------------------------------------------------------------------------------------------------


def _served(report: Report, period: Period, pictures: Mapping[str, Plot]) -> Html:
    lanes = report.lanes
    if not lanes.shown:
        return section("served", "Who served what", _empty("No bundle was served in this period."))
    shown = f"all {format_count(lanes.count, 'bundle')}"
    if lanes.left_out:
        most = format_count(len(lanes.shown), "bundle")
        shown = (
            f"the {most} with the most changes of owner; {format_count(lanes.left_out)} more are"
            " not drawn"
        )
    namespaces = len({lane.namespace for lane in lanes.shown})
    described = (
        f"Strip chart of {shown}, in {format_count(namespaces, 'namespace')}: the broker that"
        " served each over time."
    )
    rows = []
    for lane in lanes.shown:
        served = Counter[str]()
        for ownership in lane.ownerships:
            served[ownership.broker] += ownership.to_ms - ownership.from_ms
        brokers = ", ".join(
            f"{broker} {format_duration(length)}"
            for broker, length in served.most_common(_BROKERS_OF_LANE)
        )
        rows.append((lane.namespace, lane.bundle, format_count(lane.changes), brokers or NONE))
    caption = (
        f"The chart shows {shown}. Each row is a bundle, each colour the broker that serves it. In"
        " a gap no broker serves the bundle, or it does not exist. Spans shorter than"
        f" {format_duration(period.length_ms / MARKS)} are not drawn."
    )
    columns = {
        "namespace": "name",
        "bundle": "name",
        "changes": "number",
        "served by, longest first": "text",
    }
    as_table = _folded("Show as a table", table("Bundles by namespace", columns, rows))
    return section(
        "served", "Who served what", _picture(pictures, "ownership", described, caption), as_table
    )


def _brokers(report: Report, pictures: Mapping[str, Plot]) -> Html:
    parts = []
    if report.cpu.brokers:
        caption = (
            f"CPU use as reported by each broker, averaged. Grey: {REPORTS_MISSED} or more"
            " consecutive reports are missing."
        )
        parts.append(
            _picture(
                pictures,
                "cpu",
                f"Heat map: CPU use of {_many(report.cpu)} over time.",
                caption + _more(report.cpu),
            )
        )
    else:
        parts.append(
            _empty(
                "The archive has no load reports of this period, so the charts show only served"
                " bundles."
            )
        )
    if report.owned.brokers:
        caption = "Bundles served by each broker, averaged over time."
        parts.append(
            _picture(
                pictures,
                "owned",
                f"Heat map: bundles served by {_many(report.owned)} over time.",
                caption + _more(report.owned),
            )
        )
        cpu = dict(zip(report.cpu.brokers, report.cpu.rows, strict=True))
        rows = []
        for broker, row in zip(report.owned.brokers, report.owned.rows, strict=True):
            used = cpu.get(broker, ())
            rows.append(
                (
                    broker,
                    *_average_and_maximum(row, ".1f", ".0f"),
                    *_average_and_maximum(used, ".0%", ".0%"),
                )
            )
        numbers = ("bundles, average", "bundles, maximum", "CPU, average", "CPU, maximum")
        parts.append(
            _folded(
                "Show as a table",
                table("Brokers", {"broker": "name", **dict.fromkeys(numbers, "number")}, rows),
            )
        )
    return section("brokers", "Brokers over time", *parts)


def _many(grid: Grid) -> str:
    return format_count(len(grid.brokers), "broker")


def _more(grid: Grid) -> str:
    if not grid.left_out:
        return ""
    return (
        f" Shown are the {len(grid.brokers)} brokers with the highest values;"
        f" {format_count(grid.left_out)} more are left out."
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


# --- moves
# --------------------------------------------------------------------------------------------------


def _moves(report: Report, pictures: Mapping[str, Plot]) -> Html:
    moves = report.moves
    if not moves.count:
        return section(
            "moves", "Moves: reasons and pauses", _empty("No move ended in this period.")
        )
    results = ", ".join(
        f"{format_count(count)} {name.replace('_', ' ')}"
        for name, count in sorted(moves.results.items(), key=lambda each: (-each[1], each[0]))
    )
    parts = [
        _picture(
            pictures,
            "moves",
            f"Bar chart of ended moves over time, in {BINS} columns: {results}.",
            f"Ended moves: {results}.",
        )
    ]
    if moves.pauses:
        spread = (
            f"p50 {format_duration(moves.pause_p50_ms)}, p99 {format_duration(moves.pause_p99_ms)}"
        )
        longest = (
            f"longest {format_duration(moves.pause_max_ms)}, total"
            f" {format_duration(moves.pause_sum_ms)}"
        )
        pauses = f"{format_count(moves.pauses, 'pause')}: {spread}, {longest}."
        parts.append(_picture(pictures, "pauses", f"Histogram of pauses. {pauses}", pauses))
    else:
        parts.append(
            _empty("No move of this period completed by a handover, so there are no pauses.")
        )
    reasons = [
        (
            format_count(each.count),
            format_count(each.done),
            format_duration(each.pause_p50_ms),
            _short(each.text),
            each.example or NONE,
        )
        for each in report.reasons.shown
    ]
    columns = {
        "moves": "number",
        "completed": "number",
        "pause p50": "number",
        "reason": "text",
        "example": "text",
    }
    parts.append(table("Reasons of moves", columns, reasons))
    parts.append(_left_out(report.reasons, "reason", "the most frequent are shown"))
    return section("moves", "Moves: reasons and pauses", *parts, _movers(report))


def _short(reason: str) -> str:
    """Return the text before the first colon, which names the kind of reason. The rest are the
    figures of one case.
    """
    return reason.partition(": ")[0]


def _movers(report: Report) -> Html:
    bundles = []
    for each in report.bundle_moves.shown:
        why = ", ".join(f"{format_count(count)} {_short(reason)}" for reason, count in each.reasons)
        bundles.append(
            (each.bundle, format_count(each.count), format_duration(each.pause_sum_ms), why)
        )
    brokers = [
        (each.broker, format_count(each.gave), format_count(each.got), format_count(each.failed))
        for each in report.broker_moves.shown
    ]
    return joined(
        [
            table(
                "Top movers: bundles",
                {"bundle": "name", "moves": "number", "total pause": "number", "reasons": "text"},
                bundles,
            ),
            _left_out(report.bundle_moves, "bundle", "the bundles with the most moves are shown"),
            table(
                "Top movers: brokers",
                {
                    "broker": "name",
                    "bundles given": "number",
                    "bundles received": "number",
                    "moves that failed": "number",
                },
                brokers,
            ),
            _left_out(report.broker_moves, "broker", "the brokers with the most moves are shown"),
        ]
    )


# --- deaths, splits, merges, decisions, records
# ----------------------------------------------------------------------------------------


def _deaths(report: Report, zone: tzinfo) -> Html:
    if not report.deaths.shown:
        return section(
            "deaths", "Deaths and recovery", _empty("No broker died or left in this period.")
        )
    rows = [
        (
            format_time(death.at_ms, zone),
            death.broker,
            _KIND_OF_DEATH.get(death.kind, death.kind),
            death.publisher or NONE,
            format_count(death.bundles),
            format_duration(death.healed_ms),
            format_count(death.waiting),
            str(death.offset),
        )
        for death in report.deaths.shown
    ]
    columns = {
        "time": "time",
        "broker": "name",
        "kind": "text",
        "recorded by": "name",
        "bundles lost": "number",
        "recovered after": "number",
        "still without owner": "number",
        "offset": "number",
    }
    note = paragraph(
        "Times count from the record of the death. The lease and its grace period ran before that"
        " record.",
        kind="soft",
    )
    return section(
        "deaths",
        "Deaths and recovery",
        note,
        table("Brokers that died or left", columns, rows),
        _left_out(report.deaths, "death", "the latest are shown"),
    )


def _splits_and_merges(report: Report, zone: tzinfo) -> Html:
    if not report.splits_and_merges.shown:
        return section(
            "divisions",
            "Splits and merges",
            _empty("No bundle was split or merged in this period."),
        )
    rows = [
        (
            format_time(each.at_ms, zone),
            each.kind,
            _names(each.before, each.before_count),
            _names(each.after, each.after_count),
            each.publisher or NONE,
            each.reason or NONE,
        )
        for each in report.splits_and_merges.shown
    ]
    columns = {
        "time": "time",
        "kind": "text",
        "before": "name",
        "after": "name",
        "requested by": "name",
        "reason": "text",
    }
    return section(
        "divisions",
        "Splits and merges",
        table("Bundles that were split or merged", columns, rows),
        _left_out(
            report.splits_and_merges,
            "split or merge",
            "the latest are shown",
            many="splits and merges",
        ),
    )


def _names(names: tuple[str, ...], count: int) -> str:
    more = f", and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more


def _decisions(report: Report) -> Html:
    if not report.decisions.shown:
        return section(
            "decisions",
            "What the balancer decided",
            _empty("The archive has no decisions of this period."),
        )
    rows = [
        (format_count(each.count), each.kind, each.strategy, each.result, each.cause)
        for each in report.decisions.shown
    ]
    columns = {
        "rounds": "number",
        "kind": "text",
        "strategy": "name",
        "result": "text",
        "cause": "text",
    }
    return section(
        "decisions",
        "What the balancer decided",
        table("Rounds by result", columns, rows),
        _left_out(report.decisions, "outcome", "the most frequent are shown"),
    )


def _records(report: Report) -> Html:
    if not report.records:
        return section(
            "records",
            "Records by kind and verdict",
            _empty("The archive has no records of this period."),
        )
    columns = {"kind": "name", "accepted": "number", "rejected": "number", "reasons": "text"}
    return section(
        "records", "Records by kind and verdict", table("Records", columns, _kinds(report))
    )


def _kinds(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each kind, most frequent first."""
    totals: Counter[str | None] = Counter()
    for each in report.records:
        totals[each.kind] += each.count
    for kind, total in totals.most_common():
        of_kind = {each.verdict: each.count for each in report.records if each.kind == kind}
        accepted = of_kind.pop(ACCEPTED, 0)
        why = ", ".join(f"{format_count(count)} {verdict}" for verdict, count in of_kind.items())
        yield (
            "not a record" if kind is None else kind,
            format_count(accepted),
            format_count(total - accepted),
            why or NONE,
        )


def _footer(report: Report, zone: tzinfo, written_ms: int) -> Html:
    held = report.held
    reach = (
        ""
        if held is None
        else (
            f" The archive covers {format_time(held.from_ms, zone)} to"
            f" {format_time(held.to_ms - 1, zone)}."
        )
    )
    note = (
        f"Written {format_time(written_ms, zone)} by `equipoise spark report`.{reach} Times: the"
        f" log's clock, {format_zone(zone)}."
    )
    return tag("footer", paragraph(note, kind="soft"))


# --- pieces
# --------------------------------------------------------------------------------------------------


def _picture(pictures: Mapping[str, Plot], name: str, described: str, caption: str) -> Html:
    plot = pictures.get(name)
    return (
        EMPTY
        if plot is None
        else picture(plot.light, plot.dark, described=described, caption=caption)
    )


def _folded(title: str, *parts: Html) -> Html:
    return tag("details", tag("summary", text(title)), *parts)


def _empty(message: str) -> Html:
    return paragraph(message, kind="empty")


def _left_out(few: Few[Any], one: str, which: str, many: str = "") -> Html:
    if not few.left_out:
        return EMPTY
    return paragraph(
        f"{format_count(few.left_out, f'more {one}', f'more {many}' if many else '')} left out;"
        f" {which}.",
        kind="soft",
    )
