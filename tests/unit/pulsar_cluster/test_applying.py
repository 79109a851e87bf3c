"""A saved plan is sent to a cluster, here one in this process. Nothing else is sent, and the audit
file has all of it.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.applying import (
    SHEDDING,
    Watch,
    apply_plan,
    is_shedding,
    restore_shedding,
    settings_of_leader,
    shedding_off,
)
from equipoise.pulsar_cluster.audit_file import AuditFile, audit_file
from equipoise.pulsar_cluster.loads import LoadReports
from equipoise.pulsar_cluster.moving import MoveOutcome
from equipoise.pulsar_cluster.records import Message, StateRecord
from equipoise.pulsar_cluster.saved_plans import SavedPlan
from equipoise.pulsar_cluster.table import Table
from tests.unit.pulsar_cluster.made_clusters import BROKERS, owned
from tests.unit.pulsar_cluster.test_moving import BUNDLES, plan_of

SWITCH = f"/admin/v2/brokers/configuration/{SHEDDING}"


class FakeCluster:
    """A cluster that moves what it is asked to, and keeps every request that is not a question.

    `faults` maps a bundle to what happens when it is to move.
    """

    def __init__(self, faults: dict[str, str] | None = None) -> None:
        self.sent: list[str] = []
        self.members = list(BROKERS)
        self.leader = "a:8080"
        self.settings = {SHEDDING: "true"}
        self.dynamic: dict[str, str] = {}
        self.news = deque[tuple[str, StateRecord | None]]()
        self.faults = faults or {}
        self.owners = dict.fromkeys(BUNDLES, "a:8080")
        self.versions = dict.fromkeys(BUNDLES, 2)
        self.admin = self.new_admin()

    def new_admin(self) -> PulsarAdmin:
        return PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/admin/v2")
        if request.method != "GET":
            self.sent.append(f"{request.method} {request.url.raw_path.decode()}")
        match request.method, path:
            case "GET", "/brokers":
                return httpx.Response(200, json=self.members)
            case "GET", "/brokers/leaderBroker":
                return httpx.Response(200, json={"brokerId": self.leader})
            case "GET", "/brokers/configuration/runtime":
                return httpx.Response(200, json=self.settings | self.dynamic)
            case "GET", "/brokers/configuration/values":
                return httpx.Response(200, json=self.dynamic)
            case "GET", "/namespaces/public/default/bundles":
                ranges = [bundle.rpartition("/")[2].split("_") for bundle in BUNDLES]
                return httpx.Response(
                    200, json={"boundaries": [ranges[0][0], *(high for _, high in ranges)]}
                )
            case "GET", _ if path.endswith("/ownedNamespaces"):
                broker = path.split("/")[-2]
                return httpx.Response(
                    200,
                    json={bundle: {} for bundle, owner in self.owners.items() if owner == broker},
                )
            case "POST", _:
                _, name, value = path.rsplit("/", 2)
                self.dynamic[name] = value
            case "DELETE", _:
                self.dynamic.pop(path.rpartition("/")[2])
            case "PUT", _:
                bundle = path.removeprefix("/namespaces/").removesuffix("/unload")
                return self.move(bundle, request.url.params["destinationBroker"])
            case _:
                return httpx.Response(404)
        return httpx.Response(204)

    def move(self, bundle: str, to: str) -> httpx.Response:
        fault = self.faults.get(bundle)
        if fault == "refuse":
            return httpx.Response(412, json={"reason": "no"})
        if fault == "silent":
            raise httpx.ReadTimeout("slow")
        if fault == "split":
            self.news.append(
                (bundle, StateRecord("Splitting", None, "a:8080", force=False, version=3))
            )
            return httpx.Response(204)
        if fault == "vanish":
            self.members.remove("c:8080")
        if fault == "leader":
            self.leader = "b:8080"
        if fault == "foreign":
            self.news.append(
                (BUNDLES[7], StateRecord("Releasing", "c:8080", "a:8080", force=False, version=3))
            )
        source, self.owners[bundle] = self.owners[bundle], to
        for state in ("Releasing", "Assigning", "Owned"):
            self.versions[bundle] += 1
            self.news.append(
                (bundle, StateRecord(state, to, source, force=False, version=self.versions[bundle]))
            )
        return httpx.Response(204)


def run(
    cluster: FakeCluster, audit: AuditFile, plan: SavedPlan | None = None, **options: object
) -> list[MoveOutcome | str]:
    table = Table()
    for number, bundle in enumerate(BUNDLES):
        table.fold(owned(bundle, "a:8080", offset=number))
    offsets = iter(range(len(BUNDLES), 1_000))

    def read() -> list[Message]:
        return [
            Message(next(offsets), "1:1", *_popped(cluster.news)) for _ in range(len(cluster.news))
        ]

    plan = plan_of() if plan is None else plan
    watch = Watch(cluster.admin, LoadReports(), plan.moves)
    defaults: dict[str, object] = {"at_once": 2, "timeout_ms": 300}
    return list(
        apply_plan(
            plan,
            cluster.admin,
            table=table,
            read=read,
            look=watch,
            audit=audit,
            **(defaults | options),  # type: ignore[arg-type]
        )
    )


def _popped(news: deque[tuple[str, StateRecord | None]]) -> tuple[str, int, StateRecord | None]:
    bundle, record = news.popleft()
    return bundle, 0, record


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


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("refuse", "was refused: cannot move"),
        ("silent", "did not answer in time"),
        ("split", "is Splitting at a:8080"),
        ("vanish", "the broker c:8080 is gone"),
        ("leader", "the leader is b:8080 now"),
        ("foreign", "somebody else moves bundles"),
    ],
)
def test_what_the_plan_did_not_foresee_stops_it(audit: AuditFile, fault: str, told: str) -> None:
    """With one move at a time, no further one is requested."""
    cluster = FakeCluster({BUNDLES[0]: fault})
    events = run(cluster, audit, at_once=1)
    assert [unload(BUNDLES[0])] == cluster.sent
    assert told in str(events[-1])
    assert told in str(lines_of(audit)[-1]["stopped"])
    assert 4 == sum(isinstance(event, MoveOutcome) for event in events)


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
        assert lines.unrestored() is None
    assert ['{"event": "beg', "end"] == [
        path.read_text().splitlines()[0],
        json.loads(path.read_text().splitlines()[1])["event"],
    ]


# --- the watch ---


def test_a_watch_counts_what_is_published_and_not_acknowledged() -> None:
    """A topic that moves has no figures for a moment. A broker that is away cannot be watched."""
    stats: dict[str, httpx.Response] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/admin/v2")
        if path == "/persistent/public/default":
            return httpx.Response(
                200, json=["persistent://public/default/x", "persistent://public/default/y"]
            )
        if path == "/metrics/":
            return httpx.Response(
                200, text='pulsar_broker_publish_latency{cluster="x",quantile="0.99"} 12.5'
            )
        if path.endswith("/stats"):
            if "away" in stats:
                raise httpx.ConnectError("refused")
            return stats.get(path.split("/")[-2], httpx.Response(503, json={"reason": "it moves"}))
        return httpx.Response(200, json=BROKERS) if path == "/brokers" else httpx.Response(404)

    admin = PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer))
    watch = Watch(admin, LoadReports(), plan_of(1).moves)
    stats["x"] = httpx.Response(
        200,
        json={"msgInCounter": 5, "subscriptions": {"s": {"msgBacklog": 3}, "t": {"msgBacklog": 4}}},
    )
    first = watch()
    assert (BROKERS, None, 7, 12.5) == (
        first.members,
        first.leader,
        first.health.backlog,
        first.health.latency_ms,
    )
    assert first.health.published == 0.0 or first.health.published is None
    stats["x"] = httpx.Response(200, json={"msgInCounter": 1_000_005, "subscriptions": {}})
    second = watch()
    assert second.health.published is not None
    assert second.health.published > 0
    stats["away"] = httpx.Response(503)
    with pytest.raises(PeerError, match="cannot be reached"):
        watch()


def watched(stats: dict[str, httpx.Response], asked: list[str]) -> Watch:
    """Return a watch on two topics with these figures, at a destination whose metrics cannot be
    read.
    """

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/admin/v2")
        if path == "/metrics/":
            asked.append(f"{request.url.host} within {request.extensions['timeout']['read']} s")
            raise httpx.ConnectTimeout("filtered")
        if path == "/persistent/public/default":
            return httpx.Response(
                200, json=["persistent://public/default/x", "persistent://public/default/y"]
            )
        if path.endswith("/stats"):
            return stats.get(path.split("/")[-2], httpx.Response(503, json={"reason": "it moves"}))
        return httpx.Response(200, json=BROKERS) if path == "/brokers" else httpx.Response(404)

    return Watch(
        PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer)),
        LoadReports(),
        plan_of(1).moves,
    )


def figures(count: int, backlog: int) -> httpx.Response:
    return httpx.Response(
        200, json={"msgInCounter": count, "subscriptions": {"s": {"msgBacklog": backlog}}}
    )


def test_a_topic_that_cannot_be_read_for_a_moment_is_in_the_next_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its backlog is the one read last meanwhile."""
    now_ns = 0
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    stats = {"x": figures(100, 3), "y": figures(100, 4)}
    watch = watched(stats, [])
    assert watch().health.published is None
    now_ns, stats["x"] = 2_000_000_000, figures(140, 3)
    del stats["y"]
    second = watch().health
    assert (20.0, 7) == (second.published, second.backlog)
    now_ns, stats["x"], stats["y"] = 4_000_000_000, figures(180, 3), figures(180, 4)
    assert 40.0 == watch().health.published


def test_metrics_that_cannot_be_read_are_asked_for_once_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("equipoise.pulsar_cluster.applying._LATENCY_S", 0.0)
    asked: list[str] = []
    watch = watched({}, asked)
    watch()
    assert watch().health.latency_ms is None
    assert ["b within 2.0 s"] == asked


def test_a_move_that_arrived_during_a_slow_look_has_moved(audit: AuditFile) -> None:
    """The look takes longer than the move may."""
    cluster = FakeCluster()
    held: list[tuple[str, StateRecord | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and held:
            time.sleep(0.6)
            cluster.news.extend(held)
            held.clear()
        found = cluster.answer(request)
        if request.method == "PUT":
            held.extend(_emptied(cluster.news))
        return found

    cluster.admin = PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer))
    events = run(cluster, audit, plan_of(1), timeout_ms=500)
    assert ["moved"] == [event.status for event in events if isinstance(event, MoveOutcome)]


def _emptied(news: deque[tuple[str, StateRecord | None]]) -> list[tuple[str, StateRecord | None]]:
    return [news.popleft() for _ in range(len(news))]


# --- Pulsar's own shedding ---


def test_the_leader_is_asked_whether_it_sheds() -> None:
    """If its address cannot be reached, the given broker is asked."""
    cluster = FakeCluster()
    cluster.leader = "b:8080"
    is_away = False

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "b" and is_away:
            raise httpx.ConnectError("refused")
        found = cluster.answer(request)
        is_leader = request.url.host == "b"
        return (
            httpx.Response(200, json={SHEDDING: str(is_leader).lower()})
            if request.url.path.endswith("/runtime")
            else found
        )

    found = PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer))
    assert {SHEDDING: "true"} == settings_of_leader(found)
    is_away = True
    assert {SHEDDING: "false"} == settings_of_leader(found)


def test_a_dynamic_setting_is_restored_once_the_broker_has_it(
    audit: AuditFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker takes a moment. Until then it would say that it does not shed."""
    cluster = FakeCluster()
    stale = ["false", "false"]
    monkeypatch.setattr("equipoise.pulsar_cluster.applying._SWITCH_POLL_S", 0.0)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/runtime") and stale:
            return httpx.Response(200, json={SHEDDING: stale.pop()})
        return cluster.answer(request)

    slow = PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer))
    restore_shedding(slow, audit, {"dynamic": "true", "value": "true"})
    assert is_shedding(settings_of_leader(slow))


def test_shedding_is_on_unless_it_or_the_balancer_is_off() -> None:
    assert [True, False, False] == [
        is_shedding(each) for each in ({}, {SHEDDING: "false"}, {"loadBalancerEnabled": "false"})
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_shedding_is_off_meanwhile_and_restored_whatever_happens(
    audit: AuditFile, fails: bool
) -> None:
    cluster = FakeCluster()

    def body() -> None:
        with shedding_off(cluster.admin, audit):
            assert {SHEDDING: "false"} == cluster.dynamic
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            body()
    else:
        body()
    assert {} == cluster.dynamic
    assert [f"POST {SWITCH}/false", f"POST {SWITCH}/true", f"DELETE {SWITCH}"] == cluster.sent
    assert ["shedding switched off", "shedding restored"] == [
        line["event"] for line in lines_of(audit)
    ]


def test_a_dynamic_setting_gets_its_value_back(audit: AuditFile) -> None:
    cluster = FakeCluster()
    cluster.dynamic = {SHEDDING: "true"}
    with shedding_off(cluster.admin, audit):
        pass
    assert {SHEDDING: "true"} == cluster.dynamic


def test_a_switch_that_a_killed_process_left_off_is_found_and_restored(audit: AuditFile) -> None:
    cluster = FakeCluster()
    audit.note("shedding switched off", dynamic=None, value="true")
    cluster.dynamic = {SHEDDING: "false"}
    before = audit.unrestored()
    assert before is not None
    restore_shedding(cluster.admin, audit, before)
    assert ({}, None) == (cluster.dynamic, audit.unrestored())


def test_a_switch_that_is_refused_leaves_nothing_to_restore(audit: AuditFile) -> None:
    cluster = FakeCluster()

    def answer(request: httpx.Request) -> httpx.Response:
        return (
            cluster.answer(request)
            if request.method == "GET"
            else httpx.Response(403, json={"reason": "no"})
        )

    refusing = PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer))
    with (
        pytest.raises(OperatorError, match=f"does not let this client set {SHEDDING} to false"),
        shedding_off(refusing, audit),
    ):
        pass
    assert audit.unrestored() is None


def test_shedding_that_cannot_be_restored_is_an_error_with_the_command(audit: AuditFile) -> None:
    cluster = FakeCluster()
    answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(  # noqa: E731
        503, json={"reason": "away"}
    )
    gone = PulsarAdmin(["http://a:8080"], transport=httpx.MockTransport(answer))
    with pytest.raises(
        OperatorError,
        match=f"pulsar-admin brokers update-dynamic-config --config {SHEDDING} --value true",
    ):
        restore_shedding(gone, audit, {"dynamic": None, "value": "true"})
    assert [] == cluster.sent
