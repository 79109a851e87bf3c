"""Define the errors between a Pulsar client and this broker, and Pulsar's error codes.

A `Connection` never raises a `PulsarProtocolError`. It returns `Ended` with the error's
`violation`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

from equipoise.channel.core.errors import CallerError, PeerError


class Violation(StrEnum):
    """Why this broker closed a connection; the label of the disconnection counter."""

    TLS = "tls"
    HTTP = "http"
    FRAME_TOO_LARGE = "frame_too_large"
    MALFORMED_FRAME = "malformed_frame"
    MALFORMED_COMMAND = "malformed_command"
    UNKNOWN_COMMAND = "unknown_command"
    UNEXPECTED_COMMAND = "unexpected_command"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNKNOWN_PRODUCER = "unknown_producer"
    NO_HANDSHAKE = "no_handshake"
    NOT_AUTHENTICATED = "not_authenticated"
    BUSY = "busy"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    NO_ANSWER = "no_answer"
    NEVER_READS = "never_reads"
    NO_ROOM = "no_room"


class ServerError(IntEnum):
    """Pulsar's codes for refused requests, as far as this broker uses them."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    AUTHENTICATION_ERROR = 3
    AUTHORIZATION_ERROR = 4
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
    """A client violated the protocol. Its connection is closed."""

    def __init__(self, violation: Violation, problem: str) -> None:
        """`problem` describes what the client sent or did not send."""
        self.violation = violation
        self.problem = problem
        super().__init__(
            f"a Pulsar client violated the protocol: {problem}; its connection is closed, and it"
            " may connect again"
        )


class NotServed(CallerError):
    """A request is refused. The connection continues."""

    def __init__(self, *, error: ServerError, problem: str) -> None:
        """`error` is Pulsar's code, which decides what the client does; `problem` is a message for
        people.
        """
        self.error = error
        self.problem = problem
        super().__init__(problem)


class ServedElsewhere(NotServed):
    """Another broker serves the topic."""

    def __init__(self, *, topic: str, broker: str, url: str | None) -> None:
        """`url` is the Pulsar address of `broker`, or None if it has none."""
        self.url = url
        super().__init__(
            error=ServerError.SERVICE_NOT_READY,
            problem=f"{topic} is served by broker {broker}; look it up again",
        )


NOT_ANSWERED: Final = "NotAnswered"


def not_answered(problem: str) -> PeerError:
    """Return the error of another broker that does not answer, or of a bundle that has no broker
    now. Over HTTP 503; a client gets MetadataError, and asks again.
    """
    return PeerError(problem, code=NOT_ANSWERED)
