"""What Kafka answers, in our words: facts, and what kept it from answering.

May live here: the values that `kafka_client` returns, the one error that it raises, and what they mean; nothing of the library.
Pure: who asks brings the time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import EquipoiseError, LogAccessDenied, LogDamaged, LogUnavailable

COMPLAINT_MS_MAX: Final = 40_000
"""How long a complaint explains why nobody answers: the library repeats one only after 30 s, and tries again each second."""


class Trouble(enum.Enum):
    """What is the matter, as far as it makes a difference to those who asked."""

    AWAY = "away"
    """Nobody answered, or nobody who is in charge: trying again later may work."""
    DENIED = "denied"
    """Wrong credentials, no rights, or TLS that does not fit."""
    NO_TOPIC = "no topic"
    OUT_OF_RANGE = "out of range"
    """A position that the partition no longer has, or does not have yet."""
    REFUSED = "refused"
    """The broker, or the library before it was sent, did not take a record: it is not on the partition."""
    FENCED = "fenced"
    """Another producer has taken over the transactions."""
    DAMAGED = "damaged"
    BROKEN = "broken"
    """The client itself can go on no longer: a new one is needed."""


class KafkaFailed(Exception):
    """An answer that Kafka, or the library, did not give as it was asked. It does not leave the modules of the Kafka log."""

    def __init__(self, *, trouble: Trouble, problem: str) -> None:
        """`trouble` says what to do about it, `problem` is for people and holds no secret."""
        self.trouble = trouble
        self.problem = problem
        super().__init__(problem)

    def as_error(self, *, log: str, in_doubt: bool) -> EquipoiseError:
        """What users of the log are told; `in_doubt` says whether something may have been written nevertheless."""
        match self.trouble:
            case Trouble.DENIED:
                return LogAccessDenied(log=log, problem=self.problem)
            case Trouble.DAMAGED:
                return LogDamaged(log=log, problem=self.problem)
            case _:
                return LogUnavailable(log=log, problem=self.problem, in_doubt=in_doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as Kafka describes it. `replication` is of its partition with the fewest copies."""

    id: str
    partitions: int
    replication: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The first offset that the partition has, and the one that its next message gets at the earliest."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a batch: the offset of each record, or why there is none, and whether any may be there nevertheless."""

    offsets: Sequence[int] = ()
    failure: KafkaFailed | None = None
    is_in_doubt: bool = False

    @classmethod
    def of(cls, outcomes: Sequence[int | KafkaFailed | None], *, queued: int, silence: Callable[[], KafkaFailed]) -> Sent:
        """What `outcomes` make of a batch: an offset, a failure, or nothing yet for each record, of which the library took `queued`.

        A record is surely not there if the library did not take it, or if Kafka refused the record itself. Anything else may be said
        of one that is there: it was written, the answer was lost, and what it was sent to again knew no such topic yet, or no such
        user. `silence` makes the failure where nobody named one.
        """
        offsets = [outcome for outcome in outcomes if isinstance(outcome, int)]
        if len(offsets) == len(outcomes):
            return cls(offsets=offsets)
        failure = next((outcome for outcome in outcomes if isinstance(outcome, KafkaFailed)), None) or silence()
        is_in_doubt = not all(isinstance(outcome, KafkaFailed) and outcome.trouble is Trouble.REFUSED for outcome in outcomes[:queued])
        return cls(failure=failure, is_in_doubt=is_in_doubt)


class Complaints:
    """What the library said when nobody asked: it explains the silence of those who were."""

    def __init__(self) -> None:
        self._last: KafkaFailed | None = None
        self._expires_ns = 0
        self._is_let_in = False

    def let_in(self) -> None:
        """Kafka let us in: the credentials are right. Whoever turns us away from now on is one node in trouble, and that passes."""
        self._is_let_in = True
        self._last = None

    def take(self, complaint: KafkaFailed, *, now_ns: int) -> None:
        """Remember a complaint. That somebody is away says less than that he lets nobody in."""
        last = self._current(now_ns)
        if self._is_let_in and complaint.trouble is Trouble.DENIED:
            complaint = KafkaFailed(trouble=Trouble.AWAY, problem=complaint.problem)
        if last is None or last.trouble is not Trouble.DENIED or complaint.trouble is not Trouble.AWAY:
            self._last, self._expires_ns = complaint, now_ns + COMPLAINT_MS_MAX * 1_000_000

    def check(self, *, now_ns: int) -> None:
        """Raise `KafkaFailed` if we are not let in, and never were: the library would try on, and say no more than that."""
        last = self._current(now_ns)
        if last is not None and last.trouble is Trouble.DENIED:
            self._last = None
            raise last

    def explained(self, failure: KafkaFailed, *, now_ns: int) -> KafkaFailed:
        """The same failure; one of silence with what the library last complained of."""
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
