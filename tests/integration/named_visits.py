"""The program of equipoise/examples/visits.py, for the namespace in `EQUIPOISE_NAMESPACE`."""

import os
from dataclasses import dataclass

from fastapi import FastAPI

from equipoise import Equipoise, Keyed


@dataclass
class Page:
    visits: int = 0


app = FastAPI()
pages = Keyed(os.environ["EQUIPOISE_NAMESPACE"], Page, shards=4)


@app.post("/visits/{name}")
@pages.route("name")
async def visit(name: str, page: Page) -> dict[str, str | int]:
    page.visits += 1
    return {"page": name, "visits": page.visits}


Equipoise(os.environ["EQUIPOISE_LOG"], pages, cluster="visits").install(app)
