"""Embed a broker in a FastAPI program: count page visits, each page in the one program that owns it.

Start any number of programs, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 uvicorn equipoise.examples.fastapi_app:app --port 8001
"""

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from equipoise import Bundle, Deadline, Ownership, Peer, Service, Worker, key_hash
from equipoise.errors import EquipoiseError

NAMESPACE = "web/pages"


class Visits(Service):
    """Counts in memory. They move with their bundle from owner to owner, and are lost if the program dies."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over the former owner's counts."""
        self.counts.update(json.loads(handover or b"{}"))

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        """Hand over the counts of this bundle. Splits and merges of bundles need no extra code."""
        leaving = {page: count for page, count in self.counts.items() if bundle.contains(key_hash(page))}
        for page in leaving:
            del self.counts[page]
        return json.dumps(leaving).encode()

    def visit(self, ownership: Ownership, page: str) -> int:
        """Count one visit. Raises `OwnershipLost`, possibly after counting; in the counter example, a repeated call counts once."""
        with ownership.begin(page):  # Checks ownership at the start and at the end of the work.
            self.counts[page] += 1
            return self.counts[page]


def make_app(log_url: str, address: str) -> FastAPI:
    """Return the program. `address` is where other programs and clients reach it, such as `http://host:8001`."""
    visits = Visits()
    worker = Worker(log_url, visits, advertised_addresses={"http": address})

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with worker:
            await worker.create_namespace(NAMESPACE)
            with worker.drain_on_signals():  # At SIGTERM, hand the pages over to the other programs while this one still answers.
                yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/equipoise", worker.asgi("/equipoise"))  # Health, metrics, administration, and state for the other programs.

    @app.exception_handler(EquipoiseError)
    async def unavailable(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    @app.post("/visits/{page}")
    async def visit(page: str, request: Request) -> Response:
        served = await worker.route(NAMESPACE, page)
        if isinstance(served, Peer):
            return RedirectResponse(served.http_url + request.url.path, status_code=307)
        return JSONResponse({"page": page, "visits": visits.visit(served, page), "broker": worker.broker_id})

    return app


app = make_app(os.environ.get("EQUIPOISE_LOG", "sqlite:visits.db"), os.environ.get("EQUIPOISE_ADDRESS", "http://127.0.0.1:8000"))
