"""Stores for `Keyed`, each on a server of its own in a folder that goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise import PostgresStore, RedisStore, SqliteStore
from equipoise.channel.system.free_ports import are_free, free_ports
from tests.pulsar.programs import is_required

Stored = SqliteStore | PostgresStore | RedisStore


@dataclass(frozen=True, slots=True)
class StoreServer:
    """`open` opens a store. `restart` kills its server, and starts it again."""

    open: Callable[[], Stored]
    restart: Callable[[], None]
    url: str


START_S = 30.0
# PostgreSQL does not run as root.
USER = "nobody" if os.geteuid() == 0 else None


@contextmanager
def sqlite() -> Iterator[StoreServer]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "states.db"
        yield StoreServer(lambda: SqliteStore(path), lambda: None, str(path))


@contextmanager
def postgres() -> Iterator[StoreServer]:
    initdb = _program("initdb", "/usr/lib/postgresql").resolve()
    with _folder() as folder:
        data = folder / "data"
        subprocess.run(
            [initdb, "--auth=trust", "--username=tester", "--no-sync", "-D", data],
            check=True,
            capture_output=True,
            user=USER,
            cwd=folder,
        )
        (port,) = free_ports(1)
        options = f"-p {port} -h 127.0.0.1 -k {folder} -F".split()
        url = f"postgresql://tester@127.0.0.1:{port}/postgres"
        with _running(
            [initdb.with_name("postgres"), "-D", data, *options],
            folder,
            lambda: _answers([initdb.with_name("pg_isready"), "-h", "127.0.0.1", "-p", str(port)]),
        ) as restart:
            yield StoreServer(lambda: PostgresStore(url), restart, url)


@contextmanager
def redis() -> Iterator[StoreServer]:
    server = _program("redis-server")
    with _folder() as folder:
        (port,) = free_ports(1)
        options = f"--bind 127.0.0.1 --port {port} --appendonly yes --appendfsync always".split()
        url = f"redis://127.0.0.1:{port}/0"
        with _running(
            [server, *options, "--dir", folder], folder, lambda: not are_free(port)
        ) as restart:
            yield StoreServer(lambda: RedisStore(url), restart, url)


EACH_STORE = {"sqlite": sqlite, "postgres": postgres, "redis": redis}


def _program(name: str, *folders: str) -> Path:
    found = shutil.which(name) or next(
        (str(each) for folder in folders for each in sorted(Path(folder).glob(f"*/bin/{name}"))),
        None,
    )
    if found is None:
        text = f"this machine has no {name}; on Debian: apt-get install postgresql redis-server"
        (pytest.fail if is_required() else pytest.skip)(text)
    return Path(found)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder of the user that runs the server. Those of pytest are closed to others."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        if USER is not None:
            shutil.chown(name, USER)
        yield Path(name)


@contextmanager
def _running(
    command: Sequence[str | Path], folder: Path, is_ready: Callable[[], bool]
) -> Iterator[Callable[[], None]]:
    """Run a server, and yield what kills it and starts it again."""
    log = folder / "log"

    def start() -> None:
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, user=USER, cwd=folder)
        running.append(process)
        end_s = time.monotonic() + START_S
        while not is_ready():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.02)

    def kill() -> None:
        process = running.pop()
        process.kill()
        process.wait()

    def restart() -> None:
        kill()
        (folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        start()

    running: list[subprocess.Popen[bytes]] = []
    try:
        start()
        yield restart
    finally:
        kill()


def _answers(command: Sequence[str | Path]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
