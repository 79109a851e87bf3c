"""Count calls per key, with a fencing token on every write, in a store that refuses older tokens.

`POST /counter/{tenant}/{namespace}/{key}` adds one. Each broker answers for the keys that it owns,
and redirects other calls to their owner (307). Two calls with the same `X-Request-Id` count once.
`EQUIPOISE_COUNTER_STORE` names the store's file.
"""

import os
import uuid
from collections.abc import Sequence

from aiohttp import web

from equipoise import Bundle, Deadline, Ownership, Peer, Service
from equipoise.errors import (
    CallerError,
    DeadlineExceeded,
    Overloaded,
    PeerError,
    StaleToken,
    UnknownNamespace,
)
from equipoise.examples.counter_store import (
    CounterStore,
    Increment,
)


class Counter(Service):
    """One instance serves all bundles of its broker. The counters are in the store, so there is
    nothing to hand over.
    """

    def __init__(self, store: CounterStore | None = None) -> None:
        self._store = store or CounterStore(os.environ.get("EQUIPOISE_COUNTER_STORE", ""))
        self._namespaces = set[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """There is nothing to load: the counters are in the store."""
        self._namespaces.add(ownership.bundle.namespace)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """There is nothing to save. A call that is under way fails its second check, and its caller
        asks again.
        """

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes that the broker serves on its port."""
        return [web.post("/counter/{tenant}/{namespace}/{key}", self.increment)]

    async def increment(self, request: web.Request) -> web.Response:
        """Add one to a key if this broker owns it. Otherwise redirect the caller to the owner."""
        namespace, key = (
            "{tenant}/{namespace}".format(**request.match_info),
            request.match_info["key"],
        )
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        if not (request_id.isascii() and request_id.isprintable()):
            return web.Response(status=400, text="an X-Request-Id is printable ASCII")
        try:
            served = await self.host.route(namespace, key, timeout_ms=10_000)
            if isinstance(served, Peer):
                return web.Response(
                    status=307, headers={"Location": served.http_url + request.path_qs}
                )
            if namespace not in self._namespaces:
                return web.Response(
                    status=404, text=f"namespace {namespace} belongs to another service"
                )
            work = served.begin(key)  # The first check: work may start.
        except UnknownNamespace as error:
            return web.Response(status=404, text=str(error))
        except (DeadlineExceeded, Overloaded, PeerError) as error:
            return _later(error)
        increment = Increment(
            key=f"{namespace}/{key}",
            token=work.token,
            broker=self.host.broker_id,
            request=request_id,
        )
        try:
            stored = await self._store.increment(increment)
            work.finish()  # The second check: the answer may be sent.
        except CallerError as error:
            return web.Response(status=409, text=str(error))
        except (StaleToken, Overloaded) as error:  # Certainly nothing was written.
            return _later(error)
        except PeerError as error:
            # It may have been written, so no other status would be correct.
            return web.Response(status=500, text=str(error))
        return web.json_response(
            {
                "key": increment.key,
                "value": stored.value,
                "token": stored.token,
                "broker": stored.broker,
            }
        )


def _later(problem: object) -> web.Response:
    return web.Response(status=503, headers={"Retry-After": "1"}, text=str(problem))
