"""Serve the paths of controls: pause, freezes, maintenance and quarantine.

They are ours: Pulsar has none. `brokers.balancing.controls` describes them,
`brokers.operations.verbs` defines the operations.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from equipoise.brokers.balancing.controls import controls_document
from equipoise.brokers.errors import InvalidRequest
from equipoise.brokers.http.admin.operating import Admin, Call, fact, order, order_with
from equipoise.brokers.http.bodies import ControlBody
from equipoise.brokers.operations import verbs

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
        raise InvalidRequest(what="the body", problem="for_ms is missing; a pause must have an end")
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
