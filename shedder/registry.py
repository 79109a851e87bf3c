"""Find the balancing policies: our own, and those of installed packages.

A package declares its policy as an entry point of the group `equipoise.policies`. The name of the
entry point becomes the name of its group of settings, the name of the class is the policy's own:

    [project.entry-points."equipoise.policies"]
    fewest = "fewest_shedder:FewestShedder"

With it, `balancing.shedder` may be `FewestShedder`, and its settings are `fewest.*`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType, NoneType
from typing import Final, get_args, get_type_hints

from equipoise.shedder.average import AvgShedder
from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.policy import MEANING, Policy
from equipoise.shedder.threshold import OverloadShedder, ThresholdShedder
from equipoise.shedder.transfer import TransferShedder
from equipoise.shedder.uniform import UniformLoadShedder

ENTRY_POINTS: Final = "equipoise.policies"
"""The group of entry points that are policies."""

OWN: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    {
        "balanced": BalancedShedder,
        "transfer": TransferShedder,
        "threshold": ThresholdShedder,
        "overload": OverloadShedder,
        "uniform": UniformLoadShedder,
        "average": AvgShedder,
    }
)
"""Our own policies, by the group of their settings."""


def found_in(
    declared: Iterable[EntryPoint], *, reserved: Collection[str]
) -> tuple[Mapping[str, type[Policy]], Mapping[str, str]]:
    """Return our own policies and the `declared` ones, by the group of their settings, and why
    others cannot be used, by name. `reserved` are groups of other settings.
    """
    found, unusable = dict(OWN), dict[str, str]()
    names = {policy.__name__ for policy in OWN.values()}
    for entry in sorted(declared, key=lambda each: each.name):
        try:
            policy = entry.load()
            problem = _problem_of(policy)
        # The code of others may fail in any way, and must not keep a broker from its start.
        except Exception as error:  # noqa: BLE001
            policy, problem = None, f"{type(error).__name__}: {error}"
        if problem is None and not entry.name.isidentifier():
            problem = "its name must be an identifier, because its settings are named by it"
        # The class may have another name than the attribute that holds it.
        if problem is None and (entry.name in {*found, *reserved} or policy.__name__ in names):
            problem = "its name, or that of its class, is taken"
        if problem is None:
            found[entry.name] = policy
            names.add(policy.__name__)
        else:
            # Not `entry.attr`: it raises for a value that names no attribute.
            unusable[entry.value.rpartition(":")[2]] = (
                f"the entry point {entry.name} = {entry.value!r}: {problem}"
            )
    return MappingProxyType(found), MappingProxyType(unusable)


def _problem_of(policy: object) -> str | None:
    """Return why a loaded object is no policy; None if it is one."""
    wanted = "it must be a dataclass that extends equipoise.shedder.policy.Policy"
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        return wanted
    default: object = policy()  # Each setting needs a default.
    if not is_dataclass(default):
        return wanted
    declared, hints = fields(default), get_type_hints(policy)
    unnamed = [each.name for each in declared if MEANING not in each.metadata]
    if unnamed:
        return f"its field {unnamed[0]} must be a setting: use equipoise.shedder.policy.setting"
    wrong = [each.name for each in declared if not _is_readable(hints[each.name])]
    return (
        f"its setting {wrong[0]} must be a number, true or false, or a set of namespaces, not"
        f" {hints[wrong[0]]}"
        if wrong
        else None
    )


def _is_readable(hint: object) -> bool:
    """Return whether values of this type can be read from a text: one type, perhaps optional."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    return hint == frozenset[str] or (len(kinds) == 1 and kinds[0] in (bool, int, float))
