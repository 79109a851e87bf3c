"""Embed a broker in a program of aiohttp: count calls per key, each key in the one program that
owns it.

Start any number of programs, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 python -m equipoise.examples.aiohttp_app
"""

import asyncio
import os

from aiohttp import web
from yarl import URL

from equipoise import Equipoise
from equipoise.examples.counter import Counter

NAMESPACE = "shop/orders"


async def serve(address: URL) -> None:
    """Serve at `address` until SIGTERM or SIGINT. Then the keys move to the other programs, while
    this one still answers.
    """
    counter = Counter()
    member = Equipoise("sqlite:orders.db", {NAMESPACE: counter}, cluster="orders")
    app = web.Application()
    app.add_routes(counter.routes())
    # Health, metrics, administration, and state for the other programs.
    app.add_subapp("/equipoise", member.aiohttp_app("/equipoise"))
    async with member:
        await member.create_namespace(NAMESPACE)
        # The worker need not answer callers that are gone.
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, address.host, address.port).start()
            await member.finished()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(URL(os.environ["EQUIPOISE_ADDRESS"])))
