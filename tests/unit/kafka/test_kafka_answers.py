"""What Kafka's answers mean: whether a batch may be there, and what explains that nobody
answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.kafka.answers import COMPLAINT_MS_MAX, Complaints, KafkaFailed, Sent, Trouble

SILENCE = KafkaFailed(trouble=Trouble.AWAY, problem="timed out")
REFUSED = KafkaFailed(trouble=Trouble.REFUSED, problem="too large")
TURNED_AWAY = KafkaFailed(trouble=Trouble.DENIED, problem="wrong password")
NS_PER_MS = 1_000_000


def silence() -> KafkaFailed:
    """The failure where nobody named one."""
    return SILENCE


@dataclass(frozen=True, kw_only=True)
class Batch:
    id: str
    outcomes: tuple[int | KafkaFailed | None, ...]
    queued: int
    failure: KafkaFailed
    is_in_doubt: bool


def failed(trouble: Trouble) -> KafkaFailed:
    """A failure of one kind."""
    return KafkaFailed(trouble=trouble, problem=trouble.value)


AWAY, BROKEN = failed(Trouble.AWAY), failed(Trouble.BROKEN)

BATCHES = (
    Batch(id="no answer", outcomes=(None, None), queued=2, failure=SILENCE, is_in_doubt=True),
    Batch(
        id="refused by Kafka",
        outcomes=(REFUSED, REFUSED),
        queued=2,
        failure=REFUSED,
        is_in_doubt=False,
    ),
    Batch(
        id="one of two refused", outcomes=(5, REFUSED), queued=2, failure=REFUSED, is_in_doubt=True
    ),
    Batch(
        id="never taken by the library",
        outcomes=(BROKEN, None),
        queued=0,
        failure=BROKEN,
        is_in_doubt=False,
    ),
    Batch(
        id="the second one never taken",
        outcomes=(None, AWAY),
        queued=1,
        failure=AWAY,
        is_in_doubt=True,
    ),
    Batch(
        id="refused, and the second one never taken",
        outcomes=(REFUSED, AWAY),
        queued=1,
        failure=REFUSED,
        is_in_doubt=False,
    ),
)


@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case.id)
def test_what_may_be_there_is_in_doubt(case: Batch) -> None:
    """A batch is surely not there if Kafka refused its records, or never had them; of any other
    nobody knows.
    """
    sent = Sent.of(case.outcomes, queued=case.queued, silence=silence)
    assert (case.failure, case.is_in_doubt, 0) == (
        sent.failure,
        sent.is_in_doubt,
        len(sent.offsets),
    )


@pytest.mark.parametrize(
    "trouble", [trouble for trouble in Trouble if trouble is not Trouble.REFUSED]
)
def test_an_answer_to_the_second_sending_says_nothing_of_the_first(trouble: Trouble) -> None:
    """A node that knows no such topic or user yet may answer the repetition of a record that was
    written.
    """
    assert Sent.of([failed(trouble)], queued=1, silence=silence).is_in_doubt


def test_a_batch_that_is_there_has_its_offsets() -> None:
    """Where each record has an offset, nothing has failed, and nothing is in doubt."""
    assert Sent(offsets=[3, 4]) == Sent.of([3, 4], queued=2, silence=silence)


def test_who_was_never_let_in_is_told_why() -> None:
    """Until Kafka has let us in, a refused login is what is wrong, whatever else is complained of
    later; and it is told once.
    """
    complaints = Complaints()
    complaints.take(TURNED_AWAY, now_ns=0)
    complaints.take(failed(Trouble.AWAY), now_ns=1)
    with pytest.raises(KafkaFailed) as caught:
        complaints.check(now_ns=2)
    assert "LogAccessDenied" == caught.value.as_error(log="l", in_doubt=False).code
    complaints.check(now_ns=3)
    assert SILENCE is complaints.explained(SILENCE, now_ns=3)


def test_a_login_refused_after_one_that_was_not_is_an_outage() -> None:
    """Who was let in once tries on: a node that does not know its users for a moment ends no
    broker.
    """
    complaints = Complaints()
    complaints.let_in()
    complaints.take(TURNED_AWAY, now_ns=0)
    complaints.check(now_ns=1)
    explained = complaints.explained(SILENCE, now_ns=1).as_error(log="l", in_doubt=False)
    assert LogUnavailable is type(explained)
    assert "timed out (wrong password)" in str(explained)


def test_what_was_complained_of_before_the_login_is_forgotten_with_it() -> None:
    """A refusal while one handle opens, which then opens, is no reason to end it later."""
    complaints = Complaints()
    complaints.take(TURNED_AWAY, now_ns=0)
    complaints.let_in()
    complaints.check(now_ns=1)
    assert SILENCE is complaints.explained(SILENCE, now_ns=1)


def test_an_old_complaint_explains_nothing() -> None:
    """Why Kafka was away an hour ago is not why it is away now."""
    complaints = Complaints()
    complaints.take(TURNED_AWAY, now_ns=0)
    complaints.check(now_ns=COMPLAINT_MS_MAX * NS_PER_MS)
    complaints.take(failed(Trouble.AWAY), now_ns=0)
    assert (
        "timed out (away)"
        == complaints.explained(SILENCE, now_ns=COMPLAINT_MS_MAX * NS_PER_MS - 1).problem
    )
    assert "timed out" == complaints.explained(SILENCE, now_ns=COMPLAINT_MS_MAX * NS_PER_MS).problem


def test_an_answer_needs_no_complaint() -> None:
    """What Kafka itself answered is not explained by what went wrong on another connection."""
    complaints = Complaints()
    complaints.take(TURNED_AWAY, now_ns=0)
    assert REFUSED is complaints.explained(REFUSED, now_ns=1)
