"""Open the history of a Pulsar cluster, from the cluster itself or from an archive, and record it
into one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.core.log import Progress
from equipoise.channel.core.ranges import BundleName
from equipoise.channel.inspect.story import overlaps
from equipoise.channel.system.deadline import Deadline
from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.archive import Archive, Members, Report, open_archive
from equipoise.pulsar_cluster.confirming import asking, check_store, confirm
from equipoise.pulsar_cluster.reading import (
    BATCH,
    Address,
    Read,
    TopicReader,
    connected,
    is_url,
    load_readers,
    moved_after,
    no_channel,
    read_channel,
    ready,
)
from equipoise.pulsar_cluster.records import CHANNEL_TOPIC, Message
from equipoise.pulsar_cluster.table import Table, span_of
from equipoise.pulsar_cluster.verify import Known

if TYPE_CHECKING:
    import pulsar

_MEMBERS_EVERY_S: Final = 10.0
_POLL_MS: Final = 50


def admin_of(address: Address) -> PulsarAdmin | None:
    """Return the admin API of a cluster that keeps its states in the topic; None without a URL of
    it.

    Raises `OperatorError` for a cluster that keeps them elsewhere, and what `PulsarAdmin` raises.
    """
    if not address.admin_urls:
        return None
    admin = PulsarAdmin(
        address.admin_urls, credentials=address.credentials, timeout_s=address.timeout_s
    )
    check_store(admin.settings())
    return admin


@contextmanager
def opened(source: Address, *, deadline: Deadline) -> Iterator[History]:
    """Open the history of a cluster, or of an archive: then its name is in the place of the service
    URL.

    Raises as `connected`, `admin_of` and `open_archive` do.
    """
    if is_url(source.service_url):
        admin = admin_of(source)
        with connected(source) as client:
            yield _Live(client, source, admin, deadline)
    else:
        with open_archive(Path(source.service_url)) as archive:
            yield _Archived(archive)


class _Live:
    """A history as the cluster's topic holds it now. `name` is the service URL."""

    def __init__(
        self, client: pulsar.Client, address: Address, admin: PulsarAdmin | None, deadline: Deadline
    ) -> None:
        self.name = address.service_url
        self._client = client
        self._address = address
        self._admin = admin
        self._deadline = deadline
        self._offset = -1
        self._position: bytes | None = None

    def now_ms(self) -> int:
        """Return the Unix time up to which the cluster is known."""
        return time.time_ns() // 1_000_000

    def messages(self) -> Iterator[Message]:
        """Yield all messages up to the present end. Raises what `read_channel` raises."""
        for read in read_channel(self._client, deadline=self._deadline):
            yield self._next(read)
        if self._position is None:
            raise OperatorError(no_channel())

    def messages_of(self, bundle: BundleName) -> Iterator[Message]:
        """Yield at least the messages of the bundles that share points with `bundle`."""
        del bundle  # The topic has no index.
        return self.messages()

    def news(self) -> Iterator[Message]:
        """Yield the messages after those that `messages` yielded, as they come, without end."""
        reader = TopicReader(self._client, CHANNEL_TOPIC, after=self._position)
        while True:
            read = reader.next()
            if read is not None:
                yield self._next(read)

    def known(self, table: Table) -> Known:
        """Return who the brokers are and what bundles the namespaces of `table` have, as far as
        anybody can be asked.
        """
        if self._admin is None:
            return Known()
        return Known(
            self._admin.brokers(),
            self._admin.namespace_bundles(
                span[0].namespace
                for bundle in table.bundles
                if (span := span_of(bundle)) is not None
            ),
        )

    def confirm(self, table: Table) -> None:
        """Raise `OperatorError` if the brokers contradict `table`, which holds all of `messages`,
        and `PeerError` if they are away.
        """
        with asking(self._address, self._admin) as ask:
            confirm(table.bundles, ask, moved_after(self._client, self._position, self._deadline))

    def _next(self, read: Read) -> Message:
        self._offset, self._position = self._offset + 1, read.position
        return read.message(self._offset)


class _Archived:
    """A history as `pulsar record` kept it, with the methods of `_Live`. `name` is the archive."""

    def __init__(self, archive: Archive) -> None:
        self.name = str(archive.path)
        self._archive = archive
        self._offset = -1

    def now_ms(self) -> int:
        """Return the Unix time of the last load report, 0 without any."""
        return self._archive.last_report_ms()

    def messages(self) -> Iterator[Message]:
        for message in self._archive.messages():
            self._offset = message.offset
            yield message

    def messages_of(self, bundle: BundleName) -> Iterator[Message]:
        return self._archive.messages_of(
            [name for name in self._archive.bundles(bundle.namespace) if overlaps(name, bundle)]
        )

    def news(self) -> Iterator[Message]:
        return self._archive.news(after=self._offset)

    def known(self, table: Table) -> Known:
        del table  # An archive has no boundaries.
        members = self._archive.members()
        return Known() if members is None else Known(members.brokers)

    def confirm(self, table: Table) -> None:
        """Nobody can contradict the past."""


History = _Live | _Archived
"""The messages of a cluster's channel."""


# --- recording ---


def record(
    archive: Archive,
    address: Address,
    *,
    deadline: Deadline,
    until_s: float | None,
    note: Progress,
) -> None:
    """Add what the channel has behind the archive's position, and then what comes until
    `time.monotonic()` is `until_s`, if it is given.

    With the admin API it also adds who the brokers are. A recording goes on exactly where it
    stopped. Raises `OperatorError` if the brokers do not go by the channel, and what `connected`,
    `admin_of` and `TopicReader` raise.
    """
    begin = archive.end
    admin = admin_of(address)
    with connected(address) as client:
        batch = list[Read]()
        for read in read_channel(client, after=archive.position, deadline=deadline):
            batch.append(read)
            if len(batch) == BATCH:
                archive.append(batch)
                batch = []
                note(archive.end - begin, None)
        archive.append(batch)
        table = Table()
        for message in archive.messages():
            table.fold(message)
        with asking(address, admin) as ask:
            confirm(table.bundles, ask, moved_after(client, archive.position, deadline))
        if until_s is not None:
            _follow(archive, client, admin, until_s=until_s, note=note)


def _follow(
    archive: Archive,
    client: pulsar.Client,
    admin: PulsarAdmin | None,
    *,
    until_s: float,
    note: Progress,
) -> None:
    begin, asked_s = archive.end, -_MEMBERS_EVERY_S
    channel = TopicReader(client, CHANNEL_TOPIC, after=archive.position)
    loads = load_readers(client)
    try:
        while (now_s := time.monotonic()) < until_s:
            archive.append(ready(channel, first_ms=_POLL_MS))
            note(archive.end - begin, None)
            at_ms = time.time_ns() // 1_000_000
            reports = [
                Report(at_ms, reader.topic.rpartition("/")[2], each.key, each.value)
                for reader in loads
                for each in ready(reader)
            ]
            if reports:
                archive.add_reports(reports)
            if admin is not None and now_s - asked_s >= _MEMBERS_EVERY_S:
                asked_s = now_s
                # A broker may start again right now. The next answer counts.
                with suppress(PeerError):
                    check_store(admin.settings())
                    archive.add_members(Members(at_ms, admin.leader(), admin.brokers()))
    finally:
        for reader in (channel, *loads):
            reader.close()
