"""Count the visits of pages: each page in the one program that has it.

Start any number of programs, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 uvicorn equipoise.examples.visits:app --port 8001
"""

import os
from dataclasses import dataclass

from fastapi import FastAPI

from equipoise import Equipoise, Keyed


@dataclass
class Page:
    """What is known of a page."""

    visits: int = 0


app = FastAPI()
pages = Keyed("web/pages", Page)


@app.post("/visits/{name}")
@pages.route("name")
async def visit(name: str, page: Page) -> dict[str, str | int]:
    """Count a visit. Only one call at a time has the page."""
    page.visits += 1
    return {"page": name, "visits": page.visits}


log = os.environ.get("EQUIPOISE_LOG", "sqlite:visits.db")
address = os.environ.get("EQUIPOISE_ADDRESS", "http://127.0.0.1:8000")
Equipoise(log, pages, cluster="visits", address=address).install(app)
