"""Test the rules about messages: an honest run passes each rule, and the rule finds its injected
fault.

Faults are edits of an honest run's lines: two producers, a topic and a partitioned one, a transfer,
two subscriptions.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_checker_files import alone

import messages
from case import Work

PROGRAM = "messages.py"
TOPIC = "non-persistent://t/n/plain"
PARTED = "non-persistent://t/n/parted"
MOVED_AT = 40
Line = dict[str, object]


@dataclass(slots=True, kw_only=True)
class Leavings:
    """The lines of clients and brokers."""

    history: list[Line] = field(default_factory=list)
    evidence: list[Line] = field(default_factory=list)

    def find(
        self, event: str, producer: str, n: int, *, topic: str = TOPIC, consumer: str | None = None
    ) -> Line:
        wanted = {"event": event, "producer": producer, "n": n, "topic": topic}
        wanted |= {} if consumer is None else {"consumer": consumer}
        return next(line for line in self.history if wanted.items() <= line.items())

    def lose(self, event: str, producer: str, n: int, **of: str) -> None:
        self.history.remove(self.find(event, producer, n, **of))


def honest_run() -> Leavings:
    """Return a run with messages 0 to 7 of each producer and topic, 10 ns apart; the plain topic
    moves from b0 to b1 at `MOVED_AT`.
    """
    left = Leavings()
    for subscription, consumer, topics in (("all", "c0", [TOPIC, PARTED]), ("some", "c1", None)):
        left.history.append(
            {
                "event": "ready",
                "subscription": subscription,
                "consumer": consumer,
                "topics": topics,
                "at_ns": -1,
            }
        )
    for producer in ("p0", "p1"):
        left.history.append(
            {"event": "ready", "producer": producer, "topics": [TOPIC, PARTED], "at_ns": -1}
        )
        for topic in (TOPIC, PARTED):
            for n in range(8):
                tell(left, topic, producer, n)
    return left


def tell(left: Leavings, topic: str, producer: str, n: int) -> None:
    at_ns = n * 10
    what: Line = {"topic": topic, "producer": producer, "n": n}
    full = topic if topic == TOPIC else f"{topic}-partition-{n % 2}"
    left.history += [
        {"event": "sent", **what, "at_ns": at_ns},
        {"event": "receipted", **what, "at_ns": at_ns + 5},
    ]
    for subscription, consumer in (("all", "c0"), ("some", "c1")):
        seen: Line = {"subscription": subscription, "consumer": consumer}
        left.history.append(
            {"event": "received", **what, "topic": full, **seen, "at_ns": at_ns + 6}
        )
    broker, token = ("b0", 7) if at_ns < MOVED_AT else ("b1", 9)
    times: Line = {"started_ns": at_ns + 1, "answered_ns": at_ns + 2, "lease_deadline_ns": 1_000}
    message = {"key": f"t/n/{full}", "message": f"{producer}:{n}"}
    left.evidence.append(
        {"broker": broker, "bundle": "t/n/0x0_0x1", "token": token, **times, **message}
    )


def checked_rules(left: Leavings, *windows: tuple[int, int]) -> dict[str, int]:
    run = messages.Run()
    run.windows += windows
    for line in left.history:
        messages.note(run, line)
    run.is_witnessed = True
    run.works += [
        Work(*(line[name] for name in Work._fields if name in line))  # type: ignore[arg-type]
        for line in left.evidence
    ]
    return {rule: len(found) for rule, found in messages.violations(run).items()}


def test_an_honest_run_is_clean() -> None:
    assert {} == checked_rules(honest_run())


def repeat(left: Leavings) -> None:
    left.history.append(left.find("received", "p0", 5, consumer="c0") | {"at_ns": 99})


def swap(left: Leavings) -> None:
    one, other = (left.history.index(left.find("received", "p0", n, consumer="c0")) for n in (5, 6))
    left.history[one], left.history[other] = left.history[other], left.history[one]


def swap_in_a_partition(left: Leavings) -> None:
    """Swap two messages within a partition, which has every other message."""
    partition = f"{PARTED}-partition-1"
    one, other = (
        left.history.index(left.find("received", "p0", n, topic=partition, consumer="c0"))
        for n in (5, 7)
    )
    left.history[one], left.history[other] = left.history[other], left.history[one]


def invent(left: Leavings) -> None:
    left.history.append(left.find("received", "p0", 7, consumer="c0") | {"n": 8})


def old_owner_goes_on(left: Leavings) -> None:
    """Let the old owner accept once more after the new one has begun."""
    left.evidence.append(left.evidence[0] | {"started_ns": 60, "answered_ns": 61})


def old_owner_answers_late(left: Leavings) -> None:
    """Let the old owner answer late, when the new one is at work, under a valid lease."""
    left.evidence[0]["answered_ns"] = 55


def forget(left: Leavings, topic: str, sequence: int) -> None:
    message = {"key": f"t/n/{topic}", "message": f"p0:{sequence}"}
    left.evidence.remove(next(line for line in left.evidence if message.items() <= line.items()))


def new_owner_works_twice(left: Leavings) -> None:
    """Let another broker accept under the token of the new owner."""
    left.evidence.append(left.evidence[7] | {"broker": "b2", "started_ns": 90, "answered_ns": 91})


# The rule that finds each fault, and the fault.
FAULTS: dict[str, tuple[str, Callable[[Leavings], object]]] = {
    "a receipted message is lost": (
        "receipted_messages_are_delivered",
        lambda left: left.lose("received", "p0", 5, consumer="c0"),
    ),
    "one is lost to a pattern": (
        "receipted_messages_are_delivered",
        lambda left: left.lose("received", "p1", 7, consumer="c1"),
    ),
    "one of a partition is lost": (
        "receipted_messages_are_delivered",
        lambda left: left.lose("received", "p0", 6, topic=f"{PARTED}-partition-0", consumer="c0"),
    ),
    "a receipt without evidence": ("receipts_have_evidence", lambda left: forget(left, TOPIC, 6)),
    "one without evidence in a partition": (
        "receipts_have_evidence",
        lambda left: forget(left, f"{PARTED}-partition-1", 5),
    ),
    "a message comes twice": ("messages_are_delivered_once", repeat),
    "two messages change places": ("messages_keep_their_order", swap),
    "two messages of a partition change places": ("messages_keep_their_order", swap_in_a_partition),
    "a message is invented": ("deliveries_were_sent", invent),
    "the token falls": ("work_of_two_tokens_never_overlaps", old_owner_goes_on),
    "two tokens at once": ("work_of_two_tokens_never_overlaps", old_owner_answers_late),
    "one token, two brokers": ("tokens_have_one_broker", new_owner_works_twice),
    "work past the lease": (
        "work_ends_within_its_lease",
        lambda left: left.evidence[-1].update(lease_deadline_ns=50),
    ),
}
EXCUSED = list(FAULTS)[:6]  # By a death at the same time.


def spoilt(fault: str) -> tuple[str, Leavings]:
    """The rule that a fault breaks, and a run with the fault."""
    rule, plant = FAULTS[fault]
    left = honest_run()
    plant(left)
    return rule, left


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_rule_alone_and_a_death_excuses_losses(fault: str) -> None:
    """A message that overlaps a window may be lost or doubled. No window excuses disorder or double
    owners.
    """
    rule, left = spoilt(fault)
    assert ([] if fault in EXCUSED else [rule]) == list(checked_rules(left, (48, 99)))
    assert {rule: 1} == checked_rules(left, (-9, -5))
    assert fault in EXCUSED or [rule] == list(checked_rules(left, (-9, 999)))


def test_what_is_sent_again_in_order_is_no_disorder() -> None:
    """After a death a producer may repeat delivered messages without an acknowledgement: doubled,
    and in order.
    """
    left = honest_run()
    for n in (5, 6, 7):
        left.history.append(left.find("received", "p0", n, consumer="c0") | {"at_ns": 99})
    assert {"messages_are_delivered_once": 3} == checked_rules(left)


def test_what_was_not_receipted_may_be_lost() -> None:
    left = honest_run()
    left.lose("receipted", "p0", 5)
    left.find("receipted", "p0", 6)["event"] = "failed"
    for n in (5, 6):
        left.lose("received", "p0", n, consumer="c0")
    assert {} == checked_rules(left)


def test_what_was_sent_before_the_subscription_is_not_owed() -> None:
    left = honest_run()
    left.history[0]["at_ns"] = 15
    for n in (0, 1):
        left.lose("received", "p0", n, consumer="c0")
    assert {} == checked_rules(left)
    left.lose("received", "p0", 2, consumer="c0")
    assert ["receipted_messages_are_delivered"] == list(checked_rules(left))


def test_a_subscription_that_gets_nothing_at_all_is_found() -> None:
    left = honest_run()
    left.history = [
        line for line in left.history if line.get("consumer") != "c0" or line["event"] == "ready"
    ]
    assert {"receipted_messages_are_delivered": 32} == checked_rules(left)


def save(left: Leavings, folder: Path) -> list[str]:
    for name in ("history", "evidence"):
        lines = getattr(left, name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [str(folder / "history.jsonl"), "--evidence", str(folder / "evidence.jsonl")]


def test_the_checker_runs_alone(tmp_path: Path) -> None:
    """Clean, excused and broken runs have their exit codes, and the totals show the size of the
    input.
    """
    left = honest_run()
    assert (0, "verdict: clean, no violation") == (
        (ended := alone(save(left, tmp_path), PROGRAM)).returncode,
        ended.stdout.splitlines()[-1],
    )
    left.lose("received", "p0", 5, consumer="c0")
    ended = alone([*save(left, tmp_path), "--json"], PROGRAM)
    answer = json.loads(ended.stdout)
    assert (1, 1) == (
        ended.returncode,
        answer["violations"]["receipted_messages_are_delivered"]["count"],
    )
    assert {
        "sent": 32,
        "receipted": 32,
        "failed": 0,
        "never_settled": 0,
        "subscriptions": 2,
        "deliveries": 63,
        # A pattern subscription is owed nothing before its first message of a topic.
        "deliveries_owed": 60,
        "lost": 1,
        "doubled": 0,
        "pieces_of_work_in_evidence": 32,
        "tokens_of_topics_in_evidence": 6,
    } == answer["totals"]
    assert 0 == alone([*save(left, tmp_path), "--excused", "48", "99"], PROGRAM).returncode


UNUSABLE = {
    "no receipt": lambda left: left.history.clear(),
    "sent twice": lambda left: left.history.append(left.find("sent", "p0", 0)),
    "receipted, not sent": lambda left: left.lose("sent", "p0", 0),
    "unknown event": lambda left: left.history.append(
        {"event": "x", "topic": "t", "producer": "p", "n": 0, "at_ns": 0}
    ),
    "a number is text": lambda left: left.history[-1].update(n="1"),
    "a truth value is no number": lambda left: left.evidence[0].update(token=True),
    "evidence is missing": lambda left: left.evidence.append({"broker": "b0", "dropped": 3}),
    "topics are no list": lambda left: left.history[0].update(topics="t"),
}


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_cannot_be_checked_is_no_clean_run(
    spoil: Callable[[Leavings], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that contradict themselves, or prove nothing, end with exit code 2."""
    left = honest_run()
    spoil(left)
    assert 2 == messages.main([*save(left, tmp_path), "--json"])
    assert "unusable" == json.loads(capsys.readouterr().out)["verdict"]
