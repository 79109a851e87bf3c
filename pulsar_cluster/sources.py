"""Open a Pulsar cluster, or an archive of one: its history, and what a plan for it is made from.
Record a cluster into an archive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.core.log import Progress
from equipoise.channel.core.ranges import BundleName, namespace_in
from equipoise.channel.system.clocks import Deadline
from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.archive import Archive, Members, open_archive
from equipoise.pulsar_cluster.confirming import check_store, confirm
from equipoise.pulsar_cluster.loads import BUNDLES_MAX, LoadReports
from equipoise.pulsar_cluster.placement_rules import ClusterPolicies
from equipoise.pulsar_cluster.planning import Cluster, holder_of
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
from equipoise.pulsar_cluster.records import CHANNEL_TOPIC, Message, Report
from equipoise.pulsar_cluster.table import Table, is_of_system, span_of
from equipoise.pulsar_cluster.verify import Known
from equipoise.shedder.loads import BundleTraffic

if TYPE_CHECKING:
    import pulsar


_MEMBERS_EVERY_S: Final = 10.0
_POLL_MS: Final = 50
_STATS_S: Final = 60
_STATS_ROUNDS: Final = 3
"""A broker has renewed the figures of its topics after so many of its intervals, even if it is
busy."""


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
            yield archive


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

    def confirm(self, table: Table) -> bool:
        """Raise `OperatorError` if the brokers contradict `table`, which holds all of `messages`,
        and `PeerError` if they are away. Return whether they could be asked.
        """
        if self._admin is None:
            return False
        moved = moved_after(self._client, self._position, self._deadline)
        confirm(table.bundles, self._admin, moved)
        return True

    def _next(self, read: Read) -> Message:
        self._offset, self._position = self._offset + 1, read.position
        return read.message(self._offset)


History = _Live | Archive
"""The messages of a cluster's channel. An archive has the methods of `_Live`."""


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
        if admin is not None:
            confirm(table.bundles, admin, moved_after(client, archive.position, deadline))
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
                Report(at_ms, reader.name, each.key, each.value)
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


# --- planning ---


class LiveCluster:
    """A cluster that is read while it runs: the `table` of its channel, and the `reports` of its
    load. For one thread.
    """

    def __init__(self, client: pulsar.Client, admin: PulsarAdmin, deadline: Deadline) -> None:
        """Read the channel up to its end. Raises what `read_channel`, `TopicReader` and `confirm`
        raise.
        """
        self.table = Table()
        self.reports = LoadReports()
        position = None
        for read in read_channel(client, deadline=deadline):
            position = read.position
            self.table.fold(read.message(self.table.offset + 1))
        confirm(self.table.bundles, admin, moved_after(client, position, deadline))
        self._channel = TopicReader(client, CHANNEL_TOPIC, after=position)
        # Last: to open them may create them, and a cluster without a channel has none.
        self._loads = load_readers(client)
        self._offset = self.table.offset

    def read(self) -> list[Message]:
        """Return the new messages of the channel, not yet folded, and take the new load reports.
        Waits 50 ms for the first message.
        """
        found = ready(self._channel, first_ms=_POLL_MS)
        begin, self._offset = self._offset + 1, self._offset + len(found)
        for reader in self._loads:
            for report in ready(reader):
                self.reports.take(
                    Report(report.published_ms, reader.name, report.key, report.value)
                )
        return [read.message(offset) for offset, read in enumerate(found, begin)]

    def await_reports(self, admin: PulsarAdmin, wait_ms: int, note: Progress) -> None:
        """Read on until every live broker has reported its load and its bundles, at most
        `wait_ms`.
        """
        members = admin.brokers()
        deadline = Deadline.after(timeout_ms=wait_ms)
        while True:
            for message in self.read():
                self.table.fold(message)
            missing = [
                broker
                for broker in members
                if broker not in self.reports.loads or broker not in self.reports.top
            ]
            note(len(members) - len(missing), len(members))
            if not missing or not deadline.remaining_ms():
                return

    def close(self) -> None:
        """Close the readers."""
        for reader in (self._channel, *self._loads):
            reader.close()


@contextmanager
def live_cluster(address: Address, admin: PulsarAdmin, deadline: Deadline) -> Iterator[LiveCluster]:
    """Connect to a cluster and read its channel. Raises as `connected` and `LiveCluster` do."""
    with (
        connected(address) as client,
        closing(LiveCluster(client, admin, deadline)) as cluster,
    ):
        yield cluster


def archived(archive: Archive) -> tuple[Table, LoadReports]:
    """Return the table and the load reports of an archive as of its end."""
    table, reports = Table(), LoadReports()
    for message in archive.messages():
        table.fold(message)
    for report in archive.reports():
        reports.take(report)
    return table, reports


def replayed(archive: Archive, *, step_ms: int) -> Iterator[tuple[int, Cluster]]:
    """Yield the cluster every `step_ms`, from the first load report of an archive to the last, each
    with its Unix time.

    Its tables change from step to step: use a cluster before the next one. It has no policies.
    """
    table, reports = Table(), LoadReports()
    messages, members = archive.messages(), archive.every_members()
    message, next_members, present = next(messages, None), next(members, None), None
    at_ms = 0
    for report in archive.reports():
        at_ms = at_ms or report.at_ms + step_ms
        while at_ms <= report.at_ms:
            while message is not None and message.published_ms <= at_ms:
                table.fold(message)
                message = next(messages, None)
            while next_members is not None and next_members.at_ms <= at_ms:
                present, next_members = next_members, next(members, None)
            yield at_ms, _unruled(table, reports, present)
            at_ms += step_ms
        reports.take(report)


def cluster_of(
    table: Table, reports: LoadReports, admin: PulsarAdmin, *, may_measure: bool
) -> Cluster:
    """Return what to plan from, with the members, the policies and the measured loads of the admin
    API.

    With `may_measure`, a broker without a report has the load that its topics have. Raises as
    `PulsarAdmin` does, and `CallerError`.
    """
    members = admin.brokers()
    settings = admin.settings()
    namespaces = sorted(
        {namespace_in(bundle) for bundle in table.bundles if not is_of_system(bundle)}
    )
    present = admin.namespace_bundles(namespaces)
    # Leftovers of namespaces that were made again are no bundles, and no request can move them.
    bundles = {
        bundle: each
        for bundle, each in table.bundles.items()
        if bundle in (present.get(namespace_in(bundle), {bundle}) or ())
    }
    unsettled: dict[str, int] = {}
    measured: dict[str, BundleTraffic] = {}
    now_ms = time.time_ns() // 1_000_000
    settles_in_ms = _STATS_ROUNDS * _stats_interval_ms(settings)
    settled_ms = now_ms - settles_in_ms
    for broker in members:
        held = {
            bundle: message
            for bundle, message in bundles.items()
            if holder_of(message.record) == broker
        }
        loads = measured_loads(
            held, admin.bundle_loads(broker, settled_ms=settled_ms), settled_ms=settled_ms
        )
        measured |= loads
        # Bundles of Pulsar itself do not move.
        unknown = sum(bundle not in loads and not is_of_system(bundle) for bundle in held)
        if may_measure and broker not in admin.without_figures:
            if not unknown:
                reports.measure(broker, tuple(loads.values()), now_ms)
            elif broker not in reports.loads and broker not in reports.problems:
                unsettled[broker] = unknown
    bundles_max = settings.get("loadBalancerMaxNumberOfBundlesInBundleLoadReport", "")
    return Cluster(
        members=members,
        bundles=bundles,
        reports=reports,
        policies=admin.policies(namespaces, settings),
        measured=measured,
        bundles_max=int(bundles_max) if bundles_max.isdecimal() else BUNDLES_MAX,
        unsettled=unsettled,
        settles_ms=now_ms + settles_in_ms,
    )


def measured_loads(
    held: Mapping[str, Message], figures: Mapping[str, BundleTraffic | None], *, settled_ms: int
) -> dict[str, BundleTraffic]:
    """Return the known loads of the bundles that a broker holds, by its `figures` of topics.

    A bundle without topics has no figures, and no load. So has one that came to the broker after it
    renewed them: if its record is younger than `settled_ms` (Unix time), or there are no figures at
    all, its load is unknown.
    """
    known = {bundle: load for bundle, load in figures.items() if load is not None}
    idle = [
        bundle
        for bundle, message in held.items()
        if bundle not in figures and message.published_ms < settled_ms
    ]
    return known | ({bundle: BundleTraffic(bundle=bundle) for bundle in idle} if figures else {})


def _stats_interval_ms(settings: Mapping[str, str]) -> int:
    interval_s = settings.get("statsUpdateFrequencyInSecs", "")
    return 1_000 * (int(interval_s) if interval_s.isdecimal() else _STATS_S)


def cluster_in(archive: Archive, table: Table, reports: LoadReports) -> Cluster:
    """Return what to plan from with an archive alone: its members, or else every broker that has a
    bundle. It has no policies.
    """
    return _unruled(table, reports, archive.members())


def _unruled(table: Table, reports: LoadReports, members: Members | None) -> Cluster:
    holders = sorted(
        {
            broker
            for message in table.bundles.values()
            if (broker := holder_of(message.record)) is not None
        }
    )
    return Cluster(
        members=tuple(holders) if members is None else members.brokers,
        bundles=table.bundles,
        reports=reports,
        policies=ClusterPolicies(),
    )
