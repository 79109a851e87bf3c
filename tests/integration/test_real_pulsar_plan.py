"""Even out a cluster of real Pulsar with `equipoise pulsar plan` and `apply`. Its brokers' logs
have every request that was sent.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pulsar
import pytest
from typer.testing import Result

from equipoise.channel.core.ranges import bundle_contains, parse_range, topic_hash
from equipoise.pulsar_cluster.applying import SHEDDING
from equipoise.pulsar_cluster.saved_plans import SavedPlan, read_plan
from tests.pulsar.programs import is_required
from tests.pulsar.real_cluster import ADMIN, QUICK_REPORTS, Broker, RealCluster, real_cluster
from tests.unit.cli.fabricated import run

# The first run fetches 245 MB.
pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1_200)]

NAMESPACE = "acme/shop"
TOPICS = [f"persistent://{NAMESPACE}/t{number}" for number in range(32)]
PAUSE_S = 0.05  # 20 messages a second for each topic.
TENTH = 0.10
# A rate is the mean of 10 s, so that a busy machine plans right. Brokers renew rates once a minute
# by default.
SETTINGS = {**QUICK_REPORTS, "statsUpdateFrequencyInSecs": "10"}
RATES_S = 22

_request = re.compile(r'RequestLog.*"(PUT|POST|DELETE) (\S+) HTTP/1\.1" (\d+) .*"equipoise"').search


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Three brokers that demand tokens, and a namespace of 16 bundles under load."""
    if not (shutil.which("java") and shutil.which("mvn")):
        (pytest.fail if is_required() else pytest.skip)(
            "real Pulsar needs java and mvn; on Debian: apt-get install default-jre-headless maven"
        )
    folder = tmp_path_factory.mktemp("pulsar")
    with real_cluster(folder, settings=SETTINGS, key=b"k" * 32) as cluster:
        cluster.admin("PUT", "/tenants/acme", {"allowedClusters": ["local"]})
        cluster.admin("PUT", f"/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 16}})
        (folder / "token").write_text(cluster.token(ADMIN))
        (folder / "stranger").write_text(cluster.token("stranger"))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            yield cluster


@pytest.fixture(scope="module", autouse=True)
def load(cluster: RealCluster) -> Iterator[None]:
    """Each topic gets 20 messages a second."""
    # It logs each topic that moves.
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(
        cluster.service_url,
        authentication=pulsar.AuthenticationToken(cluster.token(ADMIN)),
        logger=logger,
    )
    producers = [client.create_producer(topic, send_timeout_millis=60_000) for topic in TOPICS]
    ended = Event()

    def publish() -> None:
        due_s = time.monotonic()
        while not ended.wait(max(0.0, due_s - time.monotonic())):
            due_s += PAUSE_S
            for producer in producers:
                producer.send_async(b"x" * 200, lambda *_: None)

    publisher = Thread(target=publish)
    publisher.start()
    yield
    ended.set()
    publisher.join()
    client.close()


def equipoise(cluster: RealCluster, *words: str, role: str = "token") -> Result:
    admins = [word for broker in cluster.running for word in ("--admin", broker.admin_url)]
    return run("pulsar", *words, "--source", cluster.service_url, *admins, "--token-file", role)


def planned(cluster: RealCluster, *, wait_s: int = 30) -> SavedPlan:
    result = equipoise(cluster, "plan", "--wait", str(wait_s), "--output", "even.plan")
    assert 0 == result.exit_code, result.output
    return read_plan(Path("even.plan").read_bytes())


def pile(cluster: RealCluster, to: Broker) -> None:
    """Move all bundles to one broker, and wait until its rates are known."""
    for bundle, owner in cluster.owners(NAMESPACE).items():
        if owner != to.id:
            # The owner itself is asked: a redirect would lose the token.
            at = next(number for number, broker in enumerate(cluster.brokers) if broker.id == owner)
            cluster.admin(
                "PUT",
                f"/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={to.id}",
                broker=at,
            )
    assert {to.id} == set(cluster.owners(NAMESPACE).values())
    time.sleep(RATES_S)


def topics_by_broker(cluster: RealCluster) -> Counter[str]:
    """Return how many topics each broker serves. All have the same load."""
    owners = [
        (parse_range(key_range), broker) for key_range, broker in cluster.owners(NAMESPACE).items()
    ]
    return Counter(
        broker
        for topic in TOPICS
        for (low, high), broker in owners
        if bundle_contains(low, high, topic_hash(topic))
    )


def is_even(cluster: RealCluster) -> bool:
    counts, mean = topics_by_broker(cluster), len(TOPICS) / len(cluster.running)
    return len(TOPICS) == counts.total() and all(
        abs(counts[broker.id] - mean) <= TENTH * mean for broker in cluster.running
    )


def changes_sent() -> list[str]:
    """Return each request of this program that is no question, as the brokers logged it. Brokers
    that redirect it are left out.
    """
    logs = [
        line
        for path in sorted(Path().glob("broker-*.log"))
        for line in path.read_text(errors="replace").splitlines()
    ]
    found = [match for match in map(_request, logs) if match is not None]
    return sorted(
        f"{match[1]} {match[2].removesuffix('&authoritative=true')}"
        for match in found
        if match[3] != "307"
    )


def unloads(plan: SavedPlan) -> list[str]:
    return sorted(
        f"PUT /admin/v2/namespaces/{move.bundle}/unload?destinationBroker={str(move.destination).replace(':', '%3A')}"  # noqa: E501
        for move in plan.moves
    )


def test_a_pile_is_even_within_a_minute_and_nothing_but_the_plan_is_sent(
    cluster: RealCluster,
) -> None:
    pile(cluster, cluster.brokers[0])
    plan = planned(cluster)
    assert 0 == equipoise(cluster, "apply", "even.plan").exit_code
    assert [] == changes_sent()
    begin_s = time.monotonic()
    result = equipoise(cluster, "apply", "even.plan", "--send", "--audit", "pile.jsonl")
    took_s = time.monotonic() - begin_s
    assert 0 == result.exit_code, result.output
    assert is_even(cluster), topics_by_broker(cluster)
    assert took_s < 60, f"{took_s:.1f} s"
    assert unloads(plan) == changes_sent()
    events = Counter(
        json.loads(line)["event"] for line in Path("pile.jsonl").read_text().splitlines()
    )
    assert {
        "begin": 1,
        "end": 1,
        "request": len(plan.moves),
        "answer": len(plan.moves),
        "moved": len(plan.moves),
    } == events
    again = equipoise(cluster, "apply", "even.plan", "--send")
    assert (1, True) == (again.exit_code, "the cluster has changed since the plan" in again.stdout)


def test_a_broker_that_joins_gets_its_part_at_once(cluster: RealCluster) -> None:
    added = cluster.add_broker()
    begin_s = time.monotonic()
    planned(cluster, wait_s=5)
    result = equipoise(cluster, "apply", "even.plan", "--send")
    took_s = time.monotonic() - begin_s
    assert 0 == result.exit_code, result.output
    assert topics_by_broker(cluster)[added.id] > 0
    assert took_s < 60, f"{took_s:.1f} s"


def test_nothing_is_sent_while_pulsar_sheds_or_by_a_stranger(cluster: RealCluster) -> None:
    """A stranger may neither plan nor apply."""
    switch = f"/brokers/configuration/{SHEDDING}"
    cluster.admin("POST", f"{switch}/true")
    pile(cluster, cluster.brokers[1])
    before = changes_sent()
    planned(cluster)
    refused = equipoise(cluster, "apply", "even.plan", "--send")
    assert (1, True) == (refused.exit_code, "Pulsar's own shedding is on" in refused.stdout)
    for words in (("plan",), ("apply", "even.plan", "--send")):
        stranger = equipoise(cluster, *words, role="stranger")
        assert (4, True) == (
            stranger.exit_code,
            "does not let this client" in stranger.stderr,
        ), stranger.output
    assert before == changes_sent()
    cluster.admin("DELETE", switch)


def test_a_broker_that_is_killed_stops_the_plan(cluster: RealCluster) -> None:
    """What was not requested stays, and the audit file says why."""
    pile(cluster, cluster.brokers[2])
    plan = planned(cluster)
    victim = next(
        number
        for number, broker in enumerate(cluster.brokers)
        if broker.id == plan.moves[0].destination
    )
    killer = Thread(target=_kill_at_a_request, args=(cluster, victim, Path("killed.jsonl")))
    killer.start()
    result = equipoise(
        cluster,
        "apply",
        "even.plan",
        "--send",
        "--audit",
        "killed.jsonl",
        "--at-once",
        "1",
        "--timeout",
        "30",
    )
    killer.join()
    assert 1 == result.exit_code, result.output
    lines = [json.loads(line) for line in Path("killed.jsonl").read_text().splitlines()]
    assert lines[-1]["stopped"] is not None
    assert "left out" in {line["event"] for line in lines}


def _kill_at_a_request(cluster: RealCluster, victim: int, audit: Path) -> None:
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s and not (
        audit.exists() and '"request"' in audit.read_text()
    ):
        time.sleep(0.01)
    cluster.kill_broker(victim)
