"""Start and watch a cluster of broker processes on this machine.

Theory of operation:

* One thread per process waits for its end, so that a death is noticed at once.
* One more thread, the *follower*, owns the log. It reads which brokers have joined, and which the
  others have declared dead.
* The caller's thread only makes requests.
* One condition guards all shared state, and is notified of every change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from equipoise.brokers.errors import data_directory_unusable
from equipoise.brokers.local.local_broker import LocalBroker, end_of, ports_of
from equipoise.brokers.operations.access import Access, follow
from equipoise.channel.core.entries import BrokerChanged, BundleChanged
from equipoise.channel.core.errors import (
    Bug,
    DeadlineExceeded,
    EquipoiseError,
    LogStorageFull,
    OperatorError,
    invalid_log_url,
)
from equipoise.channel.core.log import Log
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord
from equipoise.channel.log.blocking_view import RETRY_MS, read_on
from equipoise.channel.log.open_log import is_in_memory, open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.free_ports import HOST

PUBLISHER: Final = f"{ADMIN_PREFIX}local-cluster"

KILL_MS: Final = 5_000
"""How long a killed process may take to end: it may be writing to a slow disk."""

LOOK_MS: Final = 100
"""How often a start checks whether it was cancelled: a signal handler cannot notify."""

_COUNTER_STORE: Final = "EQUIPOISE_COUNTER_STORE"


class EventKind(StrEnum):
    """What happened to a broker."""

    STARTED = "started"
    READY = "ready"
    PAUSED = "paused"
    RESUMED = "resumed"
    ENDED = "ended"
    DECLARED_DEAD = "declared_dead"
    STARTS_AGAIN = "starts_again"
    UNWATCHED = "unwatched"
    """The cluster no longer follows the log, and reports neither members nor deaths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """Something that happened to `broker` (None: to the whole cluster), as text, and as `details`
    for programs.
    """

    what: EventKind
    broker: str | None
    text: str
    details: Mapping[str, str | int | None] = field(default_factory=dict)


Report = Callable[[ClusterEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The settings of a local cluster.

    * `brokers`: broker i has the directory `directory/broker-i`, and the id and address
      `127.0.0.1:(http_port + i)`.
    * `http_port`: 0 means any free ports.
    * `pulsar_port`: broker i accepts Pulsar's clients at `pulsar_port + i`. 0 means any free ports,
      None means no Pulsar clients.
    * `log_url`: `sqlite:DIRECTORY/channel.db` by default.
    * `environment`: further variables of the brokers. The example's store is `directory/counter.db`
      by default.
    * `services`, `settings`: passed to the brokers as `--service` and `--set`.
    * `restart`: restart a broker whose process ends.
    * `evidence`: each process writes `accepts-N.jsonl` to its directory.
    """

    directory: Path
    brokers: int = 3
    http_port: int = 0
    pulsar_port: int | None = None
    log_url: str | None = None
    services: tuple[str, ...] = ("counter",)
    settings: Mapping[str, str | int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    restart: bool = False
    evidence: bool = False
    ready_ms: int = 30_000


class LocalCluster:
    """Broker processes on this machine, from `start` to `stop_all`. As a context, it calls both.

    `report` receives all events, from several threads, one call at a time. Methods identify a
    broker by its number.
    """

    def __init__(self, settings: ClusterSettings, *, report: Report | None = None) -> None:
        """Start nothing yet.

        Raises `CallerError` for a log that processes cannot share, and `InvalidConfig` for settings
        that no broker accepts, or ports that overlap.
        """
        self.settings = settings
        self.log_url = (
            f"sqlite:{settings.directory}/channel.db"
            if settings.log_url is None
            else settings.log_url
        )
        if is_in_memory(self.log_url):
            raise invalid_log_url(
                url=self.log_url, problem="the processes of a cluster cannot share memory"
            )
        ports = ports_of(settings.http_port, settings.pulsar_port, settings.brokers)
        self._members = tuple(
            LocalBroker(settings.directory / f"broker-{number}", *pair)
            for number, pair in enumerate(ports)
        )
        configs = [
            member.config(log_url=self.log_url, settings=settings.settings)
            for member in self._members
        ]
        self.stop_ms = max(config.stop_ms for config in configs)
        """How long a stopping broker may take before it is killed."""
        self.addresses = tuple(config.http_url for config in configs)
        """The HTTP addresses of the brokers: `http://127.0.0.1:PORT`."""
        self.pulsar_url = ",".join(
            [
                configs[0].pulsar_url,
                *(
                    f"{HOST}:{config.pulsar_port}"
                    for config in configs[1:]
                    if config.pulsar_port is not None
                ),
            ]
        )
        """The service URL for Pulsar's clients, with all brokers that accept them:
        `pulsar://127.0.0.1:PORT,127.0.0.1:PORT`."""
        self._listener = report
        self._reporting = threading.Lock()
        self._changed = threading.Condition()
        self._stopping = False  # No process is started from now on.
        self._closing = False  # All have ended: the follower may end.
        self._failure: EquipoiseError | None = None
        self._offset = -1
        self._log: Log | None = None
        self._follower: threading.Thread | None = None

    # --- properties ---

    @property
    def broker_ids(self) -> tuple[str, ...]:
        """The ids of the brokers."""
        return tuple(member.id for member in self._members)

    @property
    def directories(self) -> tuple[Path, ...]:
        """The data directories of the brokers, with `broker.log`."""
        return tuple(member.directory for member in self._members)

    def evidence(self) -> list[Path]:
        """Return the files of evidence that the brokers have written so far. A broker without work
        leaves none.
        """
        return sorted(
            path for directory in self.directories for path in directory.glob("accepts-*.jsonl")
        )

    def pid(self, number: int) -> int | None:
        """Return the process id of a broker; None if it does not run."""
        member = self._members[number]
        return None if member.ended or member.process is None else member.process.pid

    @property
    def failure(self) -> EquipoiseError | None:
        """The error that ended the follower; None while it runs."""
        return self._failure

    def wait_until_all_ended(self, *, timeout_ms: int) -> bool:
        """Wait until no broker runs or will be restarted. Return whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(member.is_over for member in self._members), timeout_ms / 1_000
            )

    # --- life ---

    def start(self) -> None:
        """Start all brokers, and wait until all are members. The caller must call `stop_all` in any
        case.

        Errors:

        * `OperatorError` before anything is created.
        * `OperatorError`.
        * `OperatorError` if a broker ends or is not ready in time.
        * `CancelledError`.
        * OSError if a process cannot be started.
        * What `open_log` raises, and the error of a log that cannot be followed.
        """
        for member in self._members:
            member.check_port()
        directory = self.settings.directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise data_directory_unusable(path=str(directory), problem=str(error)) from error
        self._log = open_log(self.log_url)
        access = Access(
            log=self._log,
            reader=restored(self._log),
            publisher=PUBLISHER,
            deadline=Deadline.after(timeout_ms=self.settings.ready_ms),
        )
        read_on(access.log, access.reader, deadline=access.deadline)
        self._offset = access.view.offset
        follower = threading.Thread(
            target=self._follow, args=(access,), name="follower", daemon=True
        )
        follower.start()
        self._follower = follower
        for member in self._members:
            self._spawn(member)
        self._await_ready(self._members)

    def cancel_start(self) -> None:
        """Start no more processes, and make a waiting `start` raise `CancelledError` within
        `LOOK_MS`.

        It takes no lock and raises nothing, so a signal handler can call it.
        """
        self._stopping = True

    def stop_all(self) -> None:
        """Stop all brokers at once, kill those that take longer than `stop_ms`, and close the
        log.
        """
        with self._changed:
            self._stopping = True
            for member in self._members:
                member.end_expected = True
            self._changed.notify_all()
        self._end(self._members)
        if self._follower is not None:
            with self._changed:
                self._closing = True
            self._follower.join()
        elif self._log is not None:  # The log could be opened, but not read.
            self._log.close()

    def kill_all(self) -> None:
        """Kill all brokers, and return without waiting for their end."""
        for member in self._members:
            member.signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_all()

    # --- operations on one broker ---

    def kill(self, number: int) -> None:
        """Kill a broker (SIGKILL), and wait until its process is gone."""
        member = self._expect_end(number)
        member.signal(signal.SIGKILL)
        self._await_ended((member,), timeout_ms=KILL_MS)

    def pause(self, number: int) -> None:
        """Pause a broker (SIGSTOP): it neither serves nor renews."""
        self._members[number].signal(signal.SIGSTOP)
        self._report(EventKind.PAUSED, self._members[number], "is paused")

    def resume(self, number: int) -> None:
        """Resume a paused broker (SIGCONT)."""
        self._members[number].signal(signal.SIGCONT)
        self._report(EventKind.RESUMED, self._members[number], "resumes")

    def stop(self, number: int) -> None:
        """Stop a broker, or kill it after `stop_ms`. On return it is gone."""
        self._end((self._expect_end(number),))

    def restart(self, number: int) -> None:
        """Restart a broker, after stopping it if it runs, and wait until it is a member. Raises
        what `start` raises.
        """
        self.stop(number)
        member = self._members[number]
        self._spawn(member)
        self._await_ready((member,))

    # --- processes ---

    def _environment(self) -> dict[str, str]:
        """Return the brokers' environment. All brokers count in one store if the example runs,
        beside their directories.
        """
        store = os.environ.get(
            _COUNTER_STORE, str(self.settings.directory.absolute() / "counter.db")
        )
        return {_COUNTER_STORE: store, **self.settings.environment}

    def _spawn(self, member: LocalBroker, *, again: bool = False) -> None:
        """Start a process. With `again`, start it only if its end was not requested meanwhile."""
        settings = self.settings
        with self._changed:
            if self._stopping or (again and member.end_expected):
                return
            process = member.start(
                log_url=self.log_url,
                services=settings.services,
                settings=settings.settings,
                environment=self._environment(),
                evidence=settings.evidence,
                at_offset=self._offset,
            )
            member.watch = threading.Thread(
                target=self._watch, args=(member, process), name=f"watch {member.id}", daemon=True
            )
            member.watch.start()
        self._report(
            EventKind.STARTED,
            member,
            f"started as process {process.pid}, log in {member.file}",
            pid=process.pid,
        )

    def _watch(self, member: LocalBroker, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process. Then restart it if requested."""
        code = end_of(process)
        with self._changed:
            member.ended = True
            will_restart = self.settings.restart and not member.end_expected
            member.will_restart = will_restart
            self._changed.notify_all()
        self._report(
            EventKind.ENDED,
            member,
            member.ending(code),
            exit_code=code,
            reason=member.reason(code),
            log=str(member.file),
        )
        if will_restart:
            self._start_again(member)

    def _start_again(self, member: LocalBroker) -> None:
        pause_ms = member.pause_ms()
        self._report(
            EventKind.STARTS_AGAIN, member, f"restarts in {pause_ms} ms", pause_ms=pause_ms
        )
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or member.end_expected, pause_ms / 1_000)
        try:
            self._spawn(member, again=True)
        except OSError as error:
            self._report(EventKind.ENDED, member, f"could not be restarted: {error}")
        finally:
            with self._changed:
                member.will_restart = False
                self._changed.notify_all()

    def _expect_end(self, number: int) -> LocalBroker:
        member = self._members[number]
        with self._changed:
            member.end_expected = True
            self._changed.notify_all()
        return member

    def _end(self, members: tuple[LocalBroker, ...]) -> None:
        for member in members:
            member.signal(signal.SIGCONT)  # A paused process would not receive SIGTERM.
            member.signal(signal.SIGTERM)
        try:
            self._await_ended(members, timeout_ms=self.stop_ms)
        except DeadlineExceeded:
            for member in members:
                member.signal(signal.SIGKILL)
            self._await_ended(members, timeout_ms=KILL_MS)
        for member in members:
            if member.watch is not None:
                member.watch.join()

    # --- waiting ---

    def _await_ended(self, members: tuple[LocalBroker, ...], *, timeout_ms: int) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(member.ended for member in members), timeout_ms / 1_000
            ):
                running = ", ".join(member.id for member in members if not member.ended)
                raise DeadlineExceeded(what=f"the end of {running}", waited_ms=timeout_ms)

    def _await_ready(self, members: tuple[LocalBroker, ...]) -> None:
        deadline = Deadline.after(timeout_ms=self.settings.ready_ms)
        with self._changed:
            while not all(member.ready for member in members):
                if self._failure is not None:
                    raise self._failure
                if self._stopping:
                    raise CancelledError
                for member in members:
                    if member.ended and not member.ready:
                        problem = (
                            "it ended before it was ready:"
                            f" {member.last_output() or 'it printed nothing'}"
                        )
                        raise _failed(member, problem)
                remaining_ms = deadline.remaining_ms()
                if not remaining_ms:
                    late = next(member for member in members if not member.ready)
                    problem = f"it was not ready within {deadline.timeout_ms} ms"
                    raise _failed(late, problem)
                self._changed.wait(min(remaining_ms, LOOK_MS) / 1_000)

    # --- the follower ---

    def _follow(self, access: Access) -> None:
        """Read on until `_closing`, and note members and deaths. Report and keep any earlier
        error.
        """
        failure: EquipoiseError | None = None
        try:
            while not self._closing:
                try:
                    self._read_on(access)
                except LogStorageFull:  # It is temporary, and the brokers wait for it as well.
                    time.sleep(RETRY_MS / 1_000)
        except EquipoiseError as error:
            failure = error
        # Without this, a dead thread would leave its cluster waiting.
        except Exception as error:  # noqa: BLE001
            failure = Bug(
                f"following the log {access.log.name} ended with {type(error).__name__}: {error};"
                " please report it"
            )
            failure.__cause__ = error
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        access.log.close()
        if failure is not None:
            self._report(
                EventKind.UNWATCHED,
                None,
                f"joins and deaths of brokers are no longer reported: {failure}",
                error=type(failure).__name__,
            )

    def _read_on(self, access: Access) -> None:
        for folded in follow(access):
            if folded is not None:
                self._note_death(folded)
            self._offset = access.view.offset
            for member in self._members:
                self._note_ready(access, member)
            if self._closing:
                return

    def _note_ready(self, access: Access, member: LocalBroker) -> None:
        broker = access.view.brokers.get(member.id)
        if (
            member.ready
            or broker is None
            or broker.status != "up"
            or broker.incarnation <= member.started_at_offset
        ):
            return
        if member.ended:
            return
        # Report it before `start` can return, so that a later message that all are ready is the
        # last.
        self._report(
            EventKind.READY,
            member,
            f"is a member, incarnation {broker.incarnation}",
            incarnation=broker.incarnation,
        )
        with self._changed:
            member.ready = True
            self._changed.notify_all()

    def _note_death(self, folded: Folded) -> None:
        record, changes = folded.record, folded.verdict.changes
        if not (isinstance(record, BrokerRecord) and record.status == "down" and changes):
            return
        bundles = sum(isinstance(change, BundleChanged) for change in changes)
        for change in changes:
            for member in self._members:
                if isinstance(change, BrokerChanged) and change.name == member.id:
                    self._report(
                        EventKind.DECLARED_DEAD,
                        member,
                        f"is declared dead at offset {folded.offset}, its bundles: {bundles}",
                        offset=folded.offset,
                        incarnation=change.dead,
                        bundles=bundles,
                    )

    def _report(
        self, what: EventKind, member: LocalBroker | None, text: str, **details: str | int | None
    ) -> None:
        if self._listener is not None:
            with self._reporting:
                self._listener(
                    ClusterEvent(
                        what=what,
                        broker=None if member is None else member.id,
                        text=text,
                        details=details,
                    )
                )


def _failed(member: LocalBroker, problem: str) -> OperatorError:
    return OperatorError(f"the broker {member.id} failed: {problem}; see {member.file}")
