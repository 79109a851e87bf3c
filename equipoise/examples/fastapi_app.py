"""A FastAPI program with a broker inside: visits of pages, each counted by the one program that owns the page.

Start as many as you like, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 uvicorn equipoise.examples.fastapi_app:app --port 8001
"""

import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from equipoise import Bundle, Deadline, Ownership, Peer, Service, Worker, key_hash
from equipoise.errors import EquipoiseError

NAMESPACE = "web/pages"


class Visits(Service):
    """Counts in memory. They go with their bundle from owner to owner, and are lost with a program that dies."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over what the former owner counted."""
        self.counts.update(json.loads(handover or b"{}"))

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        """Give away what was counted in this bundle; so a split or a merge of bundles changes nothing here."""
        leaving = {page: count for page, count in self.counts.items() if bundle.contains(key_hash(page))}
        for page in leaving:
            del self.counts[page]
        return json.dumps(leaving).encode()

    def visit(self, ownership: Ownership, page: str) -> int:
        """Count one visit. Raises `OwnershipLost`, perhaps after it was counted: see the counter for a store that tells."""
        with ownership.begin(page):  # Checks when the work starts, and again at its end.
            self.counts[page] += 1
            return self.counts[page]


def make_app(log_url: str, address: str) -> FastAPI:
    """The program. `address` is where other programs and their clients find it, such as `http://host:8001`."""
    visits = Visits()
    worker = Worker(log_url, visits, advertised_addresses={"http": address})

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with worker:
            await worker.create_namespace(NAMESPACE)
            yield  # Serve; then hand the pages over to the other programs, and leave.

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(EquipoiseError)
    async def unavailable(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    @app.get("/health")
    async def health() -> str:
        worker.check()  # Raises `WorkerEnded` once the broker has ended: start this program again.
        return "ok"

    @app.post("/visits/{page}")
    async def visit(page: str, request: Request) -> Response:
        served = await worker.route(NAMESPACE, page)
        if isinstance(served, Peer):
            return RedirectResponse(served.addresses["http"] + request.url.path, status_code=307)
        return JSONResponse({"page": page, "visits": visits.visit(served, page), "broker": worker.broker_id})

    return app


app = make_app(os.environ.get("EQUIPOISE_LOG", "sqlite:visits.db"), os.environ.get("EQUIPOISE_ADDRESS", "http://127.0.0.1:8000"))
