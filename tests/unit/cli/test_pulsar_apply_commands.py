"""`equipoise pulsar plan` and `apply`: from an archive, and on a cluster in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import Result

from equipoise.pulsar_cluster.archive import Members, open_archive
from equipoise.pulsar_cluster.credentials import NotSent, Reply, Request
from equipoise.pulsar_cluster.loads import LoadReports
from equipoise.pulsar_cluster.records import Message
from equipoise.pulsar_cluster.saved_plans import SavedPlan, read_plan
from equipoise.pulsar_cluster.table import Table
from tests.unit.cli.fabricated import run
from tests.unit.pulsar_cluster.made_clusters import (
    BROKERS,
    admin_of,
    broker_load,
    host_of,
    owned,
    replied,
    top_bundles,
)
from tests.unit.pulsar_cluster.test_applying import FakeCluster, unload
from tests.unit.pulsar_cluster.test_moving import BUNDLES, plan_of
from tests.unit.pulsar_cluster.written import Written

SOURCE = "pulsar://127.0.0.1:1"
ADMIN = "equipoise.pulsar_cluster.sources.PulsarAdmin"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return recorded(tmp_path / "pulsar.db", time.time_ns() // 1_000_000)


def recorded(path: Path, now_ms: int) -> Path:
    """Record eight bundles on one of three brokers, of which the first has a quarter of the
    load.
    """
    written = Written()
    for bundle in BUNDLES:
        written.assign(bundle, BROKERS[0])
    rates = {bundle: 60.0 if bundle == BUNDLES[0] else 25.0 for bundle in BUNDLES}
    reports = [top_bundles(BROKERS[0], rates)]
    reports += [
        broker_load(broker, rate=235.0 * (broker == BROKERS[0]), bundles=8, taken_ms=now_ms)
        for broker in BROKERS
    ]
    with open_archive(path, create_for=SOURCE) as opened:
        opened.append(written.reads)
        opened.add_members(Members(now_ms, BROKERS[0], BROKERS))
        opened.add_reports([each._replace(at_ms=now_ms) for each in reports])
    return path


def test_a_plan_from_an_archive_shows_moves_and_commands(archive: Path, tmp_path: Path) -> None:
    result = run(
        "pulsar", "plan", "--source", str(archive), "--output", str(tmp_path / "even.plan")
    )
    assert 0 == result.exit_code, result.output
    saved = read_plan((tmp_path / "even.plan").read_bytes())
    assert {"b:8080", "c:8080"} == {move.destination for move in saved.moves}
    assert f"plan {saved.id}" in result.stdout
    assert "isolation policies and anti-affinity groups are not known" in result.stdout
    assert (
        f"pulsar-admin namespaces unload --bundle {BUNDLES[0].rpartition('/')[2]}"
        " --destinationBroker" in result.stdout
    )
    assert "the deviation would fall from" in result.stdout


def test_a_plan_by_pulsars_policy_and_the_settings_of_its_brokers(
    archive: Path, tmp_path: Path
) -> None:
    """A cluster whose own shedding is off can be planned for all the same."""
    conf = tmp_path / "broker.conf"
    conf.write_text("loadBalancerBrokerLoadTargetStd=0.07\nloadBalancerSheddingEnabled=false\n")
    words = (
        "--source",
        str(archive),
        "--shedder",
        "TransferShedder",
        "--broker-conf",
        str(conf),
        "--json",
    )
    found = json.loads(run("pulsar", "plan", *words).stdout)
    assert ("TransferShedder", "0.07") == (
        found["shedder"],
        found["settings"]["transfer.target_deviation"]["value"],
    )
    assert "the balancer moves nothing" not in found["conclusion"]
    assert (
        {"bundle", "source", "destination", "reason"} <= set(found["moves"][0])
        if found["moves"]
        else True
    )


def test_an_old_archive_is_planned_for_as_of_its_last_report(tmp_path: Path) -> None:
    old = recorded(tmp_path / "old.db", time.time_ns() // 1_000_000 - 3 * 86_400_000)
    result = run("pulsar", "plan", "--source", str(old), "--json")
    assert 0 == result.exit_code, result.output
    found = json.loads(result.stdout)
    assert found["moves"]
    assert found["made_ms"] > time.time_ns() // 1_000_000 - 60_000
    assert "72.0 hours ago" in " ".join(found["notes"])
    assert "the plan is as of the last load report in the archive, at " in " ".join(found["notes"])


def test_an_archive_without_reports_makes_no_plan(tmp_path: Path) -> None:
    with open_archive(tmp_path / "pulsar.db", create_for=SOURCE) as opened:
        written = Written()
        written.assign(BUNDLES[0], BROKERS[0])
        opened.append(written.reads)
    result = run("pulsar", "plan", "--source", str(tmp_path / "pulsar.db"))
    assert 1 == result.exit_code
    assert "a:8080: it has not reported its load; wait longer for the reports" in result.stderr


# --- apply ---


class FakeLive:
    """What `live_cluster` opens, on a `FakeCluster`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.table = Table()
        self.reports = LoadReports()
        self._cluster = cluster
        for number, bundle in enumerate(BUNDLES):
            self.table.fold(
                owned(
                    bundle, cluster.owners[bundle], version=cluster.versions[bundle], offset=number
                )
            )

    def read(self) -> list[Message]:
        found: list[Message] = []
        while self._cluster.news:
            bundle, record = self._cluster.news.popleft()
            found.append(Message(self.table.offset + 1 + len(found), "1:1", bundle, 0, record))
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCluster:
    cluster = FakeCluster()

    @contextmanager
    def live(*_: object) -> Iterator[FakeLive]:
        yield FakeLive(cluster)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.pulsar_cluster.sources.live_cluster", live)
    monkeypatch.setattr(ADMIN, lambda *_, **__: admin_of(cluster.answer))
    monkeypatch.setattr("equipoise.pulsar_cluster.applying._LOOK_S", 0.0)
    cluster.shedding = "false"
    return cluster


def apply(*words: str, plan: SavedPlan | None = None) -> Result:
    Path("even.plan").write_text((plan or plan_of()).text())
    return run(
        "pulsar", "apply", "even.plan", "--source", SOURCE, "--admin", "http://a:8080", *words
    )


def test_without_send_nothing_is_sent(cluster: FakeCluster) -> None:
    result = apply()
    assert 0 == result.exit_code
    assert (
        f"This is a dry run of plan {plan_of().id} with 4 moves: --send sends them."
        in result.stdout
    )
    assert ([], False) == (cluster.sent, Path("pulsar-moves.jsonl").exists())


def test_with_send_the_plan_is_carried_out(cluster: FakeCluster) -> None:
    result = apply("--send", "--json")
    assert 0 == result.exit_code, result.output
    assert ["moved"] * 4 == [json.loads(line)["status"] for line in result.stdout.splitlines()]
    assert sorted(map(unload, BUNDLES[:4])) == sorted(cluster.sent)
    assert Path("pulsar-moves.jsonl").exists()


def test_a_plan_names_the_brokers_whose_figures_cannot_be_read(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made from their reports."""
    cluster = FakeCluster()

    def answer(request: Request) -> Reply:
        if host_of(request) == "b":
            raise NotSent("refused")
        return replied({}) if "/broker-stats/" in request.url else cluster.answer(request)

    monkeypatch.setattr(ADMIN, lambda *_, **__: admin_of(answer))
    result = run("pulsar", "plan", "--source", str(archive), "--admin", "http://a:8080", "--json")
    assert 0 == result.exit_code, result.output
    document = json.loads(result.stdout)
    assert document["moves"]
    told = " ".join(document["notes"])
    assert (
        "the figures of the topics of b:8080 are not known, so the plan uses their load reports:"
        " http://b:8080 cannot be reached" in told
    )


def test_it_is_refused_while_pulsar_sheds(cluster: FakeCluster) -> None:
    cluster.shedding = "true"
    result = apply("--send")
    assert (1, []) == (result.exit_code, cluster.sent)
    assert (
        "nothing was sent: Pulsar's own shedding is on, and two balancers would fight; switch it"
        " off meanwhile: pulsar-admin brokers update-dynamic-config --config"
        " loadBalancerSheddingEnabled --value false" in result.stdout
    )
    assert "It would be refused now: Pulsar's own shedding is on" in apply().stdout


def test_a_cluster_that_has_changed_is_refused_before_anything_is_sent(
    cluster: FakeCluster,
) -> None:
    cluster.leader = "c:8080"
    result = apply("--send")
    assert (1, []) == (result.exit_code, cluster.sent)
    assert "the leader is c:8080 (in the plan: a:8080); make a new plan" in result.stdout


def test_a_plan_that_stops_says_why_and_its_exit_code_is_1(cluster: FakeCluster) -> None:
    cluster.faults = {BUNDLES[0]: "refuse"}
    result = apply("--send", "--at-once", "1")
    assert 1 == result.exit_code
    assert f"stopped: the move of {BUNDLES[0]} was refused" in result.stdout
    assert [unload(BUNDLES[0])] == cluster.sent


@pytest.mark.usefixtures("cluster")
def test_the_sum_is_told() -> None:
    told = apply("--send").stdout
    assert (
        "4 of 4 moves done; each request and its outcome is a line of pulsar-moves.jsonl"
        == told.splitlines()[-1]
    )


def sent_again(cluster: FakeCluster, *words: str) -> list[str]:
    """Return what one more run sends."""
    begin = len(cluster.sent)
    result = run(
        "pulsar",
        "apply",
        *words,
        "--source",
        SOURCE,
        "--admin",
        "http://a:8080",
        "--send",
        "--at-once",
        "1",
    )
    assert 0 == result.exit_code, result.output
    return [
        request.rpartition("/unload?destinationBroker=")[0].rpartition("namespaces/")[2]
        for request in cluster.sent[begin:]
    ]


def test_a_plan_that_stopped_goes_on_with_what_was_not_moved(cluster: FakeCluster) -> None:
    """Also with another leader: the operator has seen it. What a killed run had requested counts as
    it is found.
    """
    cluster.faults = {BUNDLES[2]: "leader"}
    assert 1 == apply("--send", "--at-once", "1").exit_code
    assert (3, "b:8080") == (len(cluster.sent), cluster.leader)
    cluster.faults = {}
    assert [BUNDLES[3]] == sent_again(cluster, "even.plan", "--resume")
    assert [] == sent_again(cluster, "even.plan", "--resume")
    plans = {
        json.loads(line).get("plan") for line in Path("pulsar-moves.jsonl").read_text().splitlines()
    }
    assert {plan_of().id} == plans


def test_what_a_plan_moved_is_moved_back_newest_first(cluster: FakeCluster) -> None:
    """Also what it moved after it was resumed, and back again by undoing that."""
    cluster.faults = {BUNDLES[2]: "leader"}
    apply("--send", "--at-once", "1")
    cluster.faults = {}
    sent_again(cluster, "even.plan", "--resume")
    cluster.owners[BUNDLES[1]] = "c:8080"
    result = run(
        "pulsar",
        "apply",
        "--undo",
        "pulsar-moves.jsonl",
        "--source",
        SOURCE,
        "--admin",
        "http://a:8080",
    )
    assert (
        f"{BUNDLES[1]} is left out: plan {plan_of().id} moved it to b:8080, and now c:8080 owns it"
        in result.stdout
    )
    assert [BUNDLES[3], BUNDLES[2], BUNDLES[0]] == sent_again(
        cluster, "--undo", "pulsar-moves.jsonl"
    )
    assert ["a:8080", "c:8080", "a:8080", "a:8080"] == [
        cluster.owners[bundle] for bundle in BUNDLES[:4]
    ]
    assert [BUNDLES[0], BUNDLES[2], BUNDLES[3]] == sent_again(
        cluster, "--undo", "pulsar-moves.jsonl"
    )


def test_without_a_request_there_is_nothing_to_undo(cluster: FakeCluster) -> None:
    Path("empty.jsonl").touch()
    result = run(
        "pulsar", "apply", "--undo", "empty.jsonl", "--source", SOURCE, "--admin", "http://a:8080"
    )
    assert (2, True) == (result.exit_code, "there is nothing to undo" in result.stderr)
    for words in ((), ("x", "--undo", "empty.jsonl"), ("--resume", "--undo", "empty.jsonl")):
        result = run("pulsar", "apply", *words, "--source", SOURCE, "--admin", "http://a:8080")
        assert (2, True) == (result.exit_code, "name one of: a plan" in result.stderr)


def test_addresses_and_credentials_come_from_client_conf(cluster: FakeCluster) -> None:
    Path("client.conf").write_text(f"webServiceUrl=http://a:8080\nbrokerServiceUrl={SOURCE}\n")
    Path("even.plan").write_text(plan_of().text())
    assert 0 == run("pulsar", "apply", "even.plan", "--client-conf", "client.conf").exit_code
    result = run("pulsar", "apply", "even.plan", "--admin", "http://a:8080")
    assert (2, True) == (
        result.exit_code,
        "brokerServiceUrl in --client-conf" in result.stderr.replace("\n", " "),
    )


def test_a_file_that_is_no_plan_and_a_missing_admin_url_are_usage_errors(
    cluster: FakeCluster,
) -> None:
    Path("x").write_text("{}")
    result = run("pulsar", "apply", "x", "--source", SOURCE, "--admin", "http://a:8080")
    assert (2, True) == (
        result.exit_code,
        "it is no file that `equipoise pulsar plan --output` wrote" in result.stderr,
    )
    result = run("pulsar", "apply", "x", "--source", SOURCE)
    assert (2, True) == (result.exit_code, "--admin" in result.stderr)
    result = run("pulsar", "apply", "gone", "--source", SOURCE, "--admin", "http://a:8080")
    assert (2, True) == (result.exit_code, "its file cannot be read" in result.stderr)
