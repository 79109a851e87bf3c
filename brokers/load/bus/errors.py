"""The errors of the load plane's topics; those of load itself are in `brokers.errors`.

May live here: exception classes with typed attributes. A message says what happened, to what, and what to do next.
"""

from __future__ import annotations

from equipoise.channel.core.errors import OperatorError


class UnfitLoadTopic(OperatorError):
    """A Kafka topic of the load plane that load workers cannot share among them."""

    def __init__(self, *, topic: str, partitions: int, needed: int, like: str) -> None:
        """`topic` has `partitions`, and must have `needed`, as the topic `like` has."""
        self.topic = topic
        self.partitions = partitions
        self.needed = needed
        self.like = like
        super().__init__(
            f"load workers cannot use the topic {topic}: it has {partitions} partitions, and must have {needed}, as {like} has; "
            "stop them and delete it, and it is made anew: no more than averages is lost"
        )
