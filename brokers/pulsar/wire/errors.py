"""What goes wrong between a Pulsar client and this broker, as errors.

May live here: exception classes of this service, descending from those in `channel.core.errors`, and the codes they carry. No
`PulsarProtocolError` ever leaves a `Connection`: it ends with `Ended` instead, which names the error's `violation`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar

from equipoise.channel.core.errors import Bug, CallerError, PeerError


class Violation(StrEnum):
    """Why a connection was ended by this side; what the counter of ended connections is labelled with."""

    FRAME_TOO_LARGE = "frame_too_large"
    MALFORMED_FRAME = "malformed_frame"
    MALFORMED_COMMAND = "malformed_command"
    UNKNOWN_COMMAND = "unknown_command"
    UNEXPECTED_COMMAND = "unexpected_command"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNKNOWN_PRODUCER = "unknown_producer"
    NO_HANDSHAKE = "no_handshake"
    NO_ANSWER = "no_answer"
    NEVER_READS = "never_reads"
    NO_ROOM = "no_room"


class ServerError(IntEnum):
    """Why a request is refused, in Pulsar's numbers; those that this broker has a use for."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    CHECKSUM_ERROR = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    CONSUMER_ASSIGN_ERROR = 19
    NOT_ALLOWED = 22
    PRODUCER_FENCED = 25


class PulsarProtocolError(PeerError):
    """A client sent what no Pulsar client sends; its connection cannot go on."""

    violation: ClassVar[Violation]

    def __init__(self, *, problem: str) -> None:
        """`problem` says what was sent, or not sent."""
        self.problem = problem
        super().__init__(f"a Pulsar client broke the protocol: {problem}; its connection is closed, and it may connect again")


class FrameTooLarge(PulsarProtocolError):
    """A frame, or the command in it, announces more bytes than are taken."""

    violation = Violation.FRAME_TOO_LARGE

    def __init__(self, *, what: str, size: int, size_max: int) -> None:
        """`what` (`frame` or `command`) announces `size` bytes, and `size_max` are taken."""
        self.size = size
        self.size_max = size_max
        super().__init__(problem=f"a {what} of {size} bytes, where at most {size_max} are taken")


class MalformedFrame(PulsarProtocolError):
    """Sizes or marks within a frame contradict each other."""

    violation = Violation.MALFORMED_FRAME


class MalformedCommand(PulsarProtocolError):
    """The bytes of a command are no protobuf of Pulsar's, or lack what they must have."""

    violation = Violation.MALFORMED_COMMAND


class UnknownCommand(PulsarProtocolError):
    """A command of a type that this broker does not know."""

    violation = Violation.UNKNOWN_COMMAND


class UnexpectedCommand(PulsarProtocolError):
    """A command that a client never sends, or not at this point."""

    violation = Violation.UNEXPECTED_COMMAND


class UnsupportedVersion(PulsarProtocolError):
    """A client so old that it does not know what this broker relies on."""

    violation = Violation.UNSUPPORTED_VERSION


class UnknownProducer(PulsarProtocolError):
    """A message for a producer that the connection never had."""

    violation = Violation.UNKNOWN_PRODUCER


class NoHandshake(PulsarProtocolError):
    """A connection on which no CONNECT came in time."""

    violation = Violation.NO_HANDSHAKE


class NoAnswer(PulsarProtocolError):
    """A connection on which nothing came after a PING, for as long as is waited."""

    violation = Violation.NO_ANSWER


class NotServed(CallerError):
    """A request that is refused, with what its client is told; the connection goes on."""

    def __init__(self, *, error: ServerError, problem: str) -> None:
        """`error` is Pulsar's code, and decides how the client goes on; `problem` is for people."""
        self.error = error
        self.problem = problem
        super().__init__(problem)


class ServedElsewhere(NotServed):
    """Another broker serves the topic."""

    def __init__(self, *, topic: str, broker: str, url: str | None) -> None:
        """`url` is where Pulsar's clients find that `broker`; None if it takes none."""
        self.topic = topic
        self.broker = broker
        self.url = url
        super().__init__(error=ServerError.SERVICE_NOT_READY, problem=f"{topic} is served by broker {broker}; look it up again")


class NothingAsked(Bug):
    """The service answered a request that the connection did not ask, or has answered before."""

    def __init__(self, *, kind: str, request_id: int) -> None:
        """`kind` of request and its `request_id`, as answered."""
        self.kind = kind
        self.request_id = request_id
        super().__init__(f"the Pulsar service answered {kind} {request_id}, which waits for no answer; please report this message")
