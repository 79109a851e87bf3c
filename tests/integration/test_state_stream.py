"""State on disk that streams between two workers, over real connections."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.brokers.runtime.service import Bundle, Ownership
from equipoise.channel.core.errors import PeerError
from equipoise.examples.files import Files
from tests.tls.authority import Authority
from tests.unit.security.signing import SETTINGS

pytestmark = pytest.mark.integration

NAMESPACE = "shop/files"
BLOCK = bytes(range(256)) * 1_024


class Odd(Files):
    """The example with a fault, and a note of when it has opened.

    * `broken`: so many streams raise an error after 2 MiB.
    * `pause_s`: before each chunk.
    * `has_given`: a stream has taken the whole file.
    """

    def __init__(self, folder: Path, *, broken: int = 0, pause_s: float = 0) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.broken = broken
        self.pause_s = pause_s
        self.opened = asyncio.Event()
        self.has_given = False
        self.problem: str | None = None

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        try:
            await super().open(ownership, handover)
        except PeerError:
            self.problem = ownership.handover_problem
            raise
        finally:
            self.opened.set()

    async def fetch(self, bundle: Bundle, token: int) -> AsyncIterator[bytes] | None:
        chunks = await super().fetch(bundle, token)
        if chunks is None:
            return None

        async def odd() -> AsyncIterator[bytes]:
            sent = 0
            async for chunk in chunks:
                await asyncio.sleep(self.pause_s)
                yield chunk
                sent += len(chunk)
                if self.broken and sent >= 2 * 2**20:
                    self.broken -= 1
                    raise OSError("no disk")
            self.has_given = True

        return odd()


async def moved(
    source: Odd, destination: Odd, *, blocks: int, settings: dict[str, Any]
) -> tuple[bytes, bytes]:
    """Let a worker with a file of so many blocks of 256 KiB leave. Return the file, and the file at
    the next owner.
    """
    log = f"memory:{uuid.uuid4()}"
    async with AsyncExitStack() as parts:
        async with Worker(log, source, http_port=0, **settings) as goes:
            await goes.create_namespace(NAMESPACE, bundles=1)
            ownership = await goes.route(NAMESPACE, "key")
            assert isinstance(ownership, Ownership)
            path = source.path(ownership.bundle.name)
            path.write_bytes(
                b"".join(number.to_bytes(4, "big") + BLOCK[4:] for number in range(blocks))
            )
            await parts.enter_async_context(Worker(log, destination, http_port=0, **settings))
        await destination.opened.wait()
        arrived = destination.path(ownership.bundle.name)
        return path.read_bytes(), arrived.read_bytes() if arrived.exists() else b""


async def test_a_file_stays_when_its_only_program_starts_again(tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'files.db'}"
    for times in (1, 2):
        files = Files(tmp_path)
        async with Worker(log, files, http_port=0, broker_id="only") as worker:
            if times == 1:
                await worker.create_namespace(NAMESPACE, bundles=1)
            ownership = await worker.route(NAMESPACE, "key")
            assert isinstance(ownership, Ownership)
            files.append(ownership, "key", "line")
            assert "key line\n" * times == files.path(ownership.bundle.name).read_text()


@pytest.mark.parametrize("broken", [0, 1])
async def test_a_file_reaches_the_next_owner_of_a_worker_that_ends(
    tmp_path: Path, broken: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when its first connection breaks: the second continues."""
    caplog.set_level(logging.INFO)
    left, came = await moved(
        Odd(tmp_path / "a", broken=broken), Odd(tmp_path / "b"), blocks=20, settings={}
    )
    assert (20 * 2**18, True) == (len(came), left == came)
    assert broken == caplog.text.count("state of a bundle not sent: OSError: no disk")


async def test_a_file_reaches_a_next_owner_that_must_authenticate(tmp_path: Path) -> None:
    """By its token and by its certificate, also for the second connection."""
    secured = SETTINGS | Authority(tmp_path / "ca").settings("broker", is_mutual=True)
    left, came = await moved(
        Odd(tmp_path / "a", broken=1), Odd(tmp_path / "b"), blocks=20, settings=secured
    )
    assert (20 * 2**18, True) == (len(came), left == came)


async def test_an_opening_that_receives_state_may_take_longer_than_its_deadline(
    tmp_path: Path,
) -> None:
    left, came = await moved(
        Odd(tmp_path / "a", pause_s=0.2),
        Odd(tmp_path / "b"),
        blocks=16,
        settings={"open_ms": 1_500},
    )
    assert left == came


async def test_a_source_that_is_killed_in_the_middle_is_reported(tmp_path: Path) -> None:
    """At once, not after a deadline. No part of its file takes its place."""
    log, destination = f"sqlite:{tmp_path / 'channel.db'}", Odd(tmp_path / "b")
    async with AsyncExitStack() as parts:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.test_state_stream",
            log,
            str(tmp_path / "a"),
            stdout=asyncio.subprocess.PIPE,
        )
        parts.callback(lambda: process.kill() if process.returncode is None else None)
        assert process.stdout is not None, "it is a pipe"
        address, bundle = (await process.stdout.readline()).decode().split()
        worker = await parts.enter_async_context(Worker(log, destination, http_port=0))
        range_of_bundle = bundle.rpartition("/")[2]
        url = f"http://{address}/admin/v2/namespaces/{NAMESPACE}/{range_of_bundle}/unload?destinationBroker={worker.broker_id}"
        async with aiohttp.ClientSession() as http, http.put(url) as response:
            assert response.ok, await response.text()
        arriving = destination.path(bundle + ".arriving")
        async with asyncio.timeout(60):
            while not arriving.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)
        process.kill()
        await destination.opened.wait()
        assert ("does not hand over the state" in (destination.problem or ""), False) == (
            True,
            destination.path(bundle).exists(),
        )


async def source(log: str, folder: str) -> None:
    """Run a worker that gives a file in about a minute, until it is killed. Print its address, and
    the bundle.
    """
    service = Odd(Path(folder), pause_s=0.1)
    async with Worker(log, service, http_port=0) as worker:
        await worker.create_namespace(NAMESPACE, bundles=1)
        ownership = await worker.route(NAMESPACE, "key")
        assert isinstance(ownership, Ownership)
        service.path(ownership.bundle.name).write_bytes(BLOCK * 600)
        sys.stdout.write(f"{worker.broker_id} {ownership.bundle.name}\n")
        sys.stdout.flush()
        await worker.finished()


if __name__ == "__main__":
    asyncio.run(source(*sys.argv[1:]))
