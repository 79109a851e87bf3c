"""Write the table of all results and the plot of the page "When to use it" from the newest results
of the benchmark of peers: `python -m tests.benchmarks.peers.page`.
It takes what is in `build/peers` into `results.json` first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from tests.benchmarks.peers.systems import SYSTEMS, adapter_lines
from tests.house.house_rules import ROOT

RESULTS: Final = Path(__file__).with_name("results.json")
NEW: Final = ROOT / "build" / "peers"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks.md"
PLOT: Final = ROOT / "docs" / "img" / "peers.png"
BEGIN, END = "<!-- peers -->\n", "<!-- end of peers -->\n"

_SHOWN: Final = {
    "join": "a program joins",
    "term": "SIGTERM",
    "kill": "kill -9",
    "stop10": "stopped for 10 s",
    "node": "a Kafka node dies",
}
_COLOURS: Final = {
    "equipoise_service": "#C2410C",
    "redis_locks": "#334155",
    "zookeeper_locks": "#0F766E",
    "zookeeper_partitioner": "#65A30D",
    "kafka_group": "#1D4ED8",
}
_LEAST_S: Final = 0.005

System = Mapping[str, Any]


def table(results: Mapping[str, System]) -> str:
    """Return the table: of each event the time without an owner, p50 and longest."""
    head = [
        *("", *_SHOWN.values()),
        "changes in a rolling restart",
        "stale writes, updates lost",
        "hot shard",
        "a call",
        "CPU",
        "lines",
    ]
    rows = [head, ["---"] * len(head)]
    rows += [_row(name, results[name]) for name in SYSTEMS if name in results]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(name: str, system: System) -> list[str]:
    events = system["events"]
    harm = [sum(each[name] for each in events.values()) for name in ("stale_accepted", "lost")]
    steady = events["steady"]
    return [
        system["title"],
        *(_gap(events[event]) if event in events else "" for event in _SHOWN),
        str(events["rolling"]["changes"]) if "rolling" in events else "",
        (f"**{harm[0]}, {harm[1]}**" if any(harm) else "0, 0") if "stop10" in events else "",
        f"{events['hot']['shares_of_calls'][0]:.0%}" if "hot" in events else "",
        f"{steady['call_ms']['p50']:.1f}, {steady['call_ms']['p99']:.1f} ms",
        f"{steady['cpu_s_per_minute']:.0f}",
        str(adapter_lines(SYSTEMS[name].adapter)),
    ]


def _gap(event: System) -> str:
    gaps = event["without_owner_ms"]
    return ", ".join(_seconds(gaps[name] / 1_000) for name in ("p50", "longest"))


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def plot(results: Mapping[str, System], path: Path) -> None:
    """Draw the time without an owner of four events: a dot for p50, a line up to the longest."""
    shown = [SYSTEMS[name] for name in SYSTEMS if name in results][::-1]
    events = [results[name]["events"] for name in SYSTEMS if name in results][::-1]
    names = list(_SHOWN)[:4]
    figure = Figure(figsize=(11, 0.8 + 0.3 * len(shown)), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        for place, (system, of) in enumerate(zip(shown, events, strict=True)):
            if name not in of:
                continue
            gaps = of[name]["without_owner_ms"]
            p50, longest = (max(gaps[each] / 1e3, _LEAST_S) for each in ("p50", "longest"))
            colour = _COLOURS[system.adapter]
            axis.plot([p50, longest], [place, place], color=colour, linewidth=2)
            axis.plot(p50, place, "o", color=colour, markersize=6)
            if stale := of[name]["stale_accepted"]:
                axis.annotate(
                    f"{stale} stale",
                    (longest, place),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7.5,
                    color="#B91C1C",
                )
        axis.set_title(_SHOWN[name], loc="left", fontsize=10)
        axis.set_xscale("log")
        axis.set_xlim(_LEAST_S / 1.5, 200)
        axis.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100 s"], fontsize=8)
        axis.set_yticks(range(len(shown)), [system.title for system in shown], fontsize=9)
        axis.grid(axis="x", color="#E2E8F0")
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=110)


def written(page: str, results: Mapping[str, System]) -> str:
    """Return the page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}"


def main() -> None:
    """Take the newest results, and write both."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for path in sorted(NEW.glob("*.json")):
        newest = json.loads(path.read_text())
        events = {**results.get(path.stem, {}).get("events", {}), **newest["events"]}
        results[path.stem] = {**newest, "events": events}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), results))
    plot(results, PLOT)


if __name__ == "__main__":
    main()
