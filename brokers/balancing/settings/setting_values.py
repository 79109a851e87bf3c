"""Describe, convert, check and format the balancing settings.

Types and defaults come from the fields in `balancing_settings`. A policy describes its own settings
(see `shedder.policy`); the meanings and ranges of all others are here, as data.

A text is `true` or `false`, a number, a name, or comma-separated namespaces. `none` is no limit, or
no namespace. A formatted value reads back as the same value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType, NoneType
from typing import Final, get_args, get_type_hints

from equipoise.brokers.balancing.namespace_policies import NEW_BUNDLES_MAX
from equipoise.brokers.balancing.quarantine import HOLD_MS_MAX, RENEWALS_MAX
from equipoise.brokers.balancing.settings.balancing_settings import (
    PLACEMENTS,
    POLICIES,
    SHEDDERS,
    UNUSABLE,
    BalancingSettings,
)
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    MIB,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.errors import InvalidSetting, unknown_setting
from equipoise.channel.core.errors import InvalidName, NotFound
from equipoise.channel.core.ranges import check_namespace
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.policy import ANY, COUNT, EXACT, MEANING, SHARE, SOME, Meaning, Policy, Range

Value = bool | int | float | str | frozenset[str] | None

NONE: Final = "none"
"""The text of an absent value: no limit, or no namespaces."""

NAMESPACES_MAX: Final = 128
"""The most namespaces of one setting. All settings share one document with `DOCUMENT_ENTRIES_MAX`
entries."""

CHOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "balancing.shedder": tuple(SHEDDERS),
        "balancing.placement": tuple(PLACEMENTS),
        # An automatic split has no operator who names positions.
        "balancing.split_algorithm": tuple(
            name for name in ALGORITHMS if name != SPECIFIED_POSITIONS_DIVIDE
        ),
    }
)
"""The allowed values of settings that are names."""

LEGIBLE: Final = 200
"""Characters of a name or value that an error quotes."""

_TRUTHS: Final = {"true": True, "false": False}
_NEAR: Final = 0.6
# Longer names are not compared: the time grows with both lengths.
_NAME_CHARACTERS_MAX: Final = 100

_match_integer: Final = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_match_decimal: Final = re.compile(
    r"[+-]?([0-9]{1,19}\.?[0-9]{0,19}|\.[0-9]{1,19})([eE][+-]?[0-9]{1,3})?"
).fullmatch


_ABOVE_ZERO: Final = Range(open=True)


def _meaning(text: str, numbers: Range = COUNT) -> Meaning:
    return Meaning(text=text, range=numbers)


def _about(policy: type[Policy]) -> str:
    """Return the name of a policy, and the first line of its documentation."""
    return f"`{policy.__name__}`: {(policy.__doc__ or '').strip().partition(chr(10))[0]}"


GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "balancing": (
            "What balancing does, how often, with which strategies, and how many moves run at once."
        ),
        "reports": "When a broker reports its load, and what the report contains.",
        "weights": "The weight of each resource, for all strategies that use resource weights.",
        **{group: _about(policy) for group, policy in POLICIES.items()},
        "limits": (
            "The limits above which a bundle is split. Neighbours are merged only far below them."
        ),
        "split": "When bundles are split.",
        "merge": "When neighbours are merged.",
        "split_points": "Where a bundle is cut by its load.",
        "placement": "The rules of every placement strategy.",
        "least_message_rate": "`LeastLongTermMessageRate`: Pulsar's placement by message rate.",
        "least_usage": "`LeastResourceUsageWithWeight`: Pulsar's placement by use.",
        "quarantine": (
            "When a bundle that breaks its owners is kept from every broker, and for how long."
        ),
        "tenants": "What one tenant may have.",
    }
)
"""The description of each group."""

MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "balancing.enabled": _meaning("Enables automatic moves, splits and merges."),
        "balancing.shedding": _meaning("Enables moves that even out the load."),
        "balancing.splitting": _meaning("Enables splits of bundles above the limits."),
        "balancing.merging": _meaning("Enables merges of neighbours with little load."),
        "balancing.shedder": _meaning("The strategy that chooses which bundles move."),
        "balancing.placement": _meaning(
            "The strategy that chooses an owner for a bundle without one."
        ),
        "balancing.shed_interval_ms": _meaning("Time between two rounds of the shedder.", SOME),
        "balancing.split_interval_ms": _meaning(
            "Time between two rounds of splits and merges.", SOME
        ),
        "balancing.rest_ms": _meaning(
            "Time after a move, a split or a merge in which balancing leaves the bundle alone."
            " Operators' moves count, too."
        ),
        "balancing.move_timeout_ms": _meaning("Time to wait for the end of a move.", SOME),
        "balancing.moves_max": _meaning("Limit of concurrent moves in the cluster.", SOME),
        "balancing.broker_moves_max": _meaning(
            "Limit of concurrent moves to and from one broker.", SOME
        ),
        "balancing.split_algorithm": _meaning(
            "The algorithm that chooses where an automatic split cuts."
        ),
        "balancing.unload_split_children": _meaning(
            "Moves the children of an automatic split to other brokers at once."
        ),
        "balancing.namespace_bundles": _meaning(
            "Number of bundles of a new namespace, if the caller gives none.",
            Range(least=1, most=NEW_BUNDLES_MAX),
        ),
        "reports.sample_interval_ms": _meaning(
            "Time between two samples of a broker's own load.", SOME
        ),
        "reports.interval_min_ms": _meaning("Minimum time between two reports of a broker.", SOME),
        "reports.interval_max_ms": _meaning("Maximum time between two reports of a broker.", SOME),
        "reports.change_percent": _meaning(
            "Change of a figure that makes a report due before the maximum time, in percent."
        ),
        "reports.bundles_max": _meaning(
            "Number of bundles in a report: the busiest. None: all bundles.", SOME
        ),
        "reports.history": _meaning(
            "Weight of the old value in an average, every 5 seconds.", SHARE
        ),
        "reports.cost_window_ms": _meaning(
            "Length of the longest average of a bundle's cost. What lasts shows in 2/15 of it.",
            SOME,
        ),
        "reports.nic_speed_gbps": _meaning(
            "Speed of the network in each direction, in Gbit/s. None: the speed of the network"
            " card.",
            ANY,
        ),
        "weights.cpu": _meaning("Weight of the CPU use.", ANY),
        "weights.memory": _meaning("Weight of the memory use.", ANY),
        "weights.direct_memory": _meaning(
            "Weight of the direct memory use. Brokers of Equipoise report none.", ANY
        ),
        "weights.bandwidth_in": _meaning("Weight of the inbound network use.", ANY),
        "weights.bandwidth_out": _meaning("Weight of the outbound network use.", ANY),
        "limits.topics_max": _meaning("Topics of a bundle.", Range(least=1)),
        "limits.sessions_max": _meaning(
            "Consumers and producers of a bundle. None: no limit.", Range(least=1)
        ),
        "limits.messages_per_second_max": _meaning(
            "Messages per second of a bundle, in both directions together.", _ABOVE_ZERO
        ),
        "limits.bytes_per_second_max": _meaning(
            f"Bytes per second of a bundle, in both directions together ({MIB:,} are a MiB).",
            _ABOVE_ZERO,
        ),
        "split.hits_threshold": _meaning(
            "Number of rounds above a limit before a bundle is split."
        ),
        "split.splits_max": _meaning("Limit of splits in one round.", SOME),
        "split.bundles_max": _meaning("Limit of bundles of a namespace: splits stop there.", SOME),
        "split.pulsar_exact": _meaning(EXACT),
        "merge.cold_ratio": _meaning(
            "Fraction of every limit below which two neighbours together count as cold.",
            Range(most=1, open=True),
        ),
        "merge.hits_threshold": _meaning("Number of cold rounds before a pair is merged."),
        "merge.merges_max": _meaning("Limit of merges in one round.", SOME),
        "merge.bundles_min": _meaning(
            "Minimum number of bundles of a namespace: merges stop there.", SOME
        ),
        "split_points.margin": _meaning(
            "Fraction by which a bundle must exceed a limit before its load is divided.", ANY
        ),
        "placement.topics_max": _meaning("Limit of topics of a broker.", SOME),
        "placement.memory_percent_max": _meaning(
            "How much of its memory limit a broker may use, in percent, for the balancer to move a"
            " bundle there.",
            _ABOVE_ZERO,
        ),
        "placement.prefer_later_versions": _meaning(
            "Places bundles only on brokers of the latest version."
        ),
        "placement.failure_domains": _meaning("Applies anti-affinity to failure domains, too."),
        "least_message_rate.overloaded_percent": _meaning(
            "Use above which a broker is chosen last, in percent.", ANY
        ),
        "least_usage.difference_percent": _meaning(
            "Distance below the mean at which a broker is preferred, in percentage points.", ANY
        ),
        "quarantine.deaths": _meaning(
            "Number of owners in a row that died soon with a bundle before it goes into quarantine."
            " 0: off."
        ),
        "quarantine.failed_opens": _meaning(
            "Number of failed opens in a row before a bundle goes into quarantine. 0: off."
        ),
        "quarantine.renewals": _meaning(
            "Number of renewed leases with which an owner clears a bundle. One that dies before has"
            " died soon.",
            Range(least=1, most=RENEWALS_MAX),
        ),
        "quarantine.hold_ms": _meaning(
            "Length of the first quarantine of a bundle. Each further death or failed open"
            " doubles it.",
            Range(least=1, most=HOLD_MS_MAX),
        ),
        "quarantine.share_percent": _meaning(
            "Limit of bundles in quarantine, in percent of all bundles. One is always allowed.",
            Range(most=100),
        ),
        "tenants.namespaces_max": _meaning("Limit of namespaces of a tenant.", SOME),
        "tenants.bundles_max": _meaning("Limit of bundles of a tenant.", SOME),
        "tenants.topics_max": _meaning("Limit of topics of a tenant at one broker.", SOME),
        "tenants.records_per_second_max": _meaning(
            "Limit of changes per second that callers make in a tenant at one broker. Twice as many"
            " may come at once.",
            SOME,
        ),
    }
)
"""Each setting by its name GROUP.FIELD, in the order of the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `kind` is bool, int, float, str or frozenset; an `optional` one may be None."""

    name: str
    kind: type
    optional: bool
    default: Value
    meaning: Meaning

    @property
    def expected(self) -> str:
        """What is allowed, to complete the sentence "it must be ..."."""
        allowed = {
            bool: "true or false",
            int: f"an integer, {self.meaning.range}",
            float: f"a number, {self.meaning.range}",
            str: f"one of {', '.join(CHOICES.get(self.name, ()))}{self._unusable}",
            frozenset: f"up to {NAMESPACES_MAX} namespaces with commas between them, or {NONE}",
        }[self.kind]
        return f"{allowed}, or {NONE}" if self.optional else allowed

    @property
    def _unusable(self) -> str:
        """The installed policies that cannot be used, and why."""
        problems = UNUSABLE.items() if self.name == "balancing.shedder" else ()
        return "".join(f"; {policy} cannot be used: {why}" for policy, why in problems)

    def read(self, given: Value) -> Value:
        """Return `given`, parsed if it is a text, as a value of this setting. Raises
        `InvalidSetting`.
        """
        if given is None or given == NONE:
            if not self.optional and self.kind is not frozenset:
                raise self._wrong(given)
            return None if self.optional else frozenset()
        value = _READERS[self.kind](given)
        if value is None or not self._is_inside(value):
            raise self._wrong(given)
        return value

    def _is_inside(self, value: Value) -> bool:
        if self.kind in (int, float):
            assert isinstance(value, int | float), "what was read as a number is one"
            return self.meaning.range.holds(value)
        if isinstance(value, frozenset):
            return len(value) <= NAMESPACES_MAX
        return self.kind is not str or value in CHOICES[self.name]

    def _wrong(self, given: Value) -> InvalidSetting:
        listed = sorted(given) if isinstance(given, frozenset) else given
        shown = listed if isinstance(listed, bool | int | float | None) else str(listed)[:LEGIBLE]
        return InvalidSetting(setting=self.name, value=shown, expected=self.expected)


def format_value(value: Value) -> str:
    """Return a value as text, as people write it."""
    if value is None or value == frozenset():
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return (
        ",".join(sorted(value)) if isinstance(value, frozenset) else str(value).removesuffix(".0")
    )


def nearest(name: str, known: Iterable[str], *, cutoff: float = _NEAR) -> str | None:
    """Return the known name that is most similar, if one is similar enough. `cutoff` is a
    similarity from 0 to 1.
    """
    found = (
        difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
        if len(name) <= _NAME_CHARACTERS_MAX
        else ()
    )
    return next(iter(found), None)


def setting_named(name: str) -> Setting:
    """Return the setting of this name. Raises `NotFound`."""
    if name not in SETTINGS:
        raise unknown_setting(setting=name[:LEGIBLE], nearest=nearest(name, SETTINGS))
    return SETTINGS[name]


def value_of(name: str, given: Value) -> Value:
    """Return `given`, parsed if it is a text, as a value of the setting `name`. Raises
    `NotFound`, `InvalidSetting`.
    """
    return value_in(with_value(_DEFAULTS, name, given), name)


def value_in(settings: BalancingSettings, name: str) -> Value:
    """Return the value of an existing setting in `settings`."""
    group, _, field = name.partition(".")
    value: Value = getattr(settings.groups()[group], field)
    return value


def with_value(settings: BalancingSettings, name: str, given: Value) -> BalancingSettings:
    """Return `settings` with one value changed. Raises `NotFound`, `InvalidSetting`."""
    value = setting_named(name).read(given)
    group, _, field = name.partition(".")
    return settings.with_group(group, **{field: value})


def problems_of(settings: Mapping[str, Value]) -> Mapping[str, str]:
    """Return the problems of settings, by name."""
    problems = {}
    for setting, value in settings.items():
        try:
            value_of(setting, value)
        except NotFound as error:
            problems[setting] = str(error)
        except InvalidSetting as error:
            problems[setting] = f"it must be {error.expected}"
    return problems


def with_values(settings: BalancingSettings, given: Mapping[str, Value]) -> BalancingSettings:
    """Return `settings` with several values changed. Raises as `with_value` does."""
    for name, value in given.items():
        settings = with_value(settings, name, value)
    return settings


def _boolean(given: Value) -> bool | None:
    return (
        given
        if isinstance(given, bool)
        else _TRUTHS.get(given.lower())
        if isinstance(given, str)
        else None
    )


def _integer(given: Value) -> int | None:
    if isinstance(given, str):
        return int(given) if _match_integer(given) else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _decimal(given: Value) -> float | None:
    if isinstance(given, str):
        return float(given) if _match_decimal(given) else None
    if isinstance(given, float):
        return given
    # A larger integer is in no range, and may not fit a float.
    return (
        float(given)
        if isinstance(given, int) and not isinstance(given, bool) and abs(given) <= INTEGER_MAX
        else None
    )


def _text(given: Value) -> str | None:
    return given if isinstance(given, str) else None


def _namespaces(given: Value) -> frozenset[str] | None:
    names = (
        given.split(",")
        if isinstance(given, str)
        else given
        if isinstance(given, frozenset)
        else ("",)
    )
    try:
        return frozenset(check_namespace(name.strip()) for name in names)
    except InvalidName:
        return None


_READERS: Final = MappingProxyType(
    {bool: _boolean, int: _integer, float: _decimal, str: _text, frozenset: _namespaces}
)

_DEFAULTS: Final = BalancingSettings()


def _settings() -> Iterator[Setting]:
    """Yield all settings, in the order of groups and fields. Skip groups inside a group."""
    for group, of_group in _DEFAULTS.groups().items():
        hints = get_type_hints(type(of_group))
        for field in fields(of_group):
            default = getattr(of_group, field.name)
            if is_dataclass(default):
                continue
            name = f"{group}.{field.name}"
            kinds = [
                kind
                for kind in get_args(hints[field.name]) or (hints[field.name],)
                if kind is not NoneType
            ]
            kind = frozenset if isinstance(default, frozenset) else kinds[0]
            yield Setting(
                name=name,
                kind=kind,
                optional=NoneType in get_args(hints[field.name]),
                default=float(default) if kind is float and default is not None else default,
                meaning=field.metadata.get(MEANING) or MEANINGS[name],
            )


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in _settings()}
)
"""Every setting by its name GROUP.FIELD."""
