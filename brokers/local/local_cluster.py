"""A cluster of broker processes on this machine: started, watched, and declared dead when they die.

May live here: `LocalCluster`, for `equipoise up`, the demo and the tests. What a broker does in its process is its own business;
this one knows it by its exit, and by what the channel says of it.

Threads. One for each process waits for its end, so that a death is noticed at once. One more, the *follower*, owns the
handle on the log: it reads on all the time, so that a declaration of death need not fold the whole channel first, and it does the
declarations of death. The caller's thread only asks. All that is shared is guarded by one condition, which is notified whenever something
changed.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from equipoise.brokers.errors import BrokerFailed, DataDirectoryUnusable
from equipoise.brokers.local.local_broker import HOST, LocalBroker, ports_of
from equipoise.brokers.local.local_load_workers import LocalLoadWorkers
from equipoise.brokers.operations.access import Access, resync
from equipoise.brokers.operations.death_declaration import declare_dead
from equipoise.channel.core.errors import (
    Bug,
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    InvalidLogUrl,
    LogStorageFull,
    LogTruncated,
    LogUnavailable,
    PeerError,
)
from equipoise.channel.core.log import READ_ENTRIES_MAX, Log
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.log.blocking_view import RETRY_MS, read_on
from equipoise.channel.log.open_log import is_in_memory, open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.deadline import Deadline

PUBLISHER: Final = f"{ADMIN_PREFIX}local-cluster"

DEATH_DECLARATION_MS: Final = 2_000
"""How long one attempt at a declaration of death may take; a healthy log takes milliseconds."""

DEATH_DECLARATION_ATTEMPTS_MAX: Final = 3
"""Attempts at a declaration of death: after 6 seconds the others have noticed the silence themselves."""

KILL_MS: Final = 5_000
"""How long a killed process may take to be gone: it may be in the middle of a write to a slow disk."""

LOOK_MS: Final = 100
"""How often it is looked whether a start was broken off: a signal's handler can notify nobody."""

_FOLLOW_MS: Final = 1_000


class What(StrEnum):
    """What happened to a broker."""

    STARTED = "started"
    READY = "ready"
    PAUSED = "paused"
    RESUMED = "resumed"
    ENDED = "ended"
    DECLARED_DEAD = "buried"
    NOT_DECLARED_DEAD = "not_buried"
    STARTS_AGAIN = "starts_again"
    LOAD_WORKER = "load_worker"
    """Something happened to a load worker."""
    UNWATCHED = "unwatched"
    """The cluster no longer follows the log: whoever dies from now on is missed only when its lease has run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that happened to `broker` (None: to the cluster as a whole), in words, and as `details` for programs."""

    what: What
    broker: str | None
    text: str
    details: Mapping[str, str | int | None] = field(default_factory=dict)


Tell = Callable[[Happening], None]


class StartBrokenOff(CallerError):
    """Whoever started a cluster wants it no more."""

    def __init__(self) -> None:
        super().__init__("the start of the cluster was broken off; stop what of it runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What a local cluster is made of.

    Broker i has the id and address `127.0.0.1:(http_port + i)` (any free ports if `http_port` is 0), takes Pulsar's clients
    at `pulsar_port + i` (any if it is 0; nowhere if it is None), and has the directory `directory/broker-i`. `log_url` is by
    default `sqlite:DIRECTORY/channel.db`. `services` and `settings` are passed on as `--service` and `--set`. With `declare dead`, a
    broker that dies is declared dead at once; with `restart`, it is started again after that. With `evidence`, each process
    writes `accepts-N.jsonl` to its directory. A broker that is told to stop is killed when it takes longer than its settings allow.
    `load_workers` run beside the brokers, on Kafka only, with `directory/load-worker-i.log`; they are always started again.
    """

    directory: Path
    brokers: int = 3
    http_port: int = 0
    pulsar_port: int | None = None
    log_url: str | None = None
    services: tuple[str, ...] = ("counter",)
    settings: Mapping[str, str | int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    declare_dead: bool = True
    restart: bool = False
    evidence: bool = False
    ready_ms: int = 30_000
    load_workers: int = 0


class LocalCluster:
    """Broker processes on this machine, from `start` to `stop_all`; also a context, which does both.

    `tell` is called with all that happens, from several threads, one call at a time. Brokers are named by their number.
    """

    def __init__(self, settings: ClusterSettings, *, tell: Tell | None = None) -> None:
        """Nothing is started yet.

        Raises `InvalidLogUrl` for a log that processes cannot share, `InvalidConfig` and `InvalidTiming` for settings that no
        broker would take, and for ports that overlap.
        """
        self.settings = settings
        self.log_url = f"sqlite:{settings.directory}/channel.db" if settings.log_url is None else settings.log_url
        if is_in_memory(self.log_url):
            raise InvalidLogUrl(url=self.log_url, problem="the processes of a cluster cannot share memory")
        ports = ports_of(settings.http_port, settings.pulsar_port, settings.brokers)
        self._members = tuple(LocalBroker(settings.directory / f"broker-{number}", *pair) for number, pair in enumerate(ports))
        self.stop_ms = max(member.config(log_url=self.log_url, settings=settings.settings).stop_ms for member in self._members)
        """How long a broker that is told to stop is waited for before it is killed."""
        self.load_workers = LocalLoadWorkers(
            settings.directory,
            count=settings.load_workers,
            log_url=self.log_url,
            environment=settings.environment,
            tell=lambda text, details: self._tell(What.LOAD_WORKER, None, text, **details),
        )
        self._listener = tell
        self._telling = threading.Lock()
        self._changed = threading.Condition()
        self._stopping = False  # No process is started any more.
        self._closing = False  # All have ended: the follower may end.
        self._follows = False  # There is a follower, which will do declarations of death.
        self._failure: EquipoiseError | None = None
        self._offset = -1
        self._log: Log | None = None
        self._follower: threading.Thread | None = None

    # --- what others ask ---

    @property
    def broker_ids(self) -> tuple[str, ...]:
        """The ids of the brokers."""
        return tuple(member.id for member in self._members)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the brokers serve HTTP: `http://127.0.0.1:PORT`."""
        return tuple(f"http://{member.id}" for member in self._members)

    @property
    def pulsar_url(self) -> str:
        """The service URL of Pulsar's clients, if the brokers take any: `pulsar://127.0.0.1:PORT,127.0.0.1:PORT`, all of them."""
        hosts = [f"{HOST}:{member.pulsar_port}" for member in self._members if member.pulsar_port is not None]
        return f"pulsar://{','.join(hosts)}"

    @property
    def directories(self) -> tuple[Path, ...]:
        """The data directories of the brokers, with `broker.log`, and evidence if that was asked for."""
        return tuple(member.directory for member in self._members)

    def pid(self, number: int) -> int | None:
        """The process of a broker; None if it has none."""
        member = self._members[number]
        return None if member.ended or member.process is None else member.process.pid

    @property
    def failure(self) -> EquipoiseError | None:
        """What has ended the following of the log, on which declarations of death and `restart` depend; None while it goes on."""
        return self._failure

    def wait_until_all_ended(self, *, timeout_ms: int) -> bool:
        """Wait until no broker runs, nor will be started again; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: all(member.is_over for member in self._members), timeout_ms / 1_000)

    # --- life ---

    def start(self) -> None:
        """Start all brokers, and wait until all are members.

        Raises `AddressInUse` before anything is made; `DataDirectoryUnusable`; `BrokerFailed` if one is not ready in time or ends
        before; what `open_log` raises, and what a log raises that cannot be followed; `StartBrokenOff`; OSError if a process
        cannot be started. In any case `stop_all` is to be called at the end.
        """
        for member in self._members:
            member.check_port()
        directory = self.settings.directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise DataDirectoryUnusable(path=str(directory), problem=str(error)) from error
        self._log = open_log(self.log_url)
        access = Access(
            log=self._log, reader=restored(self._log), publisher=PUBLISHER, deadline=Deadline.after(timeout_ms=DEATH_DECLARATION_MS)
        )
        read_on(access.log, access.reader, deadline=Deadline.after(timeout_ms=self.settings.ready_ms))
        self._offset = access.view.offset
        self._follows = True
        follower = threading.Thread(target=self._follow, args=(access,), name="follower", daemon=True)
        follower.start()
        self._follower = follower
        for member in self._members:
            self._spawn(member)
        self.load_workers.start()
        self._await_ready(self._members)

    def break_off(self) -> None:
        """Start no process any more, and have `start`, if it waits, raise `StartBrokenOff` within `LOOK_MS`.

        It takes no lock and raises nothing, so that a signal's handler can call it.
        """
        self._stopping = True

    def stop_all(self) -> None:
        """Stop all brokers gracefully, all at once, and kill those that take longer than `stop_ms`; then let go of the log."""
        with self._changed:
            self._stopping = True
            for member in self._members:
                member.end_expected = True
            self._changed.notify_all()
        self._end(self._members)
        self.load_workers.stop()
        if self._follower is not None:
            with self._changed:
                self._closing = True
            self._wake()
            self._follower.join()
        elif self._log is not None:  # It could be opened, and not be read.
            self._log.close()

    def kill_all(self) -> None:
        """Kill all brokers at once, and return without waiting for their end: for one who does not want to wait."""
        for member in self._members:
            member.signal(signal.SIGKILL)
        self.load_workers.signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_all()

    # --- what is done to one broker ---

    def kill(self, number: int) -> None:
        """Kill a broker (SIGKILL) and wait until its process is gone. Its declaration of death follows, if there is one."""
        member = self._expect_end(number)
        member.signal(signal.SIGKILL)
        self._await_ended((member,), timeout_ms=KILL_MS)

    def pause(self, number: int) -> None:
        """Stop a broker in its tracks (SIGSTOP): it neither serves nor renews."""
        self._members[number].signal(signal.SIGSTOP)
        self._tell(What.PAUSED, self._members[number], "is paused")

    def resume(self, number: int) -> None:
        """Let a paused broker go on (SIGCONT)."""
        self._members[number].signal(signal.SIGCONT)
        self._tell(What.RESUMED, self._members[number], "goes on")

    def stop(self, number: int) -> None:
        """Stop a broker gracefully, or kill it after `stop_ms`; on return it is gone, and declared dead if it had to be."""
        self._end((self._expect_end(number),))

    def restart(self, number: int) -> None:
        """Start a broker anew, after stopping it if it runs, and wait until it is a member. Raises as `start` does."""
        self.stop(number)
        member = self._members[number]
        self._spawn(member)
        self._await_ready((member,))

    # --- processes ---

    def _spawn(self, member: LocalBroker, *, again: bool = False) -> None:
        """Start a process; one that is to be started `again` only if nobody has wanted its end meanwhile."""
        settings = self.settings
        with self._changed:
            if self._stopping or (again and member.end_expected):
                return
            process = member.start(
                log_url=self.log_url,
                services=settings.services,
                settings=settings.settings,
                environment=settings.environment,
                evidence=settings.evidence,
                at_offset=self._offset,
            )
            member.watch = threading.Thread(target=self._watch, args=(member, process), name=f"watch {member.id}", daemon=True)
            member.watch.start()
        self._tell(What.STARTED, member, f"started as process {process.pid}, log in {member.output.file}", pid=process.pid)

    def _watch(self, member: LocalBroker, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process; then declare dead it, and start another one if that is wanted."""
        code = process.wait()
        assert process.stdin is not None, "it was started with one"
        process.stdin.close()
        with self._changed:
            member.ended = True
            will_restart = self.settings.restart and not member.end_expected
            member.will_restart = will_restart
            member.death_declaration_wanted = self.settings.declare_dead and self._follows
            self._changed.notify_all()
        output = member.output
        self._tell(What.ENDED, member, output.ending(code), exit_code=code, reason=output.reason(code), log=str(output.file))
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: not member.death_declaration_wanted)  # The follower bounds it.
        if will_restart:
            self._start_again(member)

    def _start_again(self, member: LocalBroker) -> None:
        pause_ms = member.pause.next_ms()
        self._tell(What.STARTS_AGAIN, member, f"starts again in {pause_ms} ms", pause_ms=pause_ms)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or member.end_expected, pause_ms / 1_000)
        try:
            self._spawn(member, again=True)
        except OSError as error:
            self._tell(What.ENDED, member, f"could not be started again: {error}")
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
            member.signal(signal.SIGCONT)  # A paused one would not hear.
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
            if not self._changed.wait_for(lambda: all(member.ended for member in members), timeout_ms / 1_000):
                running = ", ".join(member.id for member in members if not member.ended)
                raise DeadlineExceeded(what=f"the end of {running}", waited_ms=timeout_ms)

    def _await_ready(self, members: tuple[LocalBroker, ...]) -> None:
        deadline = Deadline.after(timeout_ms=self.settings.ready_ms)
        with self._changed:
            while not all(member.ready for member in members):
                if self._failure is not None:
                    raise self._failure
                if self._stopping:
                    raise StartBrokenOff
                for member in members:
                    if member.ended and not member.ready:
                        problem = f"it ended before it was ready: {member.output.last_words() or 'it said nothing'}"
                        raise BrokerFailed(broker=member.id, problem=problem, log_file=str(member.output.file))
                remaining_ms = deadline.remaining_ms()
                if not remaining_ms:
                    late = next(member for member in members if not member.ready)
                    problem = f"it was not ready within {deadline.timeout_ms} ms"
                    raise BrokerFailed(broker=late.id, problem=problem, log_file=str(late.output.file))
                self._changed.wait(min(remaining_ms, LOOK_MS) / 1_000)

    # --- the follower ---

    def _follow(self, access: Access) -> None:
        """Read on until `_closing`, note who has become a member, and declare dead the dead. Whatever ends it before is told, and kept."""
        failure: EquipoiseError | None = None
        try:
            while not self._closing:
                # What woke the log while a declaration of death waited for its own record is forgotten by now: whoever died meanwhile is
                # looked for.
                is_wanted = any(member.death_declaration_wanted for member in self._members)
                self._read_on(access, timeout_ms=0 if is_wanted else _FOLLOW_MS)
                for member in self._members:
                    self._note_ready(access, member)
                    if member.death_declaration_wanted:
                        self._declare_dead(access, member)
        except EquipoiseError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a thread that dies of it would leave its cluster waiting for it
            failure = Bug(f"following the log {access.log.name} ended with {type(error).__name__}: {error}; please report it")
            failure.__cause__ = error
        with self._changed:
            self._failure = failure
            self._follows = False
            for member in self._members:
                member.death_declaration_wanted = False
            self._changed.notify_all()
        access.log.close()
        if failure is not None:
            self._tell(
                What.UNWATCHED, None, f"from now on nobody who dies is declared dead at once: {failure}", error=type(failure).__name__
            )

    def _read_on(self, access: Access, *, timeout_ms: int) -> None:
        try:
            _read_or_resync(access, timeout_ms=timeout_ms)
        except (LogUnavailable, LogStorageFull):  # Both pass, and the brokers wait for that as well.
            time.sleep(RETRY_MS / 1_000)
        self._offset = access.view.offset

    def _note_ready(self, access: Access, member: LocalBroker) -> None:
        broker = access.view.brokers.get(member.id)
        if member.ready or broker is None or broker.status != "up" or broker.incarnation <= member.started_at_offset:
            return
        if member.ended:
            return
        # It is told before `start` can return, so that whoever then says that all are ready says it last.
        self._tell(What.READY, member, f"is a member, incarnation {broker.incarnation}", incarnation=broker.incarnation)
        with self._changed:
            member.ready = True
            self._changed.notify_all()

    def _declare_dead(self, access: Access, member: LocalBroker) -> None:
        problem = None
        for _ in range(DEATH_DECLARATION_ATTEMPTS_MAX):
            try:
                death_declarations = declare_dead(
                    replace(access, deadline=Deadline.after(timeout_ms=DEATH_DECLARATION_MS)), member.directory
                )
            except PeerError as error:
                problem = str(error)
                continue
            except DataDirectoryUnusable as error:
                # A process that ended before it made its directory has never joined, and is not missed.
                broker = access.view.brokers.get(member.id)
                problem = str(error) if broker is not None and broker.live else None
                break
            except EquipoiseError as error:  # It would be the same again; a log that is broken is met by the next read, too.
                problem = str(error)
                break
            for death_declaration in death_declarations:
                text = f"is declared dead at offset {death_declaration.offset}, bundles that it held: {death_declaration.bundles}"
                self._tell(
                    What.DECLARED_DEAD,
                    member,
                    text,
                    offset=death_declaration.offset,
                    incarnation=death_declaration.incarnation,
                    bundles=death_declaration.bundles,
                )
            problem = None
            break
        if problem is not None:
            self._tell(What.NOT_DECLARED_DEAD, member, f"could not be declared dead, the others will notice its silence: {problem}")
        with self._changed:
            member.death_declaration_wanted = False
            self._changed.notify_all()

    def _wake(self) -> None:
        if self._log is not None:
            self._log.wake()

    def _tell(self, what: What, member: LocalBroker | None, text: str, **details: str | int | None) -> None:
        if self._listener is not None:
            with self._telling:
                self._listener(Happening(what=what, broker=None if member is None else member.id, text=text, details=details))


def _read_or_resync(access: Access, *, timeout_ms: int) -> None:
    try:
        if access.log.wait(access.reader.position, timeout_ms=timeout_ms):
            for entry in access.log.read(access.reader.position, limit=READ_ENTRIES_MAX):
                access.reader.feed(entry)
    except LogTruncated:
        resync(access)
