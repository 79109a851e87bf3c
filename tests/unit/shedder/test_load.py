"""The load of a bundle: impossible figures are refused."""

from __future__ import annotations

import math

import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.shedder.loads import BundleLoad, Messaging


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e300])
@pytest.mark.parametrize("field", ["calls_per_second", "bytes_per_second", "sessions", "cost"])
def test_an_impossible_load_is_refused(field: str, value: float) -> None:
    """The error names the field."""
    with pytest.raises(CallerError, match=field):
        BundleLoad(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unit", "problem"),
    [("", "has no unit: give BundleLoad unit="), ("x" * 33, "no unit of"), ("a\nb", "no unit of")],
)
def test_a_declared_cost_has_a_unit(unit: str, problem: str) -> None:
    with pytest.raises(CallerError, match=problem):
        BundleLoad(cost=7, unit=unit)
    assert "tokens/s" == BundleLoad(cost=7, unit="tokens/s").unit


@pytest.mark.parametrize("field", ["messages_in_per_second", "bytes_out_per_second", "topics"])
def test_messaging_is_checked_in_the_same_way(field: str) -> None:
    with pytest.raises(CallerError, match=field):
        Messaging(**{field: math.nan})  # type: ignore[arg-type]
