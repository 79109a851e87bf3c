"""What a broker wants done: the effects that `Agent.step` returns, for its host to carry out in their order.

May live here: effect classes. Deadlines are boot times in milliseconds. What the host does with an effect comes back as an
event; an effect that gets no answer in time is the agent's business too, never the host's.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.brokers.agent.handle import Handle
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerEntry, BundleEntry, Verdict
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.reader import Folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append these bytes to the log; `AppendFailed` with this `attempt` if that failed. Never retried by the host."""

    attempt: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNonce:
    """Write and fsync this nonce to the data directory, then say `NonceWritten`."""

    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetNonces:
    """A later incarnation has been read back: only `keep` is still of use in the data directory."""

    keep: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Warm up for `bundle`, which `source` serves now (None: nobody), then say `Prepared`."""

    bundle: BundleEntry
    source: BrokerEntry | None
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Open the bundle of `handle` with what the former owner left, then say `Opened`. `source` is that owner, if it lives."""

    handle: Handle
    source: BrokerEntry | None
    handover: bytes | None
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Stop accepting, settle what was accepted, tell clients `moved_to` (None: unknown yet), then say `Closed`.

    The handle is closed already.
    """

    handle: Handle
    moved_to: BrokerEntry | None
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Throw away what the service prepared for `bundle`, which is not needed after all, then say `Discarded`."""

    bundle: str
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The service overran its deadline on `bundle`: stop its code, and say nothing more of that operation.

    If the code cannot be stopped, end the process.
    """

    bundle: str
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCuts:
    """Ask the service where to cut `bundle` (its algorithm and positions are in the entry).

    Then say `CutsFound`, with the entry's `last` as `asked_at`.
    """

    bundle: BundleEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaped:
    """A split or a merge took place: `children` serve from now on what `gone` served. Sessions go on."""

    gone: tuple[Handle, ...]
    children: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a request: a `verdict`, with its record's `offset` if that is on the log; or the `error` that left it none.

    After an error nothing was done, and nothing will be; but for `OutcomeUnknown`, after which that is what nobody can tell.
    """

    ticket: int
    offset: int | None = None
    verdict: Verdict | None = None
    error: EquipoiseError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that the operator must look at. `name` is a stable word for metrics, `message` says what and where.

    So do `key`, `offset` and `reason` for machines, where it is about a record.
    """

    name: str
    message: str
    key: str | None = None
    offset: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refold:
    """Views have diverged: fold the log again beside the live view, and stop only if that shows the live view to be wrong."""

    other: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The broker must end: it has left (`error` is None), or cannot go on."""

    error: EquipoiseError | None


Effect = (
    Append
    | WriteNonce
    | ForgetNonces
    | Prepare
    | Open
    | Close
    | Discard
    | Abandon
    | FindCuts
    | Reshaped
    | Answered
    | Alarm
    | Refold
    | Stop
    | Folded
    | Resync
)
