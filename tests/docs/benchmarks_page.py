"""Write the table and the plots of docs/benchmarks.md, and the plot of the page "When to use it",
from the results that are kept: `python -m tests.docs.benchmarks_page`.

It takes what `make bench BENCH=peers` has left in `build/peers` into the results first. The site's
page docs/reference/benchmarks.md has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

from tests.benchmarks.peers.__main__ import FOLDER as NEW
from tests.benchmarks.peers.systems import SYSTEMS
from tests.docs.markdown import table
from tests.docs.reference_pages import FOLDER
from tests.house.house_rules import ROOT

PAGE: Final = ROOT / "docs" / "benchmarks.md"
PLOTS: Final = ROOT / "docs" / "img"
RESULTS: Final = FOLDER / "benchmarks.json"
PEERS: Final = ROOT / "tests" / "benchmarks" / "peers" / "results.json"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
OURS, PULSAR, OTHER = "#C2410C", "#1D4ED8", "#94A3B8"

Figures = Mapping[str, float]
Results = Mapping[str, Figures]


ROWS: Final = (
    (
        "a producer's pause in a transfer, p50 and longest",
        "{transfer[p50]}, {transfer[longest]} ms",
        "{pulsar_transfer[p50]}, {pulsar_transfer[longest]} ms",
        "",
        "{still[p50]}, {still[longest]} ms without a move",
        "transfer[p50] pulsar_transfer[p50]",
    ),
    (
        "the same in an unload without destination",
        "{unload[p50]}, {unload[longest]} ms",
        "{pulsar_unload[p50]}, {pulsar_unload[longest]} ms",
        "",
        "{still_slow[p50]}, {still_slow[longest]} ms without a move",
        "unload[p50] pulsar_unload[p50]",
    ),
    (
        "an HTTP caller's longest pause in a transfer",
        "{caller[median]} ms",
        "",
        "",
        "{caller_still[median]} ms without a move",
        "caller[median] caller_still[median]",
    ),
    (
        "kill -9 of a broker, until a producer is back",
        "{kill[p50]} s",
        "{pulsar_kill[p50]} s",
        "",
        "",
        "kill[p50] pulsar_kill[p50]",
    ),
    (
        "kill -9 of a program, its shards without an owner",
        "{equipoise_kafka_kill[p50]:.2f} s",
        "",
        "{partitioner_3s_kill[p50]:.2f} s (SetPartitioner)",
        "",
        "equipoise_kafka_kill[p50] partitioner_3s_kill[p50]",
    ),
    (
        "the same with a machine for each program",
        "{equipoise_kafka_apart_kill[p50]:.2f} s",
        "",
        "{partitioner_3s_kill[p50]:.2f} s (SetPartitioner)",
        "",
        "equipoise_kafka_apart_kill[p50] partitioner_3s_kill[p50]",
    ),
    (
        "SIGTERM to a program, its shards without an owner",
        "{equipoise_kafka_term[p50]:.2f} s",
        "",
        "{redis_term[p50]:.2f} s (Redis lock)",
        "",
        "equipoise_kafka_term[p50] redis_term[p50]",
    ),
    (
        "late writes of a stopped program that the store took",
        "{equipoise_kafka_stop10[stale]}",
        "",
        "{zookeeper_3s_stop10[stale]} (ZooKeeper lock) to {group_6s_stop10[stale]} (Kafka group)",
        "0",
        "",
    ),
    (
        "half of all calls go to one shard: share of the busiest of three programs",
        "{equipoise_kafka_hot[busiest]:.0%}",
        "",
        "{redis_3s_hot[busiest]:.0%} (Redis lock)",
        "50%",
        "equipoise_kafka_hot[busiest] redis_3s_hot[busiest]",
    ),
    (
        "messages of 1 KiB a second, one by one, produced",
        "{one_in[ours]:,}",
        "{one_in[pulsar]:,}",
        "",
        "0.6 of Pulsar",
        "one_in[ours] one_in[pulsar]",
    ),
    (
        "in batches, produced",
        "{batch_in[ours]:,}",
        "{batch_in[pulsar]:,}",
        "",
        "as Pulsar",
        "batch_in[ours] batch_in[pulsar]",
    ),
    (
        "in batches, delivered",
        "{batch_out[ours]:,}",
        "{batch_out[pulsar]:,}",
        "",
        "0.9 of Pulsar",
        "batch_out[ours] batch_out[pulsar]",
    ),
    (
        "memory of a broker under load",
        "{memory[median]} MiB",
        "{pulsar_memory[least]} to {pulsar_memory[most]} MiB",
        "",
        "",
        "memory[median] pulsar_memory[least]",
    ),
    (
        "lookups a second",
        "{lookups[median]:,}",
        "",
        "",
        "a bare aiohttp app, target 0.6 of it",
        "lookup_share[median] lookup_share[whole]",
    ),
    (
        "routing by key, CPU time for a request",
        "{by_key[median]} µs",
        "",
        "",
        "{request[median]} µs, the request",
        "by_key[median] request[median]",
    ),
    (
        "a round of balancing, 1,000 brokers and 100,000 bundles, CPU time",
        "{planning[median]} s",
        "",
        "",
        "{planning[target]} s",
        "planning[median] planning[target]",
    ),
    (
        "a broker with 1,000 bundles is ready after kill -9",
        "{ready[median]} s",
        "",
        "",
        "{ready[target]} s",
        "ready[median] ready[target]",
    ),
    (
        "compaction of 1,000,000 records to 100,000 keys",
        "{compaction[median]} s",
        "",
        "",
        "{compaction[target]} s",
        "compaction[median] compaction[target]",
    ),
)
"""The rows of the table, with figures by the names of results: what, ours, Pulsar's, the best
peer's, the limit or target, and which figures the ratio is of.
"""

PAUSES: Final = (
    ("no move", "still", OTHER),
    ("transfer, Equipoise", "transfer", OURS),
    ("transfer, Pulsar 4.0.8", "pulsar_transfer", PULSAR),
    ("unload, Equipoise", "unload", OURS),
    ("unload, Pulsar 4.0.8", "pulsar_unload", PULSAR),
)
DEATHS: Final = (
    ("Equipoise", "equipoise_kafka_kill", OURS),
    ("Equipoise, machines apart", "equipoise_kafka_apart_kill", OURS),
    ("Redis lock, 3 s", "redis_3s_kill", OTHER),
    ("ZooKeeper lock, 3 s", "zookeeper_3s_kill", OTHER),
    ("SetPartitioner, 3 s", "partitioner_3s_kill", OTHER),
    ("Kafka group, 6 s", "group_6s_kill", OTHER),
)
"""Peers that are set to notice a death about as soon as we do."""

EVENTS: Final = {
    "join": "a program joins",
    "term": "SIGTERM",
    "kill": "kill -9",
    "stop10": "stopped for 10 s",
}
COLOURS: Final = {
    "equipoise_service": OURS,
    "redis_locks": "#334155",
    "zookeeper_locks": "#0F766E",
    "zookeeper_partitioner": "#65A30D",
    "kafka_group": PULSAR,
}
LEAST_S: Final = 0.005
"""What is shorter is drawn as this."""

BROKER_DEATHS: Final = (("Equipoise", "kill", OURS), ("Pulsar 4.0.8", "pulsar_kill", PULSAR))
CALLS: Final = {"200 calls/s": "200", "800 calls/s": "800", "3,000 calls/s": "3000"}
MESSAGES: Final = {
    "one by one,\nproduced": "one_in",
    "one by one,\ndelivered": "one_out",
    "in batches,\nproduced": "batch_in",
    "in batches,\ndelivered": "batch_out",
}


def kept() -> Results:
    """Return the named results of our benchmarks, and those of peers by system and event."""
    groups = json.loads(RESULTS.read_text(encoding="utf-8"))["groups"].values()
    named = {
        each["name"]: {**each["figures"], "whole": 1}
        | {key: each[key] for key in ("target", "missed") if key in each}
        for group in groups
        for each in group["results"]
        if "name" in each
    }
    for system, result in json.loads(PEERS.read_text(encoding="utf-8")).items():
        for event, each in result["events"].items():
            gaps = {
                name: max(gap / 1_000, LEAST_S) for name, gap in each["without_owner_ms"].items()
            }
            more = {"stale": each["stale_accepted"], "busiest": each["shares_of_calls"][0]}
            named[f"{system}_{event}"] = {**gaps, **more}
    return named


def written(page: str, results: Results) -> str:
    """Return the page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    head = ("", "Equipoise", "Pulsar 4.0.8", "best peer", "limit or target", "ratio")
    rows = table(head, (_cells(row, results) for row in ROWS))
    return f"{before}{BEGIN}{rows}\n{END}{rest.partition(END)[2]}"


def _cells(row: Sequence[str], results: Results) -> Iterable[str]:
    yield from (text.format_map(results) for text in row[:-1])
    ours, _, theirs = row[-1].partition(" ")
    if not ours:
        yield ""
        return
    ratio = f"{_figure(ours, results) / _figure(theirs, results):.2g}"
    yield f"**{ratio}**" if results[ours.partition("[")[0]].get("missed") else ratio


def _figure(name: str, results: Results) -> float:
    return float(f"{{{name}}}".format_map(results))


# --- plots ---


def _title(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5)


def _logarithmic(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _spans(
    axis: Axes, title: str, spans: Sequence[tuple[str, str, str]], unit: str, results: Results
) -> None:
    """Draw a dot for p50 and a line up to the longest, on a logarithmic scale."""
    figures = [results[name] for _, name, _ in spans if name in results]
    for place, (_, name, colour) in enumerate(spans):
        if name in results:
            of = results[name]
            longest = of.get("longest", of["p50"])
            axis.plot([of["p50"], longest], [place, place], color=colour, linewidth=2)
            axis.plot(of["p50"], place, "o", color=colour, markersize=6)
            stale = f", {of['stale']} stale" if of.get("stale") else ""
            text, at = f"{of['p50']:.2g} {unit}{stale}", (longest, place)
            axis.annotate(text, at, (7, 0), "data", "offset points", va="center", fontsize=8)
    _title(axis, title)
    axis.set_xscale("log")
    longest = max(of.get("longest", of["p50"]) for of in figures)
    axis.set_xlim(min(of["p50"] for of in figures) / 2, longest * 4)
    _logarithmic(axis.xaxis)
    axis.set_yticks(range(len(spans)), [label for label, *_ in spans])
    axis.set_ylim(len(spans) - 0.5, -0.5)
    axis.set_xlabel(f"{unit}, logarithmic", fontsize=8)
    axis.grid(axis="x", color="#E2E8F0")


def _bars(
    axis: Axes, title: str, labels: Iterable[str], groups: Mapping[str, tuple[str, list[float]]]
) -> None:
    """Draw bars beside one another: of each name a colour, and a value for each label."""
    labels = list(labels)
    for number, (name, (colour, values)) in enumerate(groups.items()):
        places = [place + 0.4 * (number - (len(groups) - 1) / 2) for place in range(len(labels))]
        axis.bar_label(axis.bar(places, values, 0.38, color=colour, label=name), fontsize=8)
    _title(axis, title)
    axis.set_xticks(range(len(labels)), labels)
    axis.margins(y=0.2)
    axis.legend(fontsize=8, frameon=False)


def _line(axis: Axes, title: str, points: Mapping[int, float], unit: str) -> None:
    """Draw points with their values along a logarithmic scale."""
    axis.plot(list(points), list(points.values()), "o-", color=OURS)
    for place, value in points.items():
        text = f"{value:.3g} {unit}"
        axis.annotate(
            text, (place, value), (-5, 5), "data", "offset points", ha="right", fontsize=8
        )
    _title(axis, title)
    axis.set_xscale("log")
    axis.margins(0.2, 0.25)
    _logarithmic(axis.xaxis)


def plots(results: Results) -> Mapping[str, Figure]:
    """Return the plots by name."""
    drawn = {
        name: Figure(figsize=(9, 2.8), layout="constrained")
        for name in ("pause", "failover", "lookups", "throughput", "scale")
    }
    title = "A producer's pause: p50, and up to the longest"
    _spans(drawn["pause"].subplots(), title, PAUSES, "ms", results)
    programs, brokers = drawn["failover"].subplots(1, 2, width_ratios=(3, 2))
    _spans(programs, "kill -9 of a program: shards without an owner", DEATHS, "s", results)
    _spans(brokers, "kill -9 of a broker: a producer", BROKER_DEATHS, "s", results)
    bars = {
        name: (colour, [results[f"{key}_{rate}"]["median"] for rate in CALLS.values()])
        for name, key, colour in (
            ("Client.request", "client", OURS),
            ("bare aiohttp", "aiohttp", OTHER),
        )
    }
    _bars(drawn["lookups"].subplots(), "A call, median in ms", CALLS, bars)
    bars = {
        name: (colour, [round(results[each][key] / 1_000) for each in MESSAGES.values()])
        for name, key, colour in (("Equipoise", "ours", OURS), ("Pulsar 4.0.8", "pulsar", PULSAR))
    }
    _bars(drawn["throughput"].subplots(), "Messages of 1 KiB, in 1,000 a second", MESSAGES, bars)
    drawn["peers"] = Figure(figsize=(9, 7.6), layout="constrained")
    panels = drawn["peers"].subplots(2, 2, sharey=True).flat
    for axis, (event, title) in zip(panels, EVENTS.items(), strict=True):
        spans = [
            (system.title, f"{name}_{event}", COLOURS[system.adapter])
            for name, system in SYSTEMS.items()
            if f"{name}_steady" in results
        ]
        _spans(axis, title, spans, "s", results)
    states, bundles = drawn["scale"].subplots(1, 2)
    seconds = {size: results[f"state_{size}"]["median"] for size in (1, 100, 1_024)}
    _line(states, "A move, by MiB of state: without an owner", seconds, "s")
    states.set_yscale("log")
    _logarithmic(states.yaxis)
    times = {count: results[f"view_{count}"]["median"] for count in (100, 10_000, 100_000)}
    _line(bundles, "A lookup in the view, by number of bundles", times, "ns")
    bundles.set_ylim(bottom=0)
    return drawn


def main() -> None:
    """Take the newest results, write the table, and draw the plots."""
    peers = json.loads(PEERS.read_text(encoding="utf-8"))
    for path in sorted(NEW.glob("*.json")):
        newest = json.loads(path.read_text(encoding="utf-8"))
        events = {**peers.get(path.stem, {}).get("events", {}), **newest["events"]}
        peers[path.stem] = {**newest, "events": events}
    PEERS.write_text(json.dumps(peers, indent=1) + "\n", encoding="utf-8")
    results = kept()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, figure in plots(results).items():
        path = PLOTS / f"bench-{name}.png"
        figure.savefig(path, dpi=100)
        Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    main()
