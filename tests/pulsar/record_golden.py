"""Record tests/golden/pulsar from a real cluster: `python -m tests.pulsar.record_golden [FOLDER]`.
It takes some six minutes.

Each run gives other ports, times and races. So the tests of the golden logs hold for any run, or
name what they need.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import orjson
import pulsar

from tests.pulsar.programs import ROOT
from tests.pulsar.real_cluster import (
    BROKER_LOAD,
    CHANNEL,
    CLUSTER,
    QUICK_REPORTS,
    TOP_BUNDLES,
    Broker,
    RealCluster,
    RealClusterError,
    real_cluster,
)

GOLDEN: Final = ROOT / "tests" / "golden" / "pulsar"
SHOP: Final = "acme/shop"
"""The namespace whose bundles move. It has `BUNDLES` bundles, and `TOPICS` topics with
producers."""

ORDERS: Final = "acme/orders"
"""The namespace that is deleted."""

BUNDLES: Final = 16
TOPICS: Final = 32

# Pulsar's defaults are an hour and a minute: tombstones would come after the end.
_TOMBSTONES: Final[Mapping[str, str]] = {
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": "30",
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": "15",
}
_SETTINGS: Final[Mapping[str, str]] = {**QUICK_REPORTS, **_TOMBSTONES}

_TRANSFERS: Final = 80
_UNLOADS: Final = 8
_SPLITS: Final = 4
_RACES: Final = 6
_MESSAGES_PER_SECOND: Final = 5
_READ_MS: Final = 500
_POLL_S: Final = 1.0
# A killed broker's session lasts 10 s, and its bundles get owners within seconds of its end, or
# when the monitor finds them.
_SETTLE_S: Final = 40.0
_TOMBSTONES_S: Final = 75.0


def record(folder: Path) -> None:
    """Write the files of a run into a folder. Raises `RealClusterError`."""
    with ExitStack() as running:
        temporary = Path(running.enter_context(tempfile.TemporaryDirectory()))
        cluster = running.enter_context(real_cluster(temporary, settings=_SETTINGS))
        client = running.enter_context(_client(cluster, temporary))
        for topic, name in (
            (BROKER_LOAD, "broker_load"),
            (TOP_BUNDLES, "top_bundles"),
            (CHANNEL, "channel"),
        ):
            running.enter_context(_followed(client, topic, folder / f"{name}.jsonl"))
        _prepare(cluster)
        running.enter_context(
            _producing(client, [f"persistent://{SHOP}/t{number}" for number in range(TOPICS)])
        )
        for step in (_move, _unload, _race, _split, _kill, _add, _stop, _kill_leader, _delete):
            _note(f"{step.__name__[1:]}")
            step(cluster)
        time.sleep(_TOMBSTONES_S)
        _compact(cluster)
        _read_compacted(
            running.enter_context(_client(cluster, temporary)), folder / "channel_compacted.jsonl"
        )


def _prepare(cluster: RealCluster) -> None:
    cluster.admin("PUT", "/tenants/acme", {"allowedClusters": [CLUSTER]})
    cluster.admin("PUT", f"/namespaces/{SHOP}", {"bundles": {"numBundles": BUNDLES}})
    cluster.admin("PUT", f"/namespaces/{ORDERS}", {"bundles": {"numBundles": 4}})
    # Each broker is asked at the same moment who owns a free bundle.
    for number in range(8):
        cluster.admin("PUT", f"/persistent/{ORDERS}/t{number}")
        _at_once([partial(_lookup, one, f"{ORDERS}/t{number}") for one in cluster.running])


def _move(cluster: RealCluster) -> None:
    """Transfer bundles of the shop, one after another, to a broker other than the owner."""
    chance = random.Random(1)
    for _ in range(_TRANSFERS):
        owners = cluster.owners(SHOP)
        bundle = chance.choice(sorted(owners))
        _tried(
            cluster.transfer,
            SHOP,
            bundle,
            chance.choice([one for one in cluster.running if one.id != owners[bundle]]),
        )


def _unload(cluster: RealCluster) -> None:
    """Unload bundles without a destination, and then the whole namespace."""
    for bundle in sorted(cluster.owners(SHOP))[:_UNLOADS]:
        _tried(cluster.admin, "PUT", f"/namespaces/{SHOP}/{bundle}/unload")
    time.sleep(5)
    _tried(cluster.admin, "PUT", f"/namespaces/{SHOP}/unload")
    time.sleep(5)


def _race(cluster: RealCluster) -> None:
    """Ask all brokers at once to move one bundle, each to another broker."""
    for bundle in sorted(cluster.owners(SHOP))[:_RACES]:
        _at_once([partial(_tried, cluster.transfer, SHOP, bundle, to) for to in cluster.running])


def _split(cluster: RealCluster) -> None:
    """Split bundles of the shop, every other one with an unload of the halves."""
    for number, bundle in enumerate(sorted(cluster.owners(SHOP))[:_SPLITS]):
        unload = "true" if number % 2 else "false"
        _tried(
            cluster.admin,
            "PUT",
            f"/namespaces/{SHOP}/{bundle}/split?unload={unload}&splitAlgorithmName=range_equally_divide",
        )
    time.sleep(10)


def _kill(cluster: RealCluster) -> None:
    """Kill a broker that is not the leader."""
    leader = _leader(cluster)
    cluster.kill_broker(
        next(
            number
            for number, one in enumerate(cluster.brokers)
            if one.is_running and one.id != leader
        )
    )
    time.sleep(_SETTLE_S)


def _add(cluster: RealCluster) -> None:
    """Add a broker, and give it bundles."""
    added = cluster.add_broker()
    for bundle in sorted(cluster.owners(SHOP))[::3]:
        _tried(cluster.transfer, SHOP, bundle, added)


def _stop(cluster: RealCluster) -> None:
    """Stop the last broker, cleanly, after another one has joined."""
    number = len(cluster.brokers) - 1
    cluster.add_broker()
    cluster.stop_broker(number)
    time.sleep(10)


def _kill_leader(cluster: RealCluster) -> None:
    """Kill the leader while bundles move."""
    leader = _leader(cluster)
    owners = cluster.owners(SHOP)
    other = next(one for one in cluster.running if one.id != leader)
    moves = [
        partial(_tried, cluster.transfer, SHOP, bundle, other)
        for bundle, owner in owners.items()
        if owner == leader
    ]
    kill = next(number for number, one in enumerate(cluster.brokers) if one.id == leader)
    _at_once([*moves[:4], partial(cluster.kill_broker, kill)])
    time.sleep(_SETTLE_S)
    cluster.add_broker()


def _delete(cluster: RealCluster) -> None:
    """Delete the topics of the other namespace, and then the namespace."""
    for number in range(8):
        _tried(cluster.admin, "DELETE", f"/persistent/{ORDERS}/t{number}?force=true")
    _tried(cluster.admin, "DELETE", f"/namespaces/{ORDERS}")


def _compact(cluster: RealCluster) -> None:
    """Have the channel compacted, and wait for the end of it."""
    path = f"/persistent/{CHANNEL.removeprefix('persistent://')}/compaction"
    cluster.admin("PUT", path)
    give_up_s = time.monotonic() + _SETTLE_S
    while (state := cluster.admin("GET", path)) != {"status": "SUCCESS", "lastError": ""}:
        if time.monotonic() > give_up_s:
            raise RealClusterError(
                f"the channel was not compacted within {_SETTLE_S:.0f} s: {state}"
            )
        time.sleep(_POLL_S)


def _read_compacted(client: pulsar.Client, path: Path) -> None:
    reader = client.create_reader(CHANNEL, pulsar.MessageId.earliest, is_read_compacted=True)
    with path.open("wb") as out:
        while reader.has_message_available():
            out.write(_line(reader.read_next(int(_SETTLE_S * 1_000))))
    reader.close()


def _leader(cluster: RealCluster) -> str:
    answer = cluster.admin("GET", "/brokers/leaderBroker")
    assert isinstance(answer, dict), answer
    return str(answer["brokerId"])


def _lookup(broker: Broker, topic: str) -> object:
    return httpx.get(
        f"{broker.admin_url}/lookup/v2/topic/persistent/{topic}", timeout=60, follow_redirects=True
    ).text


def _at_once(calls: Sequence[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def _tried(call: Callable[..., object], *arguments: object) -> None:
    """Make a request that may lose a race, or come while an owner dies, and print why it was
    refused.
    """
    try:
        call(*arguments)
    except (RealClusterError, httpx.TransportError) as error:
        _note(str(error)[:300])


@contextmanager
def _client(cluster: RealCluster, folder: Path) -> Iterator[pulsar.Client]:
    """Connect to the running brokers. The client never learns of others, and is lost once all of
    them are gone.
    """
    with closing(
        pulsar.Client(
            cluster.service_url,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(folder / "client.log")),
        )
    ) as client:
        yield client


@contextmanager
def _followed(client: pulsar.Client, topic: str, path: Path) -> Iterator[None]:
    """Write each message of a topic, from its first, into a file while the body runs, and until no
    more come.
    """
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    end = threading.Event()

    def follow() -> None:
        with path.open("wb") as out:
            while True:
                try:
                    out.write(_line(reader.read_next(_READ_MS)))
                except pulsar.Timeout:
                    if end.is_set():
                        return

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        reader.close()


@contextmanager
def _producing(client: pulsar.Client, topics: Sequence[str]) -> Iterator[None]:
    """Send messages to topics while the body runs: to each `_MESSAGES_PER_SECOND`, and twice as
    many to the first quarter.
    """
    producers = [
        client.create_producer(topic, block_if_queue_full=False, send_timeout_millis=0)
        for topic in topics
    ]
    end = threading.Event()

    def produce() -> None:
        while not end.wait(1 / _MESSAGES_PER_SECOND):
            for producer in [*producers, *producers[: len(producers) // 4]]:
                producer.send_async(bytes(200), lambda *_: None)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _line(message: pulsar.Message) -> bytes:
    """Format a message as a line. The value stays as it was, byte for byte, but null for a
    tombstone.
    """
    identity = message.message_id()
    value = b"null" if not message.data() else message.data()
    fields = {
        "id": f"{identity.ledger_id()}:{identity.entry_id()}:{identity.batch_index()}",
        "key": message.partition_key(),
        "published_ms": message.publish_timestamp(),
    }
    rest = {"producer": message.producer_name(), "properties": message.properties()}
    return orjson.dumps(fields)[:-1] + b',"value":' + value + b"," + orjson.dumps(rest)[1:] + b"\n"


def _note(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
