"""Define the errors of the load bus's topics. Errors about load itself are in `brokers.errors`."""

from __future__ import annotations

from equipoise.channel.core.errors import OperatorError


class UnfitLoadTopic(OperatorError):
    """A Kafka topic with the wrong number of partitions for load workers."""

    def __init__(self, *, topic: str, partitions: int, needed: int, like: str) -> None:
        """`topic` has `partitions`, but needs `needed`, as many as the topic `like`."""
        self.topic = topic
        self.partitions = partitions
        self.needed = needed
        self.like = like
        super().__init__(
            f"load workers cannot use the topic {topic}: it has {partitions} partitions, and must have {needed}, as {like} has; "
            "stop them and delete it, and it is made anew: no more than averages is lost"
        )
