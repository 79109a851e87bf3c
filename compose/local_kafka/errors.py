"""Define the errors of the local Kafka, all under `LocalKafkaError`."""

from __future__ import annotations


class LocalKafkaError(Exception):
    """The root of all errors that the local Kafka raises on purpose."""


class NotInstalled(LocalKafkaError):
    """A required program is not on the path, or Kafka's jars cannot be fetched."""


class NoCluster(LocalKafkaError):
    """A folder holds no Kafka, or no such node."""

    def __init__(self, folder: str, problem: str) -> None:
        """`folder` was searched, `problem` is what is missing."""
        super().__init__(f"{folder}: {problem}; start a Kafka there first")
