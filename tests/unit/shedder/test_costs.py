"""What the load of a bundle costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import pytest

from equipoise.shedder.costs import (
    IDLE_COST,
    Basis,
    Coefficients,
    Exchange,
    costs_of,
    exchanges_of,
    with_declared,
)
from equipoise.shedder.loads import FIGURE_MAX, BundleLoad, Declared, Load

LOAD = BundleLoad(
    calls_per_second=4,
    bytes_per_second=3 * 16_384,
    cpu_seconds_per_second=0.5,
    wall_seconds_per_second=100,
    sessions=200,
)


def test_a_cost_is_a_share_of_a_core() -> None:
    """A call, 16 KiB, and a hundred sessions or calls in progress each take 0.1 ms until something
    else is known, in addition to the CPU time that was measured and what an idle bundle takes.
    """
    idle, loaded = costs_of([BundleLoad(), LOAD])
    assert idle == IDLE_COST
    assert pytest.approx(IDLE_COST + 0.5 + (4 + 3 + 1 + 2) / 10_000) == loaded


def test_coefficients_are_seconds_of_cpu_time() -> None:
    known = Coefficients(per_call=0.01, per_byte=1e-6, per_session=1e-3)
    assert [pytest.approx(IDLE_COST + 0.5 + 0.04 + 0.049_152 + 0.3)] == costs_of([LOAD], known)


# --- costs that services declare ---

PERCENTS = {"a": 100, "b": 50, "c": 200}


def load(broker: str, *declared: Declared, **capacities: float) -> Load:
    """A report of the declared costs of some namespaces."""
    by_namespace = {f"t/n{number}": each for number, each in enumerate(declared)}
    return Load(broker=broker, at_ms=0, declared=by_namespace, capacities=capacities)


def seats(amount: float, estimate: float = 0.0) -> Declared:
    return Declared(unit="seats", amount=amount, estimate=estimate)


def test_a_declared_cost_replaces_the_estimate() -> None:
    """Where a unit is not known yet, the estimate counts."""
    loads = [
        LOAD,
        BundleLoad(cost=3, unit="seats", calls_per_second=9),
        BundleLoad(cost=7, unit="x"),
    ]
    estimates = costs_of(loads)
    assert [estimates[0], pytest.approx(IDLE_COST + 0.3), estimates[2]] == with_declared(
        loads, estimates, {"seats": 0.1}
    )


def test_a_declared_cost_is_a_figure_that_can_be_reported() -> None:
    loads = [BundleLoad(cost=1e18, unit="seats")]
    assert [FIGURE_MAX] == with_declared(loads, costs_of(loads), {"seats": 1e9})


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ((), {}),
        ((load("a", seats(10), seats=20),), {"seats": Exchange(rate=1 / 20, basis="capacities")}),
        (
            (load("a", seats(10), seats=20), load("c", seats=40), load("b", seats(9, 9))),
            {"seats": Exchange(rate=3 / 60, basis="capacities")},
        ),
        (
            (load("a", seats(10, 0.3), seats(20, 0.1)), load("b", seats(30, 0.2))),
            {"seats": Exchange(rate=0.6 / 60, basis="CPU")},
        ),
        (
            (load("a", seats(10, 0.01)), load("b", seats(20))),
            {"seats": Exchange(rate=0.75 / 30, basis="nothing")},
        ),
        ((load("a", seats(0)),), {"seats": Exchange(rate=0, basis="nothing")}),
        (
            (load("a", seats(10, 0.3), Declared(unit="x", amount=1, estimate=0.5)),),
            {
                "seats": Exchange(rate=0.03, basis="CPU"),
                "x": Exchange(rate=0.5, basis="CPU"),
            },
        ),
        ((load("gone", seats(10), seats=1),), {}),
        *(
            ((load("a", seats(bad, 0.3)), load("b", seats=bad)), {})
            for bad in (math.nan, -1, 1e300)
        ),
    ],
    ids=[
        "nothing declared",
        "full at its capacity",
        "capacities of all",
        "CPU of all namespaces with the unit",
        "no CPU to speak of: half of what they can do",
        "none in use",
        "each unit alone",
        "a broker that is gone",
        "not a number",
        "negative",
        "absurd",
    ],
)
def test_what_a_unit_counts_as(loads: tuple[Load, ...], expected: Mapping[str, Exchange]) -> None:
    found = exchanges_of(loads, PERCENTS)
    assert expected.keys() == found.keys()
    for unit, exchange in expected.items():
        assert exchange.basis == found[unit].basis
        assert pytest.approx(exchange.rate) == found[unit].rate


def test_no_small_change_of_cpu_changes_much_what_a_unit_counts_as() -> None:
    """From half of the broker, where it takes none, to what it takes."""
    rates = []
    for step in range(200):
        (found,) = exchanges_of([load("a", seats(10, 1e-3 * 1.05**step))], PERCENTS).values()
        rates.append(found.rate)
    assert [0.05, 1e-3 * 1.05**199 / 10] == pytest.approx([rates[0], rates[-1]])
    assert all(1 / 1.06 < new / old < 1.06 for old, new in pairwise(rates))


@pytest.mark.parametrize(
    ("basis", "said"),
    [
        ("CPU", "by CPU use"),
        ("little CPU", "seats take little CPU, so 1 counts as 0.1 of a core, which is more"),
        ("nothing", "is not known"),
    ],
)
def test_what_a_unit_counts_as_has_its_reason(basis: Basis, said: str) -> None:
    assert said in Exchange(rate=0.1, basis=basis).sentence("seats")
