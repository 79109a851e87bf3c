"""Find what operators have stopped: balancing of the whole cluster (a pause), or of one namespace
(a freeze).

Both stop what the balancer chooses: moves for load, automatic splits and merges. Bundles without an
owner are still placed, brokers that drain or stop still give their bundles away, and operators can
still move, split and merge. A pause also stops moves away from brokers that violate a policy, as
`balancing off` does; a freeze does not, because an operator set that policy.

Both are policies on the channel. They no longer count once their end has passed; the leader then
removes the record.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.brokers.balancing.policies import (
    FREEZE,
    PAUSE_KEY,
    QUARANTINE,
    Control,
    FailureDomain,
    Maintenance,
    Quarantine,
    domains_in,
    is_maintenance,
    maintenance_of,
    parse_policy,
)
from equipoise.brokers.balancing.quarantine import quarantined_in
from equipoise.brokers.errors import InvalidPolicy
from equipoise.channel.core.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What is stopped now. `frozen` has the freezes by namespace."""

    pause: Control | None = None
    frozen: Mapping[str, Control] = field(default_factory=dict)

    @property
    def why_paused(self) -> str | None:
        """Why the balancer does nothing; None if balancing is not paused."""
        return None if self.pause is None else f"balancing is paused: {self.pause.reason}"

    @property
    def why_frozen(self) -> Mapping[str, str]:
        """Why the balancer leaves a namespace alone, by namespace."""
        return {
            name: f"its namespace is frozen: {control.reason}"
            for name, control in self.frozen.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadControls:
    """What the leader needs to know about controls until one changes.

    * `domains`: the failure domains of policies, by broker, if there are maintenances.
    * `ending`: the controls but quarantines that have an end.
    * `outlived`: the keys of quarantines and freezes whose bundle or namespace no longer exists.
    """

    maintenances: Sequence[Maintenance]
    domains: Mapping[str, FailureDomain]
    ending: Sequence[Control]
    quarantines: Sequence[Quarantine]
    outlived: Sequence[str]


def is_control(key: str) -> bool:
    """Return whether the policy of this key is a control."""
    return key == PAUSE_KEY or key.startswith(f"{FREEZE}/") or is_maintenance(key)


def controls_of(view: View) -> Iterator[Control]:
    """Yield maintenance, pause and freezes of a view, also those whose end has passed. An
    unreadable one has no effect.
    """
    for key in filter(is_control, view.policies):
        try:
            control = parse_policy(key, view.policies[key].document)
        except InvalidPolicy:
            continue
        if isinstance(control, Control):
            yield control


def read_controls(view: View) -> ReadControls:
    """Return the controls of a view, for the leader."""
    controls = list(controls_of(view))
    subjects: Mapping[str, Container[str]] = {QUARANTINE: view.bundles, FREEZE: view.namespaces}
    outlived = []
    for key in view.policies:
        kind, _, subject = key.partition("/")
        if kind in subjects and subject not in subjects[kind]:
            outlived.append(key)
    maintenances = [control for control in controls if isinstance(control, Maintenance)]
    return ReadControls(
        maintenances=maintenances,
        domains=domains_in(view) if maintenances else {},
        ending=[control for control in controls if control.until_ms],
        quarantines=list(quarantined_in(view)),
        outlived=outlived,
    )


def controls_in(view: View, now_ms: int) -> Controls:
    """Return the controls that count at `now_ms` (Unix time)."""
    standing = {
        control.name: control
        for control in controls_of(view)
        if not (isinstance(control, Maintenance) or control.has_ended(now_ms))
    }
    pause = standing.pop(PAUSE_KEY, None)
    return Controls(pause=pause, frozen={control.subject: control for control in standing.values()})


def standing_controls(view: View, now_ms: int) -> list[Control]:
    """Return the pause, freezes, maintenances and quarantines of a view that count at `now_ms`
    (Unix time), in this order.
    """
    controls = controls_in(view, now_ms)
    return [
        *([] if controls.pause is None else [controls.pause]),
        *(controls.frozen[name] for name in sorted(controls.frozen)),
        *sorted(read_controls(view).maintenances, key=lambda each: (each.subject, each.name)),
        *quarantined_in(view),
    ]


def controls_document(view: View, now_ms: int) -> dict[str, object]:
    """Describe the controls of a view at `now_ms` (Unix time), for programs. An end of None: it has
    none.
    """
    controls = controls_in(view, now_ms)
    return {
        "pause": None if controls.pause is None else _document(view, controls.pause),
        "freezes": [
            {"namespace": name, **_document(view, controls.frozen[name])}
            for name in sorted(controls.frozen)
        ],
        "maintenances": maintenance_documents(view),
        "quarantines": quarantine_documents(view),
    }


def maintenances_in(view: View) -> Mapping[str, Maintenance]:
    """Return the maintenance of each broker of a view that has one, by broker id."""
    controls = read_controls(view)
    return maintenance_of(controls.maintenances, controls.domains, view.brokers.values())


def why_frozen(view: View, namespace: str) -> str | None:
    """Return the reason of the freeze of a namespace; None if there is none. The leader removes it
    at its end.
    """
    entry = view.policies.get(freeze_key(namespace))
    return None if entry is None else str(entry.document.get("reason"))


def maintenance_documents(view: View) -> list[dict[str, object]]:
    """Describe what is in maintenance: its brokers, and how many bundles these still have."""
    of_brokers, found = maintenances_in(view), []
    for control in sorted(
        read_controls(view).maintenances, key=lambda each: (each.subject, each.name)
    ):
        brokers = sorted(
            broker for broker, maintained_by in of_brokers.items() if maintained_by == control
        )
        document: dict[str, object] = {
            "id": control.subject,
            "of": "failure domain" if control.is_of_domain else "broker",
        }
        bundles = sum(view.held_count(view.brokers[broker].incarnation) for broker in brokers)
        found.append(
            document | {**_document(view, control), "brokers": brokers, "bundles": bundles}
        )
    return found


def quarantine_documents(view: View) -> list[dict[str, object]]:
    """Describe the bundles in quarantine, with the offsets of the records that show why."""
    return [
        {
            "bundle": control.subject,
            **_document(view, control),
            "evidence": list(control.evidence),
            "state": view.bundles[control.subject].state
            if control.subject in view.bundles
            else None,
        }
        for control in quarantined_in(view)
    ]


def _document(view: View, control: Control) -> dict[str, object]:
    return {
        "reason": control.reason,
        "until_ms": control.until_ms or None,
        "last": view.policies[control.name].last,
    }


def freeze_key(namespace: str) -> str:
    """Return the key of the freeze of a namespace."""
    return f"{FREEZE}/{namespace}"
