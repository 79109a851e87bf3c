"""What becomes of messages, as it is counted while they are on their way."""

from __future__ import annotations

from equipoise.brokers.local.demo.messages import BEFORE_A_KILL_NS, OVERDUE_NS, MessageTally

MS = 1_000_000
S = 1_000 * MS
# Far enough from 0 for a window to begin before it.
T0 = 100 * S
ORDERS, EVENTS = "orders", "events"


class Heard:
    """A tally, and clients who say things to it; times are relative to `T0`."""

    def __init__(self) -> None:
        self.tally = MessageTally([ORDERS, EVENTS])

    def say(self, event: str, n: int, at_ns: int, *, topic: str = ORDERS) -> None:
        line = {"event": event, "topic": topic, "producer": "p", "n": n, "at_ns": T0 + at_ns}
        self.tally.note({**line, "consumer": "c"} if event == "received" else line)

    def whole(self, n: int, at_ns: int, *, topic: str = ORDERS, pause_ns: int = MS) -> None:
        """A message that comes through."""
        self.say("sent", n, at_ns, topic=topic)
        self.say("receipted", n, at_ns + pause_ns, topic=topic)
        self.say("received", n, at_ns + pause_ns, topic=topic)

    def lost(self, now_ns: int) -> tuple[int, int]:
        """How many were lost by now: without a kill, and with one."""
        self.tally.sweep(T0 + now_ns)
        return self.tally.lost, self.tally.lost_in_kills


def test_what_comes_through_is_counted() -> None:
    """Receipts count, and a pause is the time from sending to the receipt."""
    heard = Heard()
    heard.tally.note({"event": "ready", "subscription": "s", "at_ns": 1})
    heard.whole(0, 0, pause_ns=3 * MS)
    heard.whole(1, S, pause_ns=20 * MS)
    heard.whole(2, 2 * S)
    tally = heard.tally
    assert (3, 20.0, 20.0) == (tally.receipted, tally.longest_pause_ms, tally.recent_pause_ms)
    assert (0, 0) == heard.lost(100 * S)
    assert 0 == tally.out_of_order


def test_clients_are_heard_in_any_order() -> None:
    """A delivery may be read before the sending and the receipt of the same message."""
    heard = Heard()
    heard.say("received", 0, 2 * MS)
    heard.say("sent", 0, 0)
    heard.say("receipted", 0, MS)
    assert (0, 0) == heard.lost(100 * S)


def test_what_is_overdue_is_lost() -> None:
    """A receipted message that does not come is lost after a while, not before, and one without a receipt never is."""
    heard = Heard()
    heard.say("sent", 0, 0)
    heard.say("receipted", 0, MS)
    heard.say("sent", 1, 0)
    assert (0, 0) == heard.lost(OVERDUE_NS)
    assert (1, 0) == heard.lost(OVERDUE_NS + 2 * MS)
    assert (1, 0) == heard.lost(10 * OVERDUE_NS)


def test_what_a_kill_touches_is_counted_apart() -> None:
    """Losses and pauses in the time of a kill are put down to it, shortly before it too, and no others."""
    heard = Heard()
    for n, at_ns in enumerate((0, 10 * S - BEFORE_A_KILL_NS // 2, 11 * S, 30 * S)):
        if at_ns == 11 * S:
            heard.tally.kill_begins(T0 + 10 * S)
        heard.say("sent", n, at_ns)
        heard.say("receipted", n, at_ns + (n + 1) * MS)
        if at_ns == 11 * S:
            heard.tally.kill_ends(T0 + 12 * S)
    assert (2, 2) == heard.lost(60 * S)
    assert (4.0, 3.0) == (heard.tally.longest_pause_ms, heard.tally.longest_pause_in_kills_ms)
    assert [(T0 + 10 * S - BEFORE_A_KILL_NS, T0 + 12 * S)] == heard.tally.windows(T0 + 60 * S)


def test_a_kill_lasts_until_it_has_ended() -> None:
    """A message that a dead broker held up for seconds is put down to the kill, and for the judge it lasts until now."""
    heard = Heard()
    heard.say("sent", 0, 0)
    heard.tally.kill_begins(T0 + S)
    heard.say("receipted", 0, 5 * S)
    assert (0.0, 5_000.0) == (heard.tally.longest_pause_ms, heard.tally.longest_pause_in_kills_ms)
    assert [(T0 + S - BEFORE_A_KILL_NS, T0 + 7 * S)] == heard.tally.windows(T0 + 7 * S)


def test_a_number_below_the_highest_is_out_of_order() -> None:
    """Numbers of a topic rise at each consumer; one that comes again after a kill is no disorder."""
    heard = Heard()
    for n in range(3):
        heard.say("sent", n, 0)
    for n in (0, 2, 1, 2, 0):
        heard.say("received", n, S)
    heard.whole(0, 2 * S, topic=EVENTS)
    heard.say("received", 0, 3 * S, topic=EVENTS)
    assert 1 == heard.tally.out_of_order
    assert (0, 0) == heard.lost(60 * S)


def test_a_failed_message_is_nobodys_loss() -> None:
    """What a client gave up was never promised."""
    heard = Heard()
    heard.say("sent", 0, 0)
    heard.say("failed", 0, S)
    assert 0 == heard.tally.receipted
    assert (0, 0) == heard.lost(60 * S)


def test_messages_flow_again_when_every_topic_has_one_that_came_through() -> None:
    """What was sent before does not tell that clients are back, nor does one topic for another."""
    heard = Heard()
    heard.whole(0, 0)
    heard.whole(0, 2 * S, topic=EVENTS)
    assert not heard.tally.flow_since(T0 + S)
    heard.say("sent", 1, 2 * S)
    heard.say("receipted", 1, 3 * S)
    assert not heard.tally.flow_since(T0 + S)
    heard.say("received", 1, 3 * S)
    assert heard.tally.flow_since(T0 + S)
