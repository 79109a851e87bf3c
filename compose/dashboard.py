"""Generate Grafana's dashboard from a table of panels; `python -m compose.dashboard` writes its
JSON.

docs/reference/metrics.md describes the metrics. Metrics of the channel and of moves cover the whole
cluster, as each broker reads it. So never sum them over brokers: `max` takes one broker's value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

WRITTEN: Final = Path(__file__).with_name("grafana") / "dashboards" / "equipoise.json"

_SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}
_GRID_WIDTH: Final = 24
_HEIGHTS: Final = {"timeseries": 7, "stat": 4, "state-timeline": 7}

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: curves over time, a number, or a bar of states.

    * `queries`: PromQL by legend.
    * `unit`: one of Grafana's names.
    """

    title: str
    about: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: Literal["timeseries", "stat", "state-timeline"] = "timeseries"
    width: int = 8
    is_stacked: bool = False


def _quantiles(buckets: str) -> Mapping[str, str]:
    """Return the queries for a histogram's median, 95th and 99th percentile."""
    return {f"p{int(of * 100)}": f"histogram_quantile({of}, {buckets})" for of in (0.5, 0.95, 0.99)}


ROWS: Final[Mapping[str, Sequence[Panel]]] = {
    "Cluster": (
        Panel(
            title="Brokers",
            about="Brokers that answer.",
            queries={"": 'sum(up{job="equipoise"})'},
            kind="stat",
            width=4,
        ),
        Panel(
            title="Owned",
            about="Bundles that have an owner.",
            queries={"": "sum(equipoise_bundles_owned)"},
            kind="stat",
            width=4,
        ),
        Panel(
            title="Not owned",
            about="Bundles that move or are free. If it stays above 0, see Bundles in flight.",
            queries={"": "sum(max by (state) (equipoise_bundles_in_flight))"},
            kind="stat",
            width=4,
        ),
        Panel(
            title="Channel",
            about="How many brokers can read the channel.",
            queries={"": "sum(equipoise_log_available)"},
            kind="stat",
            width=4,
        ),
        Panel(
            title="Lookups",
            about="Lookups answered, by all brokers.",
            queries={
                "": (
                    'sum(rate(equipoise_lookup_duration_seconds_count{outcome=~"answered|held"}[1m]))'
                )
            },
            unit="reqps",
            kind="stat",
            width=4,
        ),
        Panel(
            title="Alarms in an hour",
            about="Alarms, which an operator must check.",
            queries={"": "sum(increase(equipoise_alarms_total[1h])) or vector(0)"},
            kind="stat",
            width=4,
        ),
    ),
    "Ownership": (
        Panel(
            title="Bundles owned",
            about="Bundles by broker.",
            queries={"{{broker}}": "equipoise_bundles_owned"},
            is_stacked=True,
        ),
        Panel(
            title="Bundles in flight",
            about=(
                "Bundles in any state other than owned. If one stays free, `equipoise channel why`"
                " gives the reason."
            ),
            queries={"{{state}}": "max by (state) (equipoise_bundles_in_flight)"},
        ),
        Panel(
            title="Bundles that outlast a lease",
            about=(
                "Bundles that are served past the lease while the channel is lost. Only tokens"
                " guard them."
            ),
            queries={"{{namespace}} at {{broker}}": "equipoise_bundles_serving_on"},
        ),
    ),
    "Moves": (
        Panel(
            title="Moves a minute",
            about="By kind and result. If many are cancelled or cut short, see the brokers' logs.",
            queries={
                "{{kind}} {{result}}": (
                    "max by (kind, result) (rate(equipoise_move_duration_seconds_count[1m])) *"
                    " 60 > 0"
                )
            },
        ),
        Panel(
            title="Pause of a transfer",
            about="From leaving `owned` until owned again, of completed transfers.",
            queries=_quantiles(
                'max by (le) (rate(equipoise_move_duration_seconds_bucket{kind="transfer",'
                ' result="done"}[5m]))'
            ),
            unit="s",
        ),
        Panel(
            title="Pause by kind",
            about="The 95th percentile. Deaths include the lease and its grace period.",
            queries={
                "{{kind}}": (
                    "histogram_quantile(0.95, max by (le, kind)"
                    ' (rate(equipoise_move_duration_seconds_bucket{result="done"}[5m])))'
                )
            },
            unit="s",
        ),
    ),
    "Balancing": (
        Panel(
            title="Load",
            about=(
                "The use of each broker's busiest resource, weighted and averaged. Shedders use it."
            ),
            queries={"{{broker}}": 'brk_lb_resource_usage{feature="max_ema"}'},
            unit="percentunit",
        ),
        Panel(
            title="Deviation of the load",
            about="Deviation and mean of all brokers' load, by the leader's last round.",
            queries={"{{stat}}": "max by (stat) (brk_lb_resource_usage_stats)"},
            unit="percentunit",
        ),
        Panel(
            title="Rounds a minute",
            about="By result and reason. `equipoise decisions` shows each with its reasons.",
            queries={
                "{{kind}} {{result}} {{reason}}": (
                    "sum by (kind, result, reason) (rate(equipoise_balancing_rounds_total[1m])) *"
                    " 60 > 0"
                )
            },
        ),
    ),
    "Lookups": (
        Panel(
            title="Lookups by outcome",
            about=(
                "By outcome. If many wait outside a failover, or any time out, bundles have no"
                " owner."
            ),
            queries={
                "{{outcome}}": (
                    "sum by (outcome) (rate(equipoise_lookup_duration_seconds_count[1m]))"
                )
            },
            unit="reqps",
            width=12,
        ),
        Panel(
            title="Time to an answer",
            about="Time of lookups that were answered at once, and of those that waited.",
            queries={
                f"{outcome} p{int(of * 100)}": (
                    f"histogram_quantile({of}, sum by (le) "
                    f'(rate(equipoise_lookup_duration_seconds_bucket{{outcome="{outcome}"}}[5m])))'
                )
                for outcome in ("answered", "held")
                for of in (0.5, 0.99)
            },
            unit="s",
            width=12,
        ),
    ),
    "Channel": (
        Panel(
            title="Records",
            about="Accepted and rejected records. Nine tenths of the accepted ones are renewals.",
            queries={
                "accepted": "max(rate(equipoise_records_accepted_total[1m]))",
                "rejected": "max(sum by (broker) (rate(equipoise_records_rejected_total[1m])))",
            },
        ),
        Panel(
            title="Rejected by reason",
            about="`stale` and `late` are lost races and normal. Check all others.",
            queries={
                "{{reason}}": (
                    "max by (reason) (rate(equipoise_records_rejected_total[5m])) * 60 > 0"
                )
            },
        ),
        Panel(
            title="Lag",
            about=(
                "Records on the channel that a broker has not read. If it rises, the broker is"
                " overloaded and will lose its lease."
            ),
            queries={"{{broker}}": "equipoise_reader_lag_records"},
        ),
        Panel(
            title="Outages of the channel",
            about="Whether a broker can read the channel.",
            queries={"{{broker}}": "equipoise_log_available"},
            kind="state-timeline",
        ),
        Panel(
            title="Channel lost for",
            about="Time since a broker lost the channel.",
            queries={"{{broker}}": "equipoise_channel_lost_seconds"},
            unit="s",
        ),
        Panel(
            title="Lease left",
            about=(
                "How long a broker may serve without a renewal. If it falls towards 0, the broker"
                " is cut off or stalls."
            ),
            queries={"{{broker}}": "equipoise_lease_left_seconds"},
            unit="s",
        ),
    ),
    "Compaction": (
        Panel(
            title="Not yet compacted",
            about=(
                "Records since the last compaction. If the leader's is far above `compact_records`,"
                " compactions fail."
            ),
            queries={"{{broker}}": "equipoise_uncompacted_records"},
        ),
        Panel(
            title="Last compaction",
            about="Duration and age of the last compaction.",
            queries={
                "took, {{broker}}": "equipoise_compaction_duration_seconds > 0",
                "ago, {{broker}}": "equipoise_compaction_age_seconds > 0",
            },
            unit="s",
        ),
        Panel(
            title="Failures and resyncs in an hour",
            about="Failed compactions, and resyncs after a truncation.",
            queries={
                "failed, {{broker}}": "increase(equipoise_compaction_failures_total[1h])",
                "resynced, {{broker}}": "increase(equipoise_reader_resyncs_total[1h])",
            },
        ),
    ),
    "Pulsar": (
        Panel(
            title="Clients",
            about="Connections, producers and consumers.",
            queries={
                name: f"sum(equipoise_pulsar_{name})"
                for name in ("connections", "producers", "consumers", "topics", "topics_waiting")
            },
        ),
        Panel(
            title="Messages",
            about=(
                "Messages from producers, to consumers, and dropped because consumers were not"
                " ready."
            ),
            queries={
                name: f"sum(rate(equipoise_pulsar_messages_{name}_total[1m]))"
                for name in ("published", "delivered", "dropped", "damaged")
            },
            unit="cps",
        ),
        Panel(
            title="Bytes",
            about="Bytes of the entries received and sent.",
            queries={
                name: f"sum(rate(equipoise_pulsar_{name}_bytes_total[1m]))"
                for name in ("published", "delivered")
            },
            unit="Bps",
        ),
        Panel(
            title="Bytes waiting in memory",
            about="Data that waits for clients to read it, and of requests that are not complete.",
            queries={
                f"{name}, {{{{broker}}}}": f"equipoise_pulsar_{name}_bytes"
                for name in ("behind", "unfinished")
            },
            unit="bytes",
        ),
        Panel(
            title="Receipts withheld, handovers damaged",
            about=(
                "Per minute: messages refused after the ownership was lost, and bundles that"
                " arrived without their state."
            ),
            queries={
                name: f"sum(rate(equipoise_pulsar_{name}_total[1m])) * 60"
                for name in ("receipts_withheld", "handovers_damaged", "consumers_forgotten")
            },
        ),
        Panel(
            title="Disconnected and refused",
            about="Per minute, by reason.",
            queries={
                "{{reason}}": (
                    "sum by (reason) (rate(equipoise_pulsar_disconnections_total[1m])) * 60 > 0"
                ),
                "refused": "sum(rate(equipoise_pulsar_connections_refused_total[1m])) * 60 > 0",
                "request {{command}}": (
                    "sum by (command) (rate(equipoise_pulsar_requests_refused_total[1m])) * 60 > 0"
                ),
            },
        ),
    ),
    "Processes": (
        Panel(
            title="Processor",
            about="Near one second per second, the event loop is saturated and leases are at risk.",
            queries={"{{instance}}": 'rate(process_cpu_seconds_total{job="equipoise"}[1m])'},
            unit="percentunit",
        ),
        Panel(
            title="Memory",
            about="Resident memory.",
            queries={"{{instance}}": 'process_resident_memory_bytes{job="equipoise"}'},
            unit="bytes",
        ),
        Panel(
            title="Open files",
            about="Share of the limit of open files.",
            queries={
                "{{instance}}": (
                    'process_open_fds{job="equipoise"} / process_max_fds{job="equipoise"}'
                )
            },
            unit="percentunit",
        ),
    ),
}


def dashboard() -> Json:
    """Return the dashboard in Grafana's classic model."""
    return {
        "uid": "equipoise",
        "title": "Equipoise",
        "tags": ["equipoise"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,  # One crosshair over all panels shows what happened at the same time.
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "schemaVersion": 39,
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_placed(), start=1)],
    }


def _placed() -> Iterator[Json]:
    """Yield rows and panels with their positions: left to right, with a new line where a panel does
    not fit.
    """
    top = 0
    for title, panels in ROWS.items():
        yield {
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _GRID_WIDTH, "h": 1},
        }
        top, left, height = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > _GRID_WIDTH:
                top, left = top + height, 0
            height = _HEIGHTS[panel.kind]
            yield {
                **_panel_json(panel),
                "gridPos": {"x": left, "y": top, "w": panel.width, "h": height},
            }
            left += panel.width
        top += height


def _panel_json(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    options: Json = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 10,
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
        }
        options["tooltip"] = {"mode": "multi", "sort": "desc"}
    elif panel.kind == "state-timeline":
        defaults["mappings"] = [
            {
                "type": "value",
                "options": {
                    "0": {"text": "lost", "color": "red"},
                    "1": {"text": "there", "color": "green"},
                },
            }
        ]
    else:
        options["reduceOptions"] = {"calcs": ["lastNotNull"]}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def text() -> str:
    """Return the content of the dashboard's file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    WRITTEN.write_text(text())
