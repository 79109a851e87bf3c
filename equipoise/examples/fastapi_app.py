"""Embed a broker in a FastAPI program: count page visits, each page in the one program that owns
it.

Start any number of programs, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 uvicorn equipoise.examples.fastapi_app:app --port 8001
"""

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from equipoise import Bundle, Deadline, Ownership, Peer, Service, Worker

NAMESPACE = "web/pages"


class Visits(Service):
    """Counts in memory. They move with their bundle from owner to owner, and are lost if the
    program dies.
    """

    def __init__(self) -> None:
        self.counts = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over the former owner's counts."""
        self.counts.update(json.loads(handover or b"{}"))

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Hand over the counts of this bundle. Splits and merges of bundles need no extra code."""
        leaving = {
            page: count for page, count in self.counts.items() if bundle.contains(NAMESPACE, page)
        }
        for page in leaving:
            del self.counts[page]
        return json.dumps(leaving).encode()

    def visit(self, page: str) -> int:
        """Count one visit. Only the owner of the page does, under its ownership."""
        self.counts[page] += 1
        return self.counts[page]


def make_app(log_url: str, address: str) -> FastAPI:
    """Return the program. `address` is where other programs and clients reach it, such as
    `http://host:8001`.
    """
    visits = Visits()
    worker = Worker(log_url, visits, advertised_addresses={"http": address})

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with worker:
            await worker.create_namespace(NAMESPACE)
            # At SIGTERM, hand the pages over to the other programs while this one still answers.
            with worker.drain_on_signals():
                yield

    app = FastAPI(lifespan=lifespan)
    # Health, metrics, administration, and state for the other programs.
    app.mount("/equipoise", worker.asgi("/equipoise"))

    # Redirects to the program that owns the page.
    app.add_middleware(worker.by_key, namespace=NAMESPACE, key="/visits/{key}")

    @app.post("/visits/{page}")
    async def visit(page: str) -> dict[str, str | int]:
        return {"page": page, "visits": visits.visit(page), "broker": worker.broker_id}

    return app


app = make_app(
    os.environ.get("EQUIPOISE_LOG", "sqlite:visits.db"),
    os.environ.get("EQUIPOISE_ADDRESS", "http://127.0.0.1:8000"),
)
