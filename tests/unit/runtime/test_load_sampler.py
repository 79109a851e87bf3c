"""The sampler of loads: one call of a service for all who ask, and nothing but numbers out of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

import pytest

from equipoise.brokers.runtime.load_sampler import LoadSampler
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.bundle_load import BundleLoad, Messaging

FRESH_MS = 1_000
GOOD = {"b": BundleLoad(calls_per_second=1.5, bytes_per_second=2.0, sessions=3)}


class Saying(Service):
    """A service that says what the test wants of its load."""

    def __init__(self, say: Callable[[], object]) -> None:
        self.say = say
        self.asked = 0

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing."""

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        """Nothing."""

    def load(self) -> Mapping[str, BundleLoad]:
        self.asked += 1
        return self.say()  # type: ignore[return-value]  # what a user's code may do all the same


def sampler(clock: VirtualClock, services: Sequence[Service]) -> LoadSampler:
    """A sampler of these services."""
    return LoadSampler(services, broker="broker", clock=clock, fresh_ms=FRESH_MS)


def test_all_who_ask_in_a_while_get_one_sample() -> None:
    """A service that counts from call to call is asked once, so that nobody takes away what another was to be told."""
    clock, service = VirtualClock(), Saying(lambda: GOOD)
    loads = sampler(clock, [service])
    first = loads.latest()
    clock.boot_ms += FRESH_MS - 1
    assert (first, 1, GOOD) == (loads.latest(), service.asked, first.loads)
    clock.boot_ms += 1
    assert (clock.boot_ms, 2) == (loads.latest().at_ms, service.asked)


@pytest.mark.parametrize(
    "said",
    [
        None,
        [("b", BundleLoad())],
        {"b": 1.0},
        {7: BundleLoad()},
        {"b": None},
        {"b": lambda: BundleLoad(calls_per_second=math.nan)},
    ],
    ids=["none", "list", "number", "key", "nothing", "function"],
)
def test_garbage_is_told_once_and_counts_for_nothing(said: object, caplog: pytest.LogCaptureFixture) -> None:
    """What is no load is left out, what else is said counts, and the log is not filled with it."""
    clock, good = VirtualClock(), Saying(lambda: {"other": BundleLoad(sessions=1)})
    loads = sampler(clock, [Saying(lambda: said), good])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert {"other": BundleLoad(sessions=1)} == loads.latest().loads
            clock.boot_ms += FRESH_MS
    assert 1 == len([record for record in caplog.records if "load of a service failed" in record.message])


def test_a_service_that_raises_is_told_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    """A number that cannot be is refused where the service makes it, and its error stands in the log."""
    loads = sampler(VirtualClock(), [Saying(lambda: {"b": BundleLoad(calls_per_second=math.nan)})])
    with caplog.at_level(logging.ERROR):
        assert {} == loads.latest().loads
    assert "CallerError" in caplog.text


def test_numbers_of_any_kind_become_plain_ones() -> None:
    """What compares like a number is one, in a form that every report can express."""
    messaging = Messaging(messages_in_per_second=Decimal(7), bytes_out_per_second=Fraction(8), topics=True)  # type: ignore[arg-type]  # as users do
    odd = BundleLoad(calls_per_second=Decimal("1.5"), bytes_per_second=Fraction(2), sessions=True, messaging=messaging)  # type: ignore[arg-type]
    (load,) = sampler(VirtualClock(), [Saying(lambda: {"b": odd})]).latest().loads.values()
    assert [float, float, int] == [type(load.calls_per_second), type(load.bytes_per_second), type(load.sessions)]
    told = load.messaging
    assert told is not None
    assert [float, float, int] == [type(told.messages_in_per_second), type(told.bytes_out_per_second), type(told.topics)]
    assert odd == load


def test_plain_numbers_are_taken_as_they_are() -> None:
    """What any report can express already is not made anew, of which a broker has thousands."""
    messaging = Messaging(messages_in_per_second=7.0, topics=2)
    said = {"b": BundleLoad(calls_per_second=1.5, sessions=3), "c": BundleLoad(messaging=messaging)}
    loads = sampler(VirtualClock(), [Saying(lambda: said)]).latest().loads
    assert [True, True] == [loads[name] is said[name] for name in ("b", "c")]
