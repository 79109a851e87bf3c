"""The settings of balancing on the channel: stored, read, changed and described."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.agent.requests import SetSettings, record_of, subject_of
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, RoundSettings
from equipoise.brokers.balancing.settings.setting_values import (
    NAMESPACES_MAX,
    SETTINGS,
    format_value,
    with_value,
)
from equipoise.brokers.balancing.settings.settings_records import (
    CHANGED_BY,
    KEY,
    Changes,
    change_in,
    changed,
    changed_by,
    check_changes,
    differences,
    document_of,
    problems_in,
    settings_in,
    settings_of,
)
from equipoise.brokers.errors import InvalidSetting
from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    DOCUMENT_ENTRIES_MAX,
    INTEGER_MAX,
    TEXT_CHARACTERS_MAX,
    Document,
    Reason,
    Scalar,
)
from equipoise.channel.core.view import View, apply
from tests.channels.folding import Channel, channel_with

BASE = BalancingSettings(balancing=RoundSettings(shed_interval_ms=123, namespace_bundles=9))


def set_settings(channel: Channel, changes: Changes, by: str | None = None) -> Verdict | None:
    """Change settings against the present view; None if that was accepted."""
    make = record_of(channel.view, SetSettings(changes=changes, changed_by=by))
    if isinstance(make, Verdict):
        return make
    channel.accept(make(channel.author("a")))
    return None


def with_document(document: Document) -> Channel:
    """A channel whose settings are this document."""
    channel = channel_with("a")
    channel.accept(
        propose.set_policy(channel.author("a"), channel.view, name=KEY, document=document)
    )
    return channel


def test_settings_are_stored_in_types_that_other_languages_read() -> None:
    """Integers and booleans as such, fractions and absent values as texts, namespaces one by
    one.
    """
    changes: Changes = {
        "balancing.enabled": "false",
        "balanced.moves_max": 7,
        "transfer.target_deviation": "0.10",
        "limits.sessions_max": "none",
        "transfer.excluded_namespaces": "b/b, a/a",
    }
    expected = {
        "balancing.enabled": False,
        "balanced.moves_max": 7,
        "transfer.target_deviation": "0.1",
        "limits.sessions_max": "none",
        "transfer.excluded_namespaces.0": "a/a",
        "transfer.excluded_namespaces.1": "b/b",
        CHANGED_BY: "admin:erin",
    }
    channel = channel_with("a")
    assert None is set_settings(channel, changes, "admin:erin")
    document = document_of(channel.view)
    assert expected == document
    assert "admin:erin" == changed_by(document)
    settings = settings_in(channel.view, BASE)
    assert (False, 7, 0.1, None) == (
        settings.balancing.enabled,
        settings.groups()["balanced"].moves_max,
        settings.groups()["transfer"].target_deviation,
        settings.limits.sessions_max,
    )
    assert frozenset({"a/a", "b/b"}) == settings.groups()["transfer"].excluded_namespaces


def test_a_change_leaves_the_others_as_they_are() -> None:
    """Namespaces are replaced as a whole. None removes a setting. The former author is
    forgotten.
    """
    document = changed(
        {}, {"transfer.excluded_namespaces": "a/a,b/b", "balanced.moves_max": 7}, "erin"
    )
    document = changed(document, {"transfer.excluded_namespaces": "c/c"}, None)
    assert {"transfer.excluded_namespaces.0": "c/c", "balanced.moves_max": 7} == document
    document = changed(
        document,
        {
            "transfer.excluded_namespaces": "none",
            "balanced.moves_max": None,
            "balanced.start_ratio": None,
        },
        None,
    )
    assert {"transfer.excluded_namespaces": "none"} == document


SEVEN: Document = {"balanced.moves_max": 7}
FULL: Document = {f"later.{number}": number for number in range(DOCUMENT_ENTRIES_MAX)}
MALFORMED = Reason.MALFORMED


@pytest.mark.parametrize(
    ("document", "changes", "by", "reason", "named"),
    [
        (SEVEN, {"balanced.moves_max": "9", "balanced.moves_maxx": "9"}, None, MALFORMED, "maxx"),
        (
            SEVEN,
            {"balanced.moves_max": "9", "balanced.start_ratio": "-1"},
            None,
            MALFORMED,
            "balanced.start_ratio",
        ),
        (
            SEVEN,
            {"balanced.moves_max": None, "balancing.shedder": "Mine"},
            None,
            MALFORMED,
            "balancing.shedder",
        ),
        (
            SEVEN,
            {"balanced.moves_max": None, "level.nonsense": None},
            None,
            MALFORMED,
            "level.nonsense",
        ),
        ({}, {}, "x" * (TEXT_CHARACTERS_MAX + 1), MALFORMED, ""),
        (
            FULL,
            {"balanced.moves_max": "7"},
            None,
            Reason.ILLEGAL_TRANSITION,
            str(DOCUMENT_ENTRIES_MAX),
        ),
    ],
)
def test_one_invalid_change_prevents_all(
    document: Document, changes: Changes, by: str | None, reason: Reason, named: str
) -> None:
    """The error names it, and nothing is appended. A full document is not made longer."""
    channel = with_document(document)
    before = channel.view.offset
    verdict = set_settings(channel, changes, by)
    assert verdict is not None
    assert (reason, True) == (verdict.reason, named in (verdict.problem or ""))
    assert (before, document) == (channel.view.offset, document_of(channel.view))
    if document is SEVEN:
        with pytest.raises((InvalidSetting, NotFound)):
            check_changes(channel.view, changes)


def test_a_full_document_may_be_changed() -> None:
    """Unreadable entries stay."""
    channel = with_document(FULL)
    changes: Changes = {"balanced.moves_max": "7", "later.0": None, "later.1": None}
    assert None is set_settings(channel, changes)
    assert 7 == settings_in(channel.view, BASE).groups()["balanced"].moves_max


def test_two_concurrent_changes_both_succeed() -> None:
    """The second is rejected as stale, and made again."""
    channel = channel_with("a")
    intents = [
        SetSettings(changes={"balanced.moves_max": "7"}),
        SetSettings(changes={"balanced.start_ratio": "0.5"}),
    ]
    first, second = (
        make(channel.author("a"))
        for make in [record_of(channel.view, intent) for intent in intents]
        if callable(make)
    )
    channel.accept(first)
    assert Reason.STALE == channel.put(second).reason
    assert None is set_settings(channel, intents[1].changes)
    assert {"balanced.moves_max": 7, "balanced.start_ratio": "0.5"} == document_of(channel.view)
    assert KEY == subject_of(intents[0])


def test_all_settings_at_once_fit_into_a_record() -> None:
    """With the most namespaces of the longest names."""
    names = ",".join(f"{'t' * 255}/{number:0>255}" for number in range(NAMESPACES_MAX))
    changes: dict[str, Scalar | None] = {
        name: format_value(setting.default) for name, setting in SETTINGS.items()
    }
    channel = channel_with("a")
    assert None is set_settings(
        channel, {**changes, "transfer.excluded_namespaces": names}, "x" * TEXT_CHARACTERS_MAX
    )
    assert NAMESPACES_MAX == len(
        settings_in(channel.view, BASE).groups()["transfer"].excluded_namespaces
    )


def test_an_unreadable_setting_is_a_problem_and_the_base_applies() -> None:
    """Each problem is named, and affects no other setting."""
    document: Document = {
        "later.thing": 1,
        "balancing.enabled": "perhaps",
        "balanced.moves_max": 0,
        "balanced.start_ratio": "0.5",
    }
    channel = with_document(document)
    assert with_value(BASE, "balanced.start_ratio", 0.5) == settings_in(channel.view, BASE)
    problems = problems_in(channel.view, BASE)
    assert 3 == len(problems)
    for problem, name in zip(
        problems, ("balanced.moves_max", "balancing.enabled", "later.thing"), strict=True
    ):
        assert name in problem


@given(
    document=st.dictionaries(
        st.sampled_from(
            [
                *SETTINGS,
                "transfer.excluded_namespaces.0",
                "transfer.excluded_namespaces.x",
                "level.",
                CHANGED_BY,
            ]
        )
        | st.text(min_size=1, max_size=8),
        st.booleans()
        | st.integers(0, INTEGER_MAX)
        | st.text(max_size=8)
        | st.sampled_from(["0.5", "none", "a/b", "TransferShedder"]),
        max_size=12,
    )
)
def test_any_document_is_read_entry_by_entry(document: dict[str, Scalar]) -> None:
    """Each readable setting applies, and each problem is listed."""
    channel = with_document(document)
    expected, failed = BASE, 0
    for name, value in settings_of(document).items():
        try:
            expected = with_value(expected, name, value)
        except (NotFound, InvalidSetting):
            failed += 1
    assert expected == settings_in(channel.view, BASE)
    assert failed == len(problems_in(channel.view, BASE))


def test_a_change_shows_the_value_before() -> None:
    """If the channel has no value, the default is shown."""
    before: Document = {
        "balanced.moves_max": 7,
        "transfer.excluded_namespaces.0": "a/a",
        CHANGED_BY: "x",
    }
    after: Document = {
        "transfer.target_deviation": "0.1",
        "transfer.excluded_namespaces": "none",
        "later.thing": 1,
    }
    assert [
        "balanced.moves_max: 7 -> 4 (default)",
        "later.thing: not set -> 1",
        "transfer.excluded_namespaces: a/a -> none",
        "transfer.target_deviation: 0.25 (default) -> 0.1",
    ] == [str(one) for one in differences(before, after)]


def test_a_change_names_its_author() -> None:
    """The author in the document, else the publisher."""
    channel = channel_with("a")
    set_settings(channel, {"balanced.moves_max": "7"}, "erin")
    set_settings(channel, {"balanced.moves_max": "8"})
    view, told = View(), []
    for offset, data in channel.entries:
        record = decode(data)
        change = change_in(
            Folded(offset=offset, record=record, verdict=apply(view, offset, record))
        )
        told += (
            []
            if change is None
            else [(change.by, [(one.before, one.after) for one in change.made])]
        )
    assert [("erin", [(None, "7")]), ("a", [("7", "8")])] == told
