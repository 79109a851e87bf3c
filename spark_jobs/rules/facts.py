"""Define a fact, which the sequential operator sends to the operators keyed by subject, and its
JSON form (a row of `Table.FACTS`).

A fact carries the record (only parsed as JSON), the fold's verdict and changes, and the audit's
verdict where it needs a view of the whole. So a checker needs nothing of `channel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

SubjectKind = Literal["bundle", "broker", "namespace", "log"]
Raw = Mapping[str, Any]


def subject(kind: SubjectKind, name: str) -> str:
    """Return the key of a subject: `bundle:tenant/ns/0x00000000_0xffffffff`, `broker:b1`,
    `namespace:tenant/ns` or `log:`.
    """
    return f"{kind}:{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One event of one subject.

    * `source`: where it was read (`spark_jobs.sequence.rows.Source`).
    * `offset`: logical for the channel, else the source's own.
    * `at_ms`: the log's time, also for notes.
    * `record`: the entry's JSON object, or None. A subject that the record changes but does not
      name gets only its scalar fields.
    * `verdict`: `accepted` or the fold's reason for a rejection; None if the entry is not a record.
    * `context`: the audit's view, the same for all subjects of a record:
      `spark_jobs.rules.membership.view.Context`.

    `before` and `after` are the fold's states of this subject. Both are None if it changed nothing:

    * a bundle: {phase, owner, source, last, token, low, high}; None before it exists and after it
      is gone.
    * a broker: {status, incarnation, last}, and {diverged: true} after a renewal whose digest was
      not the fold's. `before` is the older incarnation if the record replaces it. After a removal,
      None.
    * a namespace: {status, last}, and after its bundles changed {removed, added}: lists of [low,
      high, phase, owner, token].
    * the log: `after` is {event, ...}. Events of an entry: `garbage`, `damaged`, `malformed`.
      Events of the log: `entries_missing`, `damage_spreads`, `time_fell`, `time_leapt`,
      `records_lost`, `log_went_back`, `level_too_new`, `log_closed`, `begun_above`,
      `channel_incomplete`. Event of a malformed note: `unreadable_note`, with `context` {reached}.

    A serving note is a fact of its bundle. `after` is the bundle as the channel has it so far.
    `context` is {begin, reached, received_ms, log, stopped, follows}: the logical offset after
    which the channel is known, the last one folded, when the log's storage received the note, the
    log's identity if known, whether folding has stopped for good, and the damage since which the
    bundle's ownership is not known.
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
        """Return the body of a row."""
        return orjson.dumps(self)


def parse_fact(body: bytes) -> Fact:
    """Return the fact from the output of `Fact.to_bytes`."""
    return Fact(**orjson.loads(body))
