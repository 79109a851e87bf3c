"""Keep the cache of each conversation with a language model in one process.

The conversation is small, and moves with its key. What the model has computed of it is large, and
stays: the next process computes it once more. A call is never sent to a second process, where the
cache would be cold. The balancer moves keys away from a process that has too much to do.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from fastapi import FastAPI
from pydantic import BaseModel

from equipoise import Equipoise, Keyed

CACHES_MAX = 100


@dataclass
class Conversation:
    """All messages, the oldest first."""

    messages: list[str] = field(default_factory=list)


class Reply(BaseModel):
    """A reply, and how many messages the model had to read for it."""

    text: str
    read: int


app = FastAPI()
conversations = Keyed("llm/conversations", Conversation)
caches = OrderedDict[str, int]()  # Stands for the caches of a model: the messages in each.


@app.post("/conversations/{name}")
@conversations.route("name")
async def talk(name: str, conversation: Conversation, message: str) -> Reply:
    """Answer a message. One message of a conversation is answered at a time."""
    conversation.messages.append(message)
    read = len(conversation.messages) - min(caches.pop(name, 0), len(conversation.messages) - 1)
    text = f"You said {message!r}."
    conversation.messages.append(text)
    caches[name] = len(conversation.messages)
    if len(caches) > CACHES_MAX:
        caches.popitem(last=False)
    return Reply(text=text, read=read)


Equipoise("sqlite:cluster.db", conversations, cluster="llm").install(app)
