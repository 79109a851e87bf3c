"""The stage of a story: brokers on one log in memory, with time and delivery in the hands of whoever tells the story.

May live here: what happens on a stage, whoever asks for it. The language in which it is asked for is `language`, the checks
after each command are `checks`.

On a stage nothing takes time by itself. A record that is appended is on the log, and read by all, at once, and services
answer at once; a story that needs it otherwise holds an author's records in flight, makes a broker deaf, or lets a service
wait. Time passes only when the story says so, from one moment at which some broker wants to be woken to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from equipoise.brokers.agent.events import Event, Tick
from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.testing.agent_host import Directory, Failed
from equipoise.brokers.testing.shared_log import SharedLog
from equipoise.brokers.testing.simulation.checkers.coverage import Coverage, Tokens
from equipoise.channel.core import snapshot
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, next_entry
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BundleTransition, Merge, Renewed, Split
from equipoise.channel.core.table import View
from equipoise.channel.inspect import story
from tests.scenarios import checks
from tests.scenarios.host import Host, Link, Process
from tests.scenarios.words import moment, shortened

# More steps than any command of a story takes: a stage that goes on has agents that answer each other for ever.
_STEPS_MAX = 10_000


class Stage:
    """Hosts, a log, and one true time in milliseconds. What happens is kept as lines until `take_lines` is called.

    `visited` collects which rows of the tables of `channel.core.lifecycle` accepted records took: (before, after) of a
    transition, (before, role) of a death; and `split` and `merge`.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.hosts: dict[str, Host] = {}
        self.admin = Link()
        self.timing = Timing()
        self.log = SharedLog(name="story", cluster="story", folded=self._folded)
        self.names = story.Names(self.log.view)
        self.log_is_out = False
        self.told: list[str] = []
        self.visited: dict[tuple[Phase, Phase] | tuple[Phase, str] | str, None] = {}
        self._lines: list[str] = []
        self._said_at_ms = 0
        self._coverage = Coverage()
        self._tokens = Tokens()

    @property
    def view(self) -> View:
        """The view of a reader that has read the whole log."""
        return self.log.view

    def say(self, line: str) -> None:
        """Tell something; with the time before it, if that has moved since the last line."""
        if self.now_ms != self._said_at_ms:
            self._lines.append(moment(self.now_ms))
            self._said_at_ms = self.now_ms
        self._lines.append(shortened(line))

    def take_lines(self) -> list[str]:
        """What happened since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def check(self) -> None:
        """What must hold after every command."""
        checks.one_owner(list(self.hosts.values()))
        checks.one_view(list(self.hosts.values()), self.log)

    # --- the life of processes ---

    def host(self, name: str, *, broker: str | None = None) -> Host:
        """The machine of this name, which is made when it is first spoken of; `broker` is the id of its broker."""
        host = self.hosts.get(name)
        if host is None:
            booted_ms = 1_000_000 * (len(self.hosts) + 1)
            host = Host(name=name, broker=broker or name, booted_ms=booted_ms, true_time_ms=lambda: self.now_ms)
            self.hosts[name] = host
        return host

    def start(self, name: str, *, broker: str | None = None) -> None:
        """Start a broker's process on a host: on a new one, or on one whose former process has ended."""
        host = self.host(name, broker=broker)
        read, view = 0, None
        if host.directory.snapshot is not None:
            read, data = host.directory.snapshot
            view = snapshot.from_bytes(data)
        host.process = Process(host, self, read=read, view=view)
        host.process.read_on()

    def crash(self, name: str) -> None:
        """End a process without any farewell. What it has in flight may still arrive."""
        self.process(name).end("crashes", killed=True)

    def process(self, name: str) -> Process:
        """The process that runs on a host."""
        process = self.hosts[name].process
        assert process is not None, f"no broker runs on {name}"
        return process

    def lose_directory(self, name: str) -> None:
        """Replace the disk of a host."""
        self.hosts[name].directory = Directory()

    def take_snapshot(self, name: str) -> None:
        """Keep a broker's view in its directory."""
        self.process(name).save_snapshot()

    def corrupt(self, name: str, bundle: str) -> None:
        """Change a broker's view behind its back, as a broken memory or a wrong fold would."""
        process = self.process(name)
        before = process.agent.view.bundles[bundle]
        wrong = next_entry(before, before.phase, owner=before.owner, source=before.source, last=before.last, token=before.token - 1)
        process.agent.view.put_bundle(wrong, before)
        process.is_corrupt = True

    # --- the log ---

    def send(self, link: Link, data: bytes, failed: Failed | None = None) -> None:
        """Send a record on its way: onto the log at once, unless its author's records are held, or the log is out."""
        if link.is_held:
            link.in_flight.append((failed, data))
        elif not self.log_is_out:
            self.log.append(data)
        elif failed is not None:
            failed(LogUnavailable(log="story", problem="it is out", in_doubt=False))

    def propose(self, make: Callable[[Author], AnyRecord]) -> None:
        """Let an admin propose something, who has read the whole log."""
        self.send(self.admin, encode(make(Author(publisher="admin:ops", as_of=self.view.offset))))

    def deliver(self, link: Link, count: int) -> None:
        """Put the oldest records in flight onto the log; those that follow stay where they are."""
        for _ in range(count):
            self.log.append(link.in_flight.popleft()[1])

    def release(self, link: Link) -> None:
        """Put all that is in flight onto the log, and hold no more."""
        link.is_held = False
        self.deliver(link, len(link.in_flight))

    def lose(self, link: Link, *, told: bool) -> None:
        """What is in flight never arrives; `told` if its author learns of that, for the log's disk is full."""
        for failed, _ in link.in_flight:
            if told and failed is not None:
                failed(LogStorageFull(log="story"))
        link.in_flight.clear()

    def doubt(self, link: Link) -> None:
        """The author of what is in flight is told that nobody knows whether it has arrived; it stays where it is."""
        for failed, _ in link.in_flight:
            if failed is not None:
                failed(LogUnavailable(log="story", problem="it gave no answer"))

    def _folded(self, folded: Folded, _view: View) -> None:
        """Tell of a record that was just appended, and check what it made of the bundles."""
        self.names.learn(folded)
        self._tell(folded)
        self._coverage.folded(folded, self.view)
        self._tokens.folded(folded)
        self._note_rows(folded)

    def duplicate(self, offset: int) -> None:
        """A copy of an old record arrives late."""
        self.log.append(next(entry.data for entry in self.log.entries if entry.offset == offset))

    def _tell(self, folded: Folded) -> None:
        line, *more = story.describe(folded, self.view, self.names)
        lines = [f"{folded.offset}  {line}", *(f"    {text}" for text in more)]
        self.told.append("\n".join(lines))
        if isinstance(folded.record, Renewed) and folded.verdict.accepted and not folded.verdict.diverged:
            return
        for text in lines:
            self.say(text)
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.after is not None and not isinstance(folded.record, BundleTransition):
                self.say(f"    {story.standing(change.after, self.names)}")

    def _note_rows(self, folded: Folded) -> None:
        changes = folded.verdict.changes
        dead = next((change.dead for change in changes if isinstance(change, BrokerChanged) and change.dead is not None), None)
        if changes and isinstance(folded.record, Split | Merge):
            self.visited[type(folded.record).__name__.lower()] = None
        for change in changes:
            if isinstance(change, BundleChanged) and change.before is not None and change.after is not None:
                role = "owner" if change.before.owner == dead else "source"
                self.visited[change.before.phase, change.after.phase if dead is None else role] = None

    # --- steps ---

    def settle(self) -> None:
        """Let everybody take what is there for them to take, until nothing moves any more."""
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
        return [host.process for host in self.hosts.values() if host.process is not None and not host.process.is_paused]

    def resync(self, process: Process) -> None:
        """Truncation took all that a broker has not read yet: it goes on from the snapshot of it."""
        paused, process.paused = process.paused, False  # A broker that wakes up hears of it first.
        process.resync(len(self.log.entries), snapshot.from_bytes(snapshot.to_bytes(self.view)))
        process.paused = paused

    def check_step(self, process: Process, _event: Event) -> None:
        """What must hold after every step of a broker."""
        checks.one_owner(list(self.hosts.values()))
        checks.one_operation(process)
        checks.no_hurry(process)

    def ask(self, name: str, intent: Intent) -> None:
        """Ask a broker for something, as an operator or its balancer does."""
        self.process(name).request(intent)

    def advance(self, duration_ms: int) -> None:
        """Let time pass, from one wish to be woken to the next."""
        until_ms = self.now_ms + duration_ms
        while True:
            awake = self._running()
            wakes = [(process.agent.wake_at_ms - process.host.booted_ms, process) for process in awake]
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
        """Give brokers that start from now on another duration."""
        self.timing = replace(self.timing, **{field: duration_ms})
