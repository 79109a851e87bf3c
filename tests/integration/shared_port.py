"""A program whose processes share a port: each has a port of its own too, and redirects callers to
the owner's.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse

from equipoise import Equipoise, Peer
from equipoise.examples.counter import Counter

services = {"shop/*": Counter()}
worker = Equipoise(os.environ["EQUIPOISE_LOG"], services, cluster="shop", http_port=0, linger_ms=0)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
    """Run the worker."""
    async with worker:
        await worker.create_namespace("shop/orders")
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/counter/{tenant}/{namespace}/{key}")
async def increment(tenant: str, namespace: str, key: str, request: Request) -> RedirectResponse:
    """Redirect to the owner, also if that is this process."""
    served = await worker.route(f"{tenant}/{namespace}", key)
    address = served.http_url if isinstance(served, Peer) else f"http://{worker.broker_id}"
    return RedirectResponse(address + request.url.path, status_code=307)
