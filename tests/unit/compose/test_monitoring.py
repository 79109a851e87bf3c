"""The counters, the alarms and the board: checked with promtool against the page that a real broker
serves at /metrics.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, get_args

import aiohttp
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from compose.dashboard import ROWS
from equipoise.brokers.agent.effects import AlarmName
from equipoise.brokers.balancing.decisions import Kind
from equipoise.brokers.balancing.moves import MoveKind, MoveResult
from equipoise.brokers.balancing.splitting.split_points import Excess
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.wire.connection import REFUSABLE
from equipoise.brokers.pulsar.wire.requests import Violation
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.listening import PORTS, PROBLEMS
from equipoise.brokers.runtime.metrics import LookupOutcome
from equipoise.brokers.runtime.router import ChannelLoss
from equipoise.brokers.security.identity import Fault, Surface
from equipoise.brokers.security.limits import Limit
from equipoise.channel.core.records import Reason
from equipoise.shedder.loads import Resources
from equipoise.shedder.plan import Cause, Result
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.streams.progress import StreamMetrics
from tests.pulsar.programs import is_required
from tests.tls.authority import Authority
from tests.unit.http.cluster import PATIENCE_MS

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).resolve().parents[3]
ALERTS: Final = ROOT / "compose" / "prometheus" / "alerts.yaml"
SCRAPED: Final = {"job": "equipoise", "instance": "broker-1:8081"}
"""What Prometheus adds to each series."""

Labels = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Page:
    """The samples of a page by name, each with its labels, and the type of each family."""

    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Page:
        page = cls()
        for family in text_string_to_metric_families(text):
            page.types[family.name] = family.type
            for sample in family.samples:
                page.samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return page

    def counted(self, family: str) -> list[tuple[Labels, float]]:
        """What a counter or a histogram has counted, by label."""
        return self.samples.get(f"{family}_total", []) + self.samples.get(f"{family}_count", [])


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The page of a new broker, and one with the gauges that appear only later."""

    new: Page
    later: Page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Of one broker that also speaks Pulsar's protocol, and of an audit."""
    audit = generate_latest(StreamMetrics("audit", rules=RULES).registry).decode()

    async def scrape() -> Pages:
        folder = tmp_path_factory.mktemp("broker")
        authority = Authority(folder / "tls")
        certificate, key = authority.issue("b")
        config = WorkerConfig(
            log_url=f"memory:{uuid.uuid4()}",
            data_dir=folder / "data",
            http_port=0,
            pulsar_port=0,
            balance=False,
            tls_certificate=certificate,
            tls_key=key,
            tls_ca=authority.ca,
        )
        async with (
            Broker(config, {"*": PulsarService()}) as worker,
            aiohttp.ClientSession() as session,
        ):
            await worker.ready(timeout_ms=PATIENCE_MS)
            async with session.get(
                f"{worker.profile.addresses['https']}/metrics",
                ssl=worker.access.certificates.client,
            ) as answer:
                new = await answer.text()
            worker.metrics.balancing.load(Resources(), averaged=0.1)
            worker.metrics.balancing.spread(0.5, 0.1)
            lost = ChannelLoss(since_ms=0, problem="", lost_ms=1, serving_on={"acme/shop": 1})
            later = worker.metrics.scrape(
                worker.view,
                incarnation=None,
                lease_left_ms=0,
                lag_records=0,
                log_is_available=True,
                channel_loss=lost,
            )
            return Pages(new=Page.of(new + audit), later=Page.of(later.decode() + audit))

    return asyncio.run(scrape())


# --- counters ---

OUTCOMES: Final = set(
    product(
        get_args(Kind), get_args(Result), (*get_args(Cause), *(excess.value for excess in Excess))
    )
)
CLOSED: Final[Mapping[str, set[tuple[str, ...]]]] = {
    "equipoise_records_rejected": {(reason.value,) for reason in Reason},
    "equipoise_alarms": {(name.value,) for name in AlarmName},
    "equipoise_lookup_duration_seconds": {(outcome.value,) for outcome in LookupOutcome},
    "equipoise_move_duration_seconds": {
        (kind.value, result.value) for kind in MoveKind for result in MoveResult
    },
    "equipoise_pulsar_disconnections": {(violation.value,) for violation in Violation},
    "equipoise_pulsar_requests_refused": {(command,) for command in REFUSABLE},
    "equipoise_authentications_refused": {
        (fault.value, at.value) for fault in Fault for at in Surface
    },
    "equipoise_limits_exceeded": {(limit.value, at.value) for limit in Limit for at in Surface},
    "equipoise_authorizations_refused": {(at.value,) for at in Surface},
    "equipoise_state_bytes": {("received",), ("sent",)},
    "equipoise_tls_handshakes_failed": {(port, reason) for port in PORTS for reason in PROBLEMS},
    "equipoise_audit_findings": {(rule,) for rule in RULES},
}
"""The values of the labels of each counter, besides `broker`, where each combination can occur."""

SOME: Final = {
    "equipoise_balancing_rounds",
    "brk_lb_unload_broker_breakdown",
    "brk_lb_bundles_split_breakdown",
}
"""Counters of outcomes, of which not each combination can occur."""

OPEN: Final = {"equipoise_load_reports_refused"}
"""Counters with a label whose values nobody knows beforehand."""


def test_every_counter_is_there_at_0_before_anything_happened(pages: Pages) -> None:
    """A series that appears with its first event has no increase, so an alarm on it misses the
    first one.
    """
    labelled = set[str]()
    for family, type_ in pages.new.types.items():
        if type_ not in {"counter", "histogram"} or family.startswith("pulsar_lb_"):
            continue
        counted = pages.new.counted(family)
        series = [
            ({name: labels[name] for name in labels if name not in {"broker", "metric"}}, value)
            for labels, value in counted
        ]
        if not series or series[0][0]:
            labelled.add(family)
        if family in CLOSED:
            assert CLOSED[family] == {tuple(labels.values()) for labels, _ in series}, family
            assert {0.0} == {value for _, value in series}, family
        elif family not in OPEN:
            assert series, family
    assert CLOSED.keys() | SOME | OPEN == labelled


def test_every_kind_of_round_is_there_at_0(pages: Pages) -> None:
    """Each kind of round has its outcomes, and none that no round can have."""
    rounds = pages.new.counted("equipoise_balancing_rounds")
    seen = {(labels["kind"], labels["result"], labels["reason"]) for labels, _ in rounds}
    assert seen < OUTCOMES
    assert set(get_args(Kind)) - {"outcome"} == {kind for kind, _, _ in seen}
    assert {
        ("shed", "Skip", cause)
        for cause in get_args(Cause)
        if cause not in {"Overloaded", "Underloaded"}
    } <= seen
    assert {("split", "Success", excess.value) for excess in Excess} <= seen
    assert {0.0} == {value for _, value in rounds}


def test_every_alarm_is_documented() -> None:
    """The page about log lines has a row for each name of an alarm."""
    _, _, table = (
        (ROOT / "docs/reference/log-lines.md")
        .read_text(encoding="utf-8")
        .partition("\n## Alarms\n")
    )
    assert {name.value for name in AlarmName} == set(
        re.findall(r"^\| `(\w+)` \|", table.partition("\n## ")[0], flags=re.MULTILINE)
    )


# --- promtool ---


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' tool, of Debian's package `prometheus`."""
    found = shutil.which("promtool")
    if found is None:
        (pytest.fail if is_required() else pytest.skip)(
            "promtool is not installed; on Debian: apt-get install prometheus"
        )
    return found


def run(*command: str) -> str:
    """Run a command that must succeed; what it said, if it does not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def promises(promtool: str, folder: Path, *tests: Mapping[str, object], rules: bool = True) -> None:
    """Have promtool play series, one value each 15 s, and compare what it finds."""
    written = folder / "tests.yaml"
    document = {
        "rule_files": [str(ALERTS)] if rules else [],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", **test} for test in tests],
    }
    written.write_text(json.dumps(document))
    assert "SUCCESS" in run(promtool, "test", "rules", str(written))


def notation(name: str, labels: Labels) -> str:
    """A series as PromQL writes it."""
    return f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in sorted(labels.items()))}}}"  # noqa: E501


FIRST_EVENT: Final = "0x9 1x20"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A rule, the series that it looks at, values (one each 15 s) with which it fires after
    `minutes`, and others with which it does not.

    A counter fires with its first event, and not because of events of long ago. `labels` choose the
    series on the page of a broker. `beside` are further series, which do not change.
    """

    name: str
    metric: str
    fires: str = FIRST_EVENT
    quiet: str = "3x40"
    labels: Labels = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)
    minutes: int = 4


FIRING: Final = (
    Alert(name="EquipoiseBrokerDown", metric="up", fires="1x3 0x20", quiet="1x9 0x1 1x20"),
    *(
        Alert(name="EquipoiseAlarm", metric="equipoise_alarms_total", labels={"alarm": name.value})
        for name in AlarmName
    ),
    Alert(
        name="EquipoiseChannelLost",
        metric="equipoise_channel_lost_seconds",
        fires="0x8 1+15x20",
        quiet="0x20",
    ),
    Alert(
        name="EquipoiseNoLease",
        metric="equipoise_lease_left_seconds",
        fires="2x8 0x20",
        quiet="2x13 0x1 2x20",
    ),
    *(
        Alert(
            name="EquipoiseAddressUnreachable",
            metric="equipoise_address_unreachable",
            labels={"whose": whose},
            fires="0x3 1x20",
            quiet="0x12 1x3 0x20",
        )
        for whose in ("own", "next")
    ),
    Alert(
        name="EquipoiseNoLeader",
        metric="equipoise_lease_left_seconds",
        fires="2x8 0x20",
        quiet="2x15 0x0 2x20",
    ),
    Alert(
        name="EquipoiseReaderLags",
        metric="equipoise_reader_lag_records",
        fires="1+9x40",
        quiet="0+9x10 0x1 90x30",
        minutes=6,
    ),
    Alert(
        name="EquipoiseBundlesFree",
        metric="equipoise_bundles_in_flight",
        labels={"state": "free"},
        fires="0x14 2x20",
        quiet="0x15 2x0 0x20",
    ),
    Alert(
        name="EquipoiseBundlesUnserved",
        metric="equipoise_bundles_unserved",
        fires="0x3 2x20",
        quiet="0x3 2x5 0x20",
    ),
    Alert(
        name="EquipoiseLookupsTimeOut",
        metric="equipoise_lookup_duration_seconds_count",
        labels={"outcome": "timed_out"},
    ),
    Alert(
        name="EquipoiseBundleQuarantined",
        metric="equipoise_bundles_quarantined",
        fires="0x3 1x20",
        quiet="0x20",
    ),
    Alert(
        name="EquipoiseBrokerStarves",
        metric="equipoise_balancing_budget_blocks",
        fires="0x3 1x20",
        quiet="0x11 1x2 0x20",
        beside={
            f'equipoise_bundles_owned{{broker="{broker}"}}': f"{owned}x40"
            for broker, owned in (("a", 32), ("b", 32), ("c", 12))
        },
    ),
    Alert(
        name="EquipoiseRecordsRejected",
        metric="equipoise_records_rejected_total",
        labels={"reason": "malformed"},
    ),
    Alert(
        name="EquipoiseCompactionFails",
        metric="equipoise_compaction_failures_total",
        fires="0x3 1+1x4 5x20",
        quiet="0x3 1x20",
    ),
    Alert(
        name="EquipoiseLogClockAhead",
        metric="equipoise_log_clock_ahead_offset",
        fires="0x3 70x20",
        quiet="70x9 0x20",
    ),
    Alert(name="EquipoiseResyncs", metric="equipoise_reader_resyncs_total"),
    Alert(name="EquipoiseHandoversDamaged", metric="equipoise_pulsar_handovers_damaged_total"),
    Alert(name="EquipoiseMessagesDamaged", metric="equipoise_pulsar_messages_damaged_total"),
    Alert(
        name="EquipoiseTopicsWait",
        metric="equipoise_pulsar_topics_waiting",
        fires="0x3 5x20",
        quiet="0x13 5x1 0x20",
    ),
    # promtool counts the time from 0, so these certificates expire in 7 days less a minute, and in
    # 8 days.
    Alert(
        name="EquipoiseCertificateExpires",
        metric="equipoise_tls_certificate_expiry_timestamp_seconds",
        fires="604740x40",
        quiet="691200x40",
    ),
    Alert(name="EquipoiseCertificateNotReloaded", metric="equipoise_tls_reload_failures_total"),
    Alert(
        name="EquipoiseAuditFinding",
        metric="equipoise_audit_findings_total",
        labels={"rule": "hole"},
    ),
)


def test_every_alert_has_a_test() -> None:
    """No rule goes without one."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == {
        alert.name for alert in FIRING
    }


@pytest.mark.parametrize(
    "alert", FIRING, ids=lambda alert: "-".join((alert.name, *alert.labels.values()))
)
def test_an_alert_fires_when_it_should_and_not_else(
    alert: Alert, pages: Pages, promtool: str, tmp_path: Path
) -> None:
    """Its series is one that a broker exports, with the labels that it exports."""
    exported = [
        labels
        for labels, _ in pages.new.samples.get(alert.metric, [])
        if alert.labels.items() <= labels.items()
    ]
    (labels,) = [{}] if alert.metric == "up" else exported
    series = notation(alert.metric, {**labels, **SCRAPED})
    firing = f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})'
    tests = [
        {
            "input_series": [
                {"series": each, "values": of_each}
                for each, of_each in {series: values, **alert.beside}.items()
            ],
            "promql_expr_test": [
                {"expr": firing, "eval_time": f"{alert.minutes}m", "exp_samples": expected}
            ],
        }
        for values, expected in ((alert.fires, [{"labels": "{}", "value": 1}]), (alert.quiet, []))
    ]
    promises(promtool, tmp_path, *tests)


@pytest.mark.parametrize("reason", ["stale", "late"])
def test_a_lost_race_is_no_alert(reason: str, promtool: str, tmp_path: Path) -> None:
    """`stale` and `late` are normal."""
    series = notation(
        "equipoise_records_rejected_total", {"broker": "b", "reason": reason, **SCRAPED}
    )
    test = {
        "input_series": [{"series": series, "values": FIRST_EVENT}],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertname="EquipoiseRecordsRejected"}',
                "eval_time": "4m",
                "exp_samples": [],
            }
        ],
    }
    promises(promtool, tmp_path, test)


def test_prometheus_takes_its_files(promtool: str) -> None:
    """Its settings, and the rules that they name."""
    run(promtool, "check", "config", str(ALERTS.with_name("prometheus.yaml")))


# --- the board ---

QUERIES: Final = [
    (panel.title, query)
    for panels in ROWS.values()
    for panel in panels
    for query in panel.queries.values()
]
find_selectors: Final = re.compile(
    r"\b((?:equipoise|process|brk|up|spark)\w*)(?:\{([^}]*)\})?"
).findall
find_matchers: Final = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"').findall


def selected(page: Page, name: str, matchers: str) -> Iterator[Labels]:
    """The series of a page that a selector takes."""
    if name == "up":
        yield SCRAPED
    for labels, _ in page.samples.get(name, []):
        known = {**labels, **SCRAPED}
        matched = (
            (re.fullmatch(value, known.get(key, "")) is not None, sign)
            for key, sign, value in find_matchers(matchers)
        )
        if all(is_there == (sign in {"=", "=~"}) for is_there, sign in matched):
            yield known


def expressions() -> Sequence[tuple[str, str]]:
    """All that Prometheus is asked: the queries of the board, and those of the rules."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [
        *QUERIES,
        *((rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]),
    ]


def test_every_query_asks_for_what_a_broker_exports(pages: Pages) -> None:
    """Each selector finds series on the page of a broker, and each label that is grouped by is one
    of theirs.
    """
    for title, query in expressions():
        selectors = find_selectors(query)
        assert selectors, (title, query)
        for name, matchers in selectors:
            found = list(selected(pages.later, name, matchers))
            assert found, (title, name, matchers)
            grouped = {
                label.strip()
                for labels in re.findall(r"\bby \(([^)]*)\)", query)
                for label in labels.split(",")
            }
            assert grouped <= found[0].keys(), (title, query)


def test_every_legend_names_labels_of_its_query(pages: Pages) -> None:
    """A legend shows labels that the query groups by or, if it groups nothing, labels of its
    series.
    """
    for panels in ROWS.values():
        for panel in panels:
            for legend, query in panel.queries.items():
                grouped = re.findall(r"\bby \(([^)]*)\)", query)
                name, matchers = find_selectors(query)[0]
                known = (
                    set(re.findall(r"\w+", grouped[0]))
                    if grouped
                    else next(selected(pages.later, name, matchers)).keys()
                )
                assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= known, (panel.title, legend)


def test_every_query_is_one_that_prometheus_reads(promtool: str, tmp_path: Path) -> None:
    """Promtool parses each query of the board, as the expression of a rule."""
    rules = [
        {"record": f"query:{number}", "expr": query} for number, (_, query) in enumerate(QUERIES)
    ]
    written = tmp_path / "rules.yaml"
    written.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in run(promtool, "check", "rules", str(written))


def test_the_first_alarm_is_on_the_board(promtool: str, pages: Pages, tmp_path: Path) -> None:
    """The panel counts an alarm of a broker that had none before."""
    (query,) = [query for title, query in QUERIES if title == "Alarms in an hour"]
    series = [
        notation("equipoise_alarms_total", {**labels, **SCRAPED})
        for labels, _ in pages.new.samples["equipoise_alarms_total"]
    ]
    test = {
        "input_series": [
            {"series": one, "values": FIRST_EVENT if number == 0 else "0x30"}
            for number, one in enumerate(series)
        ],
        "promql_expr_test": [
            {
                "expr": f"({query}) > bool 0",
                "eval_time": "4m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    promises(promtool, tmp_path, test, rules=False)
