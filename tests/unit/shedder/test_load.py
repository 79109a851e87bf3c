"""Loads: what a bundle may weigh."""

from __future__ import annotations

import math

import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.shedder.bundle_load import BundleLoad, Messaging


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["calls_per_second", "bytes_per_second", "sessions"])
def test_no_bundle_weighs_less_than_nothing_or_more_than_any_number(field: str, value: float) -> None:
    """A load that could not be added and compared is refused where it is made, by the name of its field."""
    with pytest.raises(CallerError, match=field):
        BundleLoad(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["messages_in_per_second", "bytes_out_per_second", "topics"])
def test_messaging_is_checked_in_the_same_way(field: str) -> None:
    """What more is said of a bundle of topics must be numbers, too."""
    with pytest.raises(CallerError, match=field):
        Messaging(**{field: math.nan})  # type: ignore[arg-type]
