"""The sampler of loads: one call of a service for all callers, and plain numbers only."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

import pytest

from equipoise.brokers.load.load_sampler import LoadSampler
from equipoise.brokers.load.metering import Account
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import BundleLoad, Messaging

FRESH_MS = 1_000
GOOD = {"b": BundleLoad(calls_per_second=1.5, bytes_per_second=2.0, sessions=3)}


class Loaded(Service):
    """A service whose load is what a test sets."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer
        self.calls = 0

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing."""

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Nothing."""

    def load(self) -> Mapping[str, BundleLoad]:
        self.calls += 1
        return self.answer()  # type: ignore[return-value]  # what a user's code may do


def sampler(clock: VirtualClock, services: Sequence[Service]) -> LoadSampler:
    """Return a sampler of these services."""
    return LoadSampler(
        services, broker="broker", now_ms=lambda: clock.now().boot_ms, fresh_ms=FRESH_MS
    )


def test_all_callers_share_a_fresh_sample() -> None:
    """A service may count from call to call."""
    clock, service = VirtualClock(), Loaded(lambda: GOOD)
    loads = sampler(clock, [service])
    first = loads.latest()
    clock.boot_ms += FRESH_MS - 1
    assert (first, 1, GOOD) == (loads.latest(), service.calls, first.loads)
    clock.boot_ms += 1
    assert (clock.boot_ms, 2) == (loads.latest().at_ms, service.calls)


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
def test_invalid_loads_are_left_out_and_logged_once(
    said: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of other services count. The problem tells that others are missing."""
    clock, good = VirtualClock(), Loaded(lambda: {"other": BundleLoad(sessions=1)})
    loads = sampler(clock, [Loaded(lambda: said), good])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert {"other": BundleLoad(sessions=1)} == loads.latest().loads
            assert "load() of Loaded: it re" in (loads.latest().problem or "")
            clock.boot_ms += FRESH_MS
    assert 1 == len(
        [record for record in caplog.records if "load of a service failed" in record.message]
    )


NAMES = [f"t/n{number}/0x00000000_0x80000000" for number in range(9)]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({NAMES[0]: "seats", "t/n0/0x80000000_0xffffffff": "seats"}, None),
        (dict.fromkeys(NAMES[:8], "seats"), None),
        ({NAMES[0]: "seats", NAMES[1]: "tokens/s"}, None),
        (
            {NAMES[0]: "seats", "t/n0/0x80000000_0xffffffff": "tokens/s"},
            "it declares costs of t/n0 in seats and in tokens/s: use one unit",
        ),
        (
            dict.fromkeys(NAMES, "seats"),
            "it declares costs of more than 8 namespaces: leave some out",
        ),
    ],
)
def test_a_namespace_has_one_unit(said: Mapping[str, str], problem: str | None) -> None:
    loads = {name: BundleLoad(cost=7.0, unit=unit) for name, unit in said.items()}
    sample = sampler(VirtualClock(), [Loaded(lambda: loads)]).latest()
    assert problem == (sample.problem and sample.problem.removeprefix("load() of Loaded: "))
    assert len(loads) - (problem is not None) == len(sample.loads)


def test_an_error_of_a_service_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loads = sampler(VirtualClock(), [Loaded(lambda: {"b": BundleLoad(calls_per_second=math.nan)})])
    with caplog.at_level(logging.ERROR):
        assert {} == loads.latest().loads
    assert "CallerError" in caplog.text


def test_numbers_of_any_type_become_plain_ones() -> None:
    """Any report can hold these."""
    # As users do.
    messaging = Messaging(
        messages_in_per_second=Decimal(7),  # type: ignore[arg-type]
        bytes_out_per_second=Fraction(8),  # type: ignore[arg-type]
        topics=True,
    )
    odd = BundleLoad(
        calls_per_second=Decimal("1.5"),  # type: ignore[arg-type]
        bytes_per_second=Fraction(2),  # type: ignore[arg-type]
        sessions=True,
        cost=Fraction(9),  # type: ignore[arg-type]
        unit="seats",
        messaging=messaging,
    )
    (load,) = sampler(VirtualClock(), [Loaded(lambda: {"b": odd})]).latest().loads.values()
    assert [float, float, int, float] == [
        type(load.calls_per_second),
        type(load.bytes_per_second),
        type(load.sessions),
        type(load.cost),
    ]
    plain = load.messaging
    assert plain is not None
    assert [float, float, int] == [
        type(plain.messages_in_per_second),
        type(plain.bytes_out_per_second),
        type(plain.topics),
    ]
    assert odd == load


def test_loads_in_plain_numbers_are_not_copied() -> None:
    """A broker has thousands."""
    messaging = Messaging(messages_in_per_second=7.0, topics=2)
    said = {"b": BundleLoad(calls_per_second=1.5, sessions=3), "c": BundleLoad(messaging=messaging)}
    loads = sampler(VirtualClock(), [Loaded(lambda: said)]).latest().loads
    assert [True, True] == [loads[name] is said[name] for name in ("b", "c")]


def test_what_is_measured_is_part_of_the_load() -> None:
    """A service needs no `load`. What one reports counts where it is more; its bytes count too."""
    clock, accounts = VirtualClock(), {name: Account() for name in ("plain", "counted", "idle")}
    reported = BundleLoad(calls_per_second=1e9, bytes_per_second=5.0, sessions=3)
    loads = LoadSampler(
        [Loaded(lambda: {"counted": reported})],
        accounts=lambda: accounts,
        broker="broker",
        now_ms=lambda: clock.now().boot_ms,
        fresh_ms=FRESH_MS,
    )
    for name in ("plain", "counted"):
        accounts[name].called()
        accounts[name].cpu_ns += 10**9
    found = loads.latest().loads
    assert {"plain", "counted"} == found.keys()
    assert found["plain"].calls_per_second > 0
    assert all(found[name].cpu_seconds_per_second > 0 for name in found)
    assert (1e9, 5.0, 3) == (
        found["counted"].calls_per_second,
        found["counted"].bytes_per_second,
        found["counted"].sessions,
    )
