"""Count the visits of pages: each page is in one of the programs that run this."""

from dataclasses import dataclass

from fastapi import FastAPI

from equipoise import Equipoise, Keyed


@dataclass
class Page:
    visits: int = 0


app = FastAPI()
pages = Keyed("web/pages", Page)


@app.post("/visits/{name}")
@pages.route("name")
async def visit(name: str, page: Page) -> dict[str, str | int]:
    page.visits += 1
    return {"page": name, "visits": page.visits}


Equipoise("sqlite:visits.db", pages, cluster="visits").install(app)
