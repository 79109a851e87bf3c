"""Parse cluster policies: isolation policies, pins of bundles to brokers, failure domains,
controls, tenants, and rights of roles.

What follows for a bundle is decided in `brokers.balancing.destinations`.

The key of a policy record is KIND/NAME. Unknown kinds are ignored. A document is flat, so lists use
numbers: `primary.0`, `primary.1`. The kinds:

* `isolation`: Pulsar's namespace isolation policy with `min_available`. Namespaces that match one
  of `namespaces.N` may use only brokers that match one of `primary.N`, and no other namespace may
  use these brokers. While fewer than `min_limit` primaries (default 1; 0: never) are available,
  brokers that match one of `secondary.N` take these namespaces, too. A primary whose use is at
  least `usage_threshold` percent (default 100) is not available.
* `pin`: bundles of `namespace` may use only `brokers.N`. With `range` (`0xLOW_0xHIGH`), only
  bundles that overlap it are pinned. Pulsar has no pins.
* `failure-domain`: `brokers.N` fail together, for anti-affinity. It overrides the domain that a
  broker declares on joining (see `domain_of`). A broker is in one domain; if two records name it,
  the first domain by name counts.
* `maintenance`, `domain-maintenance`: the broker, or the failure domain, NAME takes no bundles and
  gives away those that it has, for the `reason`. At `until_ms` (Unix time; 0: no end) the leader
  removes the policy, and it applies until it is removed.
* `pause`: with the name `balancing`, the balancer neither moves, splits nor merges until `until_ms`
  (Unix time), for the `reason`.
* `freeze`: the same for the bundles of the namespace NAME; `until_ms` 0: no end. See
  `brokers.balancing.controls`.
* `quarantine`: nobody is assigned the bundle NAME, for the `reason`; `evidence.N` are the offsets
  of the records that show it. See `brokers.balancing.quarantine`.
* `tenant`: a tenant that was created, with `allowed_clusters.N`, and the `admin_roles.N` that
  administer it.
* `grant`: the `right` of the role NAME in the cluster; see `brokers.balancing.grants`.

A pattern is a regular expression of RE2, which has no backreferences and does not look ahead or
back. It must match the whole name of a namespace, or a broker's whole id or host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import re2

from equipoise.brokers.errors import InvalidPolicy
from equipoise.brokers.security.rights import Right
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import (
    HASH_MAX,
    check_broker_id,
    check_namespace,
    parse_bundle,
    parse_range,
)
from equipoise.channel.core.records import (
    DOCUMENT_ENTRIES_MAX,
    INTEGER_MAX,
    TEXT_CHARACTERS_MAX,
    Document,
    Scalar,
)
from equipoise.channel.core.view import View

ISOLATION: Final = "isolation"
PIN: Final = "pin"
FAILURE_DOMAIN: Final = "failure-domain"
MAINTENANCE: Final = "maintenance"
DOMAIN_MAINTENANCE: Final = "domain-maintenance"
PAUSE: Final = "pause"
PAUSE_KEY: Final = f"{PAUSE}/balancing"
FREEZE: Final = "freeze"
QUARANTINE: Final = "quarantine"
TENANT: Final = "tenant"
GRANT: Final = "grant"

ABOUT_PLACEMENT: Final = (ISOLATION, PIN, FAILURE_DOMAIN, MAINTENANCE, DOMAIN_MAINTENANCE)
"""The kinds that restrict or prefer brokers for bundles."""

MIN_LIMIT_DEFAULT: Final = 1
USAGE_THRESHOLD_DEFAULT: Final = 100
"""Percent. By default a primary is unavailable only when it is fully used."""

_Checked = TypeVar("_Checked")

_match_name: Final = re.compile(r"[-=:.\w]{1,255}", re.ASCII).fullmatch
_match_item: Final = re.compile(r"([a-z_]+)\.(0|[1-9][0-9]{0,5})").fullmatch
_PERCENT_MAX: Final = 100
_ROLE_CHARACTERS_MAX: Final = 255
_LIMIT_MAX: Final = 1_000_000  # More brokers than any cluster has.
_TIME_MAX_MS: Final = 1 << 53  # What JSON carries exactly in every program.
_PATTERN_CHARACTERS_MAX: Final = 255

# Every broker matches the patterns of the log. RE2 takes time in proportion to the name for every
# pattern. Python's engine can take hours for `(a|a)*b`, and then no broker renews its lease. The
# memory bounds the size of a compiled pattern: the largest one that fits is compiled in about 1 ms,
# and matches a name of 250 characters in 0.3 ms.
_RE2: Final = re2.Options()
_RE2.max_mem = 1 << 18
_RE2.log_errors = False


class Pattern(Protocol):
    """A compiled regular expression."""

    @property
    def pattern(self) -> str:
        """Its text."""

    def fullmatch(self, text: str, /) -> object:
        """Return a match if the pattern matches the whole text, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """One isolation policy; see the module. `usage_threshold` is in percent."""

    name: str
    namespaces: tuple[Pattern, ...]
    primary: tuple[Pattern, ...]
    secondary: tuple[Pattern, ...]
    min_limit: int
    usage_threshold: int

    def covers(self, namespace: str) -> bool:
        """Return whether the policy applies to this namespace."""
        return is_match(self.namespaces, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Restricts the bundles between the points `low` and `high` of a namespace to the brokers with
    these ids.
    """

    name: str
    namespace: str
    low: int
    high: int
    brokers: tuple[str, ...]

    def covers(self, bundle: BundleEntry) -> bool:
        """Return whether the pin applies to this bundle, because they overlap."""
        return (
            bundle.namespace == self.namespace and self.low < bundle.high and bundle.low < self.high
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomain:
    """Brokers that can fail together, by id. `name` is the policy's key, `domain` the name of the
    domain.
    """

    name: str
    brokers: tuple[str, ...]

    @property
    def domain(self) -> str:
        """The name of the domain."""
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What an operator has stopped for a reason: all balancing, or that of a namespace. `until_ms`
    is Unix time; 0: it has no end.
    """

    name: str
    reason: str
    until_ms: int

    @property
    def subject(self) -> str:
        """What it is about: the NAME of its key."""
        return self.name.partition("/")[2]

    def has_ended(self, now_ms: int) -> bool:
        """Return whether its end has passed. `now_ms` is Unix time."""
        return 0 < self.until_ms <= now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance(Control):
    """The maintenance of the broker, or of all brokers of the failure domain, `subject`."""

    @property
    def is_of_domain(self) -> bool:
        """Whether it is about a failure domain."""
        return self.name.startswith(f"{DOMAIN_MAINTENANCE}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine(Control):
    """The quarantine of the bundle `subject`. `evidence` are the offsets of the records that show
    why.

    It lasts `hold_ms`, by the clock of each broker that reads it, because clocks differ. `until_ms`
    is for people.
    """

    hold_ms: int
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant that was created. The roles may administer its namespaces."""

    name: str
    admin_roles: tuple[str, ...]
    allowed_clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right of a role in the cluster."""

    role: str
    right: Right


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """An unreadable policy. No broker may have bundles of the namespaces that it is known to
    cover.
    """

    name: str
    namespaces: tuple[Pattern, ...]
    problem: str

    def covers(self, namespace: str) -> bool:
        """Return whether the policy is known to cover this namespace."""
        return is_match(self.namespaces, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPolicies:
    """The policies of a cluster or of one namespace, each kind sorted by name."""

    isolations: tuple[Isolation, ...] = ()
    pins: tuple[Pin, ...] = ()
    closed: tuple[Closed, ...] = ()
    domains: tuple[FailureDomain, ...] = ()
    maintenances: tuple[Maintenance, ...] = ()

    def about(self, namespace: str) -> ClusterPolicies:
        """Return the policies that apply to a namespace, and the pins of its bundles."""
        return ClusterPolicies(
            isolations=tuple(policy for policy in self.isolations if policy.covers(namespace)),
            pins=tuple(pin for pin in self.pins if pin.namespace == namespace),
            closed=tuple(policy for policy in self.closed if policy.covers(namespace)),
        )

    def names(self, bundle: BundleEntry) -> tuple[str, ...]:
        """Return the names of these policies without the pins that do not cover `bundle`. Names are
        unique.
        """
        return (
            *(policy.name for policy in self.isolations),
            *(policy.name for policy in self.closed),
            *(pin.name for pin in self.pins if pin.covers(bundle)),
        )


Policy = Isolation | Pin | FailureDomain | Control | Tenant | Grant


def is_named(patterns: Iterable[Pattern], broker: str) -> bool:
    """Return whether a pattern matches a broker's id or host. Pulsar matches the host alone."""
    return is_match(patterns, host_of(broker)) or is_match(patterns, broker)


def host_of(broker: str) -> str:
    """Return a broker id without its port."""
    host, colon, port = broker.rpartition(":")
    return host if colon and port.isdecimal() else broker


def is_role(text: str) -> bool:
    """Return whether a text can be the name of a role that holds rights."""
    return 1 <= len(text) <= _ROLE_CHARACTERS_MAX and text.isprintable() and text == text.strip()


def is_about_placement(key: str) -> bool:
    """Return whether the policy of this key restricts or prefers brokers for bundles."""
    return key.partition("/")[0] in ABOUT_PLACEMENT


def is_maintenance(key: str) -> bool:
    """Return whether the policy of this key is the maintenance of a broker or of a failure
    domain.
    """
    return key.partition("/")[0] in (MAINTENANCE, DOMAIN_MAINTENANCE)


def isolation_document(
    *,
    namespaces: Iterable[str],
    primary: Iterable[str],
    secondary: Iterable[str] = (),
    min_limit: int = MIN_LIMIT_DEFAULT,
    usage_threshold: int = USAGE_THRESHOLD_DEFAULT,
) -> Document:
    """Return the document of an isolation policy, unchecked; `parse_policy` checks it."""
    lists = (
        _numbered("namespaces", namespaces)
        | _numbered("primary", primary)
        | _numbered("secondary", secondary)
    )
    return lists | {"min_limit": min_limit, "usage_threshold": usage_threshold}


def pin_document(*, namespace: str, brokers: Iterable[str], range_: str | None = None) -> Document:
    """Return the document of a pin, unchecked; `parse_policy` checks it. Without a range it covers
    the whole namespace.
    """
    return (
        {"namespace": namespace}
        | ({} if range_ is None else {"range": range_})
        | _numbered("brokers", brokers)
    )


def failure_domain_document(brokers: Iterable[str]) -> Document:
    """Return the document of a failure domain, unchecked; `parse_policy` checks it. It may be
    empty.
    """
    return _numbered("brokers", sorted(set(brokers)))


def control_document(reason: str, *, until_ms: int = 0) -> Document:
    """Return the document of a control, unchecked; `parse_policy` checks it. `until_ms` is Unix
    time; 0: no end.
    """
    return {"reason": reason, "until_ms": until_ms}


def quarantine_key(bundle: str) -> str:
    """Return the key of the quarantine of a bundle."""
    return f"{QUARANTINE}/{bundle}"


def quarantine_document(
    reason: str, *, hold_ms: int, until_ms: int, evidence: Iterable[int]
) -> Document:
    """Return the document of a quarantine, unchecked; `parse_policy` checks it. `until_ms` is Unix
    time.
    """
    return {
        "reason": reason,
        "until_ms": until_ms,
        "hold_ms": hold_ms,
        **_numbered("evidence", evidence),
    }


def tenant_document(*, admin_roles: Iterable[str], allowed_clusters: Iterable[str]) -> Document:
    """Return the document of a tenant, unchecked; `parse_policy` checks it."""
    return _numbered("admin_roles", sorted(set(admin_roles))) | _numbered(
        "allowed_clusters", sorted(set(allowed_clusters))
    )


def grant_document(right: Right) -> Document:
    """Return the document of a right of a role."""
    return {"right": right.value}


def items_of(document: Document, name: str) -> list[str]:
    """Return the texts of one list of a document, in the order of their numbers. Skip values that
    are not text.
    """
    found = [
        (int(match[2]), value)
        for field, value in document.items()
        if (match := _match_item(field)) and match[1] == name
    ]
    return [value for _, value in sorted(found, key=lambda item: item[0]) if isinstance(value, str)]


def parse_policy(key: str, document: Document) -> Policy | None:
    """Return the policy `key`; None if its kind is unknown. Raises `InvalidPolicy`."""
    kind, _, name = key.partition("/")
    if kind not in _KINDS:
        return None
    if kind == GRANT and not is_role(name):
        raise InvalidPolicy(
            policy=key[:_ROLE_CHARACTERS_MAX],
            problem="the name of a role must be 1 to 255 printable characters",
        )
    if kind not in (GRANT, FREEZE, QUARANTINE) and _match_name(name) is None:
        raise InvalidPolicy(
            policy=key,
            problem="its name must be 1 to 255 ASCII letters, digits, '_', '-', '=', ':' or '.'",
        )
    if len(document) > DOCUMENT_ENTRIES_MAX:
        raise InvalidPolicy(
            policy=key,
            problem=f"it has {len(document)} entries, and may have {DOCUMENT_ENTRIES_MAX}",
        )
    fields, known = _Fields(key, document), _KINDS[kind]
    fields.checked(known.check, name)
    policy = known.made(
        name=key, **{each: read(fields, each) for each, read in known.fields.items()}
    )
    fields.check_no_others()
    return policy


def read_policies(view: View) -> ClusterPolicies:
    """Return all policies of a view. An unreadable policy closes its known namespaces, and does not
    affect the other policies.
    """
    return policies_in({name: entry.document for name, entry in view.policies.items()})


def policies_in(documents: Mapping[str, Document]) -> ClusterPolicies:
    """Return the policies of documents about placement, given by key."""
    found: list[Policy | Closed | None] = []
    for key in sorted(filter(is_about_placement, documents)):
        try:
            found.append(parse_policy(key, documents[key]))
        except InvalidPolicy as error:
            # An unreadable domain has no effect: it is only a preference. Nor has an unreadable
            # maintenance: a broker would be idle.
            if key.partition("/")[0] in (ISOLATION, PIN):
                namespaces = _known_to_be_about(documents[key])
                found.append(Closed(name=key, namespaces=namespaces, problem=error.problem))
    return ClusterPolicies(
        isolations=tuple(each for each in found if isinstance(each, Isolation)),
        pins=tuple(each for each in found if isinstance(each, Pin)),
        closed=tuple(each for each in found if isinstance(each, Closed)),
        domains=tuple(each for each in found if isinstance(each, FailureDomain)),
        maintenances=tuple(each for each in found if isinstance(each, Maintenance)),
    )


def is_match(patterns: Iterable[Pattern], text: str) -> bool:
    """Return whether a pattern matches the whole of a text."""
    return any(pattern.fullmatch(text) is not None for pattern in patterns)


def _numbered(name: str, items: Iterable[Scalar]) -> dict[str, Scalar]:
    return {f"{name}.{number}": item for number, item in enumerate(items)}


def _known_to_be_about(document: Document) -> tuple[Pattern, ...]:
    """Return patterns for the namespaces of an unreadable policy, as far as they can be read."""
    found = []
    for name in sorted(document):
        value = document[name]
        if not isinstance(value, str):
            continue
        if name == "namespace":
            found.append(re2.compile(re2.escape(value), _RE2))
        elif name.startswith("namespaces."):
            pattern, _ = _compiled(value)
            found += [] if pattern is None else [pattern]
    return tuple(found)


def _compiled(text: str) -> tuple[Pattern | None, str]:
    """Return a compiled regular expression, or None and the problem."""
    if len(text) > _PATTERN_CHARACTERS_MAX:
        return None, f"it has {len(text)} characters, and may have {_PATTERN_CHARACTERS_MAX}"
    try:
        return re2.compile(text, _RE2), ""
    except re2.error as error:
        problem = error.args[0]
        return None, (
            problem.decode(errors="replace") if isinstance(problem, bytes) else str(problem)
        )


class _Fields:
    """The fields of one document. Each reader removes what it reads, so the fields left at the end
    are unknown.
    """

    def __init__(self, policy: str, document: Document) -> None:
        self._policy = policy
        self._left: dict[str, Scalar] = dict(document)

    def patterns(self, name: str, *, required: bool = True) -> tuple[Pattern, ...]:
        return tuple(
            self._pattern(field, text) for field, text in self._items(name, required=required)
        )

    def texts(self, name: str, *, required: bool = True) -> tuple[str, ...]:
        return tuple(text for _, text in self._items(name, required=required))

    def broker_ids(self, name: str, *, required: bool = True) -> tuple[str, ...]:
        ids = {text: field for field, text in self._items(name, required=required)}
        for broker, field in ids.items():
            self.checked(check_broker_id, broker, f"{field}: ")
        return tuple(sorted(ids))

    def checked(self, check: Callable[[str], _Checked], value: str, where: str = "") -> _Checked:
        """Return what `check` makes of a value. `where` begins the problem."""
        try:
            return check(value)
        except (InvalidName, ValueError) as error:
            raise self._wrong(f"{where}{error}") from None

    def text(self, name: str) -> str:
        return self._text(name, self._left.pop(name, ""))

    def integer(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(
                f"{name} is {value!r:.80}, and must be an integer from {least} to {most}"
            )
        return value

    def namespace(self, name: str) -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str):
            raise self._wrong(f"{name} must be the name of a namespace")
        return self.checked(check_namespace, value)

    def offsets(self, name: str) -> tuple[int, ...]:
        """Return a list of offsets, which may be empty."""
        return tuple(self.integer(field, 0, most=INTEGER_MAX) for field in self._numbers(name))

    def range(self, name: str) -> tuple[int, int]:
        """Return the range, or the whole hash space if there is none."""
        value = self._left.pop(name, None)
        if value is None:
            return 0, HASH_MAX
        if not isinstance(value, str):
            raise self._wrong(
                f"{name} is {value!r:.80}, and must be a range such as 0x00000000_0x80000000"
            )
        return self.checked(parse_range, value)

    def right(self, name: str) -> Right:
        value = self._left.pop(name, None)
        if not isinstance(value, str) or value not in tuple(Right):
            raise self._wrong(f"{name} is {value!r:.80}, and must be one of {', '.join(Right)}")
        return Right(value)

    def check_no_others(self) -> None:
        """Raise if a field is left: a misspelled field must not pass for one that was not given."""
        if self._left:
            raise self._wrong(f"it has no field {min(self._left)!r}")

    def _items(self, name: str, *, required: bool) -> list[tuple[str, str]]:
        items = [(field, self._left.pop(field)) for field in self._numbers(name)]
        if required and not items:
            raise self._wrong(f"it needs at least one of {name}, as {name}.0")
        return [(field, self._text(field, value)) for field, value in items]

    def _numbers(self, name: str) -> list[str]:
        """Return the fields of a list, in the order of their numbers."""
        numbered = [
            (int(match[2]), field)
            for field in self._left
            if (match := _match_item(field)) is not None and match[1] == name
        ]
        return [field for _, field in sorted(numbered)]

    def _text(self, field: str, value: Scalar) -> str:
        # A record cannot hold a lone surrogate, either.
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self._wrong(
                f"{field} is {value!r:.80}, and must be a text of printable characters that is not"
                " empty"
            )
        if len(value) > TEXT_CHARACTERS_MAX:
            raise self._wrong(
                f"{field} has {len(value)} characters, and may have {TEXT_CHARACTERS_MAX}"
            )
        return value

    def _pattern(self, field: str, text: str) -> Pattern:
        pattern, problem = _compiled(text)
        if pattern is None:
            raise self._wrong(
                f"{field} is {text!r:.80}, which is no regular expression that can be used:"
                f" {problem}"
            )
        return pattern

    def _wrong(self, problem: str) -> InvalidPolicy:
        return InvalidPolicy(policy=self._policy, problem=problem)


def _pin(*, name: str, range: tuple[int, int], namespace: str, brokers: tuple[str, ...]) -> Pin:  # noqa: A002 - as the field
    low, high = range
    return Pin(name=name, namespace=namespace, low=low, high=high, brokers=brokers)


def _grant(*, name: str, right: Right) -> Grant:
    return Grant(role=name.partition("/")[2], right=right)


def _check_is_balancing(name: str) -> None:
    if name != PAUSE_KEY.partition("/")[2]:
        raise ValueError(f"only balancing can be paused, by {PAUSE_KEY}")


_Read = Callable[[_Fields, str], object]
_OPTIONAL_IDS: Final[_Read] = partial(_Fields.broker_ids, required=False)
_TIME: Final[_Read] = partial(_Fields.integer, default=0, most=_TIME_MAX_MS)
_SOME_TIME: Final[_Read] = partial(_Fields.integer, default=0, least=1, most=_TIME_MAX_MS)
_NO_CHECK: Final[Callable[[str], object]] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How a policy of one kind is read: the check of the NAME in its key, how each field is read,
    in this order, and what is made of them.
    """

    made: Callable[..., Policy]
    fields: Mapping[str, _Read]
    check: Callable[[str], object] = _NO_CHECK


_KINDS: Final[Mapping[str, _Kind]] = {
    ISOLATION: _Kind(
        made=Isolation,
        fields={
            "namespaces": _Fields.patterns,
            "primary": _Fields.patterns,
            "secondary": partial(_Fields.patterns, required=False),
            "min_limit": partial(_Fields.integer, default=MIN_LIMIT_DEFAULT, most=_LIMIT_MAX),
            "usage_threshold": partial(
                _Fields.integer, default=USAGE_THRESHOLD_DEFAULT, most=_PERCENT_MAX
            ),
        },
    ),
    PIN: _Kind(
        made=_pin,
        fields={
            "range": _Fields.range,
            "namespace": _Fields.namespace,
            "brokers": _Fields.broker_ids,
        },
    ),
    FAILURE_DOMAIN: _Kind(made=FailureDomain, fields={"brokers": _OPTIONAL_IDS}),
    MAINTENANCE: _Kind(
        made=Maintenance,
        fields={"reason": _Fields.text, "until_ms": _TIME},
        check=check_broker_id,
    ),
    DOMAIN_MAINTENANCE: _Kind(made=Maintenance, fields={"reason": _Fields.text, "until_ms": _TIME}),
    PAUSE: _Kind(
        made=Control,
        fields={"until_ms": _SOME_TIME, "reason": _Fields.text},
        check=_check_is_balancing,
    ),
    FREEZE: _Kind(
        made=Control, fields={"until_ms": _TIME, "reason": _Fields.text}, check=check_namespace
    ),
    QUARANTINE: _Kind(
        made=Quarantine,
        fields={
            "until_ms": _SOME_TIME,
            "hold_ms": _SOME_TIME,
            "reason": _Fields.text,
            "evidence": _Fields.offsets,
        },
        check=parse_bundle,
    ),
    TENANT: _Kind(
        made=Tenant,
        fields={
            "admin_roles": partial(_Fields.texts, required=False),
            "allowed_clusters": _Fields.texts,
        },
    ),
    GRANT: _Kind(made=_grant, fields={"right": _Fields.right}),
}


BY_BROKER = "broker"
"""The source of a domain that the broker declares itself."""


class Domain(NamedTuple):
    """The failure domain of a broker, and its source: the key of a policy, or `BY_BROKER`. Both are
    None if there is none.
    """

    name: str | None
    source: str | None


def domain_of(broker: BrokerEntry, policies: Mapping[str, FailureDomain]) -> Domain:
    """Return the failure domain of a broker. `policies` are those of `domains_by_broker` or
    `domains_in`.
    """
    policy = policies.get(broker.broker)
    if policy is not None:
        return Domain(policy.domain, policy.name)
    declared = broker.joined.failure_domain
    return Domain(declared, BY_BROKER) if declared else Domain(None, None)


def domains_by_broker(policies: Iterable[FailureDomain]) -> Mapping[str, FailureDomain]:
    """Return the policy of each broker that one names. Of several, the first one counts."""
    found: dict[str, FailureDomain] = {}
    for policy in policies:
        for broker in policy.brokers:
            found.setdefault(broker, policy)
    return found


def maintenance_of(
    maintenances: Collection[Maintenance],
    domains: Mapping[str, FailureDomain],
    brokers: Iterable[BrokerEntry],
) -> Mapping[str, Maintenance]:
    """Return the maintenance of each of these brokers that has one, by broker id. The broker's own
    comes before that of its domain.

    `domains` are the policies of `domains_by_broker`.
    """
    if not maintenances:
        return {}
    known = {(policy.is_of_domain, policy.subject): policy for policy in maintenances}
    found = {
        broker.broker: known.get((False, broker.broker))
        or known.get((True, domain_of(broker, domains).name or ""))
        for broker in brokers
    }
    return {broker: policy for broker, policy in found.items() if policy is not None}


def domains_in(view: View) -> Mapping[str, FailureDomain]:
    """Return the policies of a view by broker."""
    prefix = f"{FAILURE_DOMAIN}/"
    return domains_by_broker(
        policies_in(
            {key: entry.document for key, entry in view.policies.items() if key.startswith(prefix)}
        ).domains
    )
