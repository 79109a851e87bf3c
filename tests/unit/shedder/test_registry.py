"""Policies of installed packages, and what makes one unusable."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from equipoise.brokers.balancing.settings import setting_values
from equipoise.brokers.balancing.settings.setting_values import value_of
from equipoise.brokers.errors import InvalidSetting
from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import Policy, setting
from equipoise.shedder.registry import OWN, found_in
from equipoise.shedder.snapshot import Snapshot


@dataclass(frozen=True)
class Idle(Policy):
    """Moves nothing."""

    number: int = setting("A number.", default=1)

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, object]:
        del snapshot
        return Plan(), memory


class Undeclared(Idle):
    number = 1

    def __init__(self) -> None:
        raise RuntimeError("no more")


@dataclass(frozen=True)
class Plain(Idle):
    other: int = 1


@dataclass(frozen=True)
class Named(Idle):
    text: str = setting("A text.", default="")


@dataclass(frozen=True)
class Optional(Idle):
    text: str | None = setting("A text.", default=None)


OtherName = BalancedShedder


def entry(name: str, attribute: str) -> EntryPoint:
    return EntryPoint(name=name, value=f"{__name__}:{attribute}", group="equipoise.policies")


def test_a_declared_policy_is_found_beside_our_own() -> None:
    found, unusable = found_in([entry("idle", "Idle")], reserved=())
    assert ({**OWN, "idle": Idle}, {}) == (found, unusable)


@pytest.mark.parametrize(
    ("name", "attribute", "problem"),
    [
        ("gone", "Gone", "AttributeError: "),
        ("failing", "Undeclared", "RuntimeError: no more"),
        ("no_policy", "entry", "must be a dataclass that extends equipoise.shedder.policy.Policy"),
        ("plain", "Plain", "its field other must be a setting"),
        ("named", "Named", "its setting text must be a number, true or false, or a set"),
        ("optional", "Optional", "its setting text must be a number, true or false, or a set"),
        ("renamed", "OtherName", "its name, or that of its class, is taken"),
        ("malformed", "No name", "AttributeError: "),
        ("with-dash", "Idle", "its name must be an identifier"),
        ("balanced", "Idle", "its name, or that of its class, is taken"),
        ("limits", "Idle", "its name, or that of its class, is taken"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_the_reason(
    name: str, attribute: str, problem: str
) -> None:
    found, unusable = found_in([entry(name, attribute)], reserved={"limits"})
    assert OWN == found
    assert problem in unusable[attribute]


def test_a_shedder_that_cannot_be_used_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setting_values, "UNUSABLE", {"Gone": "the entry point gone: no module"})
    with pytest.raises(InvalidSetting, match="Gone cannot be used: the entry point gone"):
        value_of("balancing.shedder", "Gone")
