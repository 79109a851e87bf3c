"""Run real Pulsar clients as processes, and read their events."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import orjson

from tests.pulsar.programs import ROOT, Language, command
from tests.tls.secured import Secured

# A lookup may wait for the end of a dead broker's lease, and a JVM starts slowly on a busy machine.
READY_S: Final = 60.0
# A program ends within 15 s; see README.md.
_END_S: Final = 30.0
_KILL_S: Final = 5.0
_OUTPUT_BYTES: Final = 2_000


class Type(StrEnum):
    """The types of a subscription."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class Event(StrEnum):
    """The events that clients write; see README.md."""

    READY = "ready"
    SENT = "sent"
    RECEIPTED = "receipted"
    FAILED = "failed"
    RECEIVED = "received"


@dataclass(frozen=True, slots=True, kw_only=True)
class Producing:
    """Send `rate` messages per second to each of `topics`, in batches of `batch` unless it is 0."""

    url: str
    name: str
    topics: tuple[str, ...]
    rate: float
    batch: int = 0
    secured: Secured | None = None

    def words(self) -> list[str]:
        """Return the arguments of the program."""
        words = [
            "produce",
            "--url",
            self.url,
            "--name",
            self.name,
            "--topics",
            ",".join(self.topics),
            "--rate",
            str(self.rate),
        ]
        batches = ["--batch", str(self.batch)] if self.batch else []
        return [*words, *batches, *(self.secured.words() if self.secured else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """Receive from `topics`, or from the topics whose names match `pattern`."""

    url: str
    name: str
    subscription: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    type: Type = Type.EXCLUSIVE
    secured: Secured | None = None

    def words(self) -> list[str]:
        """Return the arguments of the program."""
        what = (
            ["--topics", ",".join(self.topics)]
            if self.pattern is None
            else ["--pattern", self.pattern]
        )
        words = [
            "consume",
            "--url",
            self.url,
            "--name",
            self.name,
            *what,
            "--subscription",
            self.subscription,
            "--type",
            self.type,
        ]
        return [*words, *(self.secured.words() if self.secured else [])]


class ClientFailedError(AssertionError):
    """A client ended early, or did not do something in time. The message has its last output."""


class Tally:
    """The events of one client in numbers. It is bounded by the number of topics, and not safe for
    threads.
    """

    def __init__(self) -> None:
        self.ready: dict[str, object] | None = None
        self.counts: defaultdict[tuple[Event, str], int] = defaultdict(int)
        self.last_ns: dict[tuple[Event, str], int] = {}
        self.last_problem: str | None = None

    def note(self, line: dict[str, object]) -> None:
        """Count one line."""
        event, at_ns = Event(str(line["event"])), line["at_ns"]
        assert isinstance(at_ns, int), line
        if event is Event.READY:
            self.ready = line
            return
        if event is Event.FAILED:
            self.last_problem = str(line["why"])
        what = event, str(line["topic"])
        self.counts[what] += 1
        self.last_ns[what] = at_ns

    def count(self, event: Event, topic: str | None = None) -> int:
        """Return the number of an event, on one topic or on all."""
        return sum(
            number
            for (one, of), number in self.counts.items()
            if one is event and topic in (None, of)
        )


class Client:
    """A client process. As a context it is started and stopped, and killed if the body raises.

    In `folder`, the file `history` gets its events and `complaints` its standard error.
    """

    def __init__(
        self,
        language: Language,
        task: Producing | Consuming,
        folder: Path,
        *,
        program: Sequence[str] | None = None,
    ) -> None:
        """Do not start yet. `program` replaces the program of the language."""
        self._program = program
        self.language = language
        self.task = task
        self.history = folder / f"{task.name}.jsonl"
        self.complaints = folder / f"{task.name}.log"
        self._tally = Tally()
        self._changed = threading.Condition()
        self._over = False  # Its output has ended.
        self._problem: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name of its producer or consumer."""
        return self.task.name

    # --- its events ---

    def count(self, event: Event, topic: str | None = None) -> int:
        """Return the number of an event, on one topic or on all."""
        with self._changed:
            return self._tally.count(event, topic)

    def last_ns(self, event: Event) -> dict[str, int]:
        """Return the time of the last event of a kind by topic."""
        with self._changed:
            return {
                topic: at_ns for (one, topic), at_ns in self._tally.last_ns.items() if one is event
            }

    def check(self) -> None:
        """Raise `ClientFailedError` if it has ended."""
        with self._changed:
            if self._over:
                raise ClientFailedError(
                    f"{self.name} ({self.language}) has ended; {self._last_words()}"
                )

    # --- waiting; each raises `ClientFailedError` ---

    def wait_ready(self, *, timeout_s: float = READY_S) -> None:
        """Wait for its event `ready`."""
        self._wait(lambda tally: tally.ready is not None, "being ready", timeout_s)

    def wait_count(
        self, event: Event, count: int, *, topic: str | None = None, timeout_s: float
    ) -> None:
        """Wait until there are `count` of an event."""
        self._wait(
            lambda tally: tally.count(event, topic) >= count, f"{event} {count} times", timeout_s
        )

    def _wait(self, condition: Callable[[Tally], bool], what: str, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition(self._tally) or self._over, timeout_s)
            if not condition(self._tally):
                problem = "it ended" if self._over else f"{timeout_s:.0f} s passed"
                counted = {
                    f"{event} {topic}": number
                    for (event, topic), number in self._tally.counts.items()
                }
                raise ClientFailedError(
                    f"{self.name} ({self.language}): {problem} before {what}; {counted};"
                    f" {self._last_words()}"
                )

    # --- life ---

    def start(self) -> Self:
        """Start it without waiting for its event `ready`. Raises `BuildFailedError`."""
        with self.complaints.open("ab") as complaints:
            self._process = subprocess.Popen(
                [*(self._program or command(self.language)), *self.task.words()],
                # A client ends with this process, because the other end closes.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                cwd=ROOT,
                start_new_session=True,
            )
        assert self._process.stdout is not None, "it was started with one"
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name=f"reads {self.name}", daemon=True
        )
        self._reader.start()
        return self

    def end(self) -> None:
        """Let it end, without waiting."""
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it was started with one"
        self._process.stdin.close()

    def stop(self) -> None:
        """Let it end, and wait for its last event. Raises `ClientFailedError` if it does not end,
        or ends with an error.
        """
        self.end()
        assert self._process is not None, "it was started"
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClientFailedError(
                f"{self.name} ({self.language}) did not end within {_END_S:.0f} s;"
                f" {self._last_words()}"
            ) from None
        self._join()
        if code or self._problem:
            raise ClientFailedError(
                f"{self.name} ({self.language}) ended with {code}; {self._last_words()}"
            )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop its process while the body runs, as a machine without free CPUs does."""
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_KILL_S)
            self.end()
            self._join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    def _join(self) -> None:
        assert self._reader is not None, "it was started"
        self._reader.join(_KILL_S)

    def _read(self, output: IO[bytes]) -> None:
        with output, self.history.open("wb") as history:
            for line in output:
                try:
                    event = orjson.loads(line)
                    with self._changed:
                        self._tally.note(event)
                        self._changed.notify_all()
                except (ValueError, KeyError, AssertionError) as error:
                    self._problem = f"it wrote {line!r:.200}: {error!r}"
                    break
                history.write(line)
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _last_words(self) -> str:
        words = (
            self.complaints.read_bytes()[-_OUTPUT_BYTES:].decode(errors="replace").strip()
            if self.complaints.exists()
            else ""
        )
        told = [self._problem, self._tally.last_problem, words]
        return "its last output: " + (" | ".join(word for word in told if word) or "none")
