"""Open the history of a Pulsar cluster, from the cluster itself or from an archive, under one interface."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.core.ranges import BundleName
from equipoise.channel.system.deadline import Deadline
from equipoise.pulsar_cluster.archive import Archive, open_archive
from equipoise.pulsar_cluster.reading import Address, Read, TopicReader, connected, is_url, no_channel, read_channel
from equipoise.pulsar_cluster.records import CHANNEL_TOPIC, Message
from equipoise.pulsar_cluster.story import overlapping

if TYPE_CHECKING:
    import pulsar


class History(Protocol):
    """The messages of a cluster's channel, oldest first."""

    @property
    def name(self) -> str:
        """The service URL or the archive, for messages."""
        ...

    def now_ms(self) -> int:
        """Return the Unix time up to which the cluster is known: now, or that of the last load report in an archive (0: no report)."""
        ...

    def messages(self) -> Iterator[Message]:
        """Yield all messages up to the present end. Raises what `read_channel` raises."""
        ...

    def messages_of(self, bundle: BundleName) -> Iterator[Message]:
        """Yield at least the messages of the bundles that share points with `bundle`."""
        ...

    def news(self) -> Iterator[Message]:
        """Yield the messages after those that `messages` yielded, as they come, without end."""
        ...


@contextmanager
def opened(source: Address, *, deadline: Deadline) -> Iterator[History]:
    """Open the history of a cluster, or of an archive: then its name is in the place of the service URL.

    Raises as `connected` and `open_archive` do.
    """
    if is_url(source.service_url):
        with connected(source) as client:
            yield _Live(client, source.service_url, deadline)
    else:
        with open_archive(Path(source.service_url)) as archive:
            yield _Archived(archive)


class _Live:
    """A history as the cluster's topic holds it now."""

    def __init__(self, client: pulsar.Client, name: str, deadline: Deadline) -> None:
        self.name = name
        self._client = client
        self._deadline = deadline
        self._offset = -1
        self._position: bytes | None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def messages(self) -> Iterator[Message]:
        for read in read_channel(self._client, deadline=self._deadline):
            yield self._next(read)
        if self._position is None:
            raise OperatorError(no_channel())

    def messages_of(self, bundle: BundleName) -> Iterator[Message]:
        del bundle  # The topic has no index.
        return self.messages()

    def news(self) -> Iterator[Message]:
        reader = TopicReader(self._client, CHANNEL_TOPIC, after=self._position)
        while True:
            read = reader.next()
            if read is not None:
                yield self._next(read)

    def _next(self, read: Read) -> Message:
        self._offset, self._position = self._offset + 1, read.position
        return read.message(self._offset)


class _Archived:
    """A history as `pulsar record` kept it."""

    def __init__(self, archive: Archive) -> None:
        self.name = str(archive.path)
        self._archive = archive
        self._offset = -1

    def now_ms(self) -> int:
        return self._archive.last_report_ms()

    def messages(self) -> Iterator[Message]:
        for message in self._archive.messages():
            self._offset = message.offset
            yield message

    def messages_of(self, bundle: BundleName) -> Iterator[Message]:
        return self._archive.messages_of(overlapping(self._archive.bundles(bundle.namespace), bundle))

    def news(self) -> Iterator[Message]:
        return self._archive.news(after=self._offset)
