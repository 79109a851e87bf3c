"""Facts: what the sequential operator tells the operators keyed by bundle, broker and namespace of one record.

May live here: the value of a fact, its subjects, and its spelling as one JSON object (the body of a row of `Table.FACTS`).

A fact carries the record as it stands on the log (parsed as JSON, no more), what the fold that the brokers run said of it and
what it changed of this subject, and the second opinion on what only a view of the whole can know (`spark_jobs.rules.membership.view`).
Whoever judges it needs nothing of `channel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

SubjectKind = Literal["bundle", "broker", "namespace", "log"]
Raw = Mapping[str, Any]


def subject(kind: SubjectKind, name: str) -> str:
    """How a subject is spelled as a key: `bundle:tenant/ns/0x00000000_0xffffffff`, `broker:b1`, `namespace:tenant/ns`, `log:`."""
    return f"{kind}:{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that happened to one subject.

    `source` is where it was read (`spark_jobs.sequence.arrivals.Source`); `offset` is logical for the channel, else that source's own.
    `at_ms` is the log's time, for notes beside the log as well. `record` is the entry's JSON object, None if it is none; facts of
    those that a record does not name but changes have its scalar fields alone. `verdict` is `accepted` or the reason of the fold;
    None for what is no record. `context` is the second opinion, the same for all subjects of one record: see
    `spark_jobs.rules.membership.view.Context`.

    `before` and `after` are what the fold made of this subject, both None if it changed nothing of it:

    * a bundle: {phase, owner, source, last, token, low, high}; None before it is there, and after it is gone.
    * a broker: {status, incarnation, last}, and {diverged: true} after a renewal whose digest was not the fold's. Before a record
      that ends one incarnation by another, the older one. After it was removed, None.
    * a namespace: {status, last}, and after its bundles changed {removed, added}: lists of [low, high, phase, owner, token].
    * the log: `after` is {event, ...}; of what is no record the events `garbage`, `null` and `malformed`, of the log itself
      `time_fell`, `time_leapt`, `records_lost`, `log_went_back`, `level_too_new`, `log_closed`, `begun_above`, `channel_incomplete`,
      and of a note that is no document of its source `unreadable_note`, with `reached` as its `context`.

    A note of what a broker serves is told to its bundle: `after` is the bundle as it stands on the channel so far, and `context`
    is {begin, reached, log, stopped}: the logical offset after which the channel is known, the last one folded, the log's identity
    if it is known, and true if nothing more of it will be folded.
    """

    subject: str
    source: str
    offset: int
    at_ms: int
    record: Raw | None = None
    verdict: str | None = None
    before: Raw | None = None
    after: Raw | None = None
    context: Raw = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As the body of a row."""
        return orjson.dumps(self)


def parse_fact(body: bytes) -> Fact:
    """The fact that `Fact.to_bytes` spelled."""
    return Fact(**orjson.loads(body))
