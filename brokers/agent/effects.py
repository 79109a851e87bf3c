"""Define the effects of `Agent.step`, which the host carries out in order and answers with events.

Deadlines are boot times in milliseconds. The agent, not the host, handles missing answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from equipoise.brokers.agent.handle import Handle
from equipoise.channel.core.entries import BrokerEntry, BundleEntry, Verdict
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append these bytes. On failure send `AppendFailed` with this `attempt`. Never retry."""

    attempt: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteInstanceId:
    """Write and fsync this instance id, then send `InstanceIdWritten`."""

    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetInstanceIds:
    """Delete all instance ids but `keep`, because a later incarnation has been read back."""

    keep: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMark:
    """Write and fsync that the log was read up to the logical `offset`, then send `MarkWritten`.
    `base` is that of the log.
    """

    offset: int
    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Warm up for `bundle`, which `source` serves now (None: no broker), then send `Prepared`."""

    bundle: BundleEntry
    source: BrokerEntry | None
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Open the bundle of `handle` with the former owner's state, then send `Opened`. `source` is
    that owner, if it lives.
    """

    handle: Handle
    source: BrokerEntry | None
    handover: bytes | None
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Stop accepting work, settle accepted work, redirect clients to `moved_to` (None: unknown),
    then send `Closed`.

    The handle is closed already.
    """

    handle: Handle
    moved_to: BrokerEntry | None
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Discard what the service prepared for `bundle`, then send `Discarded`."""

    bundle: str
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Stop the operation on `bundle`, which overran its deadline, and report no result.

    If the code cannot be stopped, end the process.
    """

    bundle: str
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCuts:
    """Ask the service where to cut `bundle`, then send `CutsFound` with the entry's `last` as
    `asked_at`.
    """

    bundle: BundleEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaped:
    """A split or a merge took place: `children` now serve what `gone` served. Sessions go on."""

    gone: tuple[Handle, ...]
    children: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The result of a request: its record as read back (`folded`), why it has none (`refused`), or
    an `error`.

    After an error nothing was done and nothing will be. Exception: `OutcomeUnknown`.
    """

    ticket: int
    folded: Folded | None = None
    refused: Verdict | None = None
    error: EquipoiseError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAssurance:
    """Ask `broker`, in a message of its own, to assure `asker`. If it does, send `Assured` with
    what the answer carries. Give up after `ASSURANCE_MS_MAX`. Never retry.
    """

    broker: BrokerEntry
    asker: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssuranceAnswered:
    """The answer to an `AssuranceAsked` with this `ticket`."""

    ticket: int
    assured: bool


class AlarmName(StrEnum):
    """The stable names of alarms, for metrics and logs. `docs/reference/log-lines.md` describes
    each.
    """

    OWN_DEATH = "own_death"
    REJECTED = "rejected"
    VIEWS_DIVERGE = "views_diverge"
    DATA_DIRECTORY = "data_directory"
    COMPACTION = "compaction"
    ARCHIVE_HOLD = "archive_hold"
    LOG_CLOCK = "log_clock"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that the operator must look at.

    `key`, `offset` and `reason` describe the record that caused it, if any.
    """

    name: AlarmName
    message: str
    key: str | None = None
    offset: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refold:
    """Fold the log again beside the live view after views diverged. Stop only if the live view is
    wrong.
    """

    other: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the broker: it has left (`error` is None), or cannot go on."""

    error: EquipoiseError | None


Effect = (
    Append
    | WriteInstanceId
    | ForgetInstanceIds
    | WriteMark
    | Prepare
    | Open
    | Close
    | Discard
    | Abandon
    | FindCuts
    | Reshaped
    | Answered
    | AskAssurance
    | AssuranceAnswered
    | Alarm
    | Refold
    | Stop
    | Folded
    | Resync
)
