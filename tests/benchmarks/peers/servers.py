"""The servers that the systems of the benchmark of peers need, each with its data in a folder."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from compose.local_kafka.cluster import Cluster
from compose.local_kafka.jars import kafka_version
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.free_ports import free_ports
from tests.benchmarks.peers.program import SHARDS
from tests.benchmarks.peers.systems import LOG_TOPIC
from tests.kafka.finding import local_kafka
from tests.kafka.topics import create_topic

HOST: Final = "127.0.0.1"
_READY_MS: Final = 60_000
_LOOK_S: Final = 0.05
# PySpark brings the server of ZooKeeper, and what it needs.
_JARS: Final = ("zookeeper", "slf4j-api", "log4j", "netty", "metrics-core", "snappy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What runs: the settings that an adapter needs, and the processes."""

    settings: Mapping[str, Any]
    kafka: Cluster | None = None
    process: int | None = None

    @property
    def pids(self) -> Sequence[int]:
        """The processes that run."""
        nodes = self.kafka.nodes if self.kafka else ()
        return [pid for pid in (self.process, *(node.pid for node in nodes)) if pid is not None]


@asynccontextmanager
async def server(kind: str, folder: Path, options: Mapping[str, Any]) -> AsyncIterator[Server]:
    """Run a server meanwhile: `sqlite` (none), `redis`, `zookeeper` or `kafka`. `options`: its
    settings by name; of Kafka `nodes` and `properties`.
    """
    if kind == "sqlite":
        yield Server(settings={"log": f"sqlite:{folder}/channel.db"})
    elif kind == "kafka":
        nodes, extra = options.get("nodes", 1), options.get("properties", {})
        with local_kafka(folder / "kafka", nodes=nodes, extra=extra) as cluster:
            await asyncio.to_thread(
                create_topic, cluster.address, "shards", partitions=SHARDS, replicas=nodes
            )
            log = f"kafka://{cluster.address}/{LOG_TOPIC}"
            settings = {"log": log, "bootstrap.servers": cluster.address}
            yield Server(settings=settings, kafka=cluster)
    else:
        (port,) = free_ports(1)
        words = (_redis if kind == "redis" else _zookeeper)(folder, port, options)
        with _process(words, folder / f"{kind}.txt") as pid:
            await _answers(port)
            settings = {"url": f"redis://{HOST}:{port}", "hosts": f"{HOST}:{port}"}
            yield Server(settings=settings, process=pid)


def version_of(kind: str) -> str:
    """Return the name and version of a server."""
    if kind == "redis":
        printed = subprocess.run(["redis-server", "--version"], capture_output=True, check=True)
        return f"redis {printed.stdout.decode().partition('v=')[2].split()[0]}"
    if kind == "zookeeper":
        return next(jar.stem for jar in _jars("zookeeper") if "jute" not in jar.stem)
    if kind == "kafka":
        return f"kafka {kafka_version()}"
    return f"sqlite {sqlite3.sqlite_version}"


def _jars(name: str) -> Sequence[Path]:
    return sorted((Path(next(iter(pyspark.__path__))) / "jars").glob(f"{name}*.jar"))


def _redis(folder: Path, port: int, _: Mapping[str, Any]) -> Sequence[str]:
    return ["redis-server", "--port", str(port), "--bind", HOST, "--save", "", "--dir", str(folder)]


def _zookeeper(folder: Path, port: int, options: Mapping[str, Any]) -> Sequence[str]:
    settings = {
        "tickTime": options["tick_ms"],
        "dataDir": folder / "zookeeper",
        "clientPort": port,
        "clientPortAddress": HOST,
        "admin.enableServer": "false",
    }
    path = folder / "zoo.cfg"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    found = ":".join(str(jar) for name in _JARS for jar in _jars(name))
    java = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", found)
    return [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(path)]


@contextmanager
def _process(words: Sequence[str], output: Path) -> Iterator[int]:
    with output.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def _answers(port: int) -> None:
    deadline = Deadline.after(timeout_ms=_READY_MS)
    while True:
        deadline.check("a server that answers")
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(_LOOK_S)
        else:
            writer.close()
            return
