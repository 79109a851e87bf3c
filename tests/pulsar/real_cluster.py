"""Run a cluster of real Apache Pulsar on this machine: ZooKeeper, one bookie, and brokers with the
extensible load manager.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import jwt

from equipoise.channel.system.file_system import locked
from equipoise.channel.system.free_ports import HOST, are_free, free_ports
from tests.pulsar.programs import server

CLUSTER: Final = "local"
ADMIN: Final = "admin"
"""The superuser of a cluster with a key."""

CHANNEL: Final = "persistent://pulsar/system/loadbalancer-service-unit-state"
BROKER_LOAD: Final = "non-persistent://pulsar/system/loadbalancer-broker-load-data"
TOP_BUNDLES: Final = "non-persistent://pulsar/system/loadbalancer-top-bundles-load-data"

QUICK_REPORTS: Final[Mapping[str, str]] = {
    "loadBalancerReportUpdateMinIntervalMillis": "2000",
    "loadBalancerReportUpdateThresholdPercentage": "1",
    "statsUpdateFrequencyInSecs": "2",
}
"""Settings for load reports every few seconds. Rates are 2 s old at most; CPU and memory are
measured once a minute, as always."""

READY_S: Final = 420.0
"""Three brokers are ready after 15 s on two quiet cores, without archives after 35, and after ten
times as long on busy ones."""

ADMIN_S: Final = 60.0
"""How long a request may take. A lookup waits 30 s for a bundle that moves; an unload, for its
topics to close."""

_SETUP_S: Final = 120.0  # 3 s on two quiet cores.
# A broker that stops cleanly hands its bundles over first; its own limit is 60 s. To write an
# archive of classes takes 10 s.
_STOP_S: Final = 120.0
_KILL_S: Final = 15.0
_LOOK_S: Final = 0.1
_PRINTED_BYTES: Final = 4_000

# `bin/pulsar` opens the same.
_OPENED: Final = (
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
# The processes live for minutes and share two cores: little memory, and no optimising compiler.
_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xss512k",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dlog4j2.is.webapp=false",
    "-Dzookeeper.snapshot.trust.empty=true",
    *(f"--add-opens={module}=ALL-UNNAMED" for module in _OPENED),
)
_ZOOKEEPER_MEMORY: Final = ("-Xmx64m",)
_BOOKIE_MEMORY: Final = ("-Xmx96m", "-XX:MaxDirectMemorySize=128m")
_BROKER_MEMORY: Final = ("-Xmx192m", "-XX:MaxDirectMemorySize=96m")

_EXTENSIBLE: Final = "org.apache.pulsar.broker.loadbalance.extensions"
_BROKER: Final[Mapping[str, str]] = {
    "clusterName": CLUSTER,
    "bindAddress": HOST,
    "advertisedAddress": HOST,
    "loadManagerClassName": f"{_EXTENSIBLE}.ExtensibleLoadManagerImpl",
    "loadBalancerLoadSheddingStrategy": f"{_EXTENSIBLE}.scheduler.TransferShedder",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerDebugModeEnabled": "true",
    # A killed broker is gone after 10 s, not 30.
    "metadataStoreSessionTimeoutMillis": "10000",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "8",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numExecutorThreadPoolSize": "2",
    "numOrderedExecutorThreads": "2",
    "bookkeeperNumberOfChannelsPerBookie": "2",
    "transactionCoordinatorEnabled": "false",
}
_BOOKIE: Final[Mapping[str, str]] = {
    "advertisedAddress": HOST,
    "allowLoopback": "true",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
    "dbStorage_rocksDB_blockCacheSize": str(8 << 20),
    "dbStorage_rocksDB_writeBufferSizeMB": "4",
    # Nothing here outlives the machine, so nothing waits for the disk.
    "journalSyncData": "false",
    "journalMaxSizeMB": "16",
    "journalPreAllocSizeMB": "1",
    "entryLogFilePreallocationEnabled": "false",
    "numReadWorkerThreads": "2",
    "numHighPriorityWorkerThreads": "2",
    "numJournalCallbackThreads": "1",
    "autoRecoveryDaemonEnabled": "false",
    "enableStatistics": "false",
    # It stops writing on a disk that is full to 95 % by default, which this machine's may be.
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
}


class RealClusterError(AssertionError):
    """A process of the cluster did not do something in time, or a request was refused. The message
    has what it printed last.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that runs, or ran."""

    name: str
    service_port: int
    web_port: int
    process: subprocess.Popen[bytes]

    @property
    def id(self) -> str:
        """Its id on the channel and in the admin API."""
        return f"{HOST}:{self.web_port}"

    @property
    def admin_url(self) -> str:
        """Its URL for admin requests."""
        return f"http://{self.id}"

    @property
    def service_url(self) -> str:
        """Its URL for clients."""
        return f"pulsar://{HOST}:{self.service_port}"

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self.process.poll() is None


class RealCluster:
    """A running cluster, from `real_cluster`. Brokers keep their numbers, from 0, also when they
    are gone.
    """

    def __init__(
        self, folder: Path, group: int, settings: Mapping[str, str], key: bytes | None, sharing: str
    ) -> None:
        """All processes join the process group `group`. `sharing` is Java's option for archives of
        classes, before their folder.
        """
        self.brokers: list[Broker] = []
        self._folder = folder
        self._group = group
        self._settings = settings
        self._key = key
        self._sharing = sharing
        self._processes: list[subprocess.Popen[bytes]] = []
        self._zookeeper_port, self._bookie_port = free_ports(2)

    @property
    def running(self) -> list[Broker]:
        """The brokers whose processes have not ended."""
        return [broker for broker in self.brokers if broker.is_running]

    @property
    def service_url(self) -> str:
        """The URL for clients, with all running brokers."""
        return "pulsar://" + ",".join(f"{HOST}:{broker.service_port}" for broker in self.running)

    @property
    def admin_url(self) -> str:
        """The URL for admin requests of the first running broker."""
        return self.running[0].admin_url

    def start(self, brokers: int) -> None:
        """Start everything, the brokers at once, and wait until they serve. Raises
        `RealClusterError`, `BuildFailedError`.
        """
        zookeeper = self._start_zookeeper()
        self._wait("zookeeper", zookeeper, lambda: not are_free(self._zookeeper_port))
        self._set_up()
        # The bookie is there before the brokers need it.
        self._start_bookie()
        for broker in [self._start_broker() for _ in range(brokers)]:
            self._wait_ready(broker)

    def add_broker(self) -> Broker:
        """Start one more broker, and wait until it serves. Raises `RealClusterError`."""
        broker = self._start_broker()
        self._wait_ready(broker)
        return broker

    def restart(self, settings: Mapping[str, str]) -> None:
        """Stop all brokers cleanly, and start as many with more lines of broker.conf. Raises
        `RealClusterError`.
        """
        stopped = [self.stop_broker(self.brokers.index(broker)) for broker in self.running]
        self._settings = {**self._settings, **settings}
        for broker in [self._start_broker() for _ in stopped]:
            self._wait_ready(broker)

    def kill_broker(self, number: int) -> Broker:
        """Kill a broker (`kill -9`), and wait until its process is gone. Raises
        `subprocess.TimeoutExpired`.
        """
        broker = self.brokers[number]
        broker.process.kill()
        broker.process.wait(_KILL_S)
        return broker

    def stop_broker(self, number: int) -> Broker:
        """Stop a broker cleanly: it hands over its bundles, and ends. Raises `RealClusterError`."""
        broker = self.brokers[number]
        broker.process.terminate()
        try:
            broker.process.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            raise self._failure(broker.name, f"did not stop within {_STOP_S:.0f} s") from error
        return broker

    def end_cleanly(self) -> None:
        """Ask all processes to end, those first that need others, and wait. Raises
        `subprocess.TimeoutExpired`.
        """
        for process in reversed(self._processes):
            process.terminate()
            process.wait(_STOP_S)

    def wait_ended(self) -> None:
        """Wait until all processes are gone, once they were killed. Raises
        `subprocess.TimeoutExpired`.
        """
        for process in self._processes:
            process.wait(_KILL_S)

    def admin(
        self, method: str, path: str, body: object = None, *, broker: int | None = None
    ) -> object:
        """Return the decoded answer of a request to `/admin/v2` + `path`, or None if it is empty.
        Raises `RealClusterError`.

        Asks the first running broker, or the one with a number. Follows redirects, as Pulsar's own
        tool does.
        """
        answer = self.ask(method, path, body, broker=broker)
        if not answer.is_success:
            raise RealClusterError(
                f"{method} {path} was answered {answer.status_code}: {answer.text}"
            )
        return answer.json() if answer.content else None

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        broker: int | None = None,
        role: str = ADMIN,
    ) -> httpx.Response:
        """Return the answer of a request as it is, with the token of a role if the cluster has a
        key. See `admin`.
        """
        url = self.admin_url if broker is None else self.brokers[broker].admin_url
        headers = {"Authorization": f"Bearer {self.token(role)}"} if self._key and role else {}
        return httpx.request(
            method,
            f"{url}/admin/v2{path}",
            json=body,
            headers=headers,
            timeout=ADMIN_S,
            follow_redirects=True,
        )

    def token(self, role: str) -> str:
        """Return a token of a role, for a cluster with a key."""
        assert self._key is not None, "the cluster was started with a key"
        return jwt.encode({"sub": role}, self._key, algorithm="HS256")

    def owners(self, namespace: str) -> dict[str, str]:
        """Return the broker id of each owned bundle of a namespace, as the brokers report it.
        Raises `RealClusterError`.
        """
        found = {}
        for broker in self.running:
            for name in self._owned(broker):
                if name.startswith(f"{namespace}/"):
                    found[name.removeprefix(f"{namespace}/")] = broker.id
        return found

    def transfer(self, namespace: str, bundle: str, to: Broker) -> None:
        """Have a bundle moved to a broker, and wait for the answer. Raises `RealClusterError`."""
        self.admin("PUT", f"/namespaces/{namespace}/{bundle}/unload?destinationBroker={to.id}")

    def _owned(self, broker: Broker) -> list[str]:
        answer = self.ask(
            "GET",
            f"/brokers/{CLUSTER}/{broker.id}/ownedNamespaces",
            broker=self.brokers.index(broker),
        )
        return sorted(answer.json()) if answer.is_success else []

    def _start_zookeeper(self) -> subprocess.Popen[bytes]:
        settings = {
            # Sessions end 10 s after their client was killed: 20 ticks at most.
            "tickTime": "500",
            "dataDir": str(self._folder / "zookeeper"),
            "clientPort": str(self._zookeeper_port),
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
            "forceSync": "no",
        }
        words = [
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            self._configured("zookeeper", settings),
        ]
        return self._started("zookeeper", [*_ZOOKEEPER_MEMORY, *words])

    def _set_up(self) -> None:
        """Write the cluster's first metadata."""
        store = f"zk:{HOST}:{self._zookeeper_port}"
        stores = ["--metadata-store", store, "--configuration-metadata-store", store]
        # No geo-replication, so nobody calls these.
        urls = [
            "--web-service-url",
            f"http://{HOST}:8080",
            "--broker-service-url",
            f"pulsar://{HOST}:6650",
        ]
        words = [
            "-Xmx128m",
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            "--cluster",
            CLUSTER,
            *stores,
            *urls,
        ]
        process = self._started("setup", words)
        try:
            code = process.wait(_SETUP_S)
        except subprocess.TimeoutExpired as error:
            raise self._failure("setup", f"did not end within {_SETUP_S:.0f} s") from error
        if code:
            raise self._failure("setup", f"ended with {code}")

    def _start_bookie(self) -> None:
        settings = {
            **_BOOKIE,
            "bookiePort": str(self._bookie_port),
            "metadataServiceUri": f"zk://{HOST}:{self._zookeeper_port}/ledgers",
            "journalDirectory": str(self._folder / "bookie" / "journal"),
            "ledgerDirectories": str(self._folder / "bookie" / "ledgers"),
        }
        words = [
            "org.apache.bookkeeper.server.Main",
            "--conf",
            self._configured("bookie", settings),
        ]
        self._started("bookie", [*_BOOKIE_MEMORY, *words])

    def _start_broker(self) -> Broker:
        name = f"broker-{len(self.brokers)}"
        taken = [port for broker in self.brokers for port in (broker.service_port, broker.web_port)]
        service_port, web_port = free_ports(
            2, besides=[self._zookeeper_port, self._bookie_port, *taken]
        )
        store = f"zk:{HOST}:{self._zookeeper_port}"
        settings = {
            **_BROKER,
            "metadataStoreUrl": store,
            "configurationMetadataStoreUrl": store,
            "brokerServicePort": str(service_port),
            "webServicePort": str(web_port),
            **(self._authentication() if self._key else {}),
            **self._settings,
        }
        words = [
            "org.apache.pulsar.PulsarBrokerStarter",
            "--broker-conf",
            self._configured(name, settings),
        ]
        process = self._started(name, [*_BROKER_MEMORY, *words])
        broker = Broker(name=name, service_port=service_port, web_port=web_port, process=process)
        self.brokers.append(broker)
        return broker

    def _authentication(self) -> Mapping[str, str]:
        assert self._key is not None, "the caller has looked"
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": (
                "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
            ),
            "tokenSecretKey": f"data:;base64,{base64.b64encode(self._key).decode()}",
            "superUserRoles": ADMIN,
            "brokerClientAuthenticationPlugin": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "brokerClientAuthenticationParameters": f"token:{self.token(ADMIN)}",
        }

    def _wait_ready(self, broker: Broker) -> None:
        def ready() -> bool:
            try:
                return self.ask(
                    "GET", "/brokers/ready", broker=self.brokers.index(broker)
                ).is_success
            except httpx.TransportError:
                return False

        self._wait(broker.name, broker.process, ready)

    def _configured(self, name: str, settings: Mapping[str, str]) -> str:
        """Write a process's settings, and return the path of the file."""
        path = self._folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)

    def _started(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        home = server()
        log4j = (
            f"-Dlog4j2.configurationFile={home}/conf/log4j2.yaml",
            "-Dpulsar.log.appender=Console",
            f"-Dpulsar.log.dir={self._folder}",
        )
        archive = f"{self._sharing}/{name.partition('-')[0]}.jsa"
        command = ["java", *_JAVA_OPTIONS, archive, *log4j, "-cp", f"{home}/lib/*", *words]
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._group,
            )
        self._processes.append(process)
        return process

    def _wait(
        self, name: str, process: subprocess.Popen[bytes], is_done: Callable[[], bool]
    ) -> None:
        give_up_s = time.monotonic() + READY_S
        while not is_done():
            if process.poll() is not None:
                raise self._failure(name, f"ended with {process.returncode} while it started")
            if time.monotonic() > give_up_s:
                raise self._failure(name, f"was not ready within {READY_S:.0f} s")
            time.sleep(_LOOK_S)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _failure(self, name: str, problem: str) -> RealClusterError:
        printed = self._log(name).read_bytes()[-_PRINTED_BYTES:].decode(errors="replace").strip()
        return RealClusterError(
            f"{name} of the real Pulsar cluster {problem}; it printed:\n{printed or 'nothing'}"
        )


@contextmanager
def real_cluster(
    folder: Path,
    *,
    brokers: int = 3,
    settings: Mapping[str, str] | None = None,
    key: bytes | None = None,
) -> Iterator[RealCluster]:
    """Start a cluster below a folder, and end it, and remove its data, after the body. Raises as
    `RealCluster.start` does.

    `settings` are lines of broker.conf for all brokers, such as `loadBalancerSheddingEnabled` (here
    off by default) and `QUICK_REPORTS`. With a `key` of at least 32 bytes brokers demand tokens
    that it signed; `ADMIN` is the one role that may do everything. The processes end with this one
    too, however it dies.
    """
    with _running(folder, f"-XX:SharedArchiveFile={_archives()}", settings or {}, key) as cluster:
        cluster.start(brokers)
        yield cluster


def _archives() -> Path:
    """Return the folder of archives of loaded classes, with which a start costs a third. Makes them
    if there are none, by a first cluster.

    Java ignores those of another version of itself.
    """
    folder = server().parent / "archives"
    with locked(folder.parent):
        if not folder.exists():
            draft = folder.with_name("draft")
            with _running(draft, f"-XX:ArchiveClassesAtExit={draft}", {}, None) as cluster:
                cluster.start(1)
                cluster.end_cleanly()
            draft.rename(folder)
    return folder


@contextmanager
def _running(
    folder: Path, sharing: str, settings: Mapping[str, str], key: bytes | None
) -> Iterator[RealCluster]:
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # The first process of the group ends it: when its input does, which this process holds.
    leash = subprocess.Popen(
        ["sh", "-c", "cat; kill -9 0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )
    cluster = RealCluster(folder, leash.pid, settings, key, sharing)
    try:
        yield cluster
    finally:
        leash.communicate(timeout=_KILL_S)
        cluster.wait_ended()
        for part in ("zookeeper", "bookie"):
            shutil.rmtree(folder / part, ignore_errors=True)
