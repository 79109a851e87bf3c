"""What the other brokers of the cluster say of their topics, asked over HTTP.

May live here: the questions, who is asked, and whether the answers tell of all bundles. The paths that answer stand in
`brokers.pulsar.admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, Self

import aiohttp
from yarl import URL

from equipoise.brokers.pulsar.hosting import Hosting
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT, PULSAR
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import HASH_MAX, TopicName, namespace_in, parse_bundle, topic_hash
from equipoise.channel.system.deadline import Deadline

# Bundles that move are nowhere for some milliseconds.
_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one broker has of a namespace at one moment: the bundles that are open there, by name, and all their topics, by full name."""

    bundles: Sequence[str]
    topics: Sequence[str]

    @classmethod
    def read(cls, answer: object) -> Self:
        """From the JSON that `document` is; raises `NotServed`."""
        try:
            bundles, topics = (tuple(map(str, answer[name])) for name in ("bundles", "topics"))  # type: ignore[index]
            for name in bundles:
                parse_bundle(name)
        except (TypeError, KeyError, InvalidName) as error:
            problem = f"a broker answers {answer!r:.80}, which lists no bundles and topics; ask again when all brokers are of one release"
            raise NotServed(error=ServerError.METADATA_ERROR, problem=problem) from error
        return cls(bundles=bundles, topics=topics)

    def document(self) -> dict[str, list[str]]:
        """As JSON can say it."""
        return {"bundles": list(self.bundles), "topics": list(self.topics)}


def are_whole(listings: Iterable[Listing]) -> bool:
    """Whether together they tell of every bundle of their namespace, whichever way it is cut."""
    reached = 0
    for bundle in sorted((parse_bundle(name) for listing in listings for name in listing.bundles), key=lambda bundle: bundle.low):
        if bundle.low > reached:
            return False
        reached = max(reached, bundle.high)
    return reached == HASH_MAX


class Peers:
    """The brokers beside this one that serve some bundle of a namespace. To be used within `asking`."""

    def __init__(self, worker: Worker, hosting: Hosting, *, timeout_ms: int, moving_ms: int) -> None:
        """`worker` knows who they are; each answers within `timeout_ms`, or is taken for one that does not.

        `hosting` knows what is here. Bundles that move are waited for, `moving_ms` at most.
        """
        self._worker = worker
        self._hosting = hosting
        self._timeout_ms = timeout_ms
        self._moving_ms = moving_ms
        self._http: aiohttp.ClientSession | None = None
        self._running: dict[str, asyncio.Task[Sequence[str]]] = {}
        self._next: dict[str, asyncio.Task[Sequence[str]]] = {}

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Keeps connections to them."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_ms / 1_000)) as self._http:
            yield

    async def topics_of(self, namespace: str) -> Sequence[str]:
        """The full names of the namespace's topics, here and at them, sorted.

        Raises `NotServed` if one of them does not say, or if some bundle was on its way all the time.
        """
        return await self._shared(namespace, lambda: self._list_all(namespace))

    def here(self, namespace: str) -> Listing:
        """What this broker has of a namespace. A bundle that another service of it has tells of no topics."""
        hosted = self._hosting.bundles
        names = [name for name in self._worker.open_bundles if namespace_in(name) == namespace]
        bundles = [name for name in names if name not in hosted or hosted[name].ownership.is_good]
        return Listing(bundles=bundles, topics=tuple(self._hosting.of_namespace(namespace)))

    async def ask_all(self, namespace: str, path: str) -> Sequence[object]:
        """What each of them answers, as JSON, to a GET of a path that is already encoded, with `local=true`. Raises `NotServed`."""
        return await self._ask_all(namespace, path)

    def is_served_here(self, topic: TopicName) -> bool:
        """Whether this broker serves a topic, or nobody does."""
        owner = self._owner(topic)
        return owner is None or owner.broker == self._worker.broker_id

    async def first_told(self, topic: TopicName, path: str) -> object | None:
        """What the broker that serves a topic answers to a GET of a path, as `ask_all`; if it has nothing to say, then what another does.

        None if nobody has; raises `NotServed` if, on top of that, one of them does not answer.
        """
        owner, me = self._owner(topic), self._worker.broker_id
        asked = {me} if owner is None else {me, owner.broker}
        failed: NotServed | None = None
        if owner is not None and owner.broker != me:
            try:
                told = await self._ask(owner, path)
            except NotServed as error:
                failed = error
            else:
                if told is not None:
                    return told
        others = [each for each in self._worker.view.live_brokers() if PULSAR in each.joined.addresses and each.broker not in asked]
        for answer in await asyncio.gather(*(self._ask(broker, path) for broker in others), return_exceptions=True):
            if isinstance(answer, NotServed):
                failed = answer
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                return answer
        if failed is not None:
            raise failed
        return None

    def _owner(self, topic: TopicName) -> BrokerEntry | None:
        view = self._worker.view
        bundle = view.bundle_at(topic.namespace, topic_hash(topic.full))
        return None if bundle is None or bundle.server is None else view.live.get(bundle.server)

    async def _list_all(self, namespace: str) -> Sequence[str]:
        """Ask until all answers together tell of every bundle.

        One that moves meanwhile may be missing in them, and its topics with it: it was asked for where it was not yet, or no more.
        """
        deadline = Deadline.after(timeout_ms=self._moving_ms)
        while True:
            if all(bundle.server is not None for bundle in self._worker.view.bundles_of(namespace)):
                told = await self._ask_all(namespace, f"/admin/v2/{NON_PERSISTENT}/{namespace}")
                listings = [*map(Listing.read, told), self.here(namespace)]
                if are_whole(listings):
                    return sorted({topic for listing in listings for topic in listing.topics})
            if not deadline.remaining_ms():
                problem = f"some bundle of namespace {namespace} was served nowhere for {self._moving_ms} ms; ask for its topics again"
                raise NotServed(error=ServerError.METADATA_ERROR, problem=problem)
            await asyncio.sleep(_AGAIN_S)

    async def _shared(self, what: str, ask: Callable[[], Coroutine[None, None, Sequence[str]]]) -> Sequence[str]:
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
        self, what: str, running: asyncio.Task[Sequence[str]], ask: Callable[[], Coroutine[None, None, Sequence[str]]]
    ) -> Sequence[str]:
        await asyncio.wait([running])
        self._running[what] = self._next.pop(what)
        return await ask()

    def _task(self, what: str, asking: Coroutine[None, None, Sequence[str]]) -> asyncio.Task[Sequence[str]]:
        task = asyncio.get_running_loop().create_task(asking, name=f"the topics of {what}")
        task.add_done_callback(partial(self._told, what))
        return task

    def _told(self, what: str, task: asyncio.Task[Sequence[str]]) -> None:
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
        """What a broker answers, None if it has nothing to say; raises `NotServed`."""
        assert self._http is not None, "asked while serving only"
        url = own_http(broker.joined.addresses)
        problem = "it advertises no HTTP address"
        if url is not None:
            try:
                async with self._http.get(URL(f"{url}{path}", encoded=True).update_query(local="true"), allow_redirects=False) as response:
                    if response.status == HTTPStatus.NO_CONTENT:
                        return None
                    if response.status == HTTPStatus.OK:
                        answer: object = await response.json()
                        return answer
                    problem = f"it answers {response.status}"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
        told = f"broker {broker.broker} does not answer for its topics: {problem}; ask again"
        raise NotServed(error=ServerError.METADATA_ERROR, problem=told)
