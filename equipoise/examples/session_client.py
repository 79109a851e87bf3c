"""A client of the sessions in `sessions.py`. It follows its session from broker to broker; no
message is lost or doubled.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import aiohttp

from equipoise.examples.sessions import GO_ON, LOST, Message

PAUSE_S: Final = 0.05


class SessionClient:
    """One client of one session. `messages` are those that it has got."""

    def __init__(self, brokers: Sequence[str], namespace: str, session: str, name: str) -> None:
        """`brokers` are the HTTP addresses of some brokers of the cluster."""
        self._brokers = itertools.cycle(brokers)
        self._path = f"/sessions/{namespace}/{session}"
        self._name = name
        self._texts: list[str] = []
        self._confirmed = 0
        self._changed = asyncio.Event()
        self.messages: list[Message] = []

    def say(self, text: str) -> None:
        """Say something in the session, now or as soon as there is a connection."""
        self._texts.append(text)
        self._changed.set()

    async def run(self) -> None:
        """Stay connected until cancelled. Raises `ConnectionAbortedError` if the session began
        anew, and `aiohttp.ClientError` if brokers refuse this client.
        """
        address = next(self._brokers)
        async with aiohttp.ClientSession() as http:
            while True:
                owner = None
                try:
                    owner = await self._talk(http, address)
                except aiohttp.WSServerHandshakeError as error:
                    if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                        raise
                except (aiohttp.ClientError, TimeoutError):
                    pass  # That broker is gone.
                if not owner:
                    await asyncio.sleep(PAUSE_S)
                address = owner or next(self._brokers)

    async def _talk(self, http: aiohttp.ClientSession, address: str) -> str | None:
        """Talk to one broker. Return the address of the next one, if this one gave it."""
        query = {"client": self._name, "after": str(len(self.messages))}
        async with http.ws_connect(address + self._path, params=query) as socket:
            sending = asyncio.create_task(self._send(socket))
            try:
                while (frame := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                    client, number, text = frame.json()
                    self.messages.append((client, number, text))
                    if client == self._name:
                        self._confirmed = number
            finally:
                sending.cancel()
        if frame.type is aiohttp.WSMsgType.CLOSE and frame.data == LOST:
            raise ConnectionAbortedError(frame.extra)
        return (
            frame.extra if frame.type is aiohttp.WSMsgType.CLOSE and frame.data == GO_ON else None
        )

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send what is not confirmed, in order."""
        sent = self._confirmed
        with contextlib.suppress(ConnectionError):  # `receive` ends, too.
            while True:
                while sent < len(self._texts):
                    sent += 1
                    await socket.send_json([sent, self._texts[sent - 1]])
                self._changed.clear()
                await self._changed.wait()
