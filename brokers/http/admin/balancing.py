"""Serve the balancing settings of this broker, changes of those on the channel, and the decisions
of the whole cluster.

The paths of Pulsar's dynamic configuration work for the keys that match our settings.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final

from aiohttp import web

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
    Changes,
    SettingsChange,
    changed_by,
    document_of,
    problems_in,
    settings_in,
    settings_of,
)
from equipoise.brokers.decision_log import document_of as decision_document
from equipoise.brokers.decision_log import newest_decisions
from equipoise.brokers.errors import InvalidRequest
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import BALANCING_BODY, body_of, integer_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations.verbs import change_settings
from equipoise.brokers.runtime.worker import Worker

_CONFIGURATION: Final = "/admin/v2/brokers/configuration"

_DECISIONS: Final = 20
_DECISIONS_MAX: Final = 1_000


class Balancing(Admin):
    """The paths of the settings of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get("/admin/v2/balancing", self.settings),
            web.patch("/admin/v2/balancing", self.change),
            web.get(_CONFIGURATION, self.keys),
            web.get(f"{_CONFIGURATION}/values", self.values),
            web.get(f"{_CONFIGURATION}/runtime", self.runtime),
            web.post(f"{_CONFIGURATION}/{{key}}/{{value}}", self.set_key),
            web.delete(f"{_CONFIGURATION}/{{key}}", self.unset_key),
        )

    async def settings(self, _request: web.Request) -> web.Response:
        """Return every setting with its value at this broker and its origin, the last change, and
        what cannot be read.
        """
        view, base = ready_view(self._worker), self._worker.config.base_settings
        document = document_of(view)
        entry = view.policies.get(KEY)
        return json_answer(
            {
                "settings": _documents(settings_in(view, base), base, set(settings_of(document))),
                "changed_at": None if entry is None else entry.last,
                "changed_by": changed_by(document),
                "problems": problems_in(view, base),
            }
        )

    async def change(self, request: web.Request) -> web.Response:
        """Set settings on the channel, or remove them. Returns each setting before and after."""
        body = await body_of(request, BALANCING_BODY)
        if body is None:
            raise InvalidRequest(
                what="the body",
                problem=(
                    'it must name the changes, such as {"changes": {"balancing.enabled": false}}'
                ),
            )
        change = await self._change(request, body.settings)
        return json_answer(change.document)

    async def keys(self, _request: web.Request) -> web.Response:
        """List the keys of Pulsar that can be set."""
        return json_answer(DYNAMIC_KEYS)

    async def values(self, _request: web.Request) -> web.Response:
        """Return what is set on the channel: by Pulsar's key, or by our name if no key of Pulsar
        sets it.
        """
        view = ready_view(self._worker)
        settings, held = (
            settings_in(view, self._worker.config.base_settings),
            settings_of(document_of(view)),
        )
        return json_answer(
            keys_of_settings({name: value_in(settings, name) for name in held if name in SETTINGS})
        )

    async def runtime(self, _request: web.Request) -> web.Response:
        """Return what is in force at this broker: balancing as `values` does, and the settings of
        the broker by our names.
        """
        config = self._worker.config
        settings = settings_in(ready_view(self._worker), config.base_settings)
        given = config.model_dump(mode="json", exclude={"balancing"}, exclude_none=True)
        own = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in given.items()
        }
        return json_answer(
            {**own, **keys_of_settings({name: value_in(settings, name) for name in SETTINGS})}
        )

    async def set_key(self, request: web.Request) -> web.Response:
        """Set the settings that one of Pulsar's keys stands for, converted as from a
        `broker.conf`.
        """
        settings = settings_of_key(request.match_info["key"], request.match_info["value"])
        await self._change(request, {name: format_value(value) for name, value in settings.items()})
        return done()

    async def unset_key(self, request: web.Request) -> web.Response:
        """Remove the settings that one of Pulsar's keys stands for."""
        await self._change(request, dict.fromkeys(names_of_key(request.match_info["key"])))
        return done()

    async def _change(self, request: web.Request, changes: Changes) -> SettingsChange:
        return await change_settings(self._port(request), changes)


class Decisions:
    """The path of decisions of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._log_url = worker.config.log_url

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the route."""
        return (web.get("/admin/v2/balancing/decisions", self.newest),)

    async def newest(self, request: web.Request) -> web.Response:
        """Return the newest decisions, oldest first."""
        limit = integer_of(request, "limit", default=_DECISIONS, at_most=_DECISIONS_MAX)
        found = await asyncio.to_thread(newest_decisions, self._log_url, limit)
        return json_answer([decision_document(decision) for decision in found])


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
