"""Carry questions for assurances to other brokers, and answer theirs (section 4 of the protocol).

A question has a connection of its own, so that no half-open one swallows it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import aiohttp
import orjson

from equipoise.brokers.agent.effects import AskAssurance, AssuranceAnswered
from equipoise.brokers.agent.events import AssuranceAsked, Assured
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.security.own_token import OwnToken
from equipoise.brokers.security.tls import ClientTls
from equipoise.channel.core.errors import PeerError

ASSURANCE_PATH: Final = "/v1/assurance"

# A question is worth less each moment, and another one follows.
_ASK_MS_MAX: Final = 1_000
_CONNECT_MS_MAX: Final = 500
_ANSWER_BYTES_MAX: Final = 1_024

# Questions under way to one broker: one in each 250 ms by default, for a second.
_UNDER_WAY_MAX: Final = 4


class AssuranceMessages:
    """The questions and answers of one broker, on the running loop."""

    def __init__(
        self,
        *,
        step: Callable[[AssuranceAsked | Assured], None],
        cluster: str,
        own_token: OwnToken,
        tls: Callable[[], ClientTls],
    ) -> None:
        """`step` gives the agent an event. `own_token` and `tls` prove each side to the other."""
        self._step = step
        self._cluster = cluster
        self._own_token = own_token
        self._tls = tls
        self._asking: dict[int, set[asyncio.Task[None]]] = {}
        self._tickets: dict[int, asyncio.Future[bool]] = {}
        self._numbers = itertools.count(1)

    def carry_out(self, effect: AskAssurance | AssuranceAnswered) -> None:
        """Send a question, or answer one."""
        if isinstance(effect, AssuranceAnswered):
            answer = self._tickets.get(effect.ticket)
            if answer is not None and not answer.done():
                answer.set_result(effect.assured)
            return
        under_way = self._asking.setdefault(effect.broker.incarnation, set())
        if len(under_way) < _UNDER_WAY_MAX:
            task = asyncio.ensure_future(self._ask(effect))
            under_way.add(task)
            task.add_done_callback(lambda _: self._ended(effect.broker.incarnation, task))

    async def asked(self, *, cluster: str, asker: int, asked: int) -> bool:
        """Return whether this broker assures the incarnation `asker`, by a step of its agent."""
        ticket = next(self._numbers)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = answer
        try:
            self._step(AssuranceAsked(ticket=ticket, cluster=cluster, asker=asker, asked=asked))
            async with asyncio.timeout(_ASK_MS_MAX / 1_000):
                return await answer
        except TimeoutError:
            return False  # The broker has ended.
        finally:
            del self._tickets[ticket]

    async def stop(self) -> None:
        """Cancel the questions under way."""
        tasks = [task for under_way in self._asking.values() for task in under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, broker: int, task: asyncio.Task[None]) -> None:
        self._asking[broker].discard(task)
        if not self._asking[broker]:
            del self._asking[broker]

    async def _ask(self, question: AskAssurance) -> None:
        url = f"{own_http(question.broker.joined.addresses)}{ASSURANCE_PATH}"
        body = {
            "cluster": self._cluster,
            "asker": question.asker,
            "asked": question.broker.incarnation,
            "number": question.number,
        }
        timeout = aiohttp.ClientTimeout(
            total=_ASK_MS_MAX / 1_000, sock_connect=_CONNECT_MS_MAX / 1_000
        )
        answer = await answer_of(
            url,
            body,
            within=timeout,
            own_token=self._own_token,
            tls=self._tls(),
            bytes_max=_ANSWER_BYTES_MAX,
        )
        event = assured_in(answer)
        if event is not None:
            self._step(event)


async def answer_of(
    url: str,
    question: Mapping[str, object],
    *,
    within: aiohttp.ClientTimeout,
    own_token: OwnToken,
    tls: ClientTls,
    bytes_max: int = -1,
) -> object:
    """Ask another broker with a JSON document. Return that of its answer, of at most `bytes_max`
    bytes; None if it does not answer so, or has no address for the token.
    """
    try:
        headers = {"Content-Type": "application/json", **own_token.headers(url)}
        async with (
            aiohttp.ClientSession(timeout=within) as session,
            session.post(
                url, data=orjson.dumps(question), headers=headers, allow_redirects=False, ssl=tls
            ) as response,
        ):
            if response.status != HTTPStatus.OK:
                return None
            return orjson.loads(await response.content.read(bytes_max))
    except (aiohttp.ClientError, TimeoutError, ValueError, PeerError):
        return None


def assured_in(answer: object) -> Assured | None:
    """Read an answer. None if it is no assurance."""
    if not isinstance(answer, dict) or answer.get("assured") is not True:
        return None
    match answer:
        case {"cluster": str(cluster), "asker": int(asker), "by": int(by), "number": int(number)}:
            return Assured(cluster=cluster, asker=asker, by=by, number=number)
        case _:
            return None
