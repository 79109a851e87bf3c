"""The program of equipoise/examples/visits.py with a store. `EQUIPOISE_STORE` names its file."""

import os
from dataclasses import dataclass

from fastapi import FastAPI

from equipoise import Equipoise, Keyed, SqliteStore


@dataclass
class Page:
    visits: int = 0


app = FastAPI()
pages = Keyed("web/pages", Page, store=SqliteStore(os.environ["EQUIPOISE_STORE"]))


@app.post("/visits/{name}")
@pages.route("name")
async def visit(name: str, page: Page) -> dict[str, str | int]:
    page.visits += 1
    return {"page": name, "visits": page.visits}


log, address = os.environ["EQUIPOISE_LOG"], os.environ["EQUIPOISE_ADDRESS"]
Equipoise(log, pages, cluster="visits", address=address).install(app)
