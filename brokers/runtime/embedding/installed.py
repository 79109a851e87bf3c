"""Put a worker in front of a web program: one ASGI app that starts and ends the worker with the
program, serves its HTTP below a prefix, and passes on everything else.

Source: the ASGI specification, version 3, protocols lifespan and HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from equipoise.brokers.runtime.embedding.by_key import AsgiApp
from equipoise.brokers.runtime.embedding.forwarding import Message, Receive, Send
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.system.log_lines import PlainLines


class Installed:
    """An ASGI app around a program's.

    The worker starts after the program has started, and ends before the program ends. So a service
    may use what the program opens at its start, also while its bundles are closed.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        http: AsgiApp,
        prefix: str,
        by_key: Callable[[AsgiApp], AsgiApp],
        running: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """`http` serves the paths below `prefix`. `by_key` wraps `app` at the start, when all of
        its paths are known. `running` is the life of the worker.
        """
        self._app = self._routed = app
        self._http = http
        self._prefix = prefix
        self._by_key = by_key
        self._running = running

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or live with the program."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        root = scope.get("root_path", "")
        path = scope["path"]
        inside = path.removeprefix(root) if root and path.startswith(f"{root}/") else path
        if f"{inside}/".startswith(f"{self._prefix}/"):
            await self._http({**scope, "root_path": root + self._prefix}, receive, send)
        else:
            await self._routed(scope, receive, send)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        """Start the worker before the server learns that the program has started, and end it before
        the program learns that it ends.
        """
        async with AsyncExitStack() as life:

            async def received() -> Message:
                message = await receive()
                if message["type"] == "lifespan.shutdown":
                    await life.aclose()
                return message

            async def sent(message: Message) -> None:
                if message["type"] == "lifespan.startup.complete":
                    try:
                        self._routed = self._by_key(self._app)
                        await life.enter_async_context(self._running())
                    except EquipoiseError as error:
                        await send({"type": "lifespan.startup.failed", "message": str(error)})
                        raise
                await send(message)

            await self._app(scope, received, sent)


def show_log_lines() -> None:
    """Have the log lines of the worker shown, unless the program has set up its logging. Servers
    show only their own lines by default.
    """
    logger = logging.getLogger("equipoise")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(PlainLines())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
