"""Put a worker in front of a web program: one ASGI app that starts and ends the worker with the
program, serves its HTTP below a prefix, and answers what the program cannot: calls whose key
another program owns.

Source: the ASGI specification, version 3, protocols lifespan and HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

from equipoise.brokers.client.attempts import RequestOutcome
from equipoise.brokers.load.metering import driven
from equipoise.brokers.runtime.embedding.by_key import (
    AsgiApp,
    ending,
    is_below,
    redirect,
    refuse_call,
)
from equipoise.brokers.runtime.embedding.forwarding import Message, Receive, Send
from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.errors import EquipoiseError, InvalidName, PeerError
from equipoise.channel.system.log_lines import PlainLines

_logger: Final = logging.getLogger(__name__)

# A line or two for each bundle, at each start.
BUNDLE_LINES: Final = "equipoise.brokers.runtime.bundle_lines"


def elsewhere(*, key: str, owner: Peer, broker: str) -> PeerError:
    """Return the error for a key that the program `owner` has, not `broker`, which was called."""
    return PeerError(
        f"{owner.broker} owns {key}, not {broker}; send the call to {owner.http_url}",
        code="Elsewhere",
        owner=owner,
    )


class Unserved(PeerError):
    """A call of a key was not served here. The program around answers it."""

    def __init__(self, error: EquipoiseError, outcome: RequestOutcome) -> None:
        """`outcome`: what is known of its effect."""
        self.error = error
        self.outcome = outcome
        super().__init__(str(error))


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
        running: Callable[[], AbstractAsyncContextManager[None]],
        drains: Callable[[], bool],
        measures: bool = True,
    ) -> None:
        """`http` serves the paths below `prefix`. `running` is the life of the worker. While it
        `drains`, each answer ends its connection. `measures`: see the setting `measure_cpu`.
        """
        self._app = app
        self._http = http
        self._prefix = prefix
        self.running = running
        self._drains = drains
        self._measures = measures

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or live with the program."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        root, path = scope.get("root_path", ""), scope["path"]
        above = root if root and path.startswith(f"{root}/") else ""
        if is_below(path.removeprefix(above), self._prefix):
            await self._http({**scope, "root_path": above + self._prefix}, receive, send)
        elif scope["type"] == "http":
            await driven(self._answer(scope, receive, send), measures=self._measures)
        else:
            await driven(self._app(scope, receive, send), measures=self._measures)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let the program answer. Answer in its place if it has not begun to answer a call that is
        not served here.
        """
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        if self._drains() and scope.get("http_version", "1.1").startswith("1"):
            send = ending(send)
        try:
            await self._app(scope, receive, noted)
        except Unserved as error:
            if has_begun or not isinstance(error.error, PeerError | InvalidName):
                raise
            owner = vars(error.error).get("owner")
            if isinstance(owner, Peer):
                await redirect(owner, scope, send)
            else:
                await refuse_call(send, error.error, error.outcome)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        """Start the worker before the server learns that the program has started, and end it before
        the program learns that it ends. For a program without this protocol, answer in its place.
        """
        has_protocol = False
        async with AsyncExitStack() as life:

            async def received() -> Message:
                nonlocal has_protocol
                has_protocol = True
                message = await receive()
                if message["type"] == "lifespan.shutdown":
                    await _ended(life)
                return message

            async def sent(message: Message) -> None:
                if message["type"] == "lifespan.startup.complete":
                    try:
                        await life.enter_async_context(self.running())
                    except Exception as error:
                        await send({"type": "lifespan.startup.failed", "message": str(error)})
                        raise
                await send(message)

            try:
                await self._app(scope, received, sent)
            except Exception:
                # So a program says that it does not know the protocol.
                if has_protocol:
                    raise
            if not has_protocol:
                await received()
                await sent({"type": "lifespan.startup.complete"})
                await received()
                await sent({"type": "lifespan.shutdown.complete"})


async def _ended(life: AsyncExitStack) -> None:
    """End the worker. Its error must not keep the program from its own end."""
    try:
        await life.aclose()
    except EquipoiseError as error:
        _logger.error("the worker has ended with an error: %s", error)  # noqa: TRY400


def show_log_lines() -> None:
    """Have the log lines of the worker shown, unless the program has set up its logging. Servers
    show only their own lines by default. Those about each bundle are left out.
    """
    logger = logging.getLogger("equipoise")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(PlainLines())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logging.getLogger(BUNDLE_LINES).setLevel(logging.WARNING)
