"""Each transcript of HTTP happens as its file says: what brokers answer to requests.

| question | meaning |
|---|---|
| `cluster NAME=VALUE ...` | start a cluster with these options of `cluster` |
| `METHOD PATH BODY` | send a request to the first broker; `other METHOD PATH BODY` to the second |
| `give BUNDLE one` | have the first broker own a bundle, or with `other` the second |
| `emptied` | wait until the second broker owns no bundle |
| `settle` | wait until all bundles are owned, and all brokers know it |

`$ONE` and `$OTHER` are the ids of the brokers. An answer has the headers that differ. What differs
from run to run, such as offsets, has a word in its place.
"""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests import transcripts
from tests.unit.http.cluster import Answer, Cluster, cluster, until

_HEADERS: Final = ("Allow", "Retry-After", "X-Unload-Outcome")
_DIFFERENT: Final = (
    (r"\b\d{13}\b", "MILLISECONDS"),
    (r"memory:[0-9a-f-]{36}", "LOG"),
    (r"(?<=\"version\":)\"[^\"]+\"", "VERSION"),
    (
        (
            r'("(?:offset|last|token|incarnation|owner_incarnation|source_incarnation|changed_at)":'
            r" ?|offset |token |of the view )\d+"
        ),
        r"\1N",
    ),
)


class Session:
    """Answers questions, one after another."""

    def __init__(self, folder: Path, parts: AsyncExitStack) -> None:
        self._folder = folder
        self._parts = parts
        self._brokers = Cluster(brokers=())

    async def answer(self, question: str) -> str:
        """Do what a question asks, and return the answer."""
        verb, _, rest = question.partition(" ")
        match verb:
            case "cluster":
                await self._parts.aclose()
                options = {
                    name: json.loads(value)
                    for name, value in (each.split("=") for each in rest.split())
                }
                self._brokers = await self._parts.enter_async_context(
                    cluster(self._folder, **options)
                )
            case "settle":
                await self._brokers.settled()
            case "emptied":
                other = self._brokers.brokers[1].worker.agent.incarnation or 0
                await until(lambda: not self._brokers.view.held_count(other))
            case "give":
                bundle, to = rest.split()
                await self._brokers.give(bundle, self._brokers.brokers[to == "other"])
            case _:
                return await self._asked(question)
        return ""

    async def _asked(self, question: str) -> str:
        ids = {
            name: broker.id
            for name, broker in zip(("$ONE", "$OTHER"), self._brokers.brokers, strict=False)
        }
        request = question.removeprefix("other ")
        for name, found in ids.items():
            request = request.replace(name, found)
        method, path, body = [*request.split(" ", 2), ""][:3]
        broker = self._brokers.brokers[question.startswith("other ")]
        text = _shown(await broker.ask(method, path, data=body.encode() if body else None))
        for name, found in ids.items():
            text = text.replace(found, name)
        for pattern, word in _DIFFERENT:
            text = re.sub(pattern, word, text)
        return text


def _shown(answer: Answer) -> str:
    headers = [f"{name}: {answer.headers[name]}" for name in _HEADERS if name in answer.headers]
    return "\n".join((f"{answer.status} {answer.body.decode()}", *headers))


@pytest.mark.parametrize(
    "path", transcripts.paths(Path(__file__).parent / "transcripts"), ids=lambda path: path.stem
)
async def test_brokers_answer_what_a_transcript_says(path: Path, tmp_path: Path) -> None:
    async with AsyncExitStack() as parts:
        session = Session(tmp_path, parts)
        transcripts.compare(
            path, [await session.answer(question) for question in transcripts.questions(path)]
        )
