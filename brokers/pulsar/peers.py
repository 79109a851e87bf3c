"""What the other brokers of the cluster say of their topics, asked over HTTP.

May live here: the questions, and who is asked. What is said of the topics here is the service's, and the paths that answer
stand in `brokers.pulsar.admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

import aiohttp
from yarl import URL

from brokers.pulsar.errors import NotServed, ServerError
from brokers.pulsar.names import NON_PERSISTENT
from brokers.worker import Worker
from channel.entries import BrokerEntry


class Peers:
    """The brokers beside this one that serve some bundle of a namespace. To be used within `asking`."""

    def __init__(self, worker: Worker, *, timeout_ms: int) -> None:
        """`worker` knows who they are; each answers within `timeout_ms`, or is taken for one that does not."""
        self._worker = worker
        self._timeout_ms = timeout_ms
        self._http: aiohttp.ClientSession | None = None
        self._running: dict[str, asyncio.Task[Sequence[object]]] = {}
        self._next: dict[str, asyncio.Task[Sequence[object]]] = {}

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Keeps connections to them."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_ms / 1_000)) as self._http:
            yield

    async def topics_of(self, namespace: str) -> Sequence[str]:
        """The full names of the namespace's topics that they serve. Raises `NotServed` if one of them does not say."""
        told = await self._shared(namespace, lambda: self._ask_all(namespace, f"/admin/v2/{NON_PERSISTENT}/{namespace}"))
        return [str(name) for names in told if isinstance(names, list) for name in names]

    async def ask_all(self, namespace: str, path: str) -> Sequence[object]:
        """What each of them answers, as JSON, to a GET of a path that is already encoded, with `local=true`. Raises `NotServed`."""
        return await self._ask_all(namespace, path)

    async def _shared(self, what: str, ask: Callable[[], Coroutine[None, None, Sequence[object]]]) -> Sequence[object]:
        """One answer for all who ask while another question is under way: clients that follow a pattern do so, and all at once.

        That other answer is not for them: it may be of a time before they asked, and lack a topic that they have just made.
        """
        running = self._running.get(what)
        if running is None:
            task = self._running[what] = self._task(what, ask())
        else:
            task = self._next.get(what) or self._task(what, self._behind(what, running, ask))
            self._next.setdefault(what, task)
        return await asyncio.shield(task)

    async def _behind(
        self, what: str, running: asyncio.Task[Sequence[object]], ask: Callable[[], Coroutine[None, None, Sequence[object]]]
    ) -> Sequence[object]:
        await asyncio.wait([running])
        self._running[what] = self._next.pop(what)
        return await ask()

    def _task(self, what: str, asking: Coroutine[None, None, Sequence[object]]) -> asyncio.Task[Sequence[object]]:
        task = asyncio.get_running_loop().create_task(asking, name=f"the topics of {what}")
        task.add_done_callback(partial(self._told, what))
        return task

    def _told(self, what: str, task: asyncio.Task[Sequence[object]]) -> None:
        if self._running.get(what) is task:
            del self._running[what]
        if not task.cancelled():
            task.exception()  # Whoever still waits gets it; nobody has to.

    async def _ask_all(self, namespace: str, path: str) -> Sequence[object]:
        view = self._worker.view
        others: dict[str, BrokerEntry] = {}
        for bundle in view.bundles_of(namespace):
            entry = None if bundle.server is None else view.live.get(bundle.server)
            if entry is not None and entry.broker != self._worker.broker_id:
                others[entry.broker] = entry
        return await asyncio.gather(*(self._ask(others[broker], path) for broker in sorted(others)))

    async def _ask(self, broker: BrokerEntry, path: str) -> object:
        assert self._http is not None, "asked while serving only"
        url = broker.joined.addresses.get("http")
        problem = "it advertises no HTTP address"
        if url is not None:
            try:
                async with self._http.get(URL(f"{url}{path}", encoded=True).update_query(local="true"), allow_redirects=False) as response:
                    if response.status == HTTPStatus.OK:
                        answer: object = await response.json()
                        return answer
                    problem = f"it answers {response.status}"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
        told = f"broker {broker.broker} does not answer for its topics: {problem}; ask again"
        raise NotServed(error=ServerError.METADATA_ERROR, problem=told)
