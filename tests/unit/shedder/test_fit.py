"""What the CPU use of brokers shows of calls, bytes and sessions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.costs import ASSUMED, Coefficients
from equipoise.shedder.fit import (
    SHARE_MAX,
    SUMS,
    Amounts,
    Fit,
    cpu_of,
    fit,
    unexplained_cores,
    with_observation,
)

TRUE = Coefficients(per_call=1e-3, per_byte=1e-8, per_session=2e-6, process=0.03)
HOURS = 3


def sums_of(amounts: Sequence[Amounts], used: Callable[[Amounts], float]) -> tuple[float, ...]:
    """Sums of a broker that did this, in turns of 10 s each, and used so much."""
    sums: tuple[float, ...] = ()
    for each in amounts:
        sums = with_observation(sums, each, used(each), elapsed_s=10.0)
    return sums


def by(coefficients: Coefficients, more: float = 0.0) -> Callable[[Amounts], float]:
    return lambda amounts: cpu_of(amounts, coefficients) + more


def varied(seed: int, turns: int = HOURS * 360) -> list[Amounts]:
    chance = random.Random(seed)
    return [
        Amounts(
            calls=chance.uniform(0, 500),
            bytes=chance.uniform(0, 2e7),
            sessions=chance.uniform(0, 100_000),
            bundles=64,
        )
        for _ in range(turns)
    ]


CONSTANT = [Amounts(calls=200, bytes=200 * 1_000, sessions=0, bundles=2)] * (HOURS * 360)


def test_without_data_all_is_as_assumed() -> None:
    assert fit([]) == fit([(), (math.nan,) * SUMS, (1.0,) * (SUMS + 1)]) == Fit()
    assert ("per_call", "per_byte", "per_session", "per_bundle", "process") == Fit().unknown


def test_what_varies_on_its_own_is_found() -> None:
    """On one broker as on ten. 64 idle bundles take too little to show what one takes."""
    for seeds in ([1], range(10)):
        found = fit([sums_of(varied(seed), by(TRUE)) for seed in seeds])
        assert pytest.approx(astuple(TRUE)[:3], rel=0.02) == astuple(found.coefficients)[:3]
        assert found.coefficients.process == pytest.approx(0.03, rel=0.1)
        assert ("per_bundle",) == found.unknown
        assert found.for_costs == found.coefficients, "there is an hour of data"


def test_what_cannot_be_told_apart_keeps_its_proportions_and_is_named() -> None:
    """Calls of one size, at one rate: the whole is explained, by calls and bytes as assumed."""
    found = fit([sums_of(CONSTANT, lambda _: 0.5)])
    assert cpu_of(CONSTANT[0], found.coefficients) == pytest.approx(0.5, rel=0.02)
    ratio = found.coefficients.per_call / found.coefficients.per_byte
    assert ratio == pytest.approx(ASSUMED.per_call / ASSUMED.per_byte, rel=0.1)
    assert {"per_byte", "per_session", "per_bundle"} <= set(found.unknown)


@pytest.mark.parametrize("others", [1, 2, 9])
def test_other_work_of_a_broker_makes_no_call_expensive(others: int) -> None:
    """Of two brokers the one that uses more does it."""
    brokers = [sums_of(varied(seed), by(TRUE)) for seed in range(others)]
    found = fit([sums_of(varied(99), by(TRUE, more=1.0)), *brokers])
    assert found.coefficients.per_call == pytest.approx(TRUE.per_call, rel=0.2)
    assert found.coefficients.process < 0.2


@pytest.mark.parametrize("more", [0.001, 1.0, 1_000.0], ids=["few calls", "as many", "many"])
@pytest.mark.parametrize("share", [0.0, 90.0], ids=["cheap", "expensive"])
@pytest.mark.parametrize("weight", [1.0, 1e6], ids=["for hours", "for ages"])
def test_no_broker_alone_bends_what_the_others_show(
    more: float, share: float, weight: float
) -> None:
    """Its clock is wrong, or it lies. It is named by what it uses beyond the estimate."""
    wrong = replace(TRUE, per_call=share * ASSUMED.per_call)
    turns = [each._replace(calls=more * each.calls) for each in varied(99)]
    liar = [min(weight * each, 1e11) for each in sums_of(turns, by(wrong))]
    honest = [sums_of(varied(seed), by(TRUE)) for seed in range(3)]
    found = fit([liar, *honest])
    assert found.coefficients.per_call == pytest.approx(TRUE.per_call, rel=0.25)
    for sums in honest:
        assert abs(unexplained_cores(sums, found) or 0.0) < 0.1
    beyond = unexplained_cores(liar, found)
    if more < 1:
        return
    assert beyond is None or beyond * (share - 10) > 0, "no sums can be so large"
    assert unexplained_cores((), found) is None


def test_brokers_that_have_just_joined_or_idle_take_nothing_from_the_estimate() -> None:
    idle = sums_of([Amounts(bundles=4)] * 360, by(TRUE))
    joined = sums_of([Amounts(bundles=4)], by(TRUE))
    for others in ([joined], [idle], [idle] * 9, [joined] * 9):
        found = fit([sums_of(varied(1), by(TRUE)), *others])
        assert found.coefficients.per_call == pytest.approx(TRUE.per_call, rel=0.1)
        assert found.for_costs == found.coefficients


def test_costs_follow_at_most_twofold_in_150_seconds() -> None:
    """However clear the data are, and however many brokers there are. A tenth of it passes between
    two fits, so brokers count alike to 7 %.
    """
    for seconds, most in ((80, 1.45), (150, 2.0), (380, 5.8)):
        turns = varied(1, seconds // 10)
        found = fit([sums_of(turns, by(TRUE))] * 5)
        assert found.coefficients.per_call > 8 * ASSUMED.per_call
        assert most * 0.9 <= found.for_costs.per_call / ASSUMED.per_call <= most


SANE = st.floats(0, 1e6)
AMOUNTS = st.builds(Amounts, calls=SANE, bytes=SANE, sessions=SANE, bundles=st.floats(0, 1e5))


@given(
    st.lists(
        st.lists(st.tuples(AMOUNTS, st.floats(0, 1e3)), max_size=4)
        | st.tuples(*[st.floats()] * SUMS),
        max_size=4,
    )
)
def test_every_estimate_is_within_its_bounds(
    brokers: list[list[tuple[Amounts, float]] | tuple[float, ...]],
) -> None:
    """Whatever brokers report."""
    known = list[tuple[float, ...]]()
    for each in brokers:
        if isinstance(each, tuple):
            known.append(each)
            continue
        used = dict(each)
        known.append(sums_of([amounts for amounts, _ in each], used.__getitem__))
    found = fit(known)
    for coefficients in (found.coefficients, found.for_costs):
        for value, assumed in zip(astuple(coefficients), astuple(ASSUMED), strict=True):
            assert 0.999 / SHARE_MAX <= value / assumed <= 1.001 * SHARE_MAX


@pytest.mark.parametrize("size", [2.0**36, 2.0**43])
def test_sums_beyond_what_a_broker_can_have_do_no_harm(size: float) -> None:
    """By rounding they leave nothing of what is assumed, so that equations have no solution."""
    sums = (size,) * 15 + (size / 2,) * 5
    honest = sums_of(varied(1), by(TRUE))
    for count in (1, 1_000):
        found = fit([honest, *[sums] * count])
        assert all(math.isfinite(each) for each in astuple(found.coefficients))
        assert size < 2.0**40 or fit([honest]) == found


def test_old_data_are_forgotten() -> None:
    dearer = replace(TRUE, per_call=3e-3)
    sums = sums_of(varied(1), by(TRUE))
    for each in varied(2):
        sums = with_observation(sums, each, cpu_of(each, dearer), elapsed_s=10.0)
    assert fit([sums]).coefficients.per_call == pytest.approx(3e-3, rel=0.15)
