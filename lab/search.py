"""Choose which settings of a policy a search changes, and describe what they reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from equipoise.brokers.balancing.settings.balancing_settings import POLICIES, SHEDDERS
from equipoise.brokers.balancing.settings.setting_values import Value, format_value, setting_named
from equipoise.channel.core.errors import CallerError
from equipoise.lab.results import Metrics
from equipoise.shedder.policy import SearchRange

Changes = Mapping[str, Value]
"""Values of settings that differ from the defaults, by the name of the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings of a policy, and what they reached: means over all traces. The figures are as in
    `Metrics`.
    """

    policy: str
    changes: Changes
    unevenness: float
    load_moved: float

    def row(self) -> dict[str, object]:
        """Return the candidate as JSON values, with the settings as texts that `--set` takes."""
        return {
            "policy": self.policy,
            "unevenness": round(self.unevenness, 4),
            "load_moved": round(self.load_moved, 4),
            "settings": assignments(self.changes),
        }


def candidate(policy: str, changes: Changes, metrics: Sequence[Metrics]) -> Candidate:
    """Return the candidate that reached these figures in its runs."""
    return Candidate(
        policy=policy,
        changes=changes,
        unevenness=fmean(each.unevenness for each in metrics),
        load_moved=fmean(each.load_moved for each in metrics),
    )


def assignments(changes: Changes) -> list[str]:
    """Return changes as texts `NAME=VALUE`."""
    return [f"{name}={format_value(value)}" for name, value in changes.items()]


def run_options(policy: str, settings: Iterable[str]) -> str:
    """Return the options of `equipoise lab run` for a policy and texts `NAME=VALUE`."""
    return " ".join([f"--policy {policy}", *(f"--set {text}" for text in settings)])


def lines(candidates: Iterable[Candidate]) -> Iterator[str]:
    """Yield a heading, and a line for each candidate that ends with its options for `equipoise lab
    run`.
    """
    yield "unevenness  load moved  settings"
    for each in candidates:
        yield (
            f"{each.unevenness:10.4f}  {each.load_moved:10.4f} "
            f" {run_options(each.policy, assignments(each.changes))}"
        )


def searched(policy: str, given: Changes) -> dict[str, SearchRange]:
    """Return the ranges of the policy's settings, except the `given` ones.

    Raises `CallerError` for an unknown policy, and if no setting is left.
    """
    if policy not in SHEDDERS:
        raise CallerError(f"there is no policy {policy!r}; the policies are {', '.join(SHEDDERS)}")
    all_ranges = POLICIES[SHEDDERS[policy]].searched
    if not all_ranges:
        raise CallerError(
            f"{policy} does not say which of its settings a search may change (`searched`)"
        )
    ranges = {name: each for name, each in all_ranges.items() if name not in given}
    if not ranges:
        raise CallerError(
            f"--set fixes all settings of {policy} that a search changes; leave one out"
        )
    return ranges


def legible(name: str, number: float) -> Value:
    """Return a number of three digits as a value of the setting `name`, so that the value that runs
    is the one that is printed.
    """
    short = float(f"{number:.3g}")
    return round(short) if setting_named(name).kind is int else short
