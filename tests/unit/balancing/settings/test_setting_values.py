"""The settings of balancing one by one: how values are read, checked and formatted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.settings.balancing_settings import (
    PLACEMENTS,
    POLICIES,
    SHEDDERS,
    BalancingSettings,
)
from equipoise.brokers.balancing.settings.setting_values import (
    CHOICES,
    GROUPS,
    MEANINGS,
    NAMESPACES_MAX,
    SETTINGS,
    Value,
    format_value,
    setting_named,
    value_in,
    value_of,
    with_value,
)
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.errors import InvalidSetting
from equipoise.channel.core.errors import NotFound

NUMBERS = [name for name, setting in SETTINGS.items() if setting.kind in (int, float)]
GIVEN: st.SearchStrategy[Value] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(
        [
            "none",
            "true",
            "FALSE",
            "0",
            "1",
            "-0.0",
            "1e3",
            "1e999",
            "0x1p-2",
            "1_000",
            "٣",
            "a/b,c/d",
            *SHEDDERS,
        ]
    )
    | st.frozensets(st.sampled_from(["a/b", "c/d", "nonsense"]))
)


def test_every_setting_has_a_meaning() -> None:
    """The table has the settings that are not of a policy, in order. All groups are described."""
    own = [name for name in SETTINGS if name.partition(".")[0] not in POLICIES]
    assert own == list(MEANINGS)
    assert all(setting.meaning.text for setting in SETTINGS.values())
    assert list(GROUPS) == list(BalancingSettings().groups())


def test_a_setting_that_is_a_name_has_choices() -> None:
    assert {name for name, setting in SETTINGS.items() if setting.kind is str} == set(CHOICES)
    assert (tuple(SHEDDERS), tuple(PLACEMENTS)) == (
        CHOICES["balancing.shedder"],
        CHOICES["balancing.placement"],
    )
    assert {SPECIFIED_POSITIONS_DIVIDE} == set(ALGORITHMS) - set(
        CHOICES["balancing.split_algorithm"]
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_is_a_value_of_its_setting(name: str) -> None:
    """A formatted default reads back as itself."""
    setting = SETTINGS[name]
    assert setting.default == value_in(BalancingSettings(), name)
    assert (
        setting.default
        == value_of(name, setting.default)
        == value_of(name, format_value(setting.default))
    )


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_accepted(name: str) -> None:
    """A value just outside is refused, with the expected range."""
    setting = SETTINGS[name]
    bounds = setting.meaning.range
    least, most = setting.kind(bounds.least), setting.kind(min(bounds.most, 1e17))
    inside, outside = (least, least - 1) if not bounds.open else ((least + most) / 2, least)
    assert inside == value_of(name, inside)
    if not bounds.open:
        assert most == value_of(name, most)
    for wrong in (outside, -1, math.nan, -math.inf):
        with pytest.raises(InvalidSetting) as caught:
            value_of(name, wrong)
        assert (name, setting.expected) == (caught.value.setting, caught.value.expected)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("balancing.enabled", "True", True),
        ("balancing.shed_interval_ms", "+900", 900),
        ("balancing.shedder", "AvgShedder", "AvgShedder"),
        ("transfer.target_deviation", ".1", 0.1),
        ("transfer.target_deviation", 1, 1.0),
        ("transfer.excluded_namespaces", "a/b, c/d", frozenset({"a/b", "c/d"})),
        ("transfer.excluded_namespaces", "none", frozenset()),
        ("limits.sessions_max", "none", None),
        ("reports.nic_speed_gbps", None, None),
    ],
)
def test_a_text_is_read_as_the_type_of_its_setting(
    name: str, given: Value, expected: Value
) -> None:
    """From people and from programs."""
    value = value_of(name, given)
    assert (expected, type(expected)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("balancing.enabled", "on", "it must be true or false; the old setting stays"),
        ("balancing.enabled", 1, "it must be true or false"),
        ("balancing.shedder", "MyShedder", "it must be one of BalancedShedder, TransferShedder"),
        (
            "balancing.split_algorithm",
            SPECIFIED_POSITIONS_DIVIDE,
            "it must be one of range_equally_divide",
        ),
        ("balancing.shed_interval_ms", "0", "it must be an integer, at least 1"),
        ("balancing.shed_interval_ms", "1.5", "it must be an integer"),
        ("balancing.shed_interval_ms", True, "it must be an integer"),
        ("balancing.shed_interval_ms", None, "it must be an integer"),
        ("reports.history", "1.01", "it must be a number, from 0 to 1"),
        ("merge.cold_ratio", "1", "it must be a number, above 0 and below 1"),
        ("limits.sessions_max", "-1", "it must be an integer, at least 1, or none"),
        ("limits.topics_max", 2**62, "limits.topics_max cannot be"),
        ("transfer.target_deviation", 10**400, "it must be a number, at least 0"),
        ("transfer.excluded_namespaces", "shop", f"it must be up to {NAMESPACES_MAX} namespaces"),
        (
            "transfer.excluded_namespaces",
            frozenset(f"a/{number}" for number in range(NAMESPACES_MAX + 1)),
            "it must be up to",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_what_is_expected(
    name: str, given: Value, told: str
) -> None:
    """The error quotes a long value in part."""
    with pytest.raises(InvalidSetting) as caught:
        value_of(name, given)
    assert str(caught.value).startswith(f"{name} cannot be ")
    assert told in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("transfer.target_deviaton", "transfer.target_deviation"),
        ("nonsense", None),
        ("threshold.weights", None),
        ("x" * 100_000, None),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(name: str, nearest: str | None) -> None:
    """A very long name costs no time."""
    with pytest.raises(NotFound) as caught:
        setting_named(name)
    assert (nearest is None or nearest == vars(caught.value)["nearest"], True) == (
        True,
        len(str(caught.value)) < 400,
    )


@given(name=st.sampled_from(list(SETTINGS)), given=GIVEN)
def test_whatever_is_given_is_a_value_or_refused(name: str, given: Value) -> None:
    """A value changes no other setting, and reads back from its text."""
    try:
        value = value_of(name, given)
    except InvalidSetting:
        return
    assert value == value_of(name, format_value(value))
    changed = with_value(BalancingSettings(), name, given)
    assert {**{other: setting.default for other, setting in SETTINGS.items()}, name: value} == {
        other: value_in(changed, other) for other in SETTINGS
    }
