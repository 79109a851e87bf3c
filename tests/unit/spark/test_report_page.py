"""Test the page and the pictures of a report."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.spark_jobs.audit.reporting import Reach
from equipoise.spark_jobs.report.figures import (
    BINS,
    Few,
    Grid,
    Moves,
    Period,
    Report,
    Row,
)
from equipoise.spark_jobs.report.page import page, summary
from equipoise.spark_jobs.report.plots import (
    LIGHT,
    draw_pauses,
    plots,
    short_names,
)

BEGAN_MS = 1_763_740_000_000
PERIOD = Period(from_ms=BEGAN_MS, to_ms=BEGAN_MS + 600_000)
BUNDLE = "t/n/0x00000000_0x80000000"
FORGED = '"><script>alert(1)</script>'

EMPTY = Report(archive="ch.db.archive", url="sqlite:ch.db", held=None, period=None)
QUIET = replace(EMPTY, held=PERIOD, period=PERIOD, reach=Reach(audited=0, end=0))
FULL = replace(
    QUIET,
    broken=(Row(rule="token_fell", count=2), Row(rule="of_later", count=1)),
    findings=Few(
        shown=(
            Row(
                rule="token_fell",
                subject=f"bundle:{BUNDLE}",
                offsets=tuple(range(10, 20)),
                at_ms=BEGAN_MS + 5,
                text=f"the token of {BUNDLE} fell from 9 to 8 {FORGED}",
                command="equipoise channel show --log {log} 19",
                publisher="b1",
            ),
        ),
        count=3,
    ),
    records=(
        Row(kind="bundle", count=1_507, accepted=1_500, reasons=(("stale", 7),)),
        Row(kind=None, count=2, accepted=0, reasons=(("malformed", 2),)),
    ),
    lanes=Few(
        shown=(
            Row(
                namespace="t/n",
                bundle=BUNDLE,
                changes=2,
                ownerships=(
                    Row(broker="b1", from_ms=BEGAN_MS, to_ms=BEGAN_MS + 60_000, how="died"),
                    Row(broker="b2", from_ms=BEGAN_MS + 61_000, to_ms=PERIOD.to_ms, how=None),
                ),
            ),
        ),
        count=301,
    ),
    owned=Grid(brokers=("b1", "b2"), rows=((1.0,) * BINS, (0.0,) * BINS), left_out=4),
    cpu=Grid(brokers=("b1",), rows=((0.5, None) * (BINS // 2),)),
    moves=Moves(
        results={"done": 3, "cancelled": 1},
        bins={"done": (3,) + (0,) * (BINS - 1), "cancelled": (1,) + (0,) * (BINS - 1)},
        pauses=3,
        pause_p50_ms=20,
        pause_p99_ms=90,
        pause_max_ms=95,
        pause_sum_ms=135,
        pause_bars={0: 1, 10: 1, 15: 1},
    ),
    reasons=Few(
        shown=(
            Row(text="transfer: # %", example="transfer: 59 %", count=4, done=3, pause_p50_ms=20),
        ),
        count=1,
    ),
    bundle_moves=Few(
        shown=(Row(bundle=BUNDLE, count=4, pause_sum_ms=135, reasons=(("transfer: # %", 4),)),),
        count=1,
    ),
    broker_moves=Few(shown=(Row(broker="b1", gave=3, got=0, failed=1),), count=1),
    deaths=Few(
        shown=(
            Row(
                broker="b1",
                kind="down",
                at_ms=BEGAN_MS + 60_000,
                offset=77,
                publisher="b2",
                bundles=5,
                waiting=1,
                healed_ms=1_000,
            ),
        ),
        count=61,
    ),
    splits_and_merges=Few(
        shown=(
            Row(
                kind="split",
                at_ms=BEGAN_MS,
                offset=5,
                publisher="b1",
                reason="hot",
                before=(BUNDLE,),
                before_count=1,
                after=("t/n/0x00000000_0x40000000",),
                after_count=20,
            ),
        ),
        count=1,
    ),
    decisions=Few(
        shown=(
            Row(kind="unload", strategy="transfer", result="Success", cause="Overloaded", count=12),
        ),
        count=1,
    ),
    unserved_ms=1_000,
)


class Reader(HTMLParser):
    """Collect what a browser would find: open tags, all tags, addresses, and the descriptions of
    pictures.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.described: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.addresses += [found[name] or "" for name in ("src", "href", "srcset") if name in found]
        if tag == "img":
            self.described.append(found.get("alt") or "")
        if tag not in {"meta", "img", "source"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()


def rendered(report: Report) -> str:
    """Return the page in one line, without the data of its pictures."""
    whole = page(report, plots(report, UTC), zone=UTC, written_ms=BEGAN_MS)
    return re.sub(r"\s+", " ", re.sub(r"data:image/png;base64,[^\"]*", "", whole))


def test_the_page_is_self_contained() -> None:
    """All tags are closed, nothing runs, and each address is an anchor or holds a picture."""
    reader = Reader()
    reader.feed(page(FULL, plots(FULL, UTC), zone=UTC, written_ms=BEGAN_MS))
    reader.close()
    assert [] == reader.open
    assert set() == reader.tags & {"script", "link", "iframe", "object", "form"}
    assert [] == [
        address[:40]
        for address in reader.addresses
        if not address.startswith(("#", "data:image/png;base64,"))
    ]
    assert [5, True] == [len(reader.described), all(reader.described)]


def test_findings_come_first_with_their_evidence() -> None:
    """A finding has its offsets, and the command that shows it with the URL of the log."""
    shown = rendered(FULL)
    assert "3 findings" in shown
    assert "equipoise channel show --log sqlite:ch.db 19" in shown
    assert "offsets … 14, 15, 16, 17, 18, 19" in shown
    assert "2 more findings left out" in shown
    assert shown.index('id="findings"') < shown.index('class="cards"') < shown.index('id="served"')
    assert "This version does not know this rule." in shown


@given(value=st.text())
def test_no_text_becomes_a_tag(value: str) -> None:
    """The text of a record becomes neither a tag, nor an attribute, nor a line break, nor a change
    of direction.
    """
    whole = page(replace(EMPTY, url=value), (), zone=UTC, written_ms=BEGAN_MS)
    (shown,) = re.findall(r'<p class="soft">Log <code>(.*?)</code>', whole, re.DOTALL)
    assert not set("<>\"'\n\u202e") & set(shown)


def test_sections_show_their_figures_and_how_many_they_leave_out() -> None:
    shown = rendered(FULL)
    for words in (
        "the 1 bundle with the most changes of owner; 300 more are not drawn",
        "4 more are left out",
        "60 more deaths left out",
        "3 done, 1 cancelled",
        "3 pauses: p50 20 ms, p99 90 ms, longest 95 ms, total 135 ms",
        "transfer: 59 %",
        "and 19 more",
        '<th scope="col" class="name">rule</th>',
        "1,500</td>",
        "7 stale",
        "not a record</td>",
        "Overloaded",
        "1 bundle of brokers that died or left still had no owner",
    ):
        assert words in shown, words


@pytest.mark.parametrize(
    ("bundles", "waiting", "healed_ms", "shows"),
    [
        (0, 0, None, "none owned a bundle"),
        (5, 0, 1_000, ">all their bundles had new owners within 1.0 s"),
        (5, 1, 1_000, "some of their bundles had new owners within 1.0 s"),
        (5, 5, None, "none of their bundles has a new owner"),
    ],
)
def test_a_card_shows_how_long_bundles_of_dead_brokers_had_no_owner(
    bundles: int, waiting: int, healed_ms: int | None, shows: str
) -> None:
    shown = {"bundles": bundles, "waiting": waiting, "healed_ms": healed_ms}
    death = Row(**{**vars(FULL.deaths.shown[0]), **shown})
    report = replace(FULL, deaths=Few(shown=(death,), count=1))
    assert shows in page(report, (), zone=UTC, written_ms=BEGAN_MS)


NOTHING: dict[str, tuple[Report, tuple[str, ...]]] = {
    "empty": (EMPTY, ("The archive is empty", "Nothing to report")),
    "another period": (
        replace(EMPTY, held=PERIOD),
        (
            "The archive does not cover this period",
            "2025-11-21 15:46:40 to 2025-11-21 15:56:39 (UTC)",
        ),
    ),
    "not audited": (
        replace(QUIET, is_audited=False),
        ("Not audited", "equipoise audit --to-end --log sqlite:ch.db"),
    ),
    "not audited to its end": (
        replace(QUIET, reach=Reach(audited=2_319, end=3_490), last_offset=2_320),
        (
            "Not audited to the end",
            "The log was audited up to 2,319 of 3,490.",
            "equipoise audit --to-end --log sqlite:ch.db",
        ),
    ),
    "audited to its end": (
        replace(QUIET, reach=Reach(audited=2_319, end=3_490), last_offset=2_319),
        ("No findings", "The log was audited up to 2,319 of 3,490."),
    ),
    "audited nobody knows how far": (
        replace(QUIET, reach=None),
        ("Not known how far audited", "equipoise audit --to-end --log sqlite:ch.db"),
    ),
    "not archived": (
        replace(QUIET, is_archived=False),
        ("No archive job has written this archive", "No findings"),
    ),
    "nothing in it": (
        QUIET,
        (
            "No findings",
            "No bundle was served in this period.",
            "The archive has no load reports of this period",
            "No move ended in this period.",
            "No broker died or left in this period.",
            "No bundle was split or merged in this period.",
            "The archive has no decisions of this period.",
            "The archive has no records of this period.",
        ),
    ),
}


@pytest.mark.parametrize(("report", "shows"), NOTHING.values(), ids=NOTHING)
def test_a_page_without_rows_states_what_is_missing(report: Report, shows: tuple[str, ...]) -> None:
    """It also states what to do, and has no pictures."""
    shown = rendered(report)
    assert [] == [words for words in shows if words not in shown]
    assert () == plots(report, UTC)


@pytest.mark.parametrize("broker", ["b$_$", "a$x^$", "$", r"a\$b$"])
def test_names_in_pictures_are_not_formulas(broker: str) -> None:
    """A name with dollars is drawn as it is: in the strip chart, its legend, above it, and beside a
    heat map.
    """
    lane = Row(
        namespace=f"t/{broker}",
        bundle=f"t/{broker}/0x00000000_0x80000000",
        changes=1,
        ownerships=(Row(broker=broker, from_ms=BEGAN_MS, to_ms=BEGAN_MS + 60_000, how="died"),),
    )
    death = Row(
        broker=broker,
        kind="down",
        at_ms=BEGAN_MS + 60_000,
        offset=7,
        publisher=None,
        bundles=1,
        waiting=1,
        healed_ms=None,
    )
    grid = Grid(brokers=(broker,), rows=((0.5,) * BINS,))
    report = replace(
        QUIET,
        lanes=Few(shown=(lane,), count=1),
        deaths=Few(shown=(death,), count=1),
        cpu=grid,
        owned=grid,
    )
    assert ["ownership", "cpu", "owned"] == [plot.name for plot in plots(report, UTC)]


def test_names_in_pictures_are_short_and_differ() -> None:
    """The end that all names share is left out if the rest differs."""
    assert {"a-1.x:80": "a-1", "a-2.x:80": "a-2"} == short_names(["a-1.x:80", "a-2.x:80"])
    assert {"10.0.0.1:81": "10.0.0.1:81", "10.0.0.1:82": "10.0.0.1:82"} == short_names(
        ["10.0.0.1:81", "10.0.0.1:82"]
    )
    assert {"alone.x:80": "alone.x:80"} == short_names(["alone.x:80"])
    long = [f"{'x' * 40}{number}{'y' * 40}" for number in range(2)]
    assert dict(zip(long, long, strict=True)) == short_names(long)


def test_findings_do_not_hide_how_far_the_audit_came() -> None:
    report = replace(FULL, reach=Reach(audited=7, end=9), last_offset=9)
    shown = page(report, (), zone=UTC, written_ms=BEGAN_MS)
    assert "audited up to 7 of 9. This period ends later" in shown
    assert (False, 7) == (summary(report)["audited"], summary(report)["audited_to"])


def test_the_figures_for_programs() -> None:
    found = summary(FULL)
    assert (3, 1_509, 9, 4, 3, 61) == tuple(
        found[name] for name in ("findings", "records", "rejected", "moves", "moves_done", "deaths")
    )
    assert summary(EMPTY)["from_ms"] is None


@pytest.mark.parametrize("bars", [(0,), (6,), (11,), (19,), (30,), (0, 1), (0, 40), (6, 7, 8)])
def test_pauses_are_marked_with_different_times(bars: tuple[int, ...]) -> None:
    """Even for pauses that are close together, the axis has at least two marks, and no two have the
    same label.
    """
    report = replace(FULL, moves=Moves(pauses=2 * len(bars), pause_bars=dict.fromkeys(bars, 2)))
    axes = draw_pauses(report, LIGHT, UTC).axes[0]
    left, right = axes.get_xlim()
    marks = [
        axes.xaxis.get_major_formatter()(place)
        for place in axes.get_xticks()
        if left <= place <= right
    ]
    assert 2 <= len(marks) == len(set(marks)), marks
