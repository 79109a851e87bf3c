"""Sessions over WebSockets: each session is at the one broker that owns its key, and moves with its
bundle.

A client connects to `/sessions/{tenant}/{namespace}/{session}?client=NAME&after=COUNT`, where COUNT
is how many messages it has. It sends `[number, text]`, with numbers from 1. It gets all messages of
the session in order, also its own, as `[client, number, text]`.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise import Bundle, Deadline, Ownership, Peer, Service
from equipoise.errors import EquipoiseError

GO_ON: Final = 1012
"""The close code at which the client connects again: to the address in the reason, or to any broker
if there is none."""
INVALID: Final = 1008
"""The close code for a client that sends anything but its next messages."""
LOST: Final = 4000
"""The close code for a client that has more messages than the session: the session began anew after
the death of its broker."""

ROUTE_MS: Final = 10_000
CLOSE_S: Final = 1.0
FRAME_BYTES_MAX: Final = 64 * 1024

Message = tuple[str, int, str]  # The client, its number for the message, and the text.


class Session:
    """The messages of one session. `moved` is set when this broker has closed it: to the next
    owner's address, or to an empty text.
    """

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.messages = list(messages)
        self.numbers = {client: number for client, number, _ in messages}
        self.moved: str | None = None
        self.changed = asyncio.Event()

    def add(self, message: Message) -> bool:
        """Add a message, unless it is here: clients repeat what they have not got back. Return
        False if one before it is missing.
        """
        client, number, _ = message
        last = self.numbers.get(client, 0)
        if number == last + 1:
            self.messages.append(message)
            self.numbers[client] = number
        return number <= last + 1


class Sessions(Service):
    """Keeps sessions in memory. They move with their bundle, and are lost if the broker dies."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, str], Session] = {}  # By namespace and key.

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over the former owner's sessions."""
        for key, messages in json.loads(handover or b"{}").items():
            self.sessions[ownership.bundle.namespace, key] = Session(
                [(client, number, text) for client, number, text in messages]
            )

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Hand over the sessions of this bundle, and send their clients to the next owner."""
        keys = [key for namespace, key in self.sessions if bundle.contains(namespace, key)]
        leaving = {key: self.sessions.pop((bundle.namespace, key)) for key in keys}
        for session in leaving.values():
            session.moved = moved_to.http_url if moved_to else ""
            session.changed.set()
        return json.dumps({key: session.messages for key, session in leaving.items()}).encode()

    def session(self, ownership: Ownership, key: str) -> Session:
        """Return the session of a key, a new one if there is none. Raises `OwnershipLost`."""
        with ownership.begin(key):
            return self.sessions.setdefault((ownership.bundle.namespace, key), Session())

    def say(self, ownership: Ownership, key: str, message: Message) -> bool:
        """Add a message to a session, as `Session.add` does. Raises `OwnershipLost`: then the
        client sends it again.
        """
        with ownership.begin(key):
            session = self.sessions.setdefault((ownership.bundle.namespace, key), Session())
            is_next = session.add(message)
        session.changed.set()
        return is_next

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes that the broker serves on its port."""
        return [web.get("/sessions/{tenant}/{namespace}/{session}", self.connect)]

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Serve one client until the session moves, or the client leaves."""
        namespace, key = (
            "{tenant}/{namespace}".format(**request.match_info),
            request.match_info["session"],
        )
        client, after = request.query.get("client"), request.query.get("after", "0")
        if not client or not after.isdecimal():
            return web.Response(
                status=400,
                text=(
                    "give ?client=NAME&after=COUNT, where COUNT is how many messages the client has"
                ),
            )
        # Its errors become answers: 404, 503, 504.
        served = await self.host.route(namespace, key, timeout_ms=ROUTE_MS)
        socket = web.WebSocketResponse(timeout=CLOSE_S, heartbeat=30, max_msg_size=FRAME_BYTES_MAX)
        await socket.prepare(request)
        code, reason = GO_ON, ""
        if isinstance(served, Peer):
            reason = served.http_url
        else:
            with contextlib.suppress(EquipoiseError):  # The session moves at this moment.
                session = self.session(served, key)
                code, reason = await self.talk(
                    socket, session, (namespace, key, client), int(after)
                )
        await socket.close(code=code, message=reason.encode())
        return socket

    async def talk(
        self, socket: web.WebSocketResponse, session: Session, who: tuple[str, str, str], after: int
    ) -> tuple[int, str]:
        """Take the messages of one client, and send it those from `after` on. Return the code and
        reason to close with.
        """
        if after > len(session.messages):
            return (
                LOST,
                "the session began anew after the death of its broker; connect with after=0",
            )
        namespace, key, client = who
        writing = asyncio.create_task(write(socket, session, after))
        try:
            async for frame in socket:
                said = parsed(frame.data)
                served = await self.host.route(namespace, key, timeout_ms=ROUTE_MS)
                if isinstance(served, Peer) or session.moved is not None:
                    break
                if said is None or not self.say(served, key, (client, *said)):
                    return INVALID, "send [number, text], with numbers from 1 and none left out"
            return GO_ON, session.moved or ""
        finally:
            if session.moved is None:
                writing.cancel()
            await asyncio.wait([writing])


async def write(socket: web.WebSocketResponse, session: Session, after: int) -> None:
    """Send the messages from `after` on, as they come, until the session moves. A slow client
    delays only itself.
    """
    with contextlib.suppress(ConnectionError):  # The client is gone.
        while session.moved is None:
            for message in session.messages[after:]:
                await socket.send_json(message)
                after += 1
            if after == len(session.messages) and session.moved is None:
                session.changed.clear()
                await session.changed.wait()
        await socket.close(code=GO_ON, message=session.moved.encode())


def parsed(data: str | bytes) -> tuple[int, str] | None:
    """Return the number and the text of what a client sent, or None if it is anything else."""
    try:
        number, text = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return None
    return (number, text) if isinstance(number, int) and isinstance(text, str) else None
