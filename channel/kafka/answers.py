"""Represent Kafka's answers and failures without the types of the client library."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import (
    EquipoiseError,
    LogDamaged,
    LogUnavailable,
    log_access_denied,
)

COMPLAINT_MS_MAX: Final = 40_000
"""How long a complaint explains a silence. The library retries each second but repeats a complaint
only after 30 s."""


class Trouble(enum.Enum):
    """The kinds of failure that callers distinguish."""

    AWAY = "away"
    """No answer, or no leader: trying again later may work."""
    DENIED = "denied"
    """Wrong credentials, missing rights, or unsuitable TLS."""
    NO_TOPIC = "no topic"
    OUT_OF_RANGE = "out of range"
    """A position that the partition no longer has, or does not have yet."""
    REFUSED = "refused"
    """The broker or the library rejected a record: it is not on the partition."""
    FENCED = "fenced"
    """Another producer has taken over the transactions."""
    DAMAGED = "damaged"
    BROKEN = "broken"
    """The client is unusable: a new one is needed."""


class KafkaFailed(Exception):
    """A request to Kafka failed. Used only within the Kafka modules."""

    def __init__(self, *, trouble: Trouble, problem: str) -> None:
        """`trouble` decides what to do. `problem` is for people and holds no secret."""
        self.trouble = trouble
        self.problem = problem
        super().__init__(problem)

    def as_error(self, *, log: str, in_doubt: bool) -> EquipoiseError:
        """Return the error for users of the log. `in_doubt`: something may have been written
        nevertheless.
        """
        match self.trouble:
            case Trouble.DENIED:
                return log_access_denied(log=log, problem=self.problem)
            case Trouble.DAMAGED:
                return LogDamaged(log=log, problem=self.problem)
            case _:
                return LogUnavailable(log=log, problem=self.problem, in_doubt=in_doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as Kafka describes it. `replication` is that of its partition with the fewest
    copies.
    """

    id: str
    partitions: int
    replication: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The first offset of the partition, and the lowest offset that its next message can get."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The outcome of a batch: the offset of each record, or a failure and whether records may be
    there nevertheless.
    """

    offsets: Sequence[int] = ()
    failure: KafkaFailed | None = None
    is_in_doubt: bool = False

    @classmethod
    def of(
        cls,
        outcomes: Sequence[int | KafkaFailed | None],
        *,
        queued: int,
        silence: Callable[[], KafkaFailed],
    ) -> Sent:
        """Return the outcome of a batch. The library took its first `queued` records.

        `outcomes` holds an offset, a failure, or None (no answer yet) per record. `silence` makes
        the failure where no record has one.

        A record is certainly absent if the library did not take it or Kafka refused the record
        itself. Any other failure may concern a record that was written: its acknowledgement was
        lost, and the retry met a node that did not know the topic or the user yet.
        """
        offsets = [outcome for outcome in outcomes if isinstance(outcome, int)]
        if len(offsets) == len(outcomes):
            return cls(offsets=offsets)
        failure = (
            next((outcome for outcome in outcomes if isinstance(outcome, KafkaFailed)), None)
            or silence()
        )
        is_in_doubt = not all(
            isinstance(outcome, KafkaFailed) and outcome.trouble is Trouble.REFUSED
            for outcome in outcomes[:queued]
        )
        return cls(failure=failure, is_in_doubt=is_in_doubt)


class Complaints:
    """Remembers the library's unsolicited errors, which explain why requests get no answer."""

    def __init__(self) -> None:
        self._last: KafkaFailed | None = None
        self._expires_ns = 0
        self._is_let_in = False

    def let_in(self) -> None:
        """Note that Kafka accepted the credentials. A later denial is a temporary fault of one
        node.
        """
        self._is_let_in = True
        self._last = None

    def take(self, complaint: KafkaFailed, *, now_ns: int) -> None:
        """Remember a complaint. An unreachable node does not replace a denial."""
        last = self._current(now_ns)
        if self._is_let_in and complaint.trouble is Trouble.DENIED:
            complaint = KafkaFailed(trouble=Trouble.AWAY, problem=complaint.problem)
        if (
            last is None
            or last.trouble is not Trouble.DENIED
            or complaint.trouble is not Trouble.AWAY
        ):
            self._last, self._expires_ns = complaint, now_ns + COMPLAINT_MS_MAX * 1_000_000

    def check(self, *, now_ns: int) -> None:
        """Raise `KafkaFailed` if access was denied and never granted. The library would keep trying
        and report no more.
        """
        last = self._current(now_ns)
        if last is not None and last.trouble is Trouble.DENIED:
            self._last = None
            raise last

    def explained(self, failure: KafkaFailed, *, now_ns: int) -> KafkaFailed:
        """Return the failure, with the last complaint as explanation if Kafka was silent."""
        last = self._current(now_ns)
        if failure.trouble is not Trouble.AWAY or last is None:
            return failure
        if last.trouble is Trouble.DENIED:
            self._last = None
            return last
        return KafkaFailed(trouble=Trouble.AWAY, problem=f"{failure.problem} ({last.problem})")

    def _current(self, now_ns: int) -> KafkaFailed | None:
        if now_ns >= self._expires_ns:
            self._last = None
        return self._last
