"""Serve the paths of controls: pause, freezes, maintenance and quarantine.

They are ours: Pulsar has none. `brokers.balancing.controls` describes them,
`brokers.operations.verbs` defines the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.controls import controls_document
from equipoise.brokers.errors import InvalidRequest
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import CONTROL_BODY, bundle_of, namespace_of, required_body_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations import verbs

CONTROLS_PATH: Final = "/admin/v2/controls"

_PAUSE: Final = f"{CONTROLS_PATH}/pause"
_FREEZE: Final = f"{CONTROLS_PATH}/freeze/{{tenant}}/{{namespace}}"
_MAINTENANCE: Final = f"{CONTROLS_PATH}/maintenance/{{broker}}"
_OF_DOMAIN: Final = f"{CONTROLS_PATH}/domain-maintenance/{{name}}"
_QUARANTINE: Final = f"{CONTROLS_PATH}/quarantine/{{tenant}}/{{namespace}}/{{bundle}}"

_BODY: Final = "an object with a reason, and for_ms, the milliseconds until its end"


class Controls(Admin):
    """The paths of controls of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(CONTROLS_PATH, self.controls),
            web.post(_PAUSE, self.pause),
            web.delete(_PAUSE, self.resume),
            web.post(_FREEZE, self.freeze),
            web.delete(_FREEZE, self.unfreeze),
            web.post(_MAINTENANCE, self.start_maintenance),
            web.delete(_MAINTENANCE, self.end_maintenance),
            web.post(_OF_DOMAIN, self.start_domain_maintenance),
            web.delete(_OF_DOMAIN, self.end_domain_maintenance),
            web.delete(_QUARANTINE, self.release),
        )

    async def controls(self, _request: web.Request) -> web.Response:
        """Return the pause, and all freezes, maintenances and quarantines, each with its reason and
        end.
        """
        view = ready_view(self._worker)
        return json_answer(controls_document(view, self._worker.clock.now().wall_ms))

    async def pause(self, request: web.Request) -> web.Response:
        """Stop moves, splits and merges of the balancer for a while, in place of a pause before."""
        reason, until_ms = await self._given(request)
        if not until_ms:
            raise InvalidRequest(
                what="the body", problem="for_ms is missing; a pause must have an end"
            )
        return await self._done(
            verbs.pause_balancing(self._port(request), reason=reason, until_ms=until_ms)
        )

    async def resume(self, request: web.Request) -> web.Response:
        """End the pause of balancing."""
        return await self._done(verbs.resume_balancing(self._port(request)))

    async def freeze(self, request: web.Request) -> web.Response:
        """Have the balancer leave the bundles of a namespace alone, in place of a freeze before.
        Without `for_ms` it has no end.
        """
        reason, until_ms = await self._given(request)
        return await self._done(
            verbs.freeze_namespace(
                self._port(request), namespace_of(request), reason=reason, until_ms=until_ms
            )
        )

    async def unfreeze(self, request: web.Request) -> web.Response:
        """End the freeze of a namespace."""
        return await self._done(
            verbs.unfreeze_namespace(self._port(request), namespace_of(request))
        )

    async def start_maintenance(self, request: web.Request) -> web.Response:
        """Have a broker take no bundles and give its own away. Answered once the channel has it.
        Without `for_ms` it has no end.
        """
        return await self._start_maintenance(request, request.match_info["broker"])

    async def end_maintenance(self, request: web.Request) -> web.Response:
        """End the maintenance of a broker."""
        return await self._done(
            verbs.end_maintenance(self._port(request), request.match_info["broker"])
        )

    async def start_domain_maintenance(self, request: web.Request) -> web.Response:
        """Have all brokers of a failure domain take no bundles and give theirs away, as for one
        broker.
        """
        return await self._start_maintenance(request, request.match_info["name"], of_domain=True)

    async def end_domain_maintenance(self, request: web.Request) -> web.Response:
        """End the maintenance of a failure domain."""
        return await self._done(
            verbs.end_maintenance(self._port(request), request.match_info["name"], of_domain=True)
        )

    async def release(self, request: web.Request) -> web.Response:
        """End the quarantine of a bundle. The leader assigns it at once."""
        return await self._done(verbs.release_bundle(self._port(request), bundle_of(request)))

    async def _start_maintenance(
        self, request: web.Request, subject: str, *, of_domain: bool = False
    ) -> web.Response:
        reason, until_ms = await self._given(request)
        return await self._done(
            verbs.start_maintenance(
                self._port(request),
                subject,
                reason=reason,
                until_ms=until_ms,
                of_domain=of_domain,
                wait=False,
            )
        )

    async def _given(self, request: web.Request) -> tuple[str, int]:
        """Return the reason and the end (Unix time; 0: none) that a body names."""
        ready_view(self._worker)
        body = await required_body_of(request, CONTROL_BODY, _BODY)
        return (
            body.reason,
            0 if body.for_ms is None else self._worker.clock.now().wall_ms + body.for_ms,
        )
