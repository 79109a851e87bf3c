"""Carry out a saved plan on a Pulsar cluster, as `pulsar_cluster.moving` decides.

Nothing is sent but the unloads of the plan. The audit file has a line for each request and for its
outcome. One process has it at a time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from equipoise.channel.core.errors import EquipoiseError, OperatorError, PeerError
from equipoise.channel.system.clocks import unix_ms
from equipoise.channel.system.file_system import locked_file
from equipoise.pulsar_cluster.admin import PulsarAdmin, RequestFailed
from equipoise.pulsar_cluster.loads import LoadReports
from equipoise.pulsar_cluster.moving import (
    Health,
    Look,
    MoveOutcome,
    Moving,
    Reading,
    published_between,
)
from equipoise.pulsar_cluster.records import Message
from equipoise.pulsar_cluster.saved_plans import SavedPlan
from equipoise.pulsar_cluster.table import Table
from equipoise.shedder.plan import Move

SHEDDING: Final = "loadBalancerSheddingEnabled"
BALANCING: Final = "loadBalancerEnabled"

_LOOK_S: Final = 2.0
"""The time between two looks at the cluster."""

_WATCHED_MAX: Final = 64
"""The most topics whose figures are watched. Each costs a request per look."""

_UNREADABLE_S: Final = 0.2
"""The pause after a read of the channel that failed."""

Read = Callable[[], Sequence[Message]]
"""Returns the new messages of the channel. Waits a moment for the first, and never for long."""


Looking = Callable[[], Look]
"""Returns the cluster as it is now. Raises `PeerError`, `OperatorError`."""


class Watch:
    """Looks at a cluster with its admin API and its load reports."""

    def __init__(self, admin: PulsarAdmin, reports: LoadReports, moves: Sequence[Move]) -> None:
        """Watch the topics of the bundles of `moves`, at most `_WATCHED_MAX`. Raises as
        `PulsarAdmin` does.
        """
        self._admin = admin
        self._reports = reports
        self._topics: list[str] = []
        for move in moves:
            if len(self._topics) < _WATCHED_MAX:
                self._topics += admin.topics_of(move.bundle)
        self._topics = self._topics[:_WATCHED_MAX]
        self._readings: dict[str, Reading] = {}

    def __call__(self) -> Look:
        """See `Looking`. The rate of publishing is None at the first look. Each topic's counts from
        its last reading.
        """
        members, leader = self._admin.brokers(), self._admin.leader()
        uses = {
            broker: load.resources.max_use
            for broker, load in self._reports.loads.items()
            if broker in members
        }
        readings: dict[str, Reading] = {}
        for topic in self._topics:
            stats = self._stats_of(topic)
            if stats is not None:
                readings[topic] = _reading_of(stats, time.monotonic_ns())
        published = published_between(self._readings, readings)
        # A topic that cannot be read for a moment keeps its last reading.
        self._readings |= readings
        backlog = sum(reading.backlog for reading in self._readings.values())
        return Look(members, leader, Health(uses, published, backlog))

    def _stats_of(self, topic: str) -> Mapping[str, object] | None:
        """Return the figures of a topic; None while it moves, which a broker answers with an error.
        A broker that is away is one here.
        """
        try:
            return self._admin.topic_stats(topic)
        except RequestFailed as error:
            if error.status is None:
                raise
            return None


def _reading_of(stats: Mapping[str, object], at_ns: int) -> Reading:
    subscriptions = stats.get("subscriptions")
    each = subscriptions.values() if isinstance(subscriptions, Mapping) else ()
    backlog = sum(
        _whole(subscription, "msgBacklog")
        for subscription in each
        if isinstance(subscription, Mapping)
    )
    return Reading(at_ns, _whole(stats, "msgInCounter"), backlog)


def _whole(document: Mapping[str, object], field: str) -> int:
    value = document.get(field)
    return value if type(value) is int else 0


def apply_plan(
    plan: SavedPlan,
    admin: PulsarAdmin,
    *,
    table: Table,
    read: Read,
    look: Looking,
    audit: AuditFile,
    at_once: int,
    timeout_ms: int,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[MoveOutcome | str]:
    """Carry out `plan`, and yield the outcome of each move, and at last why it stopped, if it did.

    `table` is the channel up to its end; `read` goes on from there. Raises `OperatorError` if the
    audit file cannot be written: then nothing more is requested.
    """
    moving = Moving(plan, at_once=at_once, timeout_ms=timeout_ms)
    look()
    time.sleep(_LOOK_S)  # A rate of publishing needs two looks.
    _fold(moving, table, read)
    moving.begin(table.bundles, look())
    audit.note(
        "begin", plan=plan.id, source=plan.source, moves=len(plan.moves), stopped=moving.stopped
    )
    with ThreadPoolExecutor(at_once, thread_name_prefix="unload") as threads:
        requests: dict[str, Future[None]] = {}
        looked_s = time.monotonic()
        while not moving.is_over:
            if is_interrupted():
                moving.stop("it was interrupted")
            if time.monotonic() - looked_s >= _LOOK_S:
                _look(moving, look)
                looked_s = time.monotonic()
            # A look may take long. What arrived meanwhile is read before a move is given up.
            _fold(moving, table, read)
            moving.expire(unix_ms(), table.bundles)
            for move in moving.due(table.bundles, unix_ms()):
                assert move.destination is not None, "each move of a saved plan has one"
                elsewhere = _why_elsewhere(admin, move)
                if elsewhere is not None:
                    audit.note("not sent", plan=plan.id, bundle=move.bundle, problem=elsewhere)
                    moving.answered(move.bundle, elsewhere, in_doubt=False, now_ms=unix_ms())
                    break
                audit.note(
                    "request",
                    plan=plan.id,
                    bundle=move.bundle,
                    source=move.source,
                    destination=move.destination,
                )
                requests[move.bundle] = threads.submit(admin.unload, move.bundle, move.destination)
            for bundle in [bundle for bundle, request in requests.items() if request.done()]:
                _answered(moving, audit, bundle, requests.pop(bundle))
            yield from _decided(moving, audit)
        # Requests that nobody waits for any more end by their own time limits.
        for bundle, request in requests.items():
            _answered(moving, audit, bundle, request)
    moving.leave_out()
    yield from _decided(moving, audit)
    audit.note("end", plan=plan.id, stopped=moving.stopped)
    if moving.stopped is not None:
        yield moving.stopped


def _fold(moving: Moving, table: Table, read: Read) -> None:
    try:
        for message in read():
            moving.see(table.fold(message), unix_ms())
    except PeerError as error:
        moving.stop(f"the channel cannot be read: {error}")
        time.sleep(_UNREADABLE_S)


def _look(moving: Moving, look: Looking) -> None:
    try:
        moving.look(look())
    except (PeerError, OperatorError) as error:
        moving.stop(f"the cluster cannot be watched: {error}")


def _why_elsewhere(admin: PulsarAdmin, move: Move) -> str | None:
    """Return why a move must not be sent: its source does not say itself that it owns the bundle. A
    channel can be a leftover.
    """
    try:
        if move.bundle not in admin.owned_by(move.source):
            return (
                f"{move.source} does not own it, as the topic says; see `equipoise pulsar status"
                " --admin`"
            )
    except (PeerError, OperatorError) as error:
        return f"whether {move.source} owns it cannot be asked: {error}"
    return None


def _answered(moving: Moving, audit: AuditFile, bundle: str, request: Future[None]) -> None:
    try:
        request.result()
    except EquipoiseError as error:
        in_doubt = isinstance(error, RequestFailed) and error.in_doubt
        audit.note(
            "answer", plan=moving.plan.id, bundle=bundle, problem=str(error), in_doubt=in_doubt
        )
        moving.answered(bundle, str(error), in_doubt=in_doubt, now_ms=unix_ms())
    else:
        audit.note("answer", plan=moving.plan.id, bundle=bundle, problem=None)


def _decided(moving: Moving, audit: AuditFile) -> Iterator[MoveOutcome]:
    decided, moving.decided = moving.decided, []
    for outcome in decided:
        audit.note(
            outcome.status,
            plan=moving.plan.id,
            bundle=outcome.move.bundle,
            text=outcome.text,
            took_ms=outcome.took_ms,
        )
        yield outcome


# --- Pulsar's own shedding ---


def is_shedding(settings: Mapping[str, str]) -> bool:
    """Return whether Pulsar's own balancer moves bundles, by the settings of a broker."""
    return settings.get(BALANCING, "true") == "true" and settings.get(SHEDDING, "true") == "true"


def settings_of_leader(admin: PulsarAdmin) -> Mapping[str, str]:
    """Return the settings of the leader, which is the broker that sheds; those of the given broker
    if the leader cannot be reached.
    """
    leader = admin.leader()
    if leader is not None:
        with suppress(RequestFailed):
            return admin.settings(leader)
    return admin.settings()


# --- the audit file ---


class AuditFile:
    """An open audit file. Each line is a JSON object: `at_ms` (Unix time), `event`, and the fields
    of the event.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """Append to `file`, whose name is `path`."""
        self.path = path
        self._file = file

    def note(self, event: str, **fields: object) -> None:
        """Append a line, and return once it is on the disk. Raises `OperatorError`."""
        line = json.dumps({"at_ms": time.time_ns() // 1_000_000, "event": event, **fields})
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OperatorError(
                f"the audit file {self.path} cannot be written: {error.strerror}; free space on its"
                " disk"
            ) from error


def entries_in(path: Path) -> list[Mapping[str, object]]:
    """Return the lines of an audit file, none if there is no file. The last line of a process that
    was killed may be cut off.
    """
    found: list[Mapping[str, object]] = []
    try:
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    entry = json.loads(line)
                    found += [entry] if isinstance(entry, dict) else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OperatorError(
            f"the audit file {path} cannot be read: {error.strerror}; name another one"
        ) from error
    return found


@contextmanager
def audit_file(path: Path, *, plan: Path | None) -> Iterator[AuditFile]:
    """Open and lock an audit file, and lock the file of the `plan`, if it has one; make an audit
    file if there is none.

    Raises `PeerError` if another process has one of them, and `OperatorError`.
    """
    with ExitStack() as stack:
        if plan is not None:
            held = f"another process applies the plan {plan}; wait until it has ended"
            stack.enter_context(locked_file(plan, "rb", what="the plan", held=held))
        held = f"another process applies a plan with the audit file {path}; wait until it has ended"
        file = locked_file(path, "a+b", what="the audit file", held=held)
        stack.enter_context(file)
        if file.tell() and not _ends_whole(file):
            file.write(b"\n")
        yield AuditFile(file, path)


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
