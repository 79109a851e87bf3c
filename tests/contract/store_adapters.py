"""Stores for `Keyed`, each on a server of its own in a folder that goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from equipoise import PostgresStore, RedisStore, SqliteStore
from equipoise.channel.system.free_ports import are_free, free_ports
from tests.pulsar.programs import is_required

Stored = SqliteStore | PostgresStore | RedisStore
OpenStore = Callable[[], Stored]

START_S = 30.0
# PostgreSQL does not run as root.
USER = "nobody" if os.geteuid() == 0 else None


@contextmanager
def sqlite() -> Iterator[OpenStore]:
    with tempfile.TemporaryDirectory() as folder:
        yield lambda: SqliteStore(Path(folder) / "states.db")


@contextmanager
def postgres() -> Iterator[OpenStore]:
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
        with _running([initdb.with_name("postgres"), "-D", data, *options], folder, port):
            _await_postgres(initdb.with_name("pg_isready"), port)
            yield lambda: PostgresStore(f"postgresql://tester@127.0.0.1:{port}/postgres")


@contextmanager
def redis() -> Iterator[OpenStore]:
    server = _program("redis-server")
    with _folder() as folder:
        (port,) = free_ports(1)
        options = f"--bind 127.0.0.1 --port {port} --appendonly yes --appendfsync always".split()
        with _running([server, *options, "--dir", folder], folder, port):
            yield lambda: RedisStore(f"redis://127.0.0.1:{port}/0")


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
def _running(command: Sequence[str | Path], folder: Path, port: int) -> Iterator[None]:
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, user=USER, cwd=folder) as process,
    ):
        try:
            end_s = time.monotonic() + START_S
            while are_free(port):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end_s, (folder / "log").read_text()
                time.sleep(0.02)
            yield
        finally:
            process.kill()


def _await_postgres(pg_isready: Path, port: int) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(
                [pg_isready, "-h", "127.0.0.1", "-p", str(port)], check=True, capture_output=True
            )
            return
        time.sleep(0.02)
    pytest.fail("PostgreSQL does not answer")
