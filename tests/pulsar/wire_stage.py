"""The language of the stories of one connection.

A command of a client is `NAME fields`, with the fields in protobuf's format of texts; what every
client sends may be left out. `SEND fields + damaged` names another block. Commands that come in one
chunk are separated by `; `, and `bytes HEX` is any chunk. Besides:

* `connection keep_alive_ms=100 with PRODUCER producer_id: 1`: a new connection after its handshake,
  with these limits, and with these requests granted; `unconnected`: before its handshake;
  `guarded`: also with a check of credentials, which are `ROLE VALID_MS`
* `granted 10`, `granted 10 elsewhere`, `refused 10 MetadataError`: the service answers a request,
  or all that wait
* `checked me`, `checked wrong`: the end of a check that took longer, as one of a password does
* `broker closes-producer 1 URL`, `closes-consumer`, `delivers`, `activates`, `ends`
* `after 100 ms`, `after 100 ms unread`: time passes; the broker does not read meanwhile
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Final

from google.protobuf import text_format

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.authentication import Authenticate
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, ServerError
from equipoise.brokers.pulsar.wire.requests import Asked, Elsewhere, Published, Request
from equipoise.brokers.security.identity import BASIC, Credentials, Fault, Identity, Refusal
from tests.pulsar.pulsar_service import DumbService
from tests.pulsar.pulsar_speech import commands_in, entry, framed

ELSEWHERE: Final = Elsewhere(url="pulsar://other:6650")
BLOCKS: Final[Mapping[str, bytes]] = {
    "": entry(b"x" * 100),
    "damaged": entry()[:-1] + b"\x00",
    "empty": b"",
    "short": b"\x00\x00\x00\x09x",
    "unreadable": b"\x00\x00\x00\x01x",
}
# What every client sends. A story names what matters to it.
_USUAL: Final = {
    "CONNECT": 'client_version: "a test" protocol_version: 20',
    "LOOKUP": 'topic: "t"',
    "PRODUCER": 'topic: "t" request_id: 900',
    "SUBSCRIBE": 'topic: "t" subscription: "s" subType: Shared request_id: 900',
    "SEND": "num_messages: 1",
    "FLOW": "messagePermits: 5",
}
ME: Final = Identity(role="me", method=BASIC, valid_ms=None)
WRONG: Final = Refusal(fault=Fault.WRONG, problem="it is wrong")
_NOBODY: Final = str(2**64 - 1)


def command_of(name: str, body: str) -> BaseCommand:
    """A command by its name and its fields, in protobuf's format of texts."""
    command = BaseCommand(type=getattr(BaseCommand.Type, name))
    part = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
    part.SetInParent()
    for each in (_USUAL.get(name, ""), body):
        text_format.Merge(each, part)
    return command


def frame_in(text: str) -> bytes:
    """The frame of `NAME fields`, `NAME fields + BLOCK`, or `bytes HEX`."""
    name, _, body = text.partition(" ")
    if name == "bytes":
        return bytes.fromhex(body)
    body, _, block = body.partition("+")
    return framed(command_of(name, body), BLOCKS[block.strip()] if name == "SEND" or block else b"")


def written(command: BaseCommand) -> str:
    """A command on one line."""
    body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
    text = text_format.MessageToString(body, as_one_line=True, as_utf8=True)
    return f"{BaseCommand.Type.Name(command.type)} {text.replace(_NOBODY, 'nobody')}".strip()


def told_of(request: Request | Credentials | None) -> str:
    """A request to the service, or credentials, on one line."""
    if request is None:
        return "nothing"
    if isinstance(request, Published):
        entries = ", ".join(f"{sent.sequence_id} of {sent.messages}" for sent in request.entries)
        return f"Published producer={request.producer} entries={entries}"
    given = ((field.name, getattr(request, field.name)) for field in fields(request))
    # What a request does not have is left out.
    told = (
        f"{name}={value.name if isinstance(value, Enum) else repr(value)}"
        for name, value in given
        if value is not None and value is not False and value != ()
    )
    return " ".join((type(request).__name__, *told))


class WireStage:
    """One connection, its client, and its service."""

    def __init__(self) -> None:
        self._begin(Limits())

    def perform(self, line: str) -> Iterator[str]:
        """Do what a line of a story says. Return what the service is asked, and what is written."""
        before = len(self.service.seen)
        word, _, rest = line.partition(" ")
        if word in {"connection", "unconnected", "guarded"}:
            self._start(word, rest)
            before = 0
        elif word == "after":
            self.now_ms += int(rest.split()[0])
            self.service.handle(self.connection.tick(self.now_ms, is_read="unread" not in rest))
        elif word in {"granted", "refused"}:
            self._answer(rest.split(), is_granted=word == "granted")
        elif word == "checked":
            outcome = WRONG if rest == "wrong" else ME
            self.service.handle(self.connection.authenticated(outcome, self.now_ms))
        elif word == "broker":
            what, _, line = rest.partition("; ")
            self._act(*what.split())
            if line:
                self._receive(line)
        else:
            self._receive(line)
        yield from (f"checks {told_of(each)}" for each in self.checked)
        self.checked.clear()
        for request in self.service.seen[before:]:
            yield f"asks {told_of(request)}"
        for command, _ in commands_in(self.connection.take_outgoing()):
            yield f"writes {written(command)}"

    def _receive(self, line: str) -> None:
        stream = b"".join(frame_in(each) for each in line.split("; "))
        self.service.handle(self.connection.receive(stream, self.now_ms))

    def _start(self, how: str, settings: str) -> None:
        limits, *ready = f" {settings}".split(" with ")
        values = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", limits)}
        self._begin(Limits(**values), self._check if how == "guarded" else None)
        for line in ["CONNECT"] * (how == "connection") + ready:
            list(self.perform(line))
            self.service.answer()
        self.connection.take_outgoing()
        self.service.seen.clear()

    def _begin(self, limits: Limits, authenticate: Authenticate | None = None) -> None:
        self.now_ms = 0
        self.connection = Connection(limits=limits, now_ms=0, authenticate=authenticate)
        self.service = DumbService(connection=self.connection)
        self.checked: list[Credentials | None] = []

    def _check(self, credentials: Credentials | None) -> Identity | Refusal | None:
        """Accept the credentials `ROLE VALID_MS` or `ROLE`. A password takes longer."""
        self.checked.append(credentials)
        if credentials is None:
            return Refusal(fault=Fault.MISSING, problem="there is no token; send one")
        role, _, valid_ms = credentials.data.decode().partition(" ")
        if credentials.method == BASIC:
            return None
        if role == "forged":
            return Refusal(fault=Fault.FORGED, problem="it is forged")
        who = (
            {"role": credentials.original, "proxy": role}
            if credentials.original
            else {"role": role}
        )
        return Identity(
            **who, method=credentials.method, valid_ms=int(valid_ms) if valid_ms else None
        )

    def _answer(self, words: list[str], *, is_granted: bool) -> None:
        """Answer the requests with this id, or all that wait."""
        only = {int(word) for word in words if word.isdecimal()}
        for name in set(words) & set(ServerError.keys()):
            self.service.refusal = (getattr(ServerError, name), "not now")
        self.service.attached = ELSEWHERE if "elsewhere" in words else None
        self.service.answer(favourably=is_granted, only=only or None)

    def _act(self, what: str, id_: str = "0", *more: str) -> None:
        match what:
            case "ends":
                self.connection.end()
            case "delivers":
                block = entry()
                head = replies.message_head(int(id_), 1, -1, len(block))
                self.connection.send(head, block)
            case "activates":
                self.connection.active(int(id_), is_active=True)
            case "closes-producer":
                self.connection.close(Asked.PRODUCER, int(id_), *more)
            case "closes-consumer":
                self.connection.close(Asked.CONSUMER, int(id_), *more)
