"""Serve the balancing settings of this broker, changes of those on the channel, the decisions of
the whole cluster, and the controls: pause, freezes, maintenance and quarantine.

The paths of Pulsar's dynamic configuration work for the keys that match our settings.

The paths of controls are ours: Pulsar has none. `brokers.balancing.controls` describes them,
`brokers.operations.verbs` defines the operations.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.controls import controls_document
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.pulsar_settings import (
    DYNAMIC_KEYS,
    keys_of_settings,
    names_of_key,
    settings_of_key,
)
from equipoise.brokers.balancing.settings.setting_values import (
    SETTINGS,
    Value,
    format_value,
    value_in,
)
from equipoise.brokers.balancing.settings.settings_records import (
    KEY,
    changed_by,
    document_of,
    problems_in,
    settings_in,
    settings_of,
)
from equipoise.brokers.decision_log import document_of as decision_document
from equipoise.brokers.decision_log import newest_decisions
from equipoise.brokers.errors import invalid_request
from equipoise.brokers.http.admin.operating import Admin, Call, fact, order, order_with
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import BALANCING_BODY, ControlBody, body_of, integer_of
from equipoise.brokers.operations import verbs
from equipoise.brokers.operations.verbs import change_settings
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.view import View

CONTROLS_PATH: Final = "/admin/v2/controls"

_PAUSE: Final = f"{CONTROLS_PATH}/pause"
_FREEZE: Final = f"{CONTROLS_PATH}/freeze/{{tenant}}/{{namespace}}"
_MAINTENANCE: Final = f"{CONTROLS_PATH}/maintenance/{{broker}}"
_OF_DOMAIN: Final = f"{CONTROLS_PATH}/domain-maintenance/{{name}}"
_QUARANTINE: Final = f"{CONTROLS_PATH}/quarantine/{{tenant}}/{{namespace}}/{{bundle}}"

_BODY: Final = (ControlBody, "an object with a reason, and for_ms, the milliseconds until its end")


def _until_ms(call: Call, body: ControlBody) -> int:
    """Return the end that a body names: Unix time; 0: none."""
    return 0 if body.for_ms is None else call.worker.clock.now().wall_ms + body.for_ms


def _pause(call: Call, body: ControlBody) -> Awaitable[object]:
    if body.for_ms is None:
        raise invalid_request(
            what="the body", problem="for_ms is missing; a pause must have an end"
        )
    return verbs.pause_balancing(call.port, reason=body.reason, until_ms=_until_ms(call, body))


def _start(
    call: Call, body: ControlBody, subject: str, *, of_domain: bool = False
) -> Awaitable[object]:
    return verbs.start_maintenance(
        call.port,
        subject,
        reason=body.reason,
        until_ms=_until_ms(call, body),
        of_domain=of_domain,
        wait=False,
    )


class Controls(Admin):
    """The paths of controls of one worker."""

    rows = (
        fact(
            "controls",
            CONTROLS_PATH,
            "Return the pause, and all freezes, maintenances and quarantines, each with its reason"
            " and end.",
            lambda call: controls_document(call.view, call.worker.clock.now().wall_ms),
        ),
        order_with(
            _BODY,
            "pause",
            f"POST {_PAUSE}",
            "Stop moves, splits and merges of the balancer for a while, in place of a pause"
            " before.",
            _pause,
        ),
        order(
            "resume",
            f"DELETE {_PAUSE}",
            "End the pause of balancing.",
            lambda call: verbs.resume_balancing(call.port),
        ),
        order_with(
            _BODY,
            "freeze",
            f"POST {_FREEZE}",
            "Have the balancer leave the bundles of a namespace alone, in place of a freeze before."
            " Without `for_ms` it has no end.",
            lambda call, body: verbs.freeze_namespace(
                call.port, call.namespace, reason=body.reason, until_ms=_until_ms(call, body)
            ),
        ),
        order(
            "unfreeze",
            f"DELETE {_FREEZE}",
            "End the freeze of a namespace.",
            lambda call: verbs.unfreeze_namespace(call.port, call.namespace),
        ),
        order_with(
            _BODY,
            "start_maintenance",
            f"POST {_MAINTENANCE}",
            "Have a broker take no bundles and give its own away. Answered once the channel has it."
            " Without `for_ms` it has no end.",
            lambda call, body: _start(call, body, call.named("broker")),
        ),
        order(
            "end_maintenance",
            f"DELETE {_MAINTENANCE}",
            "End the maintenance of a broker.",
            lambda call: verbs.end_maintenance(call.port, call.named("broker")),
        ),
        order_with(
            _BODY,
            "start_domain_maintenance",
            f"POST {_OF_DOMAIN}",
            "Have all brokers of a failure domain take no bundles and give theirs away, as for one"
            " broker.",
            lambda call, body: _start(call, body, call.named("name"), of_domain=True),
        ),
        order(
            "end_domain_maintenance",
            f"DELETE {_OF_DOMAIN}",
            "End the maintenance of a failure domain.",
            lambda call: verbs.end_maintenance(call.port, call.named("name"), of_domain=True),
        ),
        order(
            "release",
            f"DELETE {_QUARANTINE}",
            "End the quarantine of a bundle. The leader assigns it at once.",
            lambda call: verbs.release_bundle(call.port, call.bundle),
        ),
    )


_CONFIGURATION: Final = "/admin/v2/brokers/configuration"

_DECISIONS: Final = 20
_DECISIONS_MAX: Final = 1_000


class Balancing(Admin):
    """The paths of the settings of one worker."""

    rows = (
        fact(
            "settings",
            "/admin/v2/balancing",
            "Return every setting with its value at this broker and its origin, the last change,"
            " and what cannot be read.",
            lambda call: _settings(call.view, call.worker.config.base_settings),
        ),
        fact(
            "keys",
            _CONFIGURATION,
            "List the keys of Pulsar that can be set.",
            lambda _: DYNAMIC_KEYS,
        ),
        fact(
            "values",
            f"{_CONFIGURATION}/values",
            "Return what is set on the channel: by Pulsar's key, or by our name if no key of Pulsar"
            " sets it.",
            lambda call: _by_key(
                call, filter(SETTINGS.__contains__, settings_of(document_of(call.view)))
            ),
        ),
        fact(
            "runtime",
            f"{_CONFIGURATION}/runtime",
            "Return what is in force at this broker: balancing as `values` does, and the settings"
            " of the broker by our names.",
            lambda call: {**_own(call.worker), **_by_key(call, SETTINGS)},
        ),
        order(
            "set_key",
            f"POST {_CONFIGURATION}/{{key}}/{{value}}",
            "Set the settings that one of Pulsar's keys stands for, converted as from a"
            " `broker.conf`.",
            lambda call: _set(call, settings_of_key(call.named("key"), call.named("value"))),
        ),
        order(
            "unset_key",
            f"DELETE {_CONFIGURATION}/{{key}}",
            "Remove the settings that one of Pulsar's keys stands for.",
            lambda call: _set(call, dict.fromkeys(names_of_key(call.named("key")))),
        ),
    )

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (*super().routes(), web.patch("/admin/v2/balancing", self.change))

    async def change(self, request: web.Request) -> web.Response:
        """Set settings on the channel, or remove them. Returns each setting before and after."""
        body = await body_of(request, BALANCING_BODY)
        if body is None:
            raise invalid_request(
                what="the body",
                problem=(
                    'it must name the changes, such as {"changes": {"balancing.enabled": false}}'
                ),
            )
        return json_answer((await change_settings(self._port(request), body.settings)).document)


class Decisions(Admin):
    """The path of decisions of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the route."""
        return (web.get("/admin/v2/balancing/decisions", self.newest),)

    async def newest(self, request: web.Request) -> web.Response:
        """Return the newest decisions, oldest first."""
        limit = integer_of(request, "limit", default=_DECISIONS, at_most=_DECISIONS_MAX)
        found = await asyncio.to_thread(newest_decisions, self._worker.config.log_url, limit)
        return json_answer([decision_document(decision) for decision in found])


def _settings(view: View, base: BalancingSettings) -> dict[str, object]:
    document, entry = document_of(view), view.policies.get(KEY)
    return {
        "settings": _documents(settings_in(view, base), base, set(settings_of(document))),
        "changed_at": None if entry is None else entry.last,
        "changed_by": changed_by(document),
        "problems": problems_in(view, base),
    }


def _by_key(call: Call, names: Iterable[str]) -> dict[str, object]:
    settings = settings_in(call.view, call.worker.config.base_settings)
    return dict(keys_of_settings({name: value_in(settings, name) for name in names}))


def _own(worker: Worker) -> dict[str, str]:
    given = worker.config.model_dump(mode="json", exclude={"balancing"}, exclude_none=True)
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }


def _set(call: Call, settings: Mapping[str, Value | None]) -> Awaitable[object]:
    return change_settings(
        call.port,
        {name: None if value is None else format_value(value) for name, value in settings.items()},
    )


def _documents(
    settings: BalancingSettings, base: BalancingSettings, held: set[str]
) -> dict[str, object]:
    return {
        name: {
            "value": _expressed(value_in(settings, name)),
            "default": _expressed(setting.default),
            "from": (
                "channel"
                if name in held
                else "default"
                if value_in(base, name) == setting.default
                else "broker"
            ),
        }
        for name, setting in SETTINGS.items()
    }


def _expressed(value: Value) -> object:
    return sorted(value) if isinstance(value, frozenset) else value
