"""A FastAPI program with a broker inside: visits of pages, each counted by the one program that owns the page.

Start as many as you like, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 uvicorn equipoise.examples.fastapi_app:app --port 8001
"""

import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from equipoise import Bundle, Deadline, Ownership, Peer, Service, Worker, key_hash
from equipoise.errors import DeadlineExceeded, Overloaded, OwnershipLost, UnknownNamespace

NAMESPACE = "web/pages"


class Visits(Service):
    """Counts in memory. They go with their bundle from owner to owner, and are lost with a program that dies.

    A handover takes 16 KiB, here a thousand pages of a bundle; what is larger is asked for by `fetch`, or kept in a store.
    """

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
        """Count one visit. Raises `OwnershipLost` if that may not be done here, or not be answered.

        It may have been counted in that case: where that matters, let a store tell, as the counter's does.
        """
        with ownership.begin(page):  # Checks when the work starts, and again at its end.
            self.counts[page] += 1
            return self.counts[page]


def make_app(log_url: str, address: str) -> FastAPI:
    """The program. `address` is where other programs and their clients find it, such as `http://host:8001`."""
    visits = Visits()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with Worker(log_url, visits, advertised_addresses={"http": address}) as worker:
            await worker.create_namespace(NAMESPACE)
            yield  # Serve; then hand the pages over to the other programs, and leave.

    app = FastAPI(lifespan=lifespan)

    @app.post("/visits/{page}")
    async def visit(page: str, request: Request) -> Response:
        try:
            served = await visits.host.route(NAMESPACE, page, timeout_ms=10_000)
            if isinstance(served, Peer):
                return RedirectResponse(served.addresses["http"] + request.url.path, status_code=307)
            count = visits.visit(served, page)
        except (DeadlineExceeded, Overloaded, OwnershipLost, UnknownNamespace) as error:
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
        return Response(json.dumps({"page": page, "visits": count, "broker": visits.host.broker_id}), media_type="application/json")

    return app


app = make_app(os.environ.get("EQUIPOISE_LOG", "sqlite:visits.db"), os.environ.get("EQUIPOISE_ADDRESS", "http://127.0.0.1:8000"))
