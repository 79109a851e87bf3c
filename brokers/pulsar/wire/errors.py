"""Define the refusals of requests of Pulsar's clients."""

from __future__ import annotations

from typing import Final

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.channel.core.errors import CallerError, PeerError


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
            error=ServerError.ServiceNotReady,
            problem=f"{topic} is served by broker {broker}; look it up again",
        )


NOT_ANSWERED: Final = "NotAnswered"


def not_answered(problem: str) -> PeerError:
    """Return the error of another broker that does not answer, or of a bundle that has no broker
    now. Over HTTP 503; a client gets MetadataError, and asks again.
    """
    return PeerError(problem, code=NOT_ANSWERED)
