"""Define the errors of brokers and their clients, grouped by who must act, as in
`channel.core.errors`.

Errors that `channel` raises belong there. A message has three parts: what happened, to what, and
what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    NotFound,
    OperatorError,
    PeerError,
)
from equipoise.channel.core.ranges import is_bundle_name
from equipoise.channel.core.records import Reason

_LOOK: Final = "look at its present state before you try again"
_LIST_BROKERS: Final = "name a broker that is up: equipoise brokers list"
_LIST_NAMESPACES: Final = "see which there are: equipoise namespaces list"
_ANOTHER_BROKER: Final = "ask another broker"

REFUSALS: Final[Mapping[str, tuple[str, str]]] = {
    Reason.MALFORMED: ("it is not valid", "correct it"),
    Reason.STALE: ("another change was faster", _LOOK),
    Reason.LATE: ("the request came too late", "try again"),
    Reason.ILLEGAL_TRANSITION: ("its present state does not allow this", _LOOK),
    Reason.NOT_THE_ACTOR: ("another broker must do this", _LOOK),
    Reason.DEAD_PUBLISHER: ("the broker that was asked has lost its membership", _ANOTHER_BROKER),
    Reason.DEAD_TARGET: ("the destination is not alive", _LIST_BROKERS),
    Reason.DRAINING_TARGET: ("the destination drains and takes no new bundles", _LIST_BROKERS),
    Reason.NOT_SERVED: (
        "the program of the destination does not serve its namespace",
        "see which brokers may have it: equipoise bundles destinations BUNDLE",
    ),
    Reason.UNKNOWN_BUNDLE: (
        "there is no such bundle",
        "see which there are: equipoise namespaces bundles NAMESPACE",
    ),
    Reason.UNKNOWN_BROKER: ("there is no such broker", _LIST_BROKERS),
    Reason.UNKNOWN_NAMESPACE: ("there is no such namespace", _LIST_NAMESPACES),
    Reason.UNKNOWN_POLICY: (
        "there is no such policy",
        "see which there are: equipoise policies list",
    ),
    Reason.NAMESPACE_DELETING: ("its namespace is being deleted", _LIST_NAMESPACES),
    Reason.BUNDLES_IN_USE: ("some of its bundles still have an owner", "unload them first"),
    Reason.NOT_ADJACENT: (
        "the two bundles are not neighbours",
        "see the bundles in order: equipoise namespaces bundles NAMESPACE",
    ),
    Reason.BAD_BOUNDARY: ("the boundaries must rise strictly inside it", "correct them"),
    Reason.STILL_ALIVE: ("it is still alive", "wait until its lease has ended"),
    Reason.LEVEL: (
        "the format version of the log does not allow this",
        "use the same version of Equipoise for all brokers",
    ),
    Reason.NO_GENESIS: ("no broker has ever started on this log", "start one first"),
    Reason.FOREIGN_GENESIS: ("the log belongs to another cluster", "name the log of this one"),
}
"""What each reason of a rejection means to an operator, where nothing more exact is known, and what
to do next."""


class Rejected(PeerError):
    """The channel rejected a proposal or would have, or a request contradicts what exists. Programs
    read `reason`, people the message.
    """

    def __init__(
        self,
        *,
        key: str,
        reason: str,
        problem: str | None,
        offset: int | None,
        action: str = "change",
        advice: str | None = None,
    ) -> None:
        """`reason` is a `channel.core.records.Reason`. `offset` is that of the rejected record, if
        it was appended.

        The message begins with `cannot`, `action` and `key`. `advice` says what to do, if more is
        known than `REFUSALS` says.
        """
        self.key = key
        self.reason = reason
        self.problem = problem
        self.offset = offset
        meaning, next_step = REFUSALS[reason]
        where = "" if offset is None else f" (refused at offset {offset})"
        look = f": {_command_for(key)}" if next_step is _LOOK else ""
        super().__init__(
            f"cannot {action} {key}: {problem or meaning}{where}; {advice or next_step + look}"
        )


def _command_for(key: str) -> str:
    """Return the command that shows the present state of a key of the channel."""
    if is_bundle_name(key):
        return f"equipoise bundles show {key}"
    return "equipoise channel tail" if "/" in key else "equipoise brokers list"


class UnknownNamespace(NotFound):
    """The namespace does not exist on the channel."""

    def __init__(self, *, namespace: str) -> None:
        """`namespace` is the requested name."""
        self.namespace = namespace
        super().__init__(
            f"there is no namespace {namespace!r}; list those that exist: equipoise namespaces"
            f" list; or create it: equipoise namespaces create {namespace}"
        )


class InvalidConfig(OperatorError):
    """Settings that are invalid, alone or together."""

    def __init__(self, *, problems: tuple[str, ...]) -> None:
        """Each of `problems` has a setting and what is wrong with it."""
        self.problems = problems
        super().__init__(
            f"these settings cannot be used: {'; '.join(problems)}; correct them and start again"
        )


class InvalidSetting(CallerError):
    """A value that a setting of balancing cannot have."""

    def __init__(self, *, setting: str, value: object, expected: str) -> None:
        """`setting` cannot be `value`; it must be as `expected`."""
        self.setting = setting
        self.value = value
        self.expected = expected
        super().__init__(
            f"{setting} cannot be {value!r}: it must be {expected}; the old setting stays"
        )


class BrokerUnreachable(PeerError):
    """A broker does not answer at its advertised address, or its answer is invalid."""

    def __init__(self, *, broker: str, address: str, problem: str, in_doubt: bool = False) -> None:
        """`problem` is what happened at `address`. `in_doubt`: the broker may have executed the
        request.
        """
        self.broker = broker
        self.address = address
        self.problem = problem
        self.in_doubt = in_doubt
        advice = (
            "it may have executed the request: look before you send it again"
            if in_doubt
            else "see whether it runs, and ask again"
        )
        super().__init__(f"the broker {broker} cannot be asked at {address}: {problem}; {advice}")


class InvalidPolicy(CallerError):
    """A cluster policy is malformed or contradictory. The former policy stays."""

    def __init__(self, *, policy: str, problem: str) -> None:
        """`policy` is its key, `problem` the first thing that is wrong with it."""
        self.policy = policy
        self.problem = problem
        super().__init__(f"the policy {policy} cannot be set: {problem}; what was set before stays")


def not_proposed(*, broker: str, problem: str) -> PeerError:
    """Return the error of a broker that could not append a proposal, or knows that its proposal
    will never be accepted. `problem` kept it from proposing.
    """
    return PeerError(
        f"broker {broker} did nothing: {problem}; ask it again later, or ask another broker",
        code="NotProposed",
        broker=broker,
        problem=problem,
    )


def invalid_request(*, what: str, problem: str) -> CallerError:
    """Return the error for a malformed body or parameter of a request. `what` is the wrong part,
    such as `the body`, `problem` the reason.
    """
    return CallerError(
        f"{what} cannot be used: {problem}", code="InvalidRequest", what=what, problem=problem
    )


def unknown_setting(*, setting: str, nearest: str | None) -> NotFound:
    """Return the error for a setting of balancing that does not exist. `nearest` is a similar one
    that does.
    """
    near = (
        f"did you mean {nearest}?"
        if nearest
        else "see which there are: equipoise balancing show --all"
    )
    return NotFound(
        f"there is no setting {setting!r} of balancing; {near}",
        code="UnknownSetting",
        setting=setting,
        nearest=nearest,
    )


def unreadable_load(problem: str) -> PeerError:
    """Return the error for a message on the load bus that is no load. Its sender counts as having
    reported nothing.
    """
    return PeerError(
        f"a report of load cannot be read: {problem}; look for who writes it, and with which"
        " version",
        code="UnreadableLoad",
        problem=problem,
    )


def channel_lost(*, what: str, waited_ms: int, broker: str, lost_ms: int) -> DeadlineExceeded:
    """Return the error for a wait for `what` that failed at a broker that last read back its own
    renewal `lost_ms` ago.
    """
    lost = f"broker {broker} lost the channel {lost_ms} ms ago"
    return DeadlineExceeded(
        what=what,
        waited_ms=waited_ms,
        message=f"{what} was not heard of within {waited_ms} ms: {lost}; ask again, or ask another"
        " broker",
        code="ChannelLost",
        broker=broker,
        lost_ms=lost_ms,
    )


def cancelled(*, bundle: str, move: str, problem: str) -> PeerError:
    """Return the error for a `move` that the channel accepted and that was cancelled: the bundle is
    not at its destination.
    """
    return PeerError(
        f"the {move} of {bundle} was cancelled: {problem}; see equipoise channel why {bundle}",
        code="Cancelled",
        bundle=bundle,
        move=move,
        problem=problem,
    )


def not_ready(
    *, broker: str, problem: str = "it is still reading the channel, or joining"
) -> PeerError:
    """Return the error of a broker that has not read the channel to its end or is no member now,
    and so cannot answer. `problem` is what it lacks.
    """
    return PeerError(
        f"broker {broker} is not ready: {problem}; ask again soon, or ask another",
        code="NotReady",
        broker=broker,
        problem=problem,
    )


def destination_forbidden(*, bundle: str, broker: str, problem: str) -> CallerError:
    """Return the error for an operator's transfer to a broker that policies do not allow for the
    bundle. `problem` is the policy and its content.
    """
    return CallerError(
        f"{bundle} was not moved: {broker} may not have it: {problem}; name a broker that may"
        f" (equipoise policies explain {bundle}), or force it: then it goes there, and balancing"
        " brings it back",
        code="DestinationForbidden",
        bundle=bundle,
        broker=broker,
        problem=problem,
    )


def data_directory_unusable(*, path: str, problem: str) -> OperatorError:
    """Return the error for a broker's data directory that cannot be created, read or written, or is
    not the one that was locked.
    """
    return OperatorError(
        f"the data directory {path} cannot be used: {problem}; mend that, or name another"
        " directory",
        code="DataDirectoryUnusable",
        path=path,
        problem=problem,
    )


def no_fresh_load(*, log: str, problem: str, advice: str) -> OperatorError:
    """Return the error for a plan without any broker's load. `problem` names the missing reports,
    `advice` what to do.
    """
    return OperatorError(
        f"no broker has a fresh load report on {log}: {problem}; {advice}",
        code="NoFreshLoad",
        log=log,
        problem=problem,
        advice=advice,
    )


def invalid_service(service: str, problem: str) -> CallerError:
    """Return the error for an object that is no service, or cannot be loaded or served."""
    return CallerError(
        f"the service {service!r} cannot be used: {problem}; correct that, and start again"
    )


def quarantined(*, bundle: str, problem: str) -> PeerError:
    """Return the error for a bundle that nobody serves until its quarantine ends: it broke its
    owners because of `problem`.
    """
    return PeerError(
        f"nobody serves {bundle}, because it is in quarantine: {problem}; it ends by itself, and an"
        f" operator can end it now: equipoise bundles quarantine release {bundle}"
    )


def cannot_listen(address: str, problem: str, *, setting: str = "http_port") -> OperatorError:
    """Return the error for an address (host:port from `setting`) on which a broker cannot
    listen.
    """
    return OperatorError(
        f"cannot listen on {address}: {problem}; free the port, or choose another with"
        f" --{setting.replace('_', '-')}"
    )


def address_taken(*, address: str, log: str) -> OperatorError:
    """Return the error for a program's `address` that another worker of this machine advertises on
    the same log.
    """
    problem = (
        f"cannot advertise {address} on {log}: another worker of this machine does, and callers"
        " would reach either of the two"
    )
    return OperatorError(
        f"{problem}; run one process per address (uvicorn --workers 1), or give each process a port"
        " of its own"
    )


def conflict(
    key: str, problem: str, *, action: str, advice: str, reason: Reason = Reason.ILLEGAL_TRANSITION
) -> Rejected:
    """Return the refusal of a request that contradicts what exists, before anything is appended.
    The arguments are those of `Rejected`.
    """
    return Rejected(
        key=key, reason=reason, problem=problem, offset=None, action=action, advice=advice
    )


def counted(count: int, what: str) -> str:
    """Return `1 bundle` or `2 bundles`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
