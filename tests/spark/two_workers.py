"""Run a command beside a Spark cluster of two workers that have nothing of ours: `unshare --net
--mount --fork --kill-child python -m tests.spark.two_workers SHARED HIDDEN... -- COMMAND...`.

Each worker is in namespaces of its own, with an address of its own. It sees neither temporary files
of others nor the folders HIDDEN, only the folder SHARED, at the same path. It has Java, Spark and a
bare Python. The command finds the master in the variable MASTER.

The port KAFKA of 127.0.0.1, here and on the workers, leads to the socket `SHARED/kafka`, and that
by `forwarded` to a Kafka outside. KAFKA is a variable, too.

`SHARED/worker-1` and `SHARED/worker-2` hold the process to kill to end a worker with all its
children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which
from urllib.request import urlopen

import pyspark

NETWORK = "10.213.74"
MASTER = f"spark://{NETWORK}.1:7077"
PAGE = f"http://{NETWORK}.1:8080/json/"
WORKERS = (1, 2)
START_S_MAX = 240.0

TEMPORARY = tempfile.gettempdir()
WORK = f"{TEMPORARY}/work"
"""Folders of a worker alone, inside its namespace."""

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Six of them start, and end before code that runs often pays for its second compilation."""

SPARK = "/run/spark"
"""Where workers have Spark. `/run` is a folder in memory here, which nobody else sees."""


def run(line: str) -> None:
    """Run a program, which must succeed."""
    subprocess.run(line.split(), check=True)


def bind(folder: Path | str, path: str) -> None:
    """Show a folder at another path, too."""
    Path(path).mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", str(folder), path], check=True)


def prepare(shared: Path) -> None:
    """Make the network, and put into `/run` what a worker may see."""
    run("mount -t tmpfs none /run")
    Path("/run/netns").mkdir()
    bind(Path(pyspark.__file__).parent, SPARK)
    bind(shared, "/run/shared")
    run("ip link set lo up")
    run("ip link add cluster type bridge")
    run(f"ip address add {NETWORK}.1/24 dev cluster")
    run("ip link set cluster up")
    for number in WORKERS:
        run(f"ip netns add worker{number}")
        run(f"ip link add veth{number} type veth peer name eth0 netns worker{number}")
        run(f"ip link set veth{number} master cluster up")
        inside = f"ip -n worker{number}"
        run(f"{inside} link set lo up")
        run(f"{inside} address add {NETWORK}.{number + 1}/24 dev eth0")
        run(f"{inside} link set eth0 up")


def java(name: str, *arguments: str) -> list[str]:
    """Return the command of a part of Spark."""
    return [f"{SPARK}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]


def bare_environment(address: str) -> dict[str, str]:
    """Return the environment of a part of Spark."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    programs = Path(which("java") or "java").parent
    return {
        **kept,
        "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": TEMPORARY,
        "JAVA_TOOL_OPTIONS": QUICK_JVM,
        "SPARK_HOME": SPARK,
        "SPARK_LOCAL_IP": address,
        "SPARK_WORKER_MEMORY": "2g",
    }


def start_worker(number: int, shared: Path, hidden: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a worker with one core. It ends with the process that is returned."""
    disk = shared.parent / f"disk-{number}"
    disk.mkdir()
    hide = "".join(
        f"; if [ -d {folder} ]; then mount -t tmpfs none {folder}; fi" for folder in hidden
    )
    address = f"{NETWORK}.{number + 1}"
    worker = " ".join(
        java("worker.Worker", "--host", address, "--cores", "1", "--work-dir", WORK, MASTER)
    )
    script = (
        f"set -e; mount --bind {disk} {TEMPORARY}{hide}; mkdir -p {shared}"
        f"; mount --bind /run/shared {shared}; exec {worker}"
    )
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.Popen(
        ["ip", "netns", "exec", f"worker{number}", *inside, "sh", "-c", script],
        env=bare_environment(address),
        stdout=subprocess.DEVNULL,
        stderr=(shared / f"worker-{number}.log").open("wb"),
    )


def wait_for_master() -> None:
    """Wait until it answers. The workers join while the command starts."""
    until = time.monotonic() + START_S_MAX
    while time.monotonic() < until:
        try:
            with urlopen(PAGE, timeout=10):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError("the master did not start")


async def forward(socket: str, port: int, *, is_outside: bool) -> asyncio.Server:
    """Lead connections from a port of 127.0.0.1 to a socket; outside, from that socket to the
    port. Return what does so.
    """

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = (
            asyncio.open_connection("127.0.0.1", port)
            if is_outside
            else asyncio.open_unix_connection(socket)
        )
        other_reader, other_writer = await there
        # A server of streams takes a task that is cancelled for one that failed.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

    if is_outside:
        return await asyncio.start_unix_server(joined, socket)
    return await asyncio.start_server(joined, "127.0.0.1", port)


@contextlib.contextmanager
def forwarded(socket: Path, port: int) -> Iterator[None]:
    """Lead connections from the socket to a port of this machine."""
    # It ends the tasks of connections that are open at the end.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server = runner.run(forward(str(socket), port, is_outside=True))
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            server.close()


def forward_inside(shared: Path, port: int) -> list[subprocess.Popen[bytes]]:
    """Start what leads from the port to the socket, here and on the workers."""
    program = [sys.executable, "-m", "tests.spark.two_workers", str(shared / "kafka"), str(port)]
    places: list[list[str]] = [
        [],
        *(["ip", "netns", "exec", f"worker{number}"] for number in WORKERS),
    ]
    return [subprocess.Popen([*place, *program]) for place in places]


def main(shared: Path, hidden: Sequence[str], command: Sequence[str]) -> int:
    """Run the cluster and the command. Return its exit code."""
    prepare(shared)
    address = f"{NETWORK}.1"
    master = subprocess.Popen(
        java("master.Master", "--host", address),
        env=bare_environment(address),
        stdout=subprocess.DEVNULL,
        stderr=(shared / "master.log").open("wb"),
    )
    beside = forward_inside(shared, int(os.environ["KAFKA"]))
    workers = [start_worker(number, shared, hidden) for number in WORKERS]
    try:
        for number, worker in zip(WORKERS, workers, strict=True):
            (shared / f"worker-{number}").write_text(str(worker.pid), encoding="ascii")
        wait_for_master()
        environment = {
            **os.environ,
            "JAVA_TOOL_OPTIONS": QUICK_JVM,
            "MASTER": MASTER,
            "SPARK_LOCAL_IP": address,
        }
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        for process in (*workers, *beside, master):
            process.kill()
            process.wait()


if __name__ == "__main__":
    if "--" in sys.argv:
        place = sys.argv.index("--")
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:place], sys.argv[place + 1 :]))
    with asyncio.Runner() as runner:
        runner.run(forward(sys.argv[1], int(sys.argv[2]), is_outside=False))
        runner.get_loop().run_forever()
