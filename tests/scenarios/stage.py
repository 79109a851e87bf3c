"""The stage of a story: brokers on one log in memory. The story controls time and delivery.

* Appended records are on the log, and read by all brokers, at once. Services answer at once.
* A story may hold an author's records in flight, make a broker deaf, or let a service wait.
* Time passes only on the command `advance`, from one moment at which a broker wants to be woken to
  the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from equipoise.brokers.agent.effects import (
    Abandon,
    Alarm,
    Answered,
    Close,
    Discard,
    Effect,
    Open,
    Prepare,
    Refold,
    Reshaped,
)
from equipoise.brokers.agent.events import Event, Instant, Tick
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.requests import Intent
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.brokers.testing.agent_host import AgentHost, Directory, Failed
from equipoise.channel.core import snapshot
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerChanged, BrokerEntry, BundleChanged, next_entry
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BundleTransition, Merge, Renewed, Split
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.inspect import story
from tests.scenarios.words import moment, shortened
from tests.simulation.checkers.coverage import Coverage, Tokens
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.stand_in_service import VERBS, StandInService, Work, bundle_of

# No command of a story takes as many steps. Agents that take more answer each other for ever.
_STEPS_MAX = 10_000

# The difference between the wall clocks of all machines and the beginning of a story.
_WALL_MS = 1_700_000_000_000


@dataclass(slots=True, kw_only=True)
class Link:
    """One author's connection to the log. While it is held, records stay in flight, each with the
    callback for its failure.
    """

    is_held: bool = False
    in_flight: deque[tuple[Failed | None, bytes]] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """One machine. Its boot clock started `booted_ms` before the story, its wall clock is `skew_ms`
    ahead of the others. Its next process serves `namespaces` (None: all).
    """

    name: str
    broker: str
    booted_ms: int
    true_time_ms: Callable[[], int]
    skew_ms: int = 0
    namespaces: tuple[str, ...] | None = None
    directory: Directory = field(default_factory=Directory)
    link: Link = field(default_factory=Link)
    is_deaf: bool = False
    process: Process | None = None
    instance_ids_made: int = 0

    def now(self) -> Instant:
        true_ms = self.true_time_ms()
        return Instant(true_ms + self.booted_ms, true_ms + _WALL_MS + self.skew_ms)

    def make_instance_id(self) -> str:
        """A text that no process has used before."""
        self.instance_ids_made += 1
        return f"{self.name}-{self.instance_ids_made}"


class Process(AgentHost):
    """One run of a broker's program. `given` are all handles that its service ever had, also those
    that the agent has forgotten.
    """

    service: Service

    def __init__(self, host: Host, stage: Stage, *, read: int, view: View | None) -> None:
        super().__init__(
            broker=host.broker,
            address=f"http://{host.name}",
            directory=host.directory,
            log=stage.log,
            make_instance_id=host.make_instance_id,
            timing=stage.timing,
            namespaces=host.namespaces,
            read=read,
            view=view,
        )
        self.host = host
        self.service = Service(answer=self.deliver, die=self.end)
        self.given: list[Handle] = []
        self.paused = False
        self.is_corrupt = False
        self._stage = stage

    @property
    def is_paused(self) -> bool:
        return self.paused

    def now(self) -> Instant:
        return self.host.now()

    def append(self, data: bytes, failed: Failed) -> None:
        self._stage.send(self.host.link, data, failed)

    def accepts(self, event: Event) -> bool:
        """See `AgentHost`. A test may also give the agent an answer that nobody waits for."""
        self.service.ends(event)
        return True

    def observe(self, effect: Effect) -> None:
        """Write the line of an effect into the story."""
        if isinstance(effect, Open):
            self.given.append(effect.handle)
        elif isinstance(effect, Reshaped):
            self.given.extend(effect.children)
        line = _line(effect)
        if line is not None:
            self._say(line)

    def stepped(self, event: Event, _effects: Sequence[Effect], _now: Instant) -> None:
        self._stage.check_step(self, event)

    def replayed(self, check: Refold, *, agrees: bool) -> None:
        result = "its own view is right, and it serves on" if agrees else "its own view is wrong"
        self._say(
            f"folds the log again, since {check.other} says another digest at {check.offset}:"
            f" {result}"
        )

    def ended(self, why: str, *, killed: bool) -> None:
        self._say(why)
        self.host.process = None

    def _say(self, what: str) -> None:
        self._stage.say(f"{self.host.name} {what}")


class Service(StandInService):
    """The service of one process. It does everything at once and well, unless `moods` says
    otherwise for an operation.

    `waiting` holds the operations that wait, by bundle. `poison` is the operation and the bundle
    that end the process.
    """

    def __init__(self, *, answer: Callable[[Event], None], die: Callable[[str], None]) -> None:
        super().__init__(answer=answer)
        self.moods: dict[str, str] = {}
        self.waiting: list[tuple[str, Callable[[], None]]] = []
        self.poison: tuple[str, str] | None = None
        self._die = die

    def perform(self, work: Work, result: Callable[[str | None], Event]) -> None:
        verb = VERBS[type(work)]
        mood = "dies" if self.poison == (verb, bundle_of(work)) else self.moods.get(verb)
        if mood == "dies":
            self._die(f"dies as its service is to {verb} a bundle")
        elif mood == "waits":
            self.waiting.append((bundle_of(work), lambda: self.answer(result(None))))
        elif mood != "hangs":
            self.answer(result("no room here" if mood == "refuses" else None))

    def abandoned(self, effect: Abandon) -> None:
        self.waiting = [(bundle, done) for bundle, done in self.waiting if bundle != effect.bundle]

    def go_on(self) -> None:
        """End the operations that wait."""
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done()


def _line(effect: Effect) -> str | None:
    """The line of a story about an effect; None if it has none."""
    match effect:
        case Prepare():
            return f"prepares {effect.bundle.name}{_from(effect.source)}"
        case Open(handle=handle):
            left = "" if effect.handover is None else f" with {effect.handover.decode()!r}"
            return f"opens {handle.bundle} under token {handle.token}{left}{_from(effect.source)}"
        case Close():
            to = (
                ""
                if effect.moved_to is None
                else f" and sends its clients to {effect.moved_to.broker}"
            )
            return f"closes {effect.handle.bundle}{to}"
        case Discard():
            return f"throws away what it prepared for {effect.bundle}"
        case Abandon():
            return f"is not done with {effect.doing} {effect.bundle} in time, and abandons it"
        case Reshaped():
            return (
                "goes on with"
                f" {' and '.join(f'{child.bundle} under token {child.token}' for child in effect.children)}"  # noqa: E501
            )
        case Resync():
            return (
                f"resyncs from {effect.before} to {effect.offset}; keys that changed:"
                f" {len(effect.changes)}"
            )
        case Alarm():
            return f"raises {effect.name}: {effect.message}"
        case Answered(error=error, refused=refused, folded=folded):
            if error is not None:
                return f"answers: {error}"
            verdict = folded.verdict if folded is not None else refused
            if verdict is None or verdict.accepted:
                return None
            return f"answers: {verdict.reason}{f', {verdict.problem}' if verdict.problem else ''}"
        case _:
            return None


def _from(source: BrokerEntry | None) -> str:
    return "" if source is None else f", from {source.broker}"


class Stage:
    """Hosts, a log, and one true time in milliseconds. What happens is kept as lines until
    `take_lines` is called.

    `visited` collects which rows of the tables of `channel.core.lifecycle` accepted records took:
    (before, after) of a transition, (before, role) of a death; and `split` and `merge`.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.hosts: dict[str, Host] = {}
        self.admin = Link()
        self.timing = Timing()
        self.log = FaultyLog(name="story", cluster="story", folded=self._folded)
        self.names = story.Names(self.log.view)
        self.log_is_out = False
        self.records: list[str] = []
        self.visited: dict[tuple[Phase, Phase] | tuple[Phase, str] | str, None] = {}
        self._lines: list[str] = []
        self._said_at_ms = 0
        self._coverage = Coverage()
        self._tokens = Tokens()

    @property
    def view(self) -> View:
        return self.log.view

    def say(self, line: str) -> None:
        """Write a line, after a line with the time if that has changed."""
        if self.now_ms != self._said_at_ms:
            self._lines.append(moment(self.now_ms))
            self._said_at_ms = self.now_ms
        self._lines.append(shortened(line))

    def take_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def check(self) -> None:
        one_owner(list(self.hosts.values()))
        one_view(list(self.hosts.values()), self.log)

    # --- the life of processes ---

    def host(self, name: str, *, broker: str | None = None) -> Host:
        host = self.hosts.get(name)
        if host is None:
            booted_ms = 1_000_000 * (len(self.hosts) + 1)
            host = Host(
                name=name,
                broker=broker or name,
                booted_ms=booted_ms,
                true_time_ms=lambda: self.now_ms,
            )
            self.hosts[name] = host
        return host

    def start(self, name: str, *, broker: str | None = None) -> None:
        """Start a broker's process on a host: on a new one, or on one whose former process has
        ended.
        """
        host = self.host(name, broker=broker)
        read, view = 0, None
        if host.directory.snapshot is not None:
            read, data = host.directory.snapshot
            view = snapshot.from_bytes(data)
        host.process = Process(host, self, read=read, view=view)
        host.process.read_on()

    def crash(self, name: str) -> None:
        """End a process without notice. Its records in flight may still arrive."""
        self.process(name).end("crashes", killed=True)

    def process(self, name: str) -> Process:
        process = self.hosts[name].process
        assert process is not None, f"no broker runs on {name}"
        return process

    def lose_directory(self, name: str) -> None:
        """Replace the disk of a host."""
        self.hosts[name].directory = Directory()

    def take_snapshot(self, name: str) -> None:
        self.process(name).save_snapshot()

    def corrupt(self, name: str, bundle: str) -> None:
        """Change a broker's view, as broken memory or a wrong fold would."""
        process = self.process(name)
        before = process.agent.view.bundles[bundle]
        wrong = next_entry(
            before,
            before.phase,
            owner=before.owner,
            source=before.source,
            last=before.last,
            token=before.token - 1,
        )
        process.agent.view.put_bundle(wrong, before)
        process.is_corrupt = True

    # --- the log ---

    def send(self, link: Link, data: bytes, failed: Failed | None = None) -> None:
        """Append a record to the log, unless its author's records are held or the log is down."""
        if link.is_held:
            link.in_flight.append((failed, data))
        elif not self.log_is_out:
            self.log.append(data)
        elif failed is not None:
            failed(LogUnavailable(log="story", problem="it is out", in_doubt=False))

    def propose(self, make: Callable[[Author], AnyRecord]) -> None:
        """Propose a record as an admin who has read the whole log."""
        self.send(self.admin, encode(make(Author(publisher="admin:ops", as_of=self.view.offset))))

    def deliver(self, link: Link, count: int) -> None:
        """Append the oldest records in flight to the log. The others stay in flight."""
        for _ in range(count):
            self.log.append(link.in_flight.popleft()[1])

    def release(self, link: Link) -> None:
        """Append all records in flight to the log, and hold no more."""
        link.is_held = False
        self.deliver(link, len(link.in_flight))

    def lose(self, link: Link, *, noticed: bool) -> None:
        for failed, _ in link.in_flight:
            if noticed and failed is not None:
                failed(LogStorageFull(log="story"))
        link.in_flight.clear()

    def doubt(self, link: Link) -> None:
        """Tell the author that it is unknown whether its records in flight arrived. They stay in
        flight.
        """
        for failed, _ in link.in_flight:
            if failed is not None:
                failed(LogUnavailable(log="story", problem="it gave no answer"))

    def _folded(self, folded: Folded, _view: View) -> None:
        """Write the lines of a record that was just appended, and check its effect on the
        bundles.
        """
        self.names.learn(folded)
        self._tell(folded)
        self._coverage.folded(folded, self.view)
        self._tokens.folded(folded)
        self._note_rows(folded)

    def duplicate(self, offset: int) -> None:
        """Append a late copy of an old record."""
        self.log.append(next(entry.data for entry in self.log.entries if entry.offset == offset))

    def _tell(self, folded: Folded) -> None:
        line, *more = story.describe(folded, self.view, self.names)
        lines = [f"{folded.offset}  {line}", *(f"    {text}" for text in more)]
        self.records.append("\n".join(lines))
        if (
            isinstance(folded.record, Renewed)
            and folded.verdict.accepted
            and not folded.verdict.diverged
        ):
            return
        for text in lines:
            self.say(text)
        for change in folded.verdict.changes:
            if (
                isinstance(change, BundleChanged)
                and change.after is not None
                and not isinstance(folded.record, BundleTransition)
            ):
                self.say(f"    {story.standing(change.after, self.names)}")

    def _note_rows(self, folded: Folded) -> None:
        changes = folded.verdict.changes
        dead = next(
            (
                change.dead
                for change in changes
                if isinstance(change, BrokerChanged) and change.dead is not None
            ),
            None,
        )
        if changes and isinstance(folded.record, Split | Merge):
            self.visited[type(folded.record).__name__.lower()] = None
        for change in changes:
            if (
                isinstance(change, BundleChanged)
                and change.before is not None
                and change.after is not None
            ):
                role = "owner" if change.before.owner == dead else "source"
                self.visited[change.before.phase, change.after.phase if dead is None else role] = (
                    None
                )

    # --- steps ---

    def settle(self) -> None:
        """Let all brokers read until none has anything to read."""
        for _ in range(_STEPS_MAX):
            if not self._one_step():
                return
        raise AssertionError("the brokers answer each other for ever")

    def _one_step(self) -> bool:
        for process in self._running():
            if process.lags and not process.host.is_deaf:
                process.read_on()
                return True
        return False

    def _running(self) -> list[Process]:
        return [
            host.process
            for host in self.hosts.values()
            if host.process is not None and not host.process.is_paused
        ]

    def resync(self, process: Process) -> None:
        """Truncate all that a broker has not read yet. It continues from the snapshot."""
        # A broker that resumes gets the resync first.
        paused, process.paused = process.paused, False
        process.resync(len(self.log.entries), snapshot.from_bytes(snapshot.to_bytes(self.view)))
        process.paused = paused

    def check_step(self, process: Process, _event: Event) -> None:
        """Check what must hold after every step of a broker."""
        one_owner(list(self.hosts.values()))
        one_operation(process)
        no_hurry(process)

    def ask(self, name: str, intent: Intent) -> None:
        self.process(name).submit(intent)

    def advance(self, duration_ms: int) -> None:
        """Let time pass, from one moment at which a broker wants to be woken to the next."""
        until_ms = self.now_ms + duration_ms
        while True:
            awake = self._running()
            wakes = [
                (process.agent.wake_at_ms - process.host.booted_ms, process) for process in awake
            ]
            due_ms = min((at_ms for at_ms, _ in wakes), default=until_ms)
            if due_ms >= until_ms:
                break
            self.now_ms = max(due_ms, self.now_ms)
            for at_ms, process in wakes:
                if at_ms <= due_ms:
                    process.deliver(Tick())
            self.settle()
        self.now_ms = until_ms
        for process in awake:
            process.deliver(Tick())

    def set_timing(self, field: str, duration_ms: int) -> None:
        self.timing = replace(self.timing, **{field: duration_ms})


# --- what must hold after every step and every command ---


def one_owner(hosts: Sequence[Host]) -> None:
    """Check that no two handles pass for one point of the hash space, each by the clocks of its own
    machine.

    Handles that pass after their lease by their namespace's policy are left out: there only the
    token guards.
    """
    passing = [
        found
        for host in hosts
        if host.process is not None
        for found in _passing(host, host.process)
    ]
    # In order of the hash space, handles that overlap are neighbours.
    passing.sort(key=lambda found: (found[1].namespace, found[1].low, found[0]))
    for (one_host, one), (other_host, other) in pairwise(passing):
        apart = one.namespace != other.namespace or one.high <= other.low
        assert apart, f"{one_host} and {other_host} both serve: {one}, {other}"


def _passing(host: Host, process: Process) -> list[tuple[str, Handle]]:
    now = host.now()
    passing = [handle for handle in process.given if handle.passes(now)]
    view = process.agent.view
    return [
        (host.name, handle)
        for handle in passing
        if handle.lease.good(now) or not serves_on(view, handle.namespace)
    ]


def one_operation(process: Process) -> None:
    """Check that a service has at most one operation of a bundle at a time."""
    for bundle, under_way in process.service.under_way.items():
        assert len(under_way) <= 1, (
            f"{process.host.name} is to {under_way[1].verb} {bundle}, and is not done with"
            f" {under_way[0]}"
        )


def no_hurry(process: Process) -> None:
    """Check that a broker that has done what was due does not ask to be woken at once: it would
    never rest.
    """
    now_ms, wake_at_ms = process.host.now().boot_ms, process.agent.wake_at_ms
    assert wake_at_ms > now_ms, (
        f"{process.host.name} asks to be woken at {wake_at_ms}, and it is {now_ms}"
    )


def one_view(hosts: Sequence[Host], log: FaultyLog) -> None:
    """Check that every broker's view equals, byte for byte, the fold of the log from its beginning
    to where the broker has read.
    """
    processes = [
        host.process for host in hosts if host.process is not None and not host.process.is_corrupt
    ]
    duplicate = log.reader()
    for read in range(len(log.entries) + 1):
        if read:
            duplicate.feed(log.entries[read - 1])
        for process in processes:
            if process.read == read:
                assert snapshot.to_bytes(duplicate.view) == snapshot.to_bytes(process.agent.view), (
                    f"{process.host.name} holds another view than the log"
                )
