"""Run a cluster of real Pulsar, move bundles as its own tool does, and read its channel."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pulsar
import pytest
from typer.testing import Result

from tests.pulsar.programs import is_required
from tests.pulsar.real_cluster import CHANNEL, RealCluster, real_cluster
from tests.unit.cli.fabricated import run

# The first run fetches 245 MB.
pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1_200)]

NAMESPACE = "acme/shop"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Three brokers, and a namespace of 16 bundles."""
    if not (shutil.which("java") and shutil.which("mvn")):
        (pytest.fail if is_required() else pytest.skip)(
            "real Pulsar needs java and mvn; on Debian: apt-get install default-jre-headless maven"
        )
    with real_cluster(tmp_path_factory.mktemp("pulsar")) as cluster:
        cluster.admin("PUT", "/tenants/acme", {"allowedClusters": ["local"]})
        cluster.admin("PUT", f"/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 16}})
        yield cluster


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[pulsar.Client]:
    """A client that knows all brokers."""
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.close()


def test_moved_bundles_are_on_the_channel(cluster: RealCluster, client: pulsar.Client) -> None:
    """Read from its first record with Python's client, it has the story of each bundle, and ends
    with its owner.
    """
    for number in range(32):
        client.create_producer(f"persistent://{NAMESPACE}/t{number}").send(b"hello")
    before = cluster.owners(NAMESPACE)
    targets = {}
    for bundle in sorted(before)[:4]:
        targets[bundle] = next(broker for broker in cluster.brokers if broker.id != before[bundle])
        cluster.transfer(NAMESPACE, bundle, targets[bundle])
    wait(
        lambda: (
            {bundle: cluster.owners(NAMESPACE).get(bundle) for bundle in targets}
            == {key: to.id for key, to in targets.items()}
        )
    )

    stories: dict[str, list[dict[str, object]]] = {}
    reader = client.create_reader(CHANNEL, pulsar.MessageId.earliest)
    while reader.has_message_available():
        message = reader.read_next(10_000)
        stories.setdefault(message.partition_key(), []).append(orjson.loads(message.data()))
    for bundle, to in targets.items():
        story = stories[f"{NAMESPACE}/{bundle}"]
        assert ["Releasing", "Assigning", "Owned"] == [record["state"] for record in story[-3:]]
        assert {(to.id, before[bundle])} == {
            (record["dstBroker"], record["sourceBroker"]) for record in story[-3:]
        }


def test_our_commands_read_it_and_an_archive_goes_on_exactly(
    cluster: RealCluster, tmp_path: Path
) -> None:
    """Also after Pulsar has compacted its channel."""
    archive = tmp_path / "pulsar.db"

    def pulsar_command(*words: str, source: str = cluster.service_url) -> Result:
        result = run("pulsar", *words, "--source", source)
        assert 0 == result.exit_code, result.output
        return result

    def rows(source: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(
            pulsar_command("bundles", NAMESPACE, "--json", source=source).stdout
        )
        return [{name: value for name, value in row.items() if name != "last"} for row in found]

    assert "all is in order" in pulsar_command("verify").stdout
    pulsar_command("record", str(archive), "--once")
    bundle = min(cluster.owners(NAMESPACE))
    to = next(
        broker for broker in cluster.brokers if broker.id != cluster.owners(NAMESPACE)[bundle]
    )
    cluster.transfer(NAMESPACE, bundle, to)
    wait(lambda: cluster.owners(NAMESPACE).get(bundle) == to.id)
    added = json.loads(pulsar_command("record", str(archive), "--once", "--json").stdout)["added"]
    assert 3 == added
    assert (
        0 == json.loads(pulsar_command("record", str(archive), "--once", "--json").stdout)["added"]
    )
    assert rows(str(archive)) == rows(cluster.service_url)
    assert cluster.owners(NAMESPACE) == {
        str(row["bundle"]).rpartition("/")[2]: row["serves"] for row in rows(cluster.service_url)
    }
    told = pulsar_command("why", f"{NAMESPACE}/{bundle}").stdout.splitlines()
    assert ["transfer", "closed", "own"] == [line.split()[2] for line in told[-4:-1]]
    assert told[-1].startswith(f"now {NAMESPACE}/{bundle} is Owned by {to.id}")

    before = rows(cluster.service_url)
    cluster.admin("PUT", "/persistent/pulsar/system/loadbalancer-service-unit-state/compaction")
    compaction = "/persistent/pulsar/system/loadbalancer-service-unit-state/compaction"
    wait(lambda: "SUCCESS" in str(cluster.admin("GET", compaction)))
    assert before == rows(cluster.service_url)


def test_the_command_that_verify_names_ends_a_leftover(
    cluster: RealCluster, client: pulsar.Client
) -> None:
    """Pulsar refuses to unload a bundle that its namespace lacks."""
    namespace = "acme/halves"
    cluster.admin("PUT", f"/namespaces/{namespace}", {"bundles": {"numBundles": 2}})
    for number in range(8):
        client.create_producer(f"persistent://{namespace}/t{number}").send(b"hello")
    (owner,) = {
        broker for bundle, broker in cluster.owners(namespace).items() if bundle.startswith("0x0")
    }
    other = next(broker.id for broker in cluster.brokers if broker.id != owner)
    record = {
        "state": "Assigning",
        "dstBroker": other,
        "versionId": 1,
        "timestamp": 0,
        "force": False,
    }
    client.create_producer(CHANNEL).send(
        orjson.dumps(record), partition_key=f"{namespace}/0x00000000_0x40000000"
    )

    def verified() -> Result:
        return run(
            "pulsar", "verify", "--source", cluster.service_url, "--admin", cluster.admin_url
        )

    wait(lambda: "leftover" in verified().stdout)
    command = (
        next(line for line in verified().stdout.splitlines() if "leftover" in line)
        .partition("split-bundle ")[2]
        .split()
    )
    options = dict(zip(command[:-1:2], command[1::2], strict=True))
    query = f"unload=false&splitAlgorithmName={options['--split-algorithm-name']}"
    cluster.admin(
        "PUT",
        f"/namespaces/{command[-1]}/{options['--bundle']}/split?{query}",
        [int(options["--split-boundaries"])],
    )
    wait(lambda: not verified().exit_code)


def test_a_cluster_without_a_channel_is_said_to_have_none(tmp_path: Path) -> None:
    """The modular load manager writes no states of bundles."""
    modular = {
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
    }
    with real_cluster(tmp_path, brokers=1, settings=modular) as cluster:
        result = run("pulsar", "status", "--source", cluster.service_url)
        assert (4, "") == (result.exit_code, result.stdout), result.output
        assert (
            "the cluster has no topic persistent://pulsar/system/loadbalancer-service-unit-state"
            in result.stderr
        )


def test_a_topic_that_the_brokers_do_not_go_by_any_more_is_refused(tmp_path: Path) -> None:
    """They keep their states in the metadata store now. Only the admin API can say it."""
    store = "org.apache.pulsar.broker.loadbalance.extensions.channel.ServiceUnitStateMetadataStoreTableViewImpl"  # noqa: E501
    with real_cluster(tmp_path, brokers=2) as cluster:
        cluster.admin("PUT", "/tenants/acme", {"allowedClusters": ["local"]})
        cluster.admin("PUT", f"/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 16}})
        write_to(cluster)
        assert 0 == status(cluster).exit_code
        cluster.restart({"loadManagerServiceUnitStateTableViewClassName": store})
        write_to(cluster)
        refused = status(cluster)
        assert (4, "") == (refused.exit_code, refused.stdout)
        assert "keeps the states of its bundles in the metadata store" in refused.stderr


def status(cluster: RealCluster) -> Result:
    """Return the status of the cluster as a command with its admin API prints it."""
    return run("pulsar", "status", "--source", cluster.service_url, "--admin", cluster.admin_url)


def write_to(cluster: RealCluster) -> None:
    """Write to topics of a namespace."""
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    for number in range(32):
        client.create_producer(f"persistent://{NAMESPACE}/t{number}").send(b"hello")
    client.close()


def wait(is_true: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < give_up_s, f"not within {PATIENCE_S:.0f} s"
        time.sleep(0.5)
