"""Crawl sites: each site is visited by the one program that has its shard.

Start any number of programs: SITES="a.example b.example" python -m equipoise.examples.crawler
"""

import asyncio
import os

import aiohttp

from equipoise import Equipoise, Shard, SqliteStore, Tasks

NAMESPACE = "acme/crawler"
SITES = os.environ.get("SITES", "").split()
PAUSE_S = 60.0

pages = SqliteStore("pages.db")


async def crawl(shard: Shard) -> None:
    """Visit the sites of a shard one after the other, and again after a pause."""
    while True:
        for site in filter(shard.contains, SITES):
            with shard.begin(site) as work:
                page = await fetch(site)
                # The store refuses a page of a program that has lost the shard meanwhile.
                await pages.save(NAMESPACE, site, page, token=work.token)
        await asyncio.sleep(PAUSE_S)


async def fetch(site: str) -> bytes:
    """Return the first page of a site."""
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{site}/") as answer,
    ):
        return await answer.read()


async def main() -> None:
    """Crawl until the program is stopped."""
    async with Equipoise("sqlite:crawler.db", Tasks(NAMESPACE, crawl), cluster="crawler") as member:
        await member.finished()


if __name__ == "__main__":
    asyncio.run(main())
