"""Write the table and the plots of docs/benchmarks.md from the results that are kept: `python -m
tests.docs.benchmarks_page`.

The site's page docs/reference/benchmarks.md has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tests.benchmarks.peers.page import RESULTS as PEERS
from tests.docs.markdown import table
from tests.docs.reference_pages import FOLDER
from tests.house.house_rules import ROOT

PAGE: Final = ROOT / "docs" / "benchmarks.md"
PLOTS: Final = ROOT / "docs" / "img"
RESULTS: Final = FOLDER / "benchmarks.json"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
OURS, PULSAR, OTHER = "#C2410C", "#1D4ED8", "#94A3B8"

# Time without an owner, of peers that are set to notice a death about as soon as we do.
RIVALS: Final = ("redis_3s", "zookeeper_3s", "partitioner_3s", "group_6s", "group_next_6s")

Figures = Mapping[str, float]


class Kept:
    """The results that are kept, of our benchmarks and of those of peers."""

    def __init__(self) -> None:
        groups = json.loads(RESULTS.read_text(encoding="utf-8"))["groups"]
        self._results: Mapping[tuple[str, str], Figures] = {
            (each["benchmark"], each["case"]): each["figures"]
            for group in groups.values()
            for each in group["results"]
        }
        self.peers: Mapping[str, Any] = json.loads(PEERS.read_text(encoding="utf-8"))

    def of(self, benchmark: str, case: str) -> Figures:
        """Return the figures of a case by name, in its unit."""
        return self._results[benchmark, case]

    def median(self, benchmark: str, case: str) -> float:
        """Return the median of a case, in its unit."""
        return self.of(benchmark, case)["median"]

    def gap_s(self, system: str, event: str, figure: str = "p50") -> float:
        """Return the time without an owner of a system, in seconds."""
        gaps: Figures = self.peers[system]["events"][event]["without_owner_ms"]
        return gaps[figure] / 1_000

    def least_gap_s(self, event: str) -> tuple[float, str]:
        """Return the least time without an owner of the peers, and whose it is."""
        names = [name for name in self.peers if not name.startswith("equipoise")]
        best = min(
            (name for name in names if event in self.peers[name]["events"]),
            key=lambda name: self.gap_s(name, event),
        )
        return self.gap_s(best, event), self.peers[best]["title"]

    def stale(self, system: str) -> int:
        """Return how many late writes of former owners the store took."""
        events = self.peers[system]["events"].values()
        return sum(each["stale_accepted"] for each in events)

    def hot(self, system: str) -> float:
        """Return the share of calls of the busiest program while one shard is hot."""
        return float(self.peers[system]["events"]["hot"]["shares_of_calls"][0])


def _rows(kept: Kept) -> Iterator[tuple[str, ...]]:
    """Yield each row: what, ours, Pulsar's, the best peer's, the limit or target, and the ratio of
    ours to Pulsar's, or else to the limit.
    """
    yield from _pauses(kept)
    yield from _owners(kept)
    yield from _rates(kept)
    yield from _scale(kept)


def _pauses(kept: Kept) -> Iterator[tuple[str, ...]]:
    named = "in a transfer to a named broker, "
    unload = "in an unload without destination, "
    for what, ours, theirs, control in (
        ("a producer's pause in a transfer, p50 and longest", named + "fast", named, "fast"),
        ("the same in an unload without destination", unload + "slow", unload, "slow"),
    ):
        own, other = (
            kept.of("pulsar_transfer", case) for case in (ours, f"{theirs}Pulsar 4.0.8")
        )
        case = (
            "a producer's pause beyond its period of 50 ms, control, fast"
            if control == "fast"
            else "control, slow"
        )
        without = kept.of("pulsar_transfer", case)
        yield (
            what,
            f"{own['p50']}, {own['longest']} ms",
            f"{other['p50']}, {other['longest']} ms",
            "",
            f"{without['p50']}, {without['longest']} ms without a move",
            _ratio(own["p50"], other["p50"]),
        )
    moved, still = (
        kept.median("transfer", f"a caller's longest pause: {case}")
        for case in ("in a transfer", "control")
    )
    limit = f"{still} ms without a move"
    yield (
        "an HTTP caller's longest pause in a transfer",
        f"{moved} ms",
        "",
        "",
        limit,
        _ratio(moved, still),
    )


def _owners(kept: Kept) -> Iterator[tuple[str, ...]]:
    ours, theirs = (
        kept.of("pulsar_failover", f"from the kill, {case}")["p50"]
        for case in ("slow", "Pulsar 4.0.8")
    )
    yield (
        "kill -9 of a broker, until a producer is back",
        f"{ours} s",
        f"{theirs} s",
        "",
        "",
        _ratio(ours, theirs),
    )
    for what, system, event in (
        ("kill -9 of a program, its shards without an owner", "equipoise_kafka", "kill"),
        ("the same with a machine for each program", "equipoise_kafka_apart", "kill"),
        ("SIGTERM to a program, its shards without an owner", "equipoise_kafka", "term"),
    ):
        best, whose = kept.least_gap_s(event)
        yield what, f"{kept.gap_s(system, event):.2f} s", "", f"{best:.2f} s ({whose})", "", ""
    others = [kept.stale(name) for name in RIVALS]
    yield (
        "late writes that a store took",
        str(kept.stale("equipoise_kafka")),
        "",
        f"{min(others)} to {max(others)}",
        "0",
        "",
    )
    hot = kept.hot("equipoise_kafka")
    least = min(kept.hot(name) for name in RIVALS)
    yield (
        "half of all calls go to one shard: share of the busiest of three programs",
        f"{hot:.0%}",
        "",
        f"{least:.0%}",
        "50%",
        _ratio(hot, 0.5),
    )


def _rates(kept: Kept) -> Iterator[tuple[str, ...]]:
    for case, target in (
        ("one by one (-db), produced", 0.6),
        ("in batches, produced", 1.0),
        ("in batches, delivered", 0.9),
    ):
        of = kept.of("pulsar_perf", case)
        ratio = of["ours"] / of["pulsar"]
        yield (
            f"messages of 1 KiB per second, {case}",
            f"{of['ours']:,}",
            f"{of['pulsar']:,}",
            "",
            f"{target} of Pulsar",
            f"{ratio:.2f}" if ratio >= target else f"**{ratio:.2f}**",
        )
    rate = kept.median("lookup", "rate")
    share = kept.median("lookup", "rate as a share of that of a bare aiohttp app")
    yield "lookups per second", f"{rate:,}", "", "", "a bare aiohttp app", f"{share}"
    added, request = (
        kept.median("key_routing", case)
        for case in ("added by by_key", "CPU time of a request of FastAPI")
    )
    yield (
        "routing by key, CPU time for a request",
        f"{added} µs",
        "",
        "",
        f"{request} µs, the request",
        _ratio(added, request),
    )


def _scale(kept: Kept) -> Iterator[tuple[str, ...]]:
    memory = "resident memory under the load of pulsar_transfer, Pulsar 4.0.8"
    ours = kept.median("pulsar_connections", "the same, ours, slow")
    theirs = kept.of("pulsar_connections", memory)["least"]
    yield (
        "memory of a broker under load",
        f"{ours} MiB",
        f"{theirs} MiB or more",
        "",
        "",
        _ratio(ours, theirs),
    )
    for what, benchmark, case, unit, target in (
        (
            "a round of balancing, 1,000 brokers and 100,000 bundles, CPU time",
            "planning",
            "a round of BalancedShedder, 1,000 brokers and 100,000 bundles: CPU time",
            "s",
            1,
        ),
        (
            "a broker with 1,000 bundles is ready after kill -9",
            "start",
            "after kill -9",
            "s",
            2,
        ),
        (
            "compaction of 1,000,000 records to 100,000 keys",
            "compaction",
            "1,000,000 records to 100,000 keys, SQLite",
            "s",
            15,
        ),
    ):
        value = kept.median(benchmark, case)
        shown = f"{value} {unit}" if value <= target else f"**{value} {unit}**"
        yield what, shown, "", "", f"{target} {unit}", _ratio(value, target)


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2g}"


def main_table(kept: Kept) -> str:
    """Return the table of what matters."""
    head = ("", "Equipoise", "Pulsar 4.0.8", "best peer", "limit or target", "ratio")
    return table(head, _rows(kept)) + "\n"


def written(page: str, kept: Kept) -> str:
    """Return the page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{main_table(kept)}{END}{rest.partition(END)[2]}"


# --- plots ---


def _axis(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5)


def _logarithmic(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _spans(axis: Axes, spans: Sequence[tuple[str, float, float, str]], unit: str) -> None:
    """Draw a dot for p50 and a line up to the longest, on a logarithmic scale."""
    for place, (_, middle, longest, colour) in enumerate(reversed(spans)):
        axis.plot([middle, longest], [place, place], color=colour, linewidth=2)
        axis.plot(middle, place, "o", color=colour, markersize=6)
        axis.annotate(
            f"{middle:g} {unit}",
            (longest, place),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_xscale("log")
    axis.set_xlim(min(span[1] for span in spans) / 2, max(span[2] for span in spans) * 4)
    _logarithmic(axis.xaxis)
    axis.margins(y=0.3 / len(spans) + 0.05)
    axis.set_yticks(range(len(spans)), [name for name, *_ in reversed(spans)])
    axis.set_xlabel(f"{unit}, logarithmic", fontsize=8)
    axis.grid(axis="x", color="#E2E8F0")


def pause(kept: Kept) -> Figure:
    """Draw how long a move holds up producers of Pulsar's clients."""
    cases = (
        ("no move", "a producer's pause beyond its period of 50 ms, control, fast", OTHER),
        ("transfer, Equipoise", "in a transfer to a named broker, fast", OURS),
        ("transfer, Pulsar 4.0.8", "in a transfer to a named broker, Pulsar 4.0.8", PULSAR),
        ("unload, Equipoise", "in an unload without destination, slow", OURS),
        ("unload, Pulsar 4.0.8", "in an unload without destination, Pulsar 4.0.8", PULSAR),
    )
    spans = [
        (name, each["p50"], each["longest"], colour)
        for name, case, colour in cases
        for each in [kept.of("pulsar_transfer", case)]
    ]
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axis = figure.subplots()
    _axis(axis, "A producer's pause: p50, and up to the longest")
    _spans(axis, spans, "ms")
    return figure


def failover(kept: Kept) -> Figure:
    """Draw how long nobody serves after a kill -9."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    programs, producers = figure.subplots(1, 2, width_ratios=(3, 2))
    systems = ("equipoise_kafka", "equipoise_kafka_apart", *RIVALS)
    spans = [
        (
            kept.peers[name]["title"],
            round(kept.gap_s(name, "kill"), 2),
            kept.gap_s(name, "kill", "longest"),
            OURS if name.startswith("equipoise") else OTHER,
        )
        for name in systems
    ]
    _axis(programs, "kill -9 of a program: shards without an owner")
    _spans(programs, spans, "s")
    ours, theirs = (
        kept.of("pulsar_failover", f"from the kill, {case}") for case in ("slow", "Pulsar 4.0.8")
    )
    _axis(producers, "kill -9 of a broker: a producer")
    _spans(
        producers,
        (
            ("Equipoise", ours["p50"], ours["longest"], OURS),
            ("Pulsar 4.0.8", theirs["p50"], theirs["p50"], PULSAR),
        ),
        "s",
    )
    return figure


def lookups(kept: Kept) -> Figure:
    """Draw what a call through the client costs beside one without it, and lookups over HTTP."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    calls, shares = figure.subplots(1, 2, width_ratios=(3, 2))
    rates = ("200", "800", "3,000")
    for shift, name, colour, cases in (
        (-0.2, "Client.request", OURS, ("Client.request at {} calls/s", "at {} calls/s")),
        (0.2, "bare aiohttp", OTHER, ("bare aiohttp at {} calls/s", "at {} calls/s, bare")),
    ):
        values = [
            kept.median("client_calls", cases[bool(place)].format(rate))
            for place, rate in enumerate(rates)
        ]
        bars = calls.bar(
            [place + shift for place in range(3)], values, 0.38, color=colour, label=name
        )
        calls.bar_label(bars, fontsize=8)
    calls.set_xticks(range(3), [f"{rate} calls/s" for rate in rates])
    calls.margins(y=0.2)
    calls.legend(fontsize=8, frameon=False)
    _axis(calls, "A call, median in ms")
    names = ("lookup over HTTP", "lookup over TLS")
    values = [
        kept.median("lookup", case)
        for case in (
            "rate as a share of that of a bare aiohttp app",
            "rate over TLS as a share of that without",
        )
    ]
    bars = shares.bar(names, values, 0.5, color=OURS)
    shares.bar_label(bars, fontsize=8)
    shares.axhline(1, color=OTHER, linewidth=1)
    _axis(shares, "Rate beside a bare app, and without TLS")
    return figure


def throughput(kept: Kept) -> Figure:
    """Draw the messages per second of pulsar-perf."""
    cases = (
        "one by one (-db), produced",
        "one by one (-db), delivered",
        "in batches, produced",
        "in batches, delivered",
    )
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axis = figure.subplots()
    for shift, name, key, colour in (
        (-0.2, "Equipoise", "ours", OURS),
        (0.2, "Pulsar 4.0.8", "pulsar", PULSAR),
    ):
        values = [kept.of("pulsar_perf", case)[key] / 1_000 for case in cases]
        places = [place + shift for place in range(len(cases))]
        bars = axis.bar(places, values, 0.38, color=colour, label=name)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    labels = [case.replace(" (-db)", "").replace(", ", ",\n") for case in cases]
    axis.set_xticks(range(len(cases)), labels)
    axis.margins(y=0.15)
    axis.legend(fontsize=8, frameon=False)
    _axis(axis, "Messages of 1 KiB, in thousands per second")
    return figure


def scale(kept: Kept) -> Figure:
    """Draw the pause by the size of the state, and a lookup by the number of bundles."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    states, bundles = figure.subplots(1, 2)
    first = "time without an owner, a bundle of 1 MiB moves to another process"
    seconds = [
        kept.median("state_stream", first) / 1_000,
        kept.median("state_stream", "a bundle of 100 MiB"),
        kept.median("state_stream", "a bundle of 1 GiB"),
    ]
    counts = (100, 10_000, 100_000)
    nanoseconds = [kept.median("view", f"a lookup among {count:,} bundles") for count in counts]
    for axis, places, values, title, unit in (
        (states, (1, 100, 1_024), seconds, "A move of state: time without an owner", "s"),
        (bundles, counts, nanoseconds, "A lookup in the view", "ns"),
    ):
        axis.plot(places, values, "o-", color=OURS)
        for place, value in zip(places, values, strict=True):
            axis.annotate(
                f"{value:g} {unit}",
                (place, value),
                (-5, 5),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
        axis.set_xscale("log")
        axis.margins(0.2, 0.25)
        _logarithmic(axis.xaxis)
        _axis(axis, title)
    states.set_yscale("log")
    _logarithmic(states.yaxis)
    states.set_xlabel("MiB of state", fontsize=8)
    bundles.set_ylim(bottom=0)
    bundles.set_xlabel("bundles", fontsize=8)
    return figure


def main() -> None:
    """Write the table, and draw the plots."""
    kept = Kept()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
    for draw in (pause, failover, lookups, throughput, scale):
        draw(kept).savefig(PLOTS / f"bench-{draw.__name__}.png", dpi=100)


if __name__ == "__main__":
    main()
