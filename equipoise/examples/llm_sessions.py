"""Keep the cache of each conversation with a language model in one process.

The conversation is small, and moves with its key. What the model has computed of it is large, and
stays: the next process computes it once more. A process that is busy has a second one compute a
reply: the same one for each message of a conversation, so that it has a cache, too. What a model
has to read takes no CPU time here, so it is what the balancer evens out.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
from fastapi import FastAPI
from pydantic import BaseModel
from yarl import URL

from equipoise import Equipoise, Keyed, Peer

NAMESPACE = "llm/conversations"
REPLIES_MAX = 4  # Replies that one process computes at a time.
CACHES_MAX = 100


@dataclass
class Conversation:
    """All messages, the oldest first."""

    messages: list[str] = field(default_factory=list[str])


class Reply(BaseModel):
    """A reply, how many messages the model had to read for it, and the process that computed it."""

    text: str
    read: int
    by: str


app = FastAPI()
conversations = Keyed(NAMESPACE, Conversation, call_ms=60_000, unit="messages/s")
member = Equipoise("sqlite:cluster.db", conversations, cluster="llm")
caches = OrderedDict[str, int]()  # Stands for the caches of a model: the messages in each.
computing = asyncio.Semaphore(REPLIES_MAX)


@app.post("/conversations/{name}")
@conversations.route("name")
async def talk(name: str, conversation: Conversation, message: str) -> Reply:
    """Answer a message. One message of a conversation is answered at a time."""
    messages = [*conversation.messages, message]
    reply = await computed_elsewhere(name, messages) if computing.locked() else None
    reply = reply or await compute(name, messages)
    conversation.messages = [*messages, reply.text]
    return reply


async def computed_elsewhere(name: str, messages: list[str]) -> Reply | None:
    """Have the second process of a conversation compute a reply. None if there is none."""
    second = await member.route(NAMESPACE, f"{name}, second")
    if isinstance(second, Peer):
        url = URL(second.http_url) / "replies" / name
        with suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.request("POST", url, json=messages, raise_for_status=True) as answer:
                return Reply.model_validate(await answer.json())
    return None


@app.post("/replies/{name}")
async def compute(name: str, messages: list[str]) -> Reply:
    """Stand for the model, which reads what its cache lacks."""
    async with computing:
        read = len(messages) - min(caches.pop(name, 0), len(messages) - 1)
        conversations.charge(name, read)
        await asyncio.sleep(read / 1_000)
        caches[name] = len(messages) + 1
        if len(caches) > CACHES_MAX:
            caches.popitem(last=False)
        return Reply(text=f"You said {messages[-1]!r}.", read=read, by=member.broker_id)


member.install(app)
