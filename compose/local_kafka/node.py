"""Compute the settings of a node of Kafka, and start, find, stop, kill and suspend its process.

The process outlives its parent and is known by its pid file. The kernel reuses process ids.
So a process is signalled only after its command line was checked, through a handle (pidfd) that
keeps meaning the same process.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compose.local_kafka.jars import class_archive, class_path, tool
from equipoise.channel.core.errors import OperatorError

# The shell only forks, which takes milliseconds.
_FORK_S: Final = 30.0
# The moment in which a program is loaded: microseconds, or up to a second on a busy or swapping
# machine.
_EXEC_LOOKS: Final = 100
_EXEC_LOOK_S: Final = 0.01
_STOP_LOOK_S: Final = 0.001
_STOPPED: Final = frozenset("TtXZ")
"""Stopped, by a signal or for a debugger, or ended."""

_IN_BACKGROUND: Final = (
    'pid_file=$1 output=$2; shift 2; "$@" </dev/null >>"$output" 2>&1 & echo $! >"$pid_file"'
)


def start(words: Sequence[str], *, pid_file: Path, output: Path) -> None:
    """Start a detached process: no terminal signals reach it, and no parent needs to wait for
    it.
    """
    command = ["sh", "-c", _IN_BACKGROUND, "sh", str(pid_file), str(output), *words]
    subprocess.run(command, check=True, timeout=_FORK_S, start_new_session=True)


@contextmanager
def handle(pid_file: Path, *, mark: str) -> Iterator[int | None]:
    """Yield a handle on the process in the pid file, or None if it is gone or its command line does
    not contain `mark`.
    """
    pid = pid_of(pid_file)
    try:
        held = None if pid is None else os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        # Gone, or the id now belongs to a thread, which has no handle.
        held = None
    if held is None:
        yield None
        return
    try:
        # Read while the handle is held, so that the command line is that of this process.
        yield held if pid is not None and mark in _command_line(pid, held) else None
    finally:
        os.close(held)


def pid_of(pid_file: Path) -> int | None:
    """Return the process id in the file, or None if there is none."""
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def send(held: int, number: signal.Signals) -> None:
    """Signal the process of a handle. Does nothing if it has ended."""
    try:
        signal.pidfd_send_signal(held, number)
    except ProcessLookupError:
        return


def is_stopped(pid: int, *, timeout_s: float) -> bool:
    """Return whether all threads of a process stop in time after SIGSTOP. A stopped thread stays
    stopped until SIGCONT.
    """
    give_up_s = time.monotonic() + timeout_s
    while not all(state in _STOPPED for state in _states(pid)):
        if time.monotonic() >= give_up_s:
            return False
        time.sleep(_STOP_LOOK_S)
    return True


def has_ended(held: int, *, timeout_s: float) -> bool:
    """Return whether the process of a handle ends in time."""
    poll = select.poll()
    poll.register(held, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def _states(pid: int) -> Iterator[str]:
    """Yield the kernel's state letter of each thread of a process."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_text().rpartition(")")[2].split()[0]


def _command_line(pid: int, held: int) -> str:
    """Return the command line of a process, or "" if it has ended or is a kernel thread."""
    for _ in range(_EXEC_LOOKS):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        # During exec a process has no command line for a moment, and would look like one that is
        # gone.
        if line or has_ended(held, timeout_s=_EXEC_LOOK_S):
            return line.decode(errors="replace")
    return ""


HOST: Final = "127.0.0.1"

READY_S: Final = 120.0
"""A node needs 3 s on two quiet cores and 20 s on busy ones. Three nodes need three times as long;
the same again is reserve."""

STOP_S: Final = 15.0
"""A clean stop takes a second. A node whose peers are gone would try to reach them for minutes, and
is killed."""

_SUSPEND_S: Final = 15.0  # It takes up to 60 ms on a busy machine.
_KILL_S: Final = 15.0  # The time for the kernel to free 500 MB on a machine that swaps.
_LOOK_S: Final = 0.05
# 1.5 s on two quiet cores, ten times as much on busy ones with three nodes.
_FORMAT_S: Final = 60.0
_PRINTED_BYTES: Final = 4_000
# Logged by KafkaRaftServer once other nodes and clients may use it.
_STARTED: Final = b"Kafka Server started"
# Java's defaults suit servers that run for weeks: in the first minutes they spend more on compiling
# than Kafka on its work. With these options a node is ready in half the time, and 3,000 single
# appends cost it 0.8 s of a core instead of 6.5.
_JAVA_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of a node: for clients and other nodes, for the controllers' quorum, and for
    clients behind a proxy.
    """

    client: int
    controller: int
    proxied: int


def server_properties(
    number: int,
    *,
    ports: Sequence[Ports],
    proxies: Sequence[str],
    data: Path,
    extra: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the settings of node `number` (from 1) of the nodes with `ports`. It keeps its data in
    the folder `data`.

    Kafka reports to clients where to connect. Clients behind a proxy need a listener that
    advertises the proxy: `proxies` holds an address (`host:port`) for each node, or nothing.
    `extra` overrides all other settings.
    """
    own, nodes = ports[number - 1], len(ports)
    listeners = {"CLIENT": own.client, "CONTROLLER": own.controller}
    advertised = {"CLIENT": f"{HOST}:{own.client}"}
    if proxies:
        listeners["PROXIED"] = own.proxied
        advertised["PROXIED"] = proxies[number - 1]
    replicas, in_sync = str(nodes), str(min(nodes, 2))
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(
            f"{node}@{HOST}:{one.controller}" for node, one in enumerate(ports, start=1)
        ),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{address}" for name, address in advertised.items()
        ),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # Otherwise a mistyped name would create a topic with wrong settings.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        # Kafka's own topics: as safe as the nodes allow, and no larger than one machine needs.
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # The default of 128 MiB would be half of the heap. 16 MiB hold 600,000 keys of 24 bytes,
        # nine tenths full.
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        **extra,
    }


def format_properties(properties: Mapping[str, str]) -> str:
    """Format settings as a file of Java properties."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


class Node:
    """A node of a cluster, running or not. The same folder always means the same node."""

    def __init__(self, folder: Path, *, number: int, heap_mb: int) -> None:
        """All files of the node are below `folder`, an absolute path."""
        self.number = number
        self.folder = folder
        self._heap_mb = heap_mb
        self._properties = folder / "server.properties"
        self._hosts = folder / "hosts"
        self._output = folder / "output.log"
        self._pid_file = folder / "pid"
        self._earlier_output_bytes = 0

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"node {self.number}"

    @property
    def data(self) -> Path:
        """The folder of its topics."""
        return self.folder / "data"

    @property
    def pid(self) -> int | None:
        """Its process id, or None if it does not run."""
        with handle(self._pid_file, mark=self._mark) as held:
            return None if held is None else pid_of(self._pid_file)

    @property
    def _mark(self) -> str:
        return str(self._properties)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Write its settings, which it reads when it starts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(format_properties(properties))

    def resolve(self, hosts: Mapping[str, str]) -> None:
        """Let its process know only these host names, from its next start on. `hosts` holds their
        addresses.
        """
        self._hosts.write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))

    def format(self, cluster_id: str) -> None:
        """Format its data folder for the cluster, unless that is done. Raises `OperatorError`,
        `NotInstalled`.
        """
        if (self.data / "meta.properties").exists():
            return
        options = [
            "format",
            "--ignore-formatted",
            "--cluster-id",
            cluster_id,
            "--config",
            str(self._properties),
        ]
        words = [*self._java(), "kafka.tools.StorageTool", *options]
        try:
            formatted = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_FORMAT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"was not formatted within {_FORMAT_S:.0f} s", output="") from error
        if formatted.returncode:
            raise self._failure(
                "could not be formatted", output=f"{formatted.stdout}{formatted.stderr}".strip()
            )

    def begin(self, *, archive: Path | None = None) -> None:
        """Start its process; `wait_ready` waits until it serves. Java writes its classes to
        `archive` when the node stops.

        Raises `NotInstalled`.
        """
        self._earlier_output_bytes = self._output.stat().st_size if self._output.exists() else 0
        start(
            [*self._java(archive), "kafka.Kafka", str(self._properties)],
            pid_file=self._pid_file,
            output=self._output,
        )

    def wait_ready(self, *, timeout_s: float = READY_S) -> None:
        """Wait until it serves. Raises `OperatorError`."""
        deadline_s = time.monotonic() + timeout_s
        while _STARTED not in self._printed():
            if self.pid is None:
                raise self._failure("ended while it started")
            if time.monotonic() > deadline_s:
                raise self._failure(f"was not ready within {timeout_s:.0f} s")
            time.sleep(_LOOK_S)

    def start(self) -> None:
        """Start it with its former data, unless it runs. Raises `OperatorError`,
        `NotInstalled`.
        """
        if self.pid is None:
            self.begin()
            self.wait_ready()

    def ask_to_stop(self) -> None:
        """Ask it to stop cleanly, without waiting."""
        self._signal(signal.SIGTERM)

    def stop(self, *, timeout_s: float = STOP_S) -> None:
        """Stop it cleanly, or kill it after `timeout_s`. Raises `OperatorError`."""
        self.ask_to_stop()
        with handle(self._pid_file, mark=self._mark) as held:
            if held is None or has_ended(held, timeout_s=timeout_s):
                return
        self.kill()

    def kill(self) -> None:
        """Kill it (`kill -9`), and wait until it is gone. Raises `OperatorError`."""
        with handle(self._pid_file, mark=self._mark) as held:
            if held is None:
                return
            send(held, signal.SIGKILL)
            if not has_ended(held, timeout_s=_KILL_S):
                raise self._stuck(pid_of(self._pid_file), "was killed and does not end")

    def suspend(self) -> None:
        """Suspend it (SIGSTOP): its sockets stay open, and nothing answers once this returns.
        Raises `OperatorError`.
        """
        with handle(self._pid_file, mark=self._mark) as held:
            pid = pid_of(self._pid_file)
            if held is None or pid is None:
                return
            send(held, signal.SIGSTOP)
            if not is_stopped(pid, timeout_s=_SUSPEND_S):
                raise self._stuck(pid, "was suspended and still runs")

    def resume(self) -> None:
        """Let it go on after `suspend`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with handle(self._pid_file, mark=self._mark) as held:
            if held is not None:
                send(held, number)

    def _java(self, archive: Path | None = None) -> list[str]:
        java, path = tool("java"), class_path()
        memory = [f"-Xmx{self._heap_mb}m", f"-Xms{self._heap_mb}m"]
        # Java starts without an archive that does not exist or that another Java wrote.
        classes = (
            f"-XX:ArchiveClassesAtExit={archive}"
            if archive
            else f"-XX:SharedArchiveFile={class_archive(java, path)}"
        )
        names = [f"-Djdk.net.hosts.file={self._hosts}"] if self._hosts.exists() else []
        return [
            java,
            *memory,
            *_JAVA_OPTIONS,
            *names,
            classes,
            f"-Dlog4j2.configurationFile={_LOG4J}",
            "-cp",
            path,
        ]

    def _printed(self) -> bytes:
        """Return its output since its last start."""
        if not self._output.exists():
            return b""
        with self._output.open("rb") as output:
            output.seek(self._earlier_output_bytes)
            return output.read()

    def _failure(self, problem: str, *, output: str | None = None) -> OperatorError:
        """Return the error for a node that did not start. `output` is its own by default."""
        printed = (
            self._printed()[-_PRINTED_BYTES:].decode(errors="replace").strip()
            if output is None
            else output
        )
        too_old = (
            "; Kafka 4 needs Java 17 or newer" if "UnsupportedClassVersionError" in printed else ""
        )
        return OperatorError(
            f"{self.name} of the local Kafka {problem}{too_old}; it"
            f" printed:\n{printed or 'nothing'}"
        )

    def _stuck(self, pid: int | None, problem: str) -> OperatorError:
        """Return the error for a node that the kernel holds in a call that does not end, such as to
        a hung disk.
        """
        return OperatorError(
            f"{self.name} of the local Kafka, process {pid or 0}, {problem}; check the disk that it"
            " writes to"
        )
