"""The FastAPI example: two programs under uvicorn, each in a thread, with a broker inside each."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn

from equipoise.examples.fastapi_app import make_app

pytestmark = pytest.mark.integration

DEADLINE_S = 30.0
PAGES = ("home", "about us", "a/b", "Grüße", "x" * 200)


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program that serves at `address` until it is stopped."""

    address: str
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        """Stop as uvicorn does at SIGTERM."""
        self.server.should_exit = True
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def program(log_url: str) -> Iterator[Program]:
    """Run one program. Yield once it serves."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(make_app(log_url, address), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name=address)
        started = Program(address=address, server=server, thread=thread)
        thread.start()
        give_up = time.monotonic() + DEADLINE_S
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < give_up
            time.sleep(0.01)
        try:
            yield started
        finally:
            started.stop()


def visits(client: httpx.Client, at: Program, page: str) -> tuple[int, str]:
    """Visit a page. Return the count, and the broker that counted."""
    response = client.post(httpx.URL(at.address, path=f"/visits/{page}"))
    assert 200 == response.status_code, response.text
    document = response.json()
    assert page == document["page"]
    return document["visits"], document["broker"]


def test_two_programs_count_as_one() -> None:
    """Each page has one counter, which survives a graceful end of its program."""
    log_url = f"memory:{uuid.uuid4()}"
    pages = [page for page in PAGES if "/" not in page]
    with (
        httpx.Client(follow_redirects=True, timeout=DEADLINE_S) as client,
        program(log_url) as stays,
    ):
        with program(log_url) as goes:
            counted = {
                page: [visits(client, at, page) for at in (stays, goes, stays)] for page in pages
            }
        for page, seen in counted.items():
            assert [1, 2, 3] == [count for count, _ in seen]
            assert 1 == len({broker for _, broker in seen})
            assert 4 == visits(client, stays, page)[0]


def test_a_program_whose_broker_has_ended_answers_503(tmp_path: Path) -> None:
    """With the reason, and what to do."""
    log = tmp_path / "channel.db"
    with httpx.Client(timeout=DEADLINE_S) as client, program(f"sqlite:{log}") as at:
        assert 200 == client.get(f"{at.address}/equipoise/health").status_code
        assert 1 == visits(client, at, "home")[0]
        log.rename(tmp_path / "elsewhere.db")
        give_up = time.monotonic() + DEADLINE_S
        while (health := client.get(f"{at.address}/equipoise/health")).status_code == 200:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        calls = [client.post(f"{at.address}/visits/{page}") for page in ("home", "other")]
        for answer in (health, *calls):
            assert 503 == answer.status_code
            assert "was replaced" in answer.json()["reason"]
            assert "start this program again" in answer.json()["reason"]
