"""Test when a failed stream is restarted, and the errors that end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from equipoise.channel.core.errors import LogUnavailable, OperatorError, PeerError
from equipoise.spark_jobs.streams import streams
from equipoise.spark_jobs.streams.causes import Cause, cause_of_error
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts, interruptible
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import StreamMetrics, Watch
from equipoise.spark_jobs.streams.session import MEMORY_VARIABLE
from equipoise.spark_jobs.streams.streams import Stream, run_stream


class Session:
    """The part of a Spark session that a stream uses."""

    @property
    def conf(self) -> Session:
        return self

    def set(self, name: str, value: str) -> None:
        """Take a setting."""


@dataclass
class OneBatch:
    """A frame, its writer and its query in one. The query ends after one batch, with the error of
    `take` if there is one.
    """

    isActive: bool = False  # noqa: N815 - as all below: Spark calls it so
    lastProgress: None = None  # noqa: N815
    takes: list[Callable[[Any, int], None]] = field(default_factory=list)

    @property
    def writeStream(self) -> OneBatch:  # noqa: N802
        return self

    def foreachBatch(self, take: Callable[[Any, int], None]) -> OneBatch:  # noqa: N802
        self.takes.append(take)
        return self

    def chained(self, *_words: object, **_options: object) -> OneBatch:
        return self

    queryName = option = outputMode = trigger = start = chained  # noqa: N815

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.table({})

    def awaitTermination(self) -> None:  # noqa: N802
        try:
            self.takes[-1](self, 0)
        except Exception as error:
            raise PySparkException(f"[STREAM_FAILED] {error}") from error

    def stop(self) -> None:
        """Nothing runs."""


class Refused(Py4JJavaError):  # type: ignore[misc]  # py4j has no types.
    """An error of Java."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return (
            "An error occurred while calling o63.load.\n: java.io.IOException: Cannot run program"
            ' "/no/such": error=2'
        )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that runs a stream without waiting for what is missing, and returns its
    notes.
    """
    monkeypatch.setattr(streams, "AWAY_MAX_S", -1)
    monkeypatch.setattr(streams, "WORKERS_MAX_S", -1)
    monkeypatch.setattr(streams, "_PAUSES_S", (0,))

    def run(*, frame: Callable[[], object], take: Callable[[int, pa.Table], None]) -> list[str]:
        notes: list[str] = []
        watch = Watch(
            "audit", Screen(result=notes.append, note=notes.append), metrics=StreamMetrics("audit")
        )
        stream = Stream(
            job="audit",
            checkpoint=tmp_path / "checkpoint",
            to_end=True,
            frame=cast("Callable[[], DataFrame]", frame),
            take=take,
        )
        run_stream(cast("SparkSession", Session()), stream, watch)
        return notes

    return run


def refused(_number: int, _rows: pa.Table) -> None:
    """Fail to take a batch."""
    raise PeerError("the topic of findings does not answer")


def raising(error: Exception) -> Callable[[], object]:
    """Return a frame that cannot be made."""

    def frame() -> object:
        raise error

    return frame


def ignored(_number: int, _rows: pa.Table) -> None:
    """Take a batch."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A stream that ends with an error: a `PeerError` for what may pass, an `OperatorError` for
    what does not.
    """

    frame: Callable[[], object] = OneBatch
    take: Callable[[int, pa.Table], None] = ignored
    error: type[Exception] = PeerError
    message: str
    names_log: bool = False


ENDINGS = {
    "an output that stays away": Ending(
        take=refused, message=r"the topic of findings does not answer; start it again"
    ),
    "a log that stays away": Ending(
        frame=raising(LogUnavailable(log="sqlite:x", problem="busy")),
        message=r"the audit has waited 0 s for its log: .*sqlite:x",
        names_log=True,
    ),
    "a machine too busy to start workers": Ending(
        frame=raising(
            PySparkException("terminated with exception: Python worker failed to connect back.")
        ),
        message=(
            r"the audit gives up after 0 s: a Python worker .* did not start .*; start it again"
        ),
    ),
    "an error of Java, which is no death of Java": Ending(
        frame=raising(Refused()),
        error=OperatorError,
        message=(
            "the audit cannot continue: PYSPARK_PYTHON names an interpreter that does not exist"
        ),
    ),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("can_write_details", [True, False])
def test_a_stream_that_cannot_continue_names_the_cause(
    run: Callable[..., list[str]], tmp_path: Path, ending: Ending, *, can_write_details: bool
) -> None:
    """Also if the details cannot be written."""
    if not can_write_details:
        (tmp_path / "audit-failure.txt").mkdir()
    with pytest.raises(ending.error, match=ending.message) as caught:
        run(frame=ending.frame, take=ending.take)
    assert ending.names_log == (" log" in str(caught.value))


@pytest.mark.parametrize(
    ("environment", "memory"),
    [({}, "1g"), ({"SPARK_DRIVER_MEMORY": ""}, "1g"), ({"SPARK_DRIVER_MEMORY": "3g"}, "3g")],
)
def test_the_end_of_java_is_reported_with_its_memory(
    run: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    memory: str,
) -> None:
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def gone() -> object:
        raise ConnectionRefusedError("[Errno 111] Connection refused")

    with pytest.raises(
        OperatorError,
        match=(
            rf"Java process is gone: .*Connection refused.* its {memory}, .*"
            r" SPARK_DRIVER_MEMORY=4g in"
        ),
    ):
        run(frame=gone, take=lambda _number, _rows: None)


def test_an_output_that_comes_back_gets_the_batch(
    run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "AWAY_MAX_S", 900)
    refusals = [PeerError("the topic is read-only")] * (streams.ATTEMPTS_MAX + 1)

    def put(_number: int, _rows: pa.Table) -> None:
        if refusals:
            raise refusals.pop()

    notes = run(frame=OneBatch, take=put)
    assert streams.ATTEMPTS_MAX + 1 == sum("the topic is read-only" in note for note in notes)


@pytest.mark.parametrize(("waited", "starts"), [(True, 6), (False, 2)])
def test_failures_do_not_add_up_while_the_log_answers(
    run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, *, waited: bool, starts: int
) -> None:
    begun: list[object] = []

    class Start:
        """A start of the stream that ends after ten minutes: the sixth by itself, those before it
        for a log that is away.
        """

        batches = -1

        def __init__(self, *_: object) -> None:
            begun.append(self)
            self.has_waited = waited

        def to_its_end(self, _check: Callable[[], None]) -> Cause | None:
            return (
                None
                if len(begun) == 6
                else cause_of_error(LogUnavailable(log="sqlite:x", problem="busy"))
            )

    monkeypatch.setattr(streams, "AWAY_MAX_S", 500)
    monkeypatch.setattr(streams, "_Run", Start)
    monkeypatch.setattr(
        "equipoise.spark_jobs.streams.streams.time.monotonic", lambda: 600.0 * len(begun)
    )
    with nullcontext() if waited else pytest.raises(PeerError):
        run(frame=OneBatch, take=lambda _number, _rows: None)
    assert starts == len(begun)


def test_a_query_is_stopped_although_output_fails(
    run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []

    class Runs(OneBatch):
        """A query that goes on until it is stopped."""

        isActive = True  # noqa: N815

        def stop(self) -> None:
            stopped.append(self)

    def show(_watch: Watch) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Watch, "show", show)
    with pytest.raises(BrokenPipeError):
        run(frame=Runs, take=lambda _number, _rows: None)
    assert 1 == len(stopped)


def test_an_interrupt_waits_until_no_call_is_under_way(run: Callable[..., list[str]]) -> None:
    before, calls = signal.getsignal(signal.SIGINT), []

    class Asked(OneBatch):
        """A query that is interrupted during a call."""

        @property
        def isActive(self) -> bool:  # noqa: N802
            signal.raise_signal(signal.SIGINT)
            calls.append("answered")
            return True

        @isActive.setter
        def isActive(self, _value: bool) -> None: ...  # noqa: N802

        def stop(self) -> None:
            calls.append("stopped")

    with pytest.raises(KeyboardInterrupt):
        run(frame=Asked, take=lambda _number, _rows: None)
    assert ["answered", "stopped"] == calls
    assert before == signal.getsignal(signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_its_block() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with delayed_interrupts():
        done.append("quiet")

    def interrupted() -> None:
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")
        done.append("beyond")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (["quiet", "whole"], before) == (done, signal.getsignal(signal.SIGINT))


def test_a_second_interrupt_is_not_delayed() -> None:
    heard = []

    def interrupted() -> None:
        with delayed_interrupts() as check:
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                check()
            heard.append("both")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ["both"] == heard


@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_cancels_work_until_it_ends() -> None:
    begun, cancelled, ended = threading.Event(), threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.set()
        assert all(cancelled.acquire(timeout=20) for _ in range(2))
        ended.set()

    def meanwhile() -> None:
        assert begun.wait(20)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, cancel=cancelled.release, meanwhile=meanwhile)
    assert ended.is_set()


@pytest.mark.usefixtures("hears_interrupts")
def test_a_second_interrupt_does_not_wait_for_work() -> None:
    finished = threading.Event()

    def gone() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        raise ConnectionError

    for cancel in (partial(signal.raise_signal, signal.SIGINT), gone):
        with pytest.raises(KeyboardInterrupt):
            interruptible(
                partial(finished.wait, 60),
                cancel=cancel,
                meanwhile=partial(signal.raise_signal, signal.SIGINT),
            )
    assert not finished.is_set()
    finished.set()


def test_work_is_waited_for() -> None:
    told = threading.Event()

    def work() -> int:
        assert told.wait(20)
        return 7

    assert 7 == interruptible(work, cancel=pytest.fail, meanwhile=told.set).result()
    assert isinstance(
        interruptible(lambda: 1 // 0, cancel=pytest.fail).exception(), ZeroDivisionError
    )
