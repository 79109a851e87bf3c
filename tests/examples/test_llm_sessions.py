"""Tests of the program in equipoise/examples/llm_sessions.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from yarl import URL

from equipoise.pytest import MakeCluster, MovesAtEveryAwait

APP, NAMESPACE = "equipoise.examples.llm_sessions:app", "llm/conversations"


def test_a_conversation_is_read_again_only_where_it_moves(
    equipoise_moves: MovesAtEveryAwait,
) -> None:
    """Without a move, each call reads the new message alone."""
    for programs in equipoise_moves(APP, NAMESPACE, "ann"):
        replies = [
            programs.request("POST", f"/conversations/ann?message={word}").json()
            for word in ("one", "two", "three")
        ]
        assert [f"You said {word!r}." for word in ("one", "two", "three")] == [
            reply["text"] for reply in replies
        ]
        read = [reply["read"] for reply in replies]
        assert read in ([1, 1, 1], [1, 3, 1], [1, 1, 5])
        assert programs.move is not None or read == [1, 1, 1]


def test_a_busy_process_has_a_second_one_compute(
    equipoise_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same one for each message of a conversation. Without it, the message waits."""
    programs, away = equipoise_cluster(APP, brokers=["a", "b"]), False

    def is_of(broker: str, key: str) -> bool:
        return programs.owner(programs.bundle(NAMESPACE, key)) == broker

    names = [
        name for name in map(str, range(99)) if is_of("b", name) and is_of("a", f"{name}, second")
    ][:12]

    @asynccontextmanager
    async def request(method: str, url: URL, **options: Any) -> AsyncGenerator[object]:  # noqa: ANN401
        if away:
            raise aiohttp.ClientConnectionError
        answer = await programs.send(method, url.path, json=options["json"])
        yield SimpleNamespace(json=AsyncMock(return_value=answer.json()))

    monkeypatch.setattr(aiohttp, "request", request)

    async def talk(name: str) -> Any:  # noqa: ANN401
        answer = await programs.send("POST", f"/conversations/{name}?message=hello")
        return answer.json()

    async def talk_all() -> list[Any]:
        return await asyncio.gather(*map(talk, names))

    for _ in range(2):
        replies = programs.call(talk_all())
        assert {"b": 4, "a": 8} == Counter(reply["by"] for reply in replies)
        assert {1} == {reply["read"] for reply in replies}
    away = True
    replies = programs.call(talk_all())
    assert {"b": 12} == Counter(reply["by"] for reply in replies)
    assert Counter({1: 4, 5: 8}) == Counter(reply["read"] for reply in replies)
