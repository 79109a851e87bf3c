"""Serve Pulsar's two lookup paths: the broker that serves a topic, and the topic's bundle.

Theory of operation:

* The topic path is the hottest of the port. `make bench BENCH=lookup` compares it with a bare
  aiohttp application.
* It is therefore one route for aiohttp, and answers are cached by path. Before a cached answer is
  used, everything that it depends on is checked.
* A lookup without an answer yet is held (`brokers.runtime.worker`). Beyond the limit of held
  lookups the answer is 503.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import orjson
from aiohttp import web

from equipoise.brokers.http.answers import JSON, error_answer, text_answer
from equipoise.brokers.http.readiness import CHANNEL_LOST_MS, ready_view
from equipoise.brokers.runtime.metrics import LookupOutcome
from equipoise.brokers.runtime.router import Located
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded, InvalidName
from equipoise.channel.core.ranges import TopicName, parse_topic, topic_hash

ANSWERS_REMEMBERED_MAX: Final = 8_192
"""Limit of cached answers: about 600 bytes each, twice that at most, so 5 to 10 MiB in all.

Clients ask for the same topics whenever a bundle moves. At the limit the cache is cleared, which
costs each topic one lookup.
"""

_PREFIX: Final = "/lookup/v2/topic/"
_PARTS_OF_TOPIC: Final = 4
_PATH_SHOWN_MAX: Final = 256
# In characters. A longer path is not cached, which costs it 20 microseconds.
_PATH_REMEMBERED_MAX: Final = 512
_EXPECTED_PATH: Final = f"{_PREFIX}DOMAIN/TENANT/NAMESPACE/TOPIC, percent-encoded UTF-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A cached answer to a path, with the bundle and the broker in it."""

    bundle: BundleEntry
    broker: BrokerEntry
    body: bytes


class Lookup:
    """The lookup paths of one worker."""

    def __init__(
        self,
        worker: Worker,
        lookups: Lookups,
        *,
        is_pulsars: Callable[[TopicName], bool] | None = None,
    ) -> None:
        """Take the worker and its lookups. `is_pulsars` is given if this broker accepts Pulsar's
        clients.

        It returns whether a topic is one of Pulsar's clients, and raises `NotServed` for one that
        would be stored. For a topic of another service the answer has no Pulsar addresses, because
        that service would refuse them.
        """
        self._is_pulsars = is_pulsars
        self._worker = worker
        self._lookups = lookups
        self._answers: dict[str, _Answer] = {}

    def routes(self) -> Sequence[web.RouteDef]:
        """Return one route for both paths: `DOMAIN/TENANT/NAMESPACE/TOPIC`, and the same with
        `/bundle`.
        """
        return (web.get(f"{_PREFIX}{{path:(?s:.*)}}", self.lookup),)

    async def lookup(self, request: web.Request) -> web.Response:
        """Return the addresses of the broker that serves a topic, once there is one; or, with
        `/bundle`, the range of its bundle.
        """
        started_ns = time.monotonic_ns()
        path = request.rel_url.raw_path
        answer = self._answers.get(path)
        if answer is not None and self._holds(answer):
            self._worker.metrics.lookup(LookupOutcome.ANSWERED, started_ns=started_ns)
            return web.Response(body=answer.body, content_type=JSON)
        topic, wants_bundle = topic_in(path)
        has_pulsar = self._is_pulsars is None or self._is_pulsars(topic)
        try:
            if wants_bundle:
                return await self._range(topic)
            return await self._topic(request, topic, has_pulsar=has_pulsar, started_ns=started_ns)
        except DeadlineExceeded as error:
            # Not 504: no operation began that might still happen, and a retry is right.
            return error_answer(request, error, status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _holds(self, answer: _Answer) -> bool:
        """Return whether a cached answer is still valid: everything that `Worker.locate` checks is
        unchanged.

        Every change of a bundle replaces its entry, including the death of its broker.
        """
        agent, now = self._worker.agent, self._worker.clock.now()
        bundle = answer.bundle
        if (
            agent.view.bundles.get(bundle.name) is not bundle
            or not agent.lease.good(now)
            or agent.out_of_touch_ms(now) is not None
        ):
            return False
        return not agent.is_suspect(
            answer.broker, now, log_is_readable=self._worker.log_is_available
        )

    async def _topic(
        self, request: web.Request, topic: TopicName, *, has_pulsar: bool, started_ns: int
    ) -> web.Response:
        located = await self._lookups.locate(
            topic.namespace, topic_hash(topic.full), started_ns=started_ns
        )
        body = _lookup_data(located, has_pulsar=has_pulsar)
        if located.lost_ms is not None:  # Not cached: the duration of the loss differs each time.
            return web.Response(
                body=body, content_type=JSON, headers={CHANNEL_LOST_MS: str(located.lost_ms)}
            )
        self._remember(request.rel_url.raw_path, located, body)
        return web.Response(body=body, content_type=JSON)

    def _remember(self, path: str, located: Located, body: bytes) -> None:
        if len(self._answers) >= ANSWERS_REMEMBERED_MAX:
            self._answers.clear()
        if len(path) <= _PATH_REMEMBERED_MAX:
            self._answers[path] = _Answer(bundle=located.bundle, broker=located.broker, body=body)

    async def _range(self, topic: TopicName) -> web.Response:
        ready_view(self._worker)
        name, point = topic.namespace, topic_hash(topic.full)
        timeout_ms = self._worker.config.lookup_ms
        bundle = await self._worker.router.known(
            name,
            lambda view: view.bundle_at(name, point),
            timeout_ms=timeout_ms,
            what=f"namespace {name}",
        )
        return text_answer(bundle.name.rpartition("/")[2])


def topic_in(raw_path: str) -> tuple[TopicName, bool]:
    """Return the topic in a raw path, and whether its bundle is requested.

    A topic's name may hold anything but a slash, and is percent-encoded once. Raises `InvalidName`.
    """
    parts = raw_path.removeprefix(_PREFIX).split("/")
    wants_bundle = len(parts) == _PARTS_OF_TOPIC + 1 and parts[-1] == "bundle"
    if wants_bundle:
        parts.pop()
    try:
        domain, tenant, namespace, local = (unquote(part, errors="strict") for part in parts)
    except ValueError:  # Too many or too few parts, or bytes that are not UTF-8.
        raise InvalidName(
            what="path of a topic", name=raw_path[:_PATH_SHOWN_MAX], expected=_EXPECTED_PATH
        ) from None
    return parse_topic(f"{domain}://{tenant}/{namespace}/{local}"), wants_bundle


def _lookup_data(located: Located, *, has_pulsar: bool) -> bytes:
    """Return Pulsar's `LookupData`. A missing key would crash its C++ client, so one without an
    address is empty.
    """
    addresses = located.broker.joined.addresses
    pulsar, pulsar_tls = (
        addresses.get(each, "") if has_pulsar else "" for each in ("pulsar", "pulsar+ssl")
    )
    return orjson.dumps(
        {
            "brokerUrl": pulsar,
            "brokerUrlTls": pulsar_tls,
            "httpUrl": addresses.get("http", ""),
            "httpUrlTls": addresses.get("https", ""),
            "nativeUrl": pulsar,
            "brokerUrlSsl": pulsar_tls,
        }
    )
