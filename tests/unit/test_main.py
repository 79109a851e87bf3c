"""The composition root: what it refuses to serve."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from brokers.config import WorkerConfig
from brokers.main import Broker
from brokers.service import Bundle, Ownership, Peer, Service
from channel.deadline import Deadline
from channel.errors import InvalidService

pytestmark = pytest.mark.integration


class Routed(Service):
    """A service with whatever routes the test wants."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing."""

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        """Nothing."""

    def routes(self) -> Sequence[web.RouteDef]:
        return self.make()  # type: ignore[return-value]  # what a user's code may do all the same


async def handler(_request: web.Request) -> web.Response:
    """A good handler."""
    return web.Response()


def fail() -> object:
    """Routes that cannot be made."""
    raise KeyError("no such setting")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (fail, r"its routes\(\) fails with KeyError: 'no such setting'"),
        (lambda: None, r"its routes\(\) fails with TypeError"),
        (lambda: [web.static("/files", ".")], "StaticDef"),
        (lambda: ["/path"], "'/path'; each must be what web.get"),
        (lambda: [web.get("path", handler)], "its route GET path cannot be served: ValueError"),
        (lambda: [web.get("/{", handler)], "its route GET /{ cannot be served: ValueError"),
        (lambda: [web.get("/health", handler)], "its route GET /health clashes"),
    ],
    ids=["raises", "none", "static", "text", "relative", "pattern", "clash"],
)
def test_routes_that_cannot_be_served_are_refused(make: Callable[[], object], problem: str, tmp_path: Path) -> None:
    """A start with routes that cannot be is refused with what is wrong with which of them, and lets go of everything."""
    config = WorkerConfig(log_url=f"memory:{uuid.uuid4()}", data_dir=tmp_path, http_port=0)

    async def start(service: Service) -> None:
        async with Broker(config, {"*": service}):
            pass

    with pytest.raises(InvalidService, match=problem):
        asyncio.run(start(Routed(make)))
    asyncio.run(start(Routed(lambda: [web.get("/mine", handler)])))
