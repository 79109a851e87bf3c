"""Run the checkers in Spark: each subject has its facts, its memory and its timer, spread over all cores.

* An access to Spark's state costs about 0.25 ms, most of the cost of a key. So small values share one *page*, read once and written at most
  once per batch. Only names with a colon, possibly thousands, have their own rows.
* Spark expires state only by the machine's clock (`ttlDurationMs` needs `timeMode` "ProcessingTime"), but the audit goes by log time. So
  checkers expire it by timers; an empty memory takes no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol
from zlib import crc32

import orjson
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, StatefulProcessorHandle, TimerValues

from equipoise.spark_jobs.audit.keyed_checks import judged, overdue
from equipoise.spark_jobs.rules.facts import Fact, SubjectKind, parse_fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Checker
from equipoise.spark_jobs.sequence.arrivals import Source
from equipoise.spark_jobs.sequence.emitted import EMITTED_DDL, Table

LATENESS: Final = "1 second"
"""Delay of the watermark. `at` never falls, so nothing is late, but Spark does not handle zero well."""

_PAGE: Final = "page"
_WAKE: Final = "wake"  # On the page: [when the checker wants to be woken, when Spark's timer is set]; both may be null.
_OWN_ROW: Final = ":"
_ORDINALS: Final = 1 << 31

Page = dict[str, str]


class Rows(Protocol):
    """The methods of Spark's `MapState` that are used here; keys are (name,), values (bytes,)."""

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None: ...  # noqa: N802, D102 - Spark's
    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None: ...  # noqa: N802, D102 - Spark's
    def removeKey(self, key: tuple[str]) -> None: ...  # noqa: N802, D102 - Spark's
    def keys(self) -> Iterator[tuple[str]]: ...  # noqa: D102 - Spark's


class Timers(Protocol):
    """The methods of Spark's `StatefulProcessorHandle` that are used here."""

    def registerTimer(self, expiryTimestampMs: int) -> None: ...  # noqa: N802, N803, D102 - Spark's
    def deleteTimer(self, expiryTimestampMs: int) -> None: ...  # noqa: N802, N803, D102 - Spark's


class KeyedMemory:
    """The memory of one subject during one batch, on Spark's state. `flush` writes it."""

    def __init__(self, rows: Rows, timers: Timers, *, fired: bool = False) -> None:
        """`fired` means that Spark's timer of this subject has just fired, and so no longer exists."""
        self._rows = rows
        self._timers = timers
        stored = rows.getValue((_PAGE,))
        self._page: Page = {} if stored is None else orjson.loads(stored[0])
        self._stored_page = dict(self._page)
        self._own: dict[str, bytes | None] = {}
        self._changed: dict[str, bytes | None] = {}
        self._names: set[str] | None = None
        due_ms, standing_ms = orjson.loads(self._page.pop(_WAKE, "[null,null]"))
        self.due_ms: int | None = due_ms
        self._standing_ms: int | None = None if fired else standing_ms

    def get(self, name: str) -> bytes | None:
        """See `Memory`."""
        if _OWN_ROW not in name:
            text = self._page.get(name)
            return None if text is None else text.encode("latin-1")
        if name in self._changed:
            return self._changed[name]
        if name not in self._own:
            stored = self._rows.getValue((name,))
            self._own[name] = None if stored is None else bytes(stored[0])
        return self._own[name]

    def put(self, name: str, value: bytes) -> None:
        """See `Memory`."""
        if _OWN_ROW in name:
            self._changed[name] = value
        else:
            self._page[name] = value.decode("latin-1")  # Latin-1 maps any bytes to a JSON string.

    def remove(self, name: str) -> None:
        """See `Memory`."""
        if _OWN_ROW in name:
            self._changed[name] = None
        else:
            self._page.pop(name, None)

    def names(self, prefix: str) -> Iterable[str]:
        """See `Memory`."""
        if self._names is None:
            self._names = {name for (name,) in self._rows.keys() if name != _PAGE}  # noqa: SIM118 - no dict: Spark's state
        own = {name for name in self._names | self._changed.keys() if self._changed.get(name, b"") is not None}
        return sorted(name for name in own | self._page.keys() if name.startswith(prefix))

    def wake_at(self, at_ms: int | None) -> None:
        """See `Memory`."""
        self.due_ms = at_ms

    def flush(self) -> None:
        """Write the changes.

        A postponed timer, as most are at each renewal, stays set. It fires once without effect and is then set again.
        """
        if self.due_ms is not None and (self._standing_ms is None or self.due_ms < self._standing_ms):
            if self._standing_ms is not None:
                self._timers.deleteTimer(self._standing_ms)
            self._timers.registerTimer(self.due_ms)
            self._standing_ms = self.due_ms
        page = dict(self._page)
        if self.due_ms is not None or self._standing_ms is not None:
            page[_WAKE] = orjson.dumps([self.due_ms, self._standing_ms]).decode()
        if page and page != self._stored_page:
            self._rows.updateValue((_PAGE,), (orjson.dumps(page),))
        elif self._stored_page and not page:
            self._rows.removeKey((_PAGE,))
        for name, value in self._changed.items():
            if value is not None:
                self._rows.updateValue((name,), (value,))
            elif self._names is None or name in self._names:
                self._rows.removeKey((name,))


def _place(fact: tuple[Fact, int]) -> tuple[int, bool, int, int]:
    """Return the sort key of a fact: the log's time, then records before notes. Offsets alone do not order several sources."""
    told, ordinal = fact
    return told.at_ms, told.source != Source.CHANNEL, told.offset, ordinal


class KeyedProcessor(StatefulProcessor):
    """Turn the facts of one subject into findings, as rows of `EMITTED_DDL`."""

    def __init__(self, checkers: Mapping[SubjectKind, Checker]) -> None:
        self._checkers = checkers

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state. Spark calls this first in each task."""
        self._handle = handle
        self._rows = handle.getMapState("memory", "name STRING", "value BINARY")

    def handleInputRows(  # noqa: N802 - Spark's name; in pandas mode rows are frames
        self,
        key: tuple[str],  # noqa: ARG002 - each fact names its subject
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: ARG002, N803 - time comes from the facts
    ) -> Iterator[pd.DataFrame]:
        """Check all facts of one subject in one batch."""
        memory = KeyedMemory(self._rows, self._handle)
        facts = [(parse_fact(body), ordinal) for frame in rows for body, ordinal in zip(frame["body"], frame["ordinal"], strict=True)]
        facts.sort(key=_place)
        findings = [finding for fact, _ in facts for finding in judged(self._checkers, memory, fact)]
        memory.flush()
        yield from emitted(findings)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803 - the memory knows its timer
    ) -> Iterator[pd.DataFrame]:
        """Run a subject's timer after the watermark has passed it."""
        memory = KeyedMemory(self._rows, self._handle, fired=True)
        findings = overdue(self._checkers, memory, key[0], timerValues.getCurrentWatermarkInMs())
        memory.flush()
        yield from emitted(findings)


def _ordinal(finding: Finding) -> int:
    """Return an ordinal that does not depend on the batch: the findings of one record come from many tasks.

    It ignores the time: evidence is checked at the end of a batch, and another run may cut batches elsewhere.
    """
    return crc32(orjson.dumps([finding.rule, finding.subject, finding.text])) % _ORDINALS


def emitted(findings: list[Finding]) -> Iterator[pd.DataFrame]:
    """Yield one frame with the rows of all findings, if there are any."""
    if not findings:
        return
    bodies = [finding.to_bytes() for finding in findings]
    yield pd.DataFrame({
        "table": [Table.FINDINGS.value] * len(findings),
        "subject": [finding.subject for finding in findings],
        "offset": [finding.offsets[-1] for finding in findings],
        "ordinal": [_ordinal(finding) for finding in findings],
        "at": pd.to_datetime([finding.at_ms for finding in findings], unit="ms"),
        "kind": [finding.rule for finding in findings],
        "publisher": [finding.publisher for finding in findings],
        "verdict": [None] * len(findings),
        "body": bodies,
    })  # fmt: skip


def findings_of(facts: DataFrame, checkers: Mapping[SubjectKind, Checker]) -> DataFrame:
    """Return a frame (`EMITTED_DDL`) of the findings about `facts`, a streaming frame of rows of `Table.FACTS`."""
    keyed = facts.withWatermark("at", LATENESS).groupBy("subject")
    return keyed.transformWithStateInPandas(KeyedProcessor(checkers), EMITTED_DDL, "Append", "EventTime")
