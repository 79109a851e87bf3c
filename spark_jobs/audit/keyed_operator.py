"""Check the facts of each subject in Spark: each subject has its memory and its timer, and the
subjects spread over all cores.

* An access to Spark's state costs about 0.25 ms, most of the cost of a subject. So a memory is one
  value, read once and written at most once per batch.
* Spark expires state only by the machine's clock (`ttlDurationMs` needs `timeMode`
  "ProcessingTime"), but the audit goes by log time. So memories have a timer; a blank memory takes
  no room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import orjson
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from equipoise.spark_jobs.rules.checkers import SubjectAudit
from equipoise.spark_jobs.rules.facts import Fact, parse_fact
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import EMITTED_DDL, Source, Table, finding_row

LATENESS: Final = "1 second"
"""Delay of the watermark. `at` never falls, so nothing is late, but Spark does not handle zero
well."""

_COLUMNS: Final = [column.split()[0] for column in EMITTED_DDL.split(", ")]


class Value(Protocol):
    """The methods of Spark's `ValueState` that are used here."""

    def get(self) -> tuple[bytes] | None: ...  # noqa: D102 - Spark's
    def update(self, newValue: tuple[bytes]) -> None: ...  # noqa: N803, D102 - Spark's
    def clear(self) -> None: ...  # noqa: D102 - Spark's


class Timers(Protocol):
    """The methods of Spark's `StatefulProcessorHandle` that are used here."""

    def registerTimer(self, expiryTimestampMs: int) -> None: ...  # noqa: N802, N803, D102 - Spark's
    def deleteTimer(self, expiryTimestampMs: int) -> None: ...  # noqa: N802, N803, D102 - Spark's


class StoredAudit:
    """The audit of one subject during one batch, with its memory in Spark's state as [time of
    Spark's timer, memory].
    """

    def __init__(self, subject: str, value: Value, timers: Timers, *, fired: bool = False) -> None:
        """`fired` means that Spark's timer of this subject has just fired, and so no longer
        exists.
        """
        self._value = value
        self._timers = timers
        stored = value.get()
        self._stored = None if stored is None else bytes(stored[0])
        timer_ms, raw = (None, None) if self._stored is None else orjson.loads(self._stored)
        self._timer_ms: int | None = None if fired else timer_ms
        self.audit = SubjectAudit(subject, raw)

    def save(self) -> None:
        """Write the changes.

        A postponed timer, as most are at each renewal, stays set. It fires once without effect and
        is then set again.
        """
        due_ms = self.audit.memory.due_ms
        if due_ms is not None and (self._timer_ms is None or due_ms < self._timer_ms):
            if self._timer_ms is not None:
                self._timers.deleteTimer(self._timer_ms)
            self._timers.registerTimer(due_ms)
            self._timer_ms = due_ms
        if self.audit.is_blank and self._timer_ms is None:
            if self._stored is not None:
                self._value.clear()
            return
        data = orjson.dumps([self._timer_ms, self.audit.memory])
        if data != self._stored:
            self._value.update((data,))


def _place(fact: tuple[Fact, int]) -> tuple[int, bool, int, int]:
    """Return the sort key of a fact: the log's time, then records before notes. Offsets alone do
    not order several sources.
    """
    about, ordinal = fact
    return about.at_ms, about.source != Source.CHANNEL, about.offset, ordinal


class KeyedProcessor(StatefulProcessor):
    """Turn the facts of one subject into findings, as rows of `EMITTED_DDL`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state. Spark calls this first in each task."""
        self._handle = handle
        self._value = handle.getValueState("memory", "value BINARY")

    def handleInputRows(  # noqa: N802 - Spark's name; in pandas mode rows are frames
        self,
        key: tuple[str],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: ARG002, N803 - time comes from the facts
    ) -> Iterator[pd.DataFrame]:
        """Check all facts of one subject in one batch."""
        stored = StoredAudit(key[0], self._value, self._handle)
        facts: list[tuple[Fact, int]] = []
        for frame in rows:
            is_reach = frame["table"] == Table.REACH.value
            if is_reach.any():
                yield frame[is_reach]
                frame = frame[~is_reach]  # noqa: PLW2901 - the rest of it
            facts += (
                (parse_fact(body), ordinal)
                for body, ordinal in zip(frame["body"], frame["ordinal"], strict=True)
            )
        facts.sort(key=_place)
        findings = [finding for fact, _ in facts for finding in stored.audit.check(fact)]
        stored.save()
        yield from emitted(findings)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803 - the memory knows its timer
    ) -> Iterator[pd.DataFrame]:
        """Run a subject's timer after the watermark has passed it."""
        stored = StoredAudit(key[0], self._value, self._handle, fired=True)
        findings = stored.audit.expire(timerValues.getCurrentWatermarkInMs())
        stored.save()
        yield from emitted(findings)


def emitted(findings: list[Finding]) -> Iterator[pd.DataFrame]:
    """Yield one frame with the rows of all findings, if there are any."""
    if findings:
        frame = pd.DataFrame(map(finding_row, findings))
        yield frame.assign(at=pd.to_datetime(frame["at_ms"], unit="ms"))[_COLUMNS]


def findings_of(facts: DataFrame) -> DataFrame:
    """Return a frame (`EMITTED_DDL`) of the findings about `facts`, a streaming frame of rows of
    `Table.FACTS`.
    """
    keyed = facts.withWatermark("at", LATENESS).groupBy("subject")
    return keyed.transformWithStateInPandas(KeyedProcessor(), EMITTED_DDL, "Append", "EventTime")
