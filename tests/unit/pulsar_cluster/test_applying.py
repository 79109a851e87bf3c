"""A saved plan is sent to a cluster, here one in this process. Nothing else is sent, and the audit
file has all of it.
"""

from __future__ import annotations

import json
import time
from collections import ChainMap, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.pulsar_cluster.applying import (
    SHEDDING,
    AuditFile,
    Watch,
    apply_plan,
    audit_file,
    is_shedding,
    settings_of_leader,
)
from equipoise.pulsar_cluster.credentials import NotSent, Reply, Request
from equipoise.pulsar_cluster.loads import LoadReports
from equipoise.pulsar_cluster.moving import Health, Look, MoveOutcome
from equipoise.pulsar_cluster.records import Message, StateRecord
from equipoise.pulsar_cluster.saved_plans import SavedPlan
from equipoise.pulsar_cluster.table import Table
from tests.unit.pulsar_cluster.made_clusters import (
    BROKERS,
    admin_of,
    answers,
    host_of,
    owned,
    path_of,
    replied,
)
from tests.unit.pulsar_cluster.test_moving import BUNDLES, plan_of


class FakeCluster:
    """A cluster that moves what it is asked to, and keeps every request that is not a question.

    `faults` maps a bundle to what happens when it is to move.
    """

    def __init__(self, faults: dict[str, str] | None = None) -> None:
        self.sent: list[str] = []
        self.members = list(BROKERS)
        self.leader = "a:8080"
        self.shedding = "true"
        self.news = deque[tuple[str, StateRecord]]()
        self.faults = faults or {}
        self.owners = dict.fromkeys(BUNDLES, "a:8080")
        self.versions = dict.fromkeys(BUNDLES, 2)

    def known(self, path: str) -> object:
        ranges = [bundle.rpartition("/")[2].split("_") for bundle in BUNDLES]
        owned_at: dict[str, object] = {
            f"/brokers//{broker}/ownedNamespaces": {
                bundle: {} for bundle, owner in self.owners.items() if owner == broker
            }
            for broker in BROKERS
        }
        return {
            "/brokers": self.members,
            "/brokers/leaderBroker": {"brokerId": self.leader},
            "/brokers/configuration/runtime": {SHEDDING: self.shedding},
            "/namespaces/public/default/bundles": {
                "boundaries": [ranges[0][0], *(high for _, high in ranges)]
            },
            **owned_at,
        }.get(path)

    def answer(self, request: Request) -> Reply:
        path = path_of(request)
        if request.method == "GET":
            return replied(self.known(path))
        self.sent.append(f"{request.method} {request.url.removeprefix('http://a:8080')}")
        bundle = path.removeprefix("/namespaces/").removesuffix("/unload")
        return self.move(bundle, unquote(request.url.rpartition("=")[2]))

    def move(self, bundle: str, to: str) -> Reply:
        source = self.owners[bundle]
        match self.faults.get(bundle):
            case "refuse":
                return Reply(412, '{"reason": "no"}')
            case "silent":
                raise TimeoutError
            case "split":
                self.news.append((bundle, record("Splitting", None, source, 3)))
                return Reply(204)
            case "vanish":
                self.members.remove("c:8080")
            case "leader":
                self.leader = "b:8080"
            case "foreign":
                self.news.append((BUNDLES[7], record("Releasing", "c:8080", "a:8080", 3)))
        self.owners[bundle] = to
        for state in ("Releasing", "Assigning", "Owned"):
            self.versions[bundle] += 1
            self.news.append((bundle, record(state, to, source, self.versions[bundle])))
        return Reply(204)


def record(state: str, to: str | None, source: str | None, version: int) -> StateRecord:
    return StateRecord(state, to, source, force=False, version=version)


def run(
    cluster: FakeCluster, audit: AuditFile, plan: SavedPlan | None = None, **options: object
) -> list[MoveOutcome | str]:
    table = Table()
    for number, bundle in enumerate(BUNDLES):
        table.fold(owned(bundle, "a:8080", offset=number))
    offsets = iter(range(len(BUNDLES), 1_000))

    def read() -> list[Message]:
        # Threads add to it meanwhile.
        news = [cluster.news.popleft() for _ in range(len(cluster.news))]
        return [Message(next(offsets), "1:1", bundle, 0, each) for bundle, each in news]

    plan = plan_of() if plan is None else plan
    admin = admin_of(cluster.answer)
    watch = Watch(admin, LoadReports(), plan.moves)
    defaults: dict[str, object] = {"at_once": 2, "timeout_ms": 300}
    return list(
        apply_plan(
            plan,
            admin,
            table=table,
            read=read,
            look=watch,
            audit=audit,
            **(defaults | options),  # type: ignore[arg-type]
        )
    )


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.pulsar_cluster.applying._LOOK_S", 0.0)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditFile]:
    (tmp_path / "even.plan").touch()
    with audit_file(tmp_path / "audit.jsonl", plan=tmp_path / "even.plan") as lines:
        yield lines


def lines_of(audit: AuditFile) -> list[dict[str, object]]:
    return [json.loads(line) for line in audit.path.read_text().splitlines()]


def unload(bundle: str) -> str:
    return f"PUT /admin/v2/namespaces/{bundle}/unload?destinationBroker=b%3A8080"


def test_the_unloads_of_the_plan_are_sent_and_nothing_else(audit: AuditFile) -> None:
    cluster = FakeCluster()
    events = run(cluster, audit)
    assert sorted(map(unload, BUNDLES[:4])) == sorted(cluster.sent)
    assert ["moved"] * 4 == [event.status for event in events if isinstance(event, MoveOutcome)]
    told = lines_of(audit)
    assert ("begin", "end") == (told[0]["event"], told[-1]["event"])
    for event in ("request", "answer", "moved"):
        assert sorted(BUNDLES[:4]) == sorted(
            str(line["bundle"]) for line in told if line["event"] == event
        )
    first = {
        bundle: next(line["event"] for line in told if line.get("bundle") == bundle)
        for bundle in BUNDLES[:4]
    }
    assert {"request"} == set(first.values())


def test_a_bundle_that_its_owner_does_not_have_is_not_moved(audit: AuditFile) -> None:
    """The topic is a leftover of a cluster whose states are in the metadata store by now."""
    cluster = FakeCluster()
    cluster.owners[BUNDLES[1]] = "c:8080"
    events = run(cluster, audit, at_once=1)
    assert [unload(BUNDLES[0])] == cluster.sent
    assert "a:8080 does not own it, as the topic says" in str(events[-1])
    assert ["moved", "failed", "left out", "left out"] == [
        event.status for event in events if isinstance(event, MoveOutcome)
    ]


def test_an_interrupt_waits_for_what_is_under_way(audit: AuditFile) -> None:
    cluster = FakeCluster()
    events = run(cluster, audit, at_once=1, is_interrupted=lambda: bool(cluster.sent))
    assert [unload(BUNDLES[0])] == cluster.sent
    assert ["moved", *["left out"] * 3] == [
        event.status for event in events if isinstance(event, MoveOutcome)
    ]
    assert "it was interrupted" == events[-1]


def test_nothing_is_sent_without_an_audit_file(
    audit: AuditFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        OperatorError, match=r"audit\.jsonl cannot be written: No space left on device"
    ):
        run(cluster, audit)
    assert [] == cluster.sent


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8, deadline=None
)
@given(
    st.dictionaries(
        st.sampled_from(BUNDLES),
        st.sampled_from(["refuse", "silent", "split", "vanish", "leader", "foreign"]),
        max_size=3,
    ).filter(lambda faults: list(faults.values()).count("vanish") < 2),
    st.integers(1, 4),
)
def test_whatever_fails_only_unloads_of_the_plan_are_sent_and_each_is_in_the_audit_file(
    audit: AuditFile, faults: dict[str, str], at_once: int
) -> None:
    cluster = FakeCluster(faults)
    begin = len(lines_of(audit))
    run(cluster, audit, at_once=at_once, timeout_ms=30)
    assert set(cluster.sent) <= set(map(unload, BUNDLES[:4]))
    assert len(cluster.sent) == len(set(cluster.sent))
    told = [
        unload(str(line["bundle"]))
        for line in lines_of(audit)[begin:]
        if line["event"] == "request"
    ]
    assert sorted(cluster.sent) == sorted(told)


def test_a_second_apply_at_the_same_time_is_refused(audit: AuditFile, tmp_path: Path) -> None:
    """Of the same plan, or with the same audit file."""
    (tmp_path / "other.plan").touch()
    with (
        pytest.raises(PeerError, match="another process applies a plan with"),
        audit_file(audit.path, plan=tmp_path / "other.plan"),
    ):
        pass
    with (
        pytest.raises(PeerError, match="another process applies the plan"),
        audit_file(tmp_path / "b", plan=tmp_path / "even.plan"),
    ):
        pass


def test_an_audit_file_that_was_cut_off_goes_on_in_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.with_suffix(".plan").touch()
    path.write_text('{"event": "beg')
    with audit_file(path, plan=path.with_suffix(".plan")) as lines:
        lines.note("end")
    assert ['{"event": "beg', "end"] == [
        path.read_text().splitlines()[0],
        json.loads(path.read_text().splitlines()[1])["event"],
    ]


# --- the watch ---


def watched(stats: dict[str, object]) -> Watch:
    """Return a watch on two topics with these figures."""
    topics = ["persistent://public/default/x", "persistent://public/default/y"]

    def found(request: Request) -> str:
        path = path_of(request)
        return path.split("/")[-2] if path.endswith("/stats") else path

    fixed: dict[str, object] = {
        "/persistent/public/default": topics,
        "/brokers": list(BROKERS),
        "/brokers/leaderBroker": Reply(404),
        "*": Reply(503, '{"reason": "it moves"}'),
    }
    admin = admin_of(answers(found, ChainMap(stats, fixed)))
    return Watch(admin, LoadReports(), plan_of(1).moves)


def figures(count: int, **backlogs: int) -> Reply:
    subscriptions = {name: {"msgBacklog": backlog} for name, backlog in backlogs.items()}
    return replied({"msgInCounter": count, "subscriptions": subscriptions})


def test_a_watch_counts_what_is_published_and_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that moves has no figures for a moment: it is in the next rate, and its backlog is
    the one read last meanwhile. A broker that is away cannot be watched.
    """
    now_ns = 0
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    stats: dict[str, Any] = {"x": figures(100, s=1, t=2), "y": figures(100, s=4)}
    watch = watched(stats)
    assert Look(BROKERS, None, Health({}, None, 7)) == watch()
    now_ns, stats["x"] = 2_000_000_000, figures(140, s=3)
    del stats["y"]
    second = watch().health
    assert (20.0, 7) == (second.published, second.backlog)
    now_ns, stats["x"], stats["y"] = 4_000_000_000, figures(180, s=3), figures(180, s=4)
    assert 40.0 == watch().health.published
    stats["x"] = NotSent("refused")
    with pytest.raises(PeerError, match="cannot be reached"):
        watch()


def test_a_move_that_arrived_during_a_slow_look_has_moved(audit: AuditFile) -> None:
    """The look takes longer than the move may."""
    cluster = FakeCluster()
    held: list[tuple[str, StateRecord]] = []
    answer = cluster.answer

    def slow(request: Request) -> Reply:
        if request.method == "GET" and held:
            time.sleep(0.6)
            cluster.news.extend(held)
            held.clear()
        found = answer(request)
        if request.method == "PUT":
            held.extend(cluster.news)
            cluster.news.clear()
        return found

    cluster.answer = slow  # type: ignore[method-assign]
    events = run(cluster, audit, plan_of(1), timeout_ms=500)
    assert ["moved"] == [event.status for event in events if isinstance(event, MoveOutcome)]


# --- Pulsar's own shedding ---


def test_the_leader_is_asked_whether_it_sheds() -> None:
    """If its address cannot be reached, the given broker is asked."""
    found: dict[str, object] = {
        "a/brokers/leaderBroker": {"brokerId": "b:8080"},
        "a/brokers/configuration/runtime": {SHEDDING: "false"},
        "b/brokers/configuration/runtime": {SHEDDING: "true"},
    }
    admin = admin_of(answers(lambda request: f"{host_of(request)}{path_of(request)}", found))
    assert {SHEDDING: "true"} == settings_of_leader(admin)
    found["b/brokers/configuration/runtime"] = NotSent("refused")
    assert {SHEDDING: "false"} == settings_of_leader(admin)


def test_shedding_is_on_unless_it_or_the_balancer_is_off() -> None:
    assert [True, False, False] == [
        is_shedding(each) for each in ({}, {SHEDDING: "false"}, {"loadBalancerEnabled": "false"})
    ]
