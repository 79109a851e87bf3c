"""Embed a broker in a program of aiohttp: count calls per key, each key in the one program that
owns it.

Start any number of programs, each with its own address:

    EQUIPOISE_ADDRESS=http://127.0.0.1:8001 python -m equipoise.examples.aiohttp_app
"""

import asyncio
import os
import signal

from aiohttp import web
from yarl import URL

from equipoise import Equipoise
from equipoise.examples.counter import Counter

NAMESPACE = "shop/orders"


async def serve(log_url: str, address: str) -> None:
    """Serve at `address` until SIGTERM or SIGINT. Other programs and clients reach the program at
    that address, too.
    """
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stopping.set)

    # Not `loop.add_signal_handler`: the worker takes the signal first.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    counter = Counter()
    worker = Equipoise(log_url, {NAMESPACE: counter}, cluster="orders", address=address)
    app = web.Application()
    app.add_routes(counter.routes())
    # Health, metrics, administration, and state for the other programs.
    app.add_subapp("/equipoise", worker.aiohttp_app("/equipoise"))
    async with worker:
        await worker.create_namespace(NAMESPACE)
        # The worker need not answer callers that are gone.
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, URL(address).host, URL(address).port).start()
            # At SIGTERM, hand the keys over to the other programs while this one still answers.
            with worker.drain_on_signals():
                await stopping.wait()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(
        serve(
            os.environ.get("EQUIPOISE_LOG", "sqlite:counter-log.db"),
            os.environ.get("EQUIPOISE_ADDRESS", "http://127.0.0.1:8000"),
        )
    )
