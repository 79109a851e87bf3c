"""Call the counter service from a process of its own, and record every attempt for the checker.

* `python -m tests.load.callers` reads one plan (a JSON line) and calls until its
  standard input ends.
* A process of its own keeps other work from looking like a pause of the service.
* `tests/checker/README.md` defines what callers may do without a false alarm of the checker, which
  shares no code with them.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp
import orjson
from pydantic import BaseModel, ConfigDict, Field

from equipoise.brokers.security.tls import client_context_of_environment
from equipoise.channel.system.clocks import boot_ns

# A broker that is stopped in the middle of a call holds its caller for this long. Then the caller
# asks another broker.
ATTEMPT_S: Final = 2.0

# Pause between attempts. A dead broker refuses at once, and would otherwise be asked a thousand
# times a second.
_BETWEEN_ATTEMPTS_S: Final = 0.025

# Limit of the pause that a refusal may request (Retry-After).
_RETRY_AFTER_S_MAX: Final = 1.0

# Limit of redirects in a row. Brokers whose views differ by a record may redirect a caller to and
# fro.
_REDIRECTS_MAX: Final = 8

# Limit of attempts at one request, and of requests for one increment. At 25 ms and more each this
# outlasts any outage.
_ATTEMPTS_MAX: Final = 10_000

_ACKNOWLEDGED: Final = 200
_REDIRECTED: Final = 307
_FAILED: Final = 500
_UNAVAILABLE: Final = 503

_REPORT_S: Final = 0.25

# Calls in flight at the stop may still be acknowledged. An attempt lasts no longer than this.
_LAST_CALLS_S: Final = ATTEMPT_S

# How long a parent waits for its callers to end.
_END_S: Final = _LAST_CALLS_S + 5.0

# A plan of thousands of keys is one line of several hundred kilobytes.
_LINE_BYTES_MAX: Final = 16 * 2**20

# A caller waits a few milliseconds for its answer. At this rate it keeps its pace through a short
# pause.
_CALLS_PER_CALLER_S: Final = 50.0


# --- the plan ---


class Stream(BaseModel):
    """Calls of one key (`tenant/namespace/key`), shared evenly by the callers. Each caller waits
    for its answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    calls_per_second: float = Field(gt=0, le=10_000)
    callers: int = Field(default=1, ge=1, le=1_000)
    stubborn: bool = False


class Plan(BaseModel):
    """Whom to call, how often, and where to record it. `brokers` are base URLs. `history` must not
    exist yet.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    brokers: tuple[str, ...] = Field(min_length=1)
    streams: tuple[Stream, ...]
    history: Path
    seed: int = 0


def uneven(namespace: str, *, keys: int, calls_per_second: float) -> tuple[Stream, ...]:
    """Return streams of `keys` keys with this total rate. The n-th key is called an n-th as often
    as the first.
    """
    shares = [1 / (number + 1) for number in range(keys)]
    rates = [share / sum(shares) * calls_per_second for share in shares]
    return tuple(
        Stream(
            key=f"{namespace}/key-{number}",
            calls_per_second=rate,
            callers=1 + int(rate / _CALLS_PER_CALLER_S),
        )
        for number, rate in enumerate(rates)
    )


def stubborn(
    namespace: str, *, keys: int, calls_per_second: float, callers: int = 1
) -> tuple[Stream, ...]:
    """Return streams of stubborn callers to the same keys, the busiest first. `callers` and
    `calls_per_second` are per key.
    """
    return tuple(
        Stream(
            key=f"{namespace}/key-{number}",
            calls_per_second=calls_per_second,
            callers=callers,
            stubborn=True,
        )
        for number in range(keys)
    )


# --- the calls ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one attempt. All fields are None if the connection broke. `location` is the
    target of a redirect.
    """

    status: int | None = None
    broker: str | None = None
    token: int | None = None
    value: int | None = None
    location: str | None = None
    retry_after_s: float | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the answer promises that the request was not applied and will not be."""
        # HTTP's classes.
        return self.status is not None and (self.status == _UNAVAILABLE or 400 <= self.status < 500)


class History:
    """A file with one line per attempt, in the format that the checker reads."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError if that fails or the file exists: a killed writer may
        have left half a line in it.
        """
        self._file = path.open("xb", buffering=2**20)

    def note(self, **attempt: str | int | None) -> None:
        """Write one attempt. It is in the file after the next `flush`."""
        self._file.write(orjson.dumps(attempt, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


@dataclass(slots=True, kw_only=True)
class Tally:
    """What callers saw so far. A pause is the time from a call's first attempt to its
    acknowledgement, or until now.
    """

    acknowledged: int = 0
    redirected: int = 0
    refused: int = 0
    unknown: int = 0
    longest_pause_ms: float = 0.0
    recent_pause_ms: float = 0.0

    def count(self, answer: Answer) -> None:
        """Count one attempt by its outcome."""
        if answer.status == _ACKNOWLEDGED:
            self.acknowledged += 1
        elif answer.status == _REDIRECTED:
            self.redirected += 1
        elif answer.is_refusal:
            self.refused += 1
        else:
            self.unknown += 1

    def paused(self, pause_ms: float) -> None:
        """Note a call that took or has waited `pause_ms`, including retries."""
        self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Sends attempts to brokers (base URLs), and records each one."""

    http: aiohttp.ClientSession
    brokers: Sequence[str]
    history: History
    tally: Tally
    waiting: dict[str, int] = field(default_factory=dict)
    """Since when each caller with an unanswered call waits."""

    def note_waiting(self) -> None:
        """Count the calls that wait as pauses: else an outage would show none until its end."""
        if self.waiting:
            self.tally.paused((boot_ns() - min(self.waiting.values())) / 1e6)

    async def attempt(self, key: str, *, broker: str, request: str, caller: str) -> Answer:
        """Ask `broker` once to increment `key`, and record the answer, even if the caller is
        stopped meanwhile.
        """
        answer = Answer()
        call_ns = boot_ns()
        try:
            answer = await self._post(f"{broker}/counter/{key}", request)
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass  # The outcome stays unknown.
        finally:
            self.tally.count(answer)
            self.history.note(
                request=request,
                key=key,
                call_ns=call_ns,
                return_ns=boot_ns(),
                status=answer.status,
                broker=answer.broker,
                token=answer.token,
                value=answer.value,
                caller=caller,
                target=broker,
            )
        return answer

    async def _post(self, url: str, request: str) -> Answer:
        async with self.http.post(
            url, headers={"X-Request-Id": request}, allow_redirects=False
        ) as response:
            body = await response.read()
            if response.status == _ACKNOWLEDGED:
                return _acknowledged(body)
            return Answer(
                status=response.status,
                location=_base_url(response.headers.get("Location"))
                if response.status == _REDIRECTED
                else None,
                retry_after_s=_seconds(response.headers.get("Retry-After")),
            )


def _acknowledged(body: bytes) -> Answer:
    """Parse an acknowledgement. One that cannot be read counts as an unknown outcome."""
    try:
        document = orjson.loads(body)
        broker, token, value = document["broker"], document["token"], document["value"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Answer()
    if not (isinstance(broker, str) and type(token) is int and type(value) is int):
        return Answer()
    return Answer(status=_ACKNOWLEDGED, broker=broker, token=token, value=value)


def _base_url(location: str | None) -> str | None:
    parts = urlsplit(location or "")
    return (
        f"{parts.scheme}://{parts.netloc}"
        if parts.scheme in ("http", "https") and parts.netloc
        else None
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


@dataclass(slots=True, kw_only=True)
class Caller:
    """Calls the known owner of one key, and retries each call until it is acknowledged.

    * It follows redirects.
    * It retries an unknown outcome with the same request id.
    * After a refusal it makes a new request.
    * After a broken connection or a refusal it asks another broker next.
    * It pauses from the second useless attempt on.
    """

    client: Client
    name: str
    key: str
    random: Random
    owner: str | None = None

    async def increment(self) -> None:
        """Increment the key once. Every attempt has a deadline; there are at most
        `_ATTEMPTS_MAX`.
        """
        began_ns = self.client.waiting[self.name] = boot_ns()
        try:
            await self._increment(began_ns)
        finally:
            del self.client.waiting[self.name]

    async def _increment(self, began_ns: int) -> None:
        request = uuid.uuid4().hex
        target = self.owner or self.random.choice(self.client.brokers)
        redirects = useless = 0
        for _ in range(_ATTEMPTS_MAX):
            answer = await self.client.attempt(
                self.key, broker=target, request=request, caller=self.name
            )
            if answer.status == _ACKNOWLEDGED:
                self.owner = target
                self.client.tally.paused((boot_ns() - began_ns) / 1e6)
                return
            if answer.is_refusal:
                request = uuid.uuid4().hex
            if answer.location is not None and redirects < _REDIRECTS_MAX:
                target, redirects = answer.location, redirects + 1
                continue
            useless += 1
            if useless > 1:
                await asyncio.sleep(
                    min(answer.retry_after_s or _BETWEEN_ATTEMPTS_S, _RETRY_AFTER_S_MAX)
                )
            target, redirects = self._next(target, answer), 0

    def _next(self, target: str, answer: Answer) -> str:
        """Return the broker to ask after `target` was of no use. A broker that answers 500 is
        alive, and best knows where the key is.
        """
        if answer.status is not None and answer.status >= _FAILED and not answer.is_refusal:
            return target
        others = [broker for broker in self.client.brokers if broker != target]
        return self.random.choice(others or self.client.brokers)


@dataclass(slots=True, kw_only=True)
class StubbornCaller:
    """Calls any past owner of one key once, follows no redirect, and retries nothing.

    Former owners thus get work, and a call that was held by a stopped broker is still new when the
    broker resumes.
    """

    client: Client
    name: str
    key: str
    random: Random
    owners: dict[str, None] = field(default_factory=dict)

    async def increment(self) -> None:
        """Call one of the known owners once; any broker while none is known."""
        target = self.random.choice(list(self.owners or self.client.brokers))
        answer = await self.client.attempt(
            self.key, broker=target, request=uuid.uuid4().hex, caller=self.name
        )
        owner = target if answer.status == _ACKNOWLEDGED else answer.location
        if owner is not None:
            self.owners[owner] = None


# --- the process of the callers ---


async def call(plan: Plan, *, stopping: asyncio.Event, report: Callable[[Tally], None]) -> None:
    """Call as planned until `stopping` is set. Report four times a second, and once at the end.

    The environment names the CA for https:// brokers. Raises OSError if the history cannot be
    written.
    """
    async with AsyncExitStack() as parts:
        history = parts.enter_context(closing(History(plan.history)))
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_S)
        connector = aiohttp.TCPConnector(limit=0, ssl=client_context_of_environment())
        http = await parts.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        tally = Tally()
        client = Client(http=http, brokers=plan.brokers, history=history, tally=tally)
        callers = _callers(plan, client)
        tasks = [
            asyncio.ensure_future(_keep_calling(caller, pause_s, stopping))
            for caller, pause_s in callers
        ]
        try:
            while not stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPORT_S):
                        await stopping.wait()
                history.flush()
                client.note_waiting()
                report(tally)
                tally.recent_pause_ms = 0.0
            if tasks:
                await asyncio.wait(tasks, timeout=_LAST_CALLS_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        report(tally)


def _callers(plan: Plan, client: Client) -> Sequence[tuple[Caller | StubbornCaller, float]]:
    """Return every caller of a plan, with the seconds between two of its calls."""
    random = Random(plan.seed)
    callers: list[tuple[Caller | StubbornCaller, float]] = []
    for stream in plan.streams:
        kind = StubbornCaller if stream.stubborn else Caller
        for number in range(stream.callers):
            name = f"{kind.__name__} {number} of {stream.key}"
            # As above.
            caller = kind(
                client=client,
                name=name,
                key=stream.key,
                random=Random(random.getrandbits(64)),
            )
            callers.append((caller, stream.callers / stream.calls_per_second))
    return callers


async def _keep_calling(
    caller: Caller | StubbornCaller, pause_s: float, stopping: asyncio.Event
) -> None:
    """Call at a steady pace. Do not make up for calls that a pause delayed: that would be a
    burst.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() + caller.random.random() * pause_s
    while not stopping.is_set():
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        await caller.increment()
        due_s = max(due_s + pause_s, loop.time())


async def _main() -> None:
    """Run one process of callers. It reads a plan from standard input, stops when that ends, and
    prints tallies.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    plan = Plan.model_validate_json(await reader.readline())
    stopping = asyncio.Event()
    # Ctrl-C goes to all processes of a terminal. The parent decides when the callers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    ended = asyncio.ensure_future(reader.read())
    ended.add_done_callback(lambda _: stopping.set())
    await call(plan, stopping=stopping, report=_print_tally)
    ended.cancel()


def _print_tally(tally: Tally) -> None:
    try:
        sys.stdout.buffer.write(orjson.dumps(asdict(tally), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass  # The parent is gone, and with it our standard input, which ends the process.


# --- the process that starts it ---


async def end(process: Process, *, timeout_s: float) -> int | None:
    """Close the standard input of a process that ends with it. Return its exit code; None if it
    hung and was killed.
    """
    assert process.stdin is not None, "it was started with one"
    process.stdin.close()
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None


class CallerProcess:
    """A process of callers, as an async context: it calls while the context is open.

    `tally` is the latest report. If the parent dies, the process ends too, because its standard
    input ends.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.load.callers",
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None, "it was asked for"
        self._process.stdin.write(self.plan.model_dump_json().encode() + b"\n")
        self._reading = asyncio.ensure_future(self._read(self._process))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Wait until the callers have finished and their process has ended. Kill a process that
        hangs.
        """
        process, self._process = self._process, None
        if process is not None:
            await end(process, timeout_s=_END_S)
        if self._reading is not None:
            await self._reading

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None, "it was asked for"
        while line := await process.stdout.readline():
            self.tally = Tally(**orjson.loads(line))


if __name__ == "__main__":
    asyncio.run(_main())
