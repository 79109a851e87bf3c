"""Pulsar's load reports become the load of every bundle. What cannot be used is left out and
named.
"""

from __future__ import annotations

import json

import pytest

from equipoise.pulsar_cluster.loads import HeldBundle, LoadReports, Weighed, weigh
from equipoise.pulsar_cluster.records import BROKER_LOADS, TOP_BUNDLES, Report
from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.house.house_rules import ROOT
from tests.unit.pulsar_cluster.made_clusters import (
    BROKERS,
    NOW_MS,
    broker_load,
    names,
    reports_of,
    stats,
    top_bundles,
)

BUNDLES = names(16)
LONG_AGO_MS = NOW_MS - 600_000


def weighed(held: dict[str, list[str]], reports: LoadReports, **options: object) -> Weighed:
    holds = {
        broker: [HeldBundle(bundle, LONG_AGO_MS) for bundle in bundles]
        for broker, bundles in held.items()
    }
    return weigh(holds, reports, now_ms=NOW_MS, age_ms_max=60_000, **options)  # type: ignore[arg-type]


def rate(found: Weighed, bundle: str) -> float:
    return found.bundles[bundle].traffic.messages_in_per_second


def test_bundles_beyond_a_full_report_share_the_rest_evenly() -> None:
    """16 bundles with the rates 1 to 16: the report names those from 7 on."""
    held = {"a:8080": BUNDLES}
    found = weighed(
        held, reports_of(held, {bundle: number + 1.0 for number, bundle in enumerate(BUNDLES)})
    )
    assert [16.0, 7.0] == [rate(found, BUNDLES[15]), rate(found, BUNDLES[6])]
    assert {(1 + 6) / 2} == {rate(found, bundle) for bundle in BUNDLES[:6]}
    assert () == found.notes


def test_a_report_that_is_not_full_leaves_out_what_is_idle_has_policies_or_is_pulsars_own() -> None:
    system = "pulsar/system/0x00000000_0xffffffff"
    reports = LoadReports()
    reports.take(broker_load("a:8080", rate=100, bundles=4))
    reports.take(top_bundles("a:8080", {BUNDLES[0]: 70.0}))
    found = weighed({"a:8080": [*BUNDLES[:3], system]}, reports, with_policies=[BUNDLES[1]])
    assert [70.0, 15.0, 0.0, 15.0] == [rate(found, bundle) for bundle in (*BUNDLES[:3], system)]


def test_the_weight_follows_a_bundle_that_moved_since_the_report() -> None:
    reports = reports_of(
        {"a:8080": BUNDLES[:2], "b:8080": BUNDLES[2:3]},
        dict.fromkeys(BUNDLES, 5.0) | {BUNDLES[0]: 50.0},
    )
    found = weighed({"a:8080": BUNDLES[1:2], "b:8080": [BUNDLES[0], BUNDLES[2]]}, reports)
    assert 50.0 == rate(found, BUNDLES[0])


def test_a_bundle_that_arrived_since_the_report_weighs_the_mean_of_the_unnamed() -> None:
    held = {"a:8080": BUNDLES[:12], "b:8080": []}
    reports = reports_of(held, dict.fromkeys(BUNDLES, 6.0))
    holds = {
        "a:8080": [HeldBundle(bundle, LONG_AGO_MS) for bundle in BUNDLES[:12]],
        "b:8080": [HeldBundle(BUNDLES[13], NOW_MS + 1)],
    }
    found = weigh(holds, reports, now_ms=NOW_MS, age_ms_max=60_000)
    assert 3.0 == rate(found, BUNDLES[13])


def test_a_measured_load_comes_before_any_report() -> None:
    held = {"a:8080": BUNDLES[:2]}
    measured = {
        BUNDLES[0]: BundleTraffic(bundle=BUNDLES[0], traffic=Traffic(messages_in_per_second=7.0))
    }
    found = weighed(held, reports_of(held, dict.fromkeys(BUNDLES, 5.0)), measured=measured)
    assert [7.0, 5.0] == [rate(found, bundle) for bundle in BUNDLES[:2]]


def test_old_missing_and_emptied_reports_set_their_brokers_apart() -> None:
    reports = LoadReports()
    reports.take(broker_load("a:8080", taken_ms=NOW_MS - 61_000))
    reports.take(broker_load("b:8080"))
    reports.take(Report(NOW_MS, BROKER_LOADS, "b:8080", None))
    found = weighed({"a:8080": [], "b:8080": [], "c:8080": []}, reports)
    silent = "it has not reported its load"
    outdated = "its load report is outdated: it was made 61 s ago (limit: 60 s)"
    assert {"a:8080": outdated, "b:8080": silent, "c:8080": silent} == found.apart
    assert {} == found.loads


def test_a_report_of_a_broker_that_is_gone_does_not_count() -> None:
    reports = reports_of({broker: [] for broker in BROKERS}, {})
    found = weighed({"a:8080": [], "b:8080": []}, reports)
    assert ("c:8080 is gone: its load report does not count",) == found.notes
    assert {"a:8080", "b:8080"} == set(found.loads)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"msgRateIn": "NaN"}, "messages_in_per_second=nan"),
        ({"msgThroughputIn": -3.0}, "bytes_in_per_second=-3.0"),
        ({"weightedMaxEMA": "Infinity"}, "its average use is inf"),
        ({"msgRateIn": None}, "msgRateIn is missing"),
        ({"msgRateIn": "many"}, "msgRateIn='many'"),
        ({"cpu": {"usage": -1.0, "limit": 100.0}}, "its cpu is -1.0 of 100.0"),
        ({"cpu": 7}, "cpu=7"),
        ({"bundleCount": -1}, "bundleCount=-1"),
        ({"updatedAt": 1.5}, "updatedAt=1.5"),
    ],
)
def test_an_absurd_report_sets_its_broker_apart(fields: dict[str, object], told: str) -> None:
    reports = LoadReports()
    reports.take(broker_load("a:8080", **fields))  # type: ignore[arg-type]
    (reason,) = weighed({"a:8080": []}, reports).apart.values()
    assert reason.startswith("its load report is not plausible and does not count: ")
    assert told in reason


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"topBundlesLoadData":[7]}',
        b'{"topBundlesLoadData":[{"bundleName":"x"}]}',
    ],
)
def test_an_unreadable_report_of_bundles_is_named(value: bytes) -> None:
    reports = LoadReports()
    reports.take(broker_load("a:8080"))
    reports.take(Report(NOW_MS, TOP_BUNDLES, "a:8080", value))
    assert 1 == len(weighed({"a:8080": []}, reports).notes)


def test_an_absurd_bundle_is_left_out_until_it_is_reported_well() -> None:
    bad = {
        "topBundlesLoadData": [
            {"bundleName": BUNDLES[0], "stats": stats(-1.0)},
            {"bundleName": BUNDLES[1], "stats": stats(4.0)},
        ]
    }
    reports = LoadReports()
    reports.take(broker_load("a:8080", rate=10, bundles=2))
    reports.take(Report(NOW_MS, TOP_BUNDLES, "a:8080", json.dumps(bad).encode()))
    found = weighed({"a:8080": BUNDLES[:2]}, reports, bundles_max=1)
    assert [6.0, 4.0] == [rate(found, bundle) for bundle in BUNDLES[:2]]
    told = "its load, as a:8080 reported it, does not count: it has bytes_in_per_second=-1000.0"
    assert (f"{BUNDLES[0]}: {told}",) == found.notes
    reports.take(top_bundles("a:8080", {BUNDLES[0]: 3.0}))
    assert () == weighed({"a:8080": BUNDLES[:2]}, reports).notes


@pytest.mark.parametrize("absurd", ["NaN", "Infinity", -1.0, "many"])
@pytest.mark.parametrize("named_max", [10, 16])
def test_an_absurd_entry_changes_no_other_bundle(absurd: object, named_max: int) -> None:
    """The bundle itself weighs what the others leave of its broker's load. Nobody knows its
    load.
    """
    rates = {bundle: number + 1.0 for number, bundle in enumerate(BUNDLES)}
    reports = reports_of({"a:8080": BUNDLES}, rates, named_max=named_max)
    right = weighed({"a:8080": BUNDLES}, reports, bundles_max=named_max)
    entries = [
        {"bundleName": each.traffic.bundle, "stats": stats(rate(right, each.traffic.bundle))}
        for each in reports.top["a:8080"].usable
    ]
    entries[-1]["stats"] = stats(16.0, msgRateIn=absurd)
    reports = reports_of({"a:8080": BUNDLES}, rates, named_max=0)
    reports.take(
        Report(
            NOW_MS,
            TOP_BUNDLES,
            "a:8080",
            json.dumps({"topBundlesLoadData": entries}).encode(),
        )
    )
    found = weighed({"a:8080": BUNDLES}, reports, bundles_max=named_max)
    named = BUNDLES[16 - named_max : 15]
    assert [rates[bundle] for bundle in named] == [rate(found, bundle) for bundle in named]
    assert sum(rates.values()) == pytest.approx(sum(rate(found, bundle) for bundle in BUNDLES))
    assert (frozenset({BUNDLES[15]}), True) == (
        found.unknown,
        found.notes[0].startswith(f"{BUNDLES[15]}: its load, as a:8080 reported it"),
    )


def test_the_reports_of_a_real_cluster_are_read() -> None:
    """A machine without a network card that knows its speed reports a negative limit."""
    reports, last_ms = LoadReports(), 0
    lines = [
        (line["published_ms"], topic, line)
        for name, topic in (("broker_load", BROKER_LOADS), ("top_bundles", TOP_BUNDLES))
        for line in map(
            json.loads,
            (ROOT / "tests" / "golden" / "pulsar" / f"{name}.jsonl").read_text().splitlines(),
        )
    ]
    for published_ms, topic, line in sorted(lines, key=lambda each: each[0]):
        value = None if line["value"] is None else json.dumps(line["value"]).encode()
        reports.take(Report(published_ms, topic, line["key"], value))
        assert {} == reports.problems
        last_ms = published_ms
    held = {
        broker: [HeldBundle(each.traffic.bundle, 0) for each in top.usable]
        for broker, top in reports.top.items()
    }
    found = weigh(held, reports, now_ms=last_ms, age_ms_max=30_000)
    busy = [broker for broker, load in found.loads.items() if load.traffic.messages_per_second > 0]
    assert 2 == len(busy)
    for broker in busy:
        named = sum(found.bundles[each.bundle].traffic.messages_per_second for each in held[broker])
        # They are some seconds apart.
        assert named == pytest.approx(found.loads[broker].traffic.messages_per_second, rel=0.1)
