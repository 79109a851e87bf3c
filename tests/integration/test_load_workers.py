"""Load workers on a real Kafka: killed, several, busy, stopped, and none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import orjson
import pytest

from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.local.local_broker import ports_of
from equipoise.brokers.local.local_load_workers import LocalLoadWorkers
from equipoise.channel.core.errors import PeerError
from equipoise.channel.kafka.client import Clients
from equipoise.channel.kafka.settings import CONFIG_VARIABLE, address_of, as_text
from equipoise.channel.log.open_log import open_log
from equipoise.shedder.loads import STEP_MS, BundleTraffic, Load, Traffic
from tests.kafka.fixtures import Kafka, OwnKafka, or_skipped
from tests.kafka.tokens import kafka_with_tokens
from tests.load.load_workers import STARTED, LoadWorker, a_load_worker
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PATIENCE_S = 90.0
AGAIN_S = 5.0  # As often as a broker reports.
BUNDLE = "shop/orders/0x00000000_0xffffffff"


def now_ms() -> int:
    """Unix time."""
    return time.time_ns() // 1_000_000


def sample(
    broker: str, at_ms: int, *, used: float = 0.5, rate: float = 0.0, bundle: str = BUNDLE
) -> Load:
    """A sample of a broker with one bundle."""
    bundles = (
        BundleTraffic(bundle=bundle, traffic=Traffic(messages_in_per_second=rate), cost=1.0),
    )
    return Load(broker=broker, at_ms=at_ms, average_use=used, bundle_count=1, bundles=bundles)


def summary_of(bus: LoadBus, broker: str) -> Load | None:
    return next((load for load in bus.latest() if load.broker == broker), None)


def published(bus: LoadBus, each: Load) -> Load:
    """The load after a sample. A sample may be lost while partitions are reassigned, and is
    published again.
    """
    found: list[Load] = []
    again_s = 0.0

    def is_there() -> bool:
        nonlocal again_s
        if time.monotonic() >= again_s:
            bus.publish(each)
            again_s = time.monotonic() + AGAIN_S
        load = summary_of(bus, each.broker)
        if load is not None and load.at_ms == each.at_ms:
            found.append(load)
        return bool(found)

    wait_until(is_there, f"a load of {each.broker}")
    return found[0]


def rate_of(load: Load | None) -> float:
    """The average rate of the only bundle of a load."""
    assert load is not None
    (bundle,) = load.bundles
    return bundle.traffic.messages_in_per_second


@pytest.fixture
def log_url(kafka: Kafka, request: pytest.FixtureRequest) -> str:
    """A new topic that does not exist yet."""
    return f"kafka://{kafka.address}/{kafka.topic(request.node.name)}"


@pytest.mark.slow
def test_a_load_worker_logs_in_by_tokens_as_brokers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients of a load worker take OAUTHBEARER from the settings of a broker."""
    with or_skipped(), kafka_with_tokens(tmp_path / "node") as (address, settings):
        monkeypatch.setenv(CONFIG_VARIABLE, as_text(settings))
        log_url = f"kafka://{address}/tokens"
        with closing(open_log(log_url)) as log:
            log.append([b"a broker"], timeout_ms=10_000)
        with a_load_worker(log_url):
            assert 100.0 == rate_of(
                published(LoadBus(log_url), sample("a:1", now_ms(), rate=100.0))
            )


def test_averages_survive_the_death_of_every_worker(log_url: str, tmp_path: Path) -> None:
    """After `kill -9` of all, a new one continues with the averages of a broker and of a bundle
    that moves meanwhile.
    """
    bus, began_ms = LoadBus(log_url), now_ms()
    workers = [LoadWorker.start(log_url, tmp_path) for _ in range(2)]
    try:
        for worker in workers:
            worker.await_started()
        before = published(bus, sample("a:1", began_ms, used=1.0, rate=100.0))
        assert (1.0, 100.0) == (before.average_use, rate_of(before))
        for worker in workers:
            worker.kill()
        with a_load_worker(log_url):
            after = published(bus, sample("a:1", began_ms + STEP_MS, used=0.0, rate=0.0))
            assert pytest.approx(0.9) == after.average_use
            assert pytest.approx(90.0) == rate_of(after)
            bus.publish(sample("b:1", began_ms + 2 * STEP_MS, rate=0.0))
            wait_until(
                lambda: (at_b := summary_of(bus, "b:1")) is not None and rate_of(at_b) > 0,
                "the average that the bundle had at a:1",
            )
            assert pytest.approx(81.0) == rate_of(summary_of(bus, "b:1"))
    finally:
        for worker in workers:
            worker.kill()


def test_without_a_worker_what_is_known_grows_old(log_url: str) -> None:
    """Its age shows it."""
    bus, began_ms = LoadBus(log_url), now_ms()
    bus.publish(sample("a:1", began_ms))
    assert [] == list(bus.latest())
    with a_load_worker(log_url):
        wait_until(
            lambda: summary_of(bus, "a:1") is not None, "what was published before a worker ran"
        )
    bus.publish(sample("a:1", began_ms + STEP_MS))
    assert [began_ms] == [load.at_ms for load in LoadBus(log_url).latest()]


def test_garbage_is_named_and_kills_nobody(log_url: str, kafka: Kafka) -> None:
    """Invalid samples and impossible figures are logged, and the next sample counts."""
    bus, began_ms = LoadBus(log_url), now_ms()
    with a_load_worker(log_url) as worker:
        published(bus, sample("a:1", began_ms, used=0.5))
        bus.publish(sample("old:1", began_ms - 3_600_000))
        written = published(bus, sample("nan:1", began_ms, used=float("nan")))
        assert not written.average_use >= 0
        after = published(bus, sample("nan:1", began_ms + 1, used=0.5))
        assert 0.5 == after.average_use
        told = {line["broker"]: line["problem"] for line in worker.lines() if "problem" in line}
    assert "before this machine's clock" in str(told["old:1"])
    assert "nan" in str(told["nan:1"])
    assert ["a:1", "nan:1"] == [load.broker for load in bus.latest()]


# --- a Kafka in trouble ---


def of(own_kafka: OwnKafka, purpose: str) -> str:
    """A new topic of a Kafka of its own."""
    return f"kafka://{own_kafka.address}/{own_kafka.topic(purpose)}"


@pytest.mark.slow
def test_a_worker_outlives_an_outage_of_kafka(own_kafka: OwnKafka) -> None:
    """Kafka is killed and restarted. The same worker continues with the averages."""
    log_url = of(own_kafka, "outage")
    bus, began_ms = LoadBus(log_url), now_ms()
    with a_load_worker(log_url) as worker:
        published(bus, sample("a:1", began_ms, used=1.0))
        own_kafka.cluster.kill()
        with pytest.raises(PeerError):
            bus.publish(sample("a:1", began_ms + 1, used=1.0))
        own_kafka.mend()
        after: list[Load] = []

        def goes_on() -> bool:
            with suppress(PeerError):
                bus.publish(sample("a:1", began_ms + STEP_MS, used=0.0))
                after.extend(each for each in bus.latest() if each.at_ms == began_ms + STEP_MS)
            return bool(after)

        wait_until(goes_on, "a load after the outage")
        assert pytest.approx(0.9) == after[0].average_use
        assert worker.process.poll() is None


def test_a_worker_ends_although_kafka_is_silent(own_kafka: OwnKafka, tmp_path: Path) -> None:
    """SIGTERM ends it within seconds, with exit code 0."""
    worker = LoadWorker.start(of(own_kafka, "silent"), tmp_path)
    worker.await_started()
    (node,) = own_kafka.cluster.nodes
    node.suspend()
    assert 0 == worker.stop()


def test_a_start_without_kafka_is_waited_for_within_a_bound(own_kafka: OwnKafka) -> None:
    """After its wait it fails like a command whose log is away."""
    log_url = of(own_kafka, "away")
    own_kafka.cluster.kill()
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "equipoise.brokers.cli",
            "load-worker",
            "--log",
            log_url,
            "--timeout",
            "7",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ExitCode.UNAVAILABLE == ended.returncode
    assert "waiting for the log" in ended.stderr
    assert f"error: the log {log_url} is unavailable" in ended.stderr


# --- load workers of a local cluster ---


@contextmanager
def local_workers(
    log_url: str, folder: Path, *, count: int
) -> Iterator[tuple[LocalLoadWorkers, list[Mapping[str, object]]]]:
    """Load workers as a local cluster has them, and what is told of them, which grows."""
    told: list[Mapping[str, object]] = []
    workers = LocalLoadWorkers(
        folder,
        count=count,
        log_url=log_url,
        environment={},
        report=lambda text, details: told.append(details),
    )
    try:
        workers.start()
        yield workers, told
    finally:
        workers.stop()


def running(workers: LocalLoadWorkers) -> set[int]:
    """The processes that run now."""
    return set(workers.pids)


def test_a_cluster_starts_its_load_workers_again(log_url: str, tmp_path: Path) -> None:
    """One that dies is started again, those that were killed on purpose are not until they are
    wanted, and all end when told to.
    """
    with local_workers(log_url, tmp_path, count=2) as (workers, told):
        (first, second) = sorted(running(workers))
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: len(running(workers) - {first}) == 2,
            "a new process in place of the one that was killed",
        )
        assert second in running(workers)
        workers.kill()
        assert set() == running(workers)
        workers.start()
        assert 2 == len(running(workers))
        assert [-signal.SIGKILL] * 3 == [
            details["exit_code"] for details in told if "exit_code" in details
        ]
        wait_until(
            lambda: all(
                STARTED in path.read_text(encoding="utf-8")
                for path in tmp_path.glob("load-worker-*.log")
            ),
            "all being at work",
        )
    assert set() == running(workers)
    assert [0, 0] == [details["exit_code"] for details in told if "exit_code" in details][3:]


def test_a_cluster_on_kafka_has_a_load_worker(log_url: str, tmp_path: Path) -> None:
    """`equipoise up` on Kafka runs one beside its brokers, whose loads are there soon, and no
    process of it outlives the command.
    """
    command = [
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "up",
        "--data",
        str(tmp_path),
        "--brokers",
        "1",
        "--json",
        "--log",
        log_url,
    ]
    command += ["--http-port", str(ports_of(0, None, 1)[0][0]), "--service", "counter"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as up:
        try:
            wait_until(lambda: bool(LoadBus(log_url).latest()), "a load of its broker")
        finally:
            up.send_signal(signal.SIGTERM)
            said, errors = up.communicate(timeout=PATIENCE_S)
    assert 0 == up.returncode, errors
    pids = [
        line["pid"]
        for line in map(orjson.loads, said.splitlines())
        if line["what"] == "load_worker" and "pid" in line
    ]
    assert 1 == len(pids)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


# --- topics that somebody else made ---


def made_by_hand(log_url: str, suffix: str, *, partitions: int) -> None:
    """A topic beside the log that is not as it would be made."""
    address = address_of(log_url)
    with Clients(servers=address.servers, settings={}).administrator() as administrator:
        administrator.create(
            address.topic + suffix,
            partitions=partitions,
            replication=1,
            settings={},
            timeout_ms=10_000,
        )


def test_topics_that_were_made_otherwise_are_told_of_and_used(
    log_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With other settings and three partitions of samples in place of eight all works, and both
    broker and worker say so.
    """
    made_by_hand(log_url, "-samples", partitions=3)
    made_by_hand(log_url, "-loads", partitions=1)
    bus = LoadBus(log_url)
    with a_load_worker(log_url) as worker:
        published(bus, sample("a:1", now_ms()))
        assert [0, 1, 2] == worker.partitions()
        told = {
            line["difference"]
            for line in worker.lines()
            if line["event"] == "topic not as it would be made"
        }
    assert {"it has 3 partitions, not 8", "cleanup.policy is delete, not compact,delete"} <= told
    assert {"topic not as it would be made"} == {
        record.message for record in caplog.records if hasattr(record, "difference")
    }


def test_topics_that_workers_cannot_share_are_refused(log_url: str) -> None:
    """Where a topic between workers has another number of partitions than that of samples, the
    operator is told what to do.
    """
    made_by_hand(log_url, "-load-sightings", partitions=5)
    command = [sys.executable, "-m", "equipoise.brokers.cli", "load-worker", "--log", log_url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ExitCode.OPERATOR == ended.returncode
    assert "it has 5 partitions, and needs 8" in ended.stderr
