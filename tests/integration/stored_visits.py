"""The program of equipoise/examples/visits.py with a store. `EQUIPOISE_STORE` is its URL or a file,
and `EQUIPOISE_UNSAVED_MS` how long a change may be unsaved.
"""

import os
from dataclasses import dataclass

from fastapi import FastAPI

from equipoise import Equipoise, Keyed, PostgresStore, RedisStore, SqliteStore, Store


@dataclass
class Page:
    visits: int = 0


def store_at(url: str) -> Store:
    """Return the store of a URL, or of a file."""
    if url.startswith("postgresql:"):
        return PostgresStore(url)
    return RedisStore(url) if url.startswith("redis:") else SqliteStore(url)


app = FastAPI()
pages = Keyed(
    "web/pages",
    Page,
    store=store_at(os.environ["EQUIPOISE_STORE"]),
    unsaved_ms=int(os.environ.get("EQUIPOISE_UNSAVED_MS", "0")),
)


@app.post("/visits/{name}")
@pages.route("name")
async def visit(name: str, page: Page) -> dict[str, str | int]:
    page.visits += 1
    return {"page": name, "visits": page.visits}


Equipoise(os.environ["EQUIPOISE_LOG"], pages, cluster="visits").install(app)
