"""Ask the other brokers of the cluster about their topics over HTTP.

`brokers.pulsar.admin` serves the answering paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from equipoise.brokers.pulsar.hosting import Hosting
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT
from equipoise.brokers.pulsar.wire.errors import not_answered
from equipoise.brokers.runtime.service import own_http, pulsar_address
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import InvalidName, PeerError
from equipoise.channel.core.ranges import (
    HASH_MAX,
    TopicName,
    namespace_in,
    parse_bundle,
    topic_hash,
)
from equipoise.channel.system.clocks import Deadline

# A moving bundle has no owner for some milliseconds.
_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One broker's part of a namespace at one moment: the names of its open bundles, and the full
    names of their topics.
    """

    bundles: Sequence[str]
    topics: Sequence[str]

    @classmethod
    def read(cls, answer: object) -> Self:
        """Read a listing from the JSON of `document`. Raise `PeerError`."""
        try:
            bundles, topics = (tuple(map(str, answer[name])) for name in ("bundles", "topics"))  # type: ignore[index]
            for name in bundles:
                parse_bundle(name)
        except (TypeError, KeyError, InvalidName) as error:
            problem = (
                f"a broker answers {answer!r:.80}, which is not a list of topics; ask again when"
                " all brokers run the same release"
            )
            raise not_answered(problem) from error
        return cls(bundles=bundles, topics=topics)

    def document(self) -> dict[str, list[str]]:
        """Return the listing as JSON values."""
        return {"bundles": list(self.bundles), "topics": list(self.topics)}


def are_whole(listings: Iterable[Listing]) -> bool:
    """Return whether the listings together cover every point of the namespace, however it is
    split.
    """
    reached = 0
    for bundle in sorted(
        (parse_bundle(name) for listing in listings for name in listing.bundles),
        key=lambda bundle: bundle.low,
    ):
        if bundle.low > reached:
            return False
        reached = max(reached, bundle.high)
    return reached == HASH_MAX


class Peers:
    """The other brokers that serve bundles of a namespace. Use it within `asking`."""

    def __init__(
        self, worker: Worker, hosting: Hosting, *, timeout_ms: int, moving_ms: int
    ) -> None:
        """`worker` knows the other brokers, `hosting` the local topics.

        A broker that does not answer within `timeout_ms` counts as failed. Questions are repeated
        for at most `moving_ms` while a bundle moves.
        """
        self._worker = worker
        self._hosting = hosting
        self._timeout_ms = timeout_ms
        self._moving_ms = moving_ms
        self._http: aiohttp.ClientSession | None = None
        # By namespace: the question that waits for the running one, and the lock that this one has.
        # A lock goes when nobody holds it or waits for it.
        self._next: dict[str, asyncio.Task[Sequence[str]]] = {}
        self._asking = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Keep HTTP connections to the other brokers open."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_ms / 1_000)
        ) as self._http:
            yield

    async def topics_of(self, namespace: str) -> Sequence[str]:
        """Return the sorted full names of a namespace's topics on all brokers.

        All callers that arrive while an earlier question runs share one question: clients that
        subscribe to a pattern ask all at once. They do not get the earlier answer: it may predate
        their call and lack a topic that they have just created.

        Raises `PeerError` if a broker does not answer, or if a bundle kept moving.
        """
        task = self._next.get(namespace)
        if task is None:
            task = self._next[namespace] = asyncio.get_running_loop().create_task(
                self._list_behind(namespace), name=f"the topics of {namespace}"
            )
            # Waiting callers get the exception; retrieve it in case there are none.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def here(self, namespace: str) -> Listing:
        """Return this broker's listing of a namespace. Bundles of other services have no topics in
        it.
        """
        hosted = self._hosting.bundles
        names = [name for name in self._worker.open_bundles if namespace_in(name) == namespace]
        bundles = [name for name in names if name not in hosted or hosted[name].ownership.is_good]
        return Listing(
            bundles=bundles,
            topics=sorted(
                (
                    *(served.name for served in self._hosting.in_namespace(namespace)),
                    *self._hosting.announced_in(namespace),
                )
            ),
        )

    async def ask_all(self, namespace: str, path: str, *, method: str = "GET") -> Sequence[object]:
        """Return the JSON answer of each other broker with bundles of a namespace to a request of
        an encoded path with `local=true`.

        Asks all again if a bundle moved meanwhile: it may have been missing at both brokers. What
        this broker itself does when this returns, before it waits for anything, concerns its
        bundles in the same placement.

        Raises `PeerError` if one of them does not answer, or if a bundle kept moving.
        """
        return await self._ask_placed(
            namespace, path, method, Deadline.after(timeout_ms=self._moving_ms)
        )

    async def _ask_placed(
        self, namespace: str, path: str, method: str, deadline: Deadline
    ) -> Sequence[object]:
        """Ask as `ask_all` until the deadline."""
        while True:
            placed = self._placed(namespace)
            if None not in placed.values():
                others = {
                    each.broker: each
                    for each in placed.values()
                    if each is not None and each.broker != self._worker.broker_id
                }
                answers = await asyncio.gather(
                    *(self._ask(others[broker], path, method) for broker in sorted(others))
                )
                if placed == self._placed(namespace):
                    return answers
            await self._again(namespace, deadline)

    def _placed(self, namespace: str) -> Mapping[str, BrokerEntry | None]:
        """Return the live broker of each bundle by name, or None while it has none."""
        view = self._worker.view
        return {
            each.name: None if each.server is None else view.live.get(each.server)
            for each in view.bundles_of(namespace)
        }

    async def _again(self, namespace: str, deadline: Deadline) -> None:
        """Wait before the next question. Raise `PeerError` after the deadline."""
        if not deadline.remaining_ms():
            raise not_answered(
                f"a bundle of namespace {namespace} had no broker for {self._moving_ms} ms; ask"
                " again"
            )
        await asyncio.sleep(_AGAIN_S)

    async def ask_everyone(self, path: str, *, method: str) -> Sequence[object]:
        """Return the JSON answer of each other broker that serves Pulsar's clients; see
        `ask_all`.
        """
        return await asyncio.gather(*(self._ask(broker, path, method) for broker in self._others()))

    def _others(self) -> Sequence[BrokerEntry]:
        """Return the other live brokers that serve Pulsar's clients."""
        me = self._worker.broker_id
        return [
            each
            for each in self._worker.view.live_brokers()
            if pulsar_address(each.joined.addresses) and each.broker != me
        ]

    def is_served_here(self, topic: TopicName) -> bool:
        """Return whether this broker serves a topic, or no broker does."""
        owner = self._owner(topic)
        return owner is None or owner.broker == self._worker.broker_id

    async def first_answer(self, topic: TopicName, path: str) -> object | None:
        """Return the answer of a topic's owner to a GET of a path, else the first answer of another
        broker, else None.

        Raises `PeerError` if there is no answer and a broker failed. For the path see `ask_all`.
        """
        owner, others = self._owner(topic), self._others()
        failed: PeerError | None = None
        for brokers in (
            [each for each in others if each == owner],
            [each for each in others if each != owner],
        ):
            for answer in await asyncio.gather(
                *(self._ask(broker, path) for broker in brokers), return_exceptions=True
            ):
                if isinstance(answer, PeerError):
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
        """Ask all brokers until their answers cover every bundle.

        A bundle that moves between two answers may be missing in both, and its topics with it.
        """
        deadline = Deadline.after(timeout_ms=self._moving_ms)
        while True:
            answers = await self._ask_placed(
                namespace, f"/admin/v2/{NON_PERSISTENT}/{namespace}", "GET", deadline
            )
            listings = [*map(Listing.read, answers), self.here(namespace)]
            if are_whole(listings):
                return sorted({topic for listing in listings for topic in listing.topics})
            await self._again(namespace, deadline)

    async def _list_behind(self, namespace: str) -> Sequence[str]:
        """Ask once the running question has ended."""
        async with self._asking.setdefault(namespace, asyncio.Lock()):
            del self._next[namespace]
            return await self._list_all(namespace)

    async def _ask(self, broker: BrokerEntry, path: str, method: str = "GET") -> object:
        """Return a broker's answer, or None if it has none. Raise `PeerError`."""
        assert self._http is not None, "asked while serving only"
        url = own_http(broker.joined.addresses)
        problem = "it advertises no HTTP address"
        if url is not None:
            try:
                local = URL(f"{url}{path}", encoded=True).update_query(local="true")
                headers, tls = (
                    self._worker.access.own_token.headers(url),
                    self._worker.access.certificates.client,
                )
                async with self._http.request(
                    method, local, headers=headers, allow_redirects=False, ssl=tls
                ) as response:
                    if response.status == HTTPStatus.NO_CONTENT:
                        return None
                    if response.status == HTTPStatus.OK:
                        answer: object = await response.json()
                        return answer
                    problem = f"it answers {response.status}"
            except PeerError as error:  # Of the token.
                problem = str(error)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
        problem = f"broker {broker.broker} does not answer for its topics: {problem}; ask again"
        raise not_answered(problem)
