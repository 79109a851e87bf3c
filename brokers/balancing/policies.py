"""Cluster policies: which brokers a namespace is kept to, and which brokers a bundle is pinned to.

May live here: what the documents of `policy` records say, read and checked. What follows for a bundle is said by
`brokers.balancing.destinations`.

The key of such a record is KIND/NAME; a kind that is not known here is somebody else's, and passed over. A document is flat,
so a list is spelled with numbers: `primary.0`, `primary.1`. The kinds and their fields:

* `isolation`: the namespaces that match one of `namespaces.N` are kept to the brokers that match one of `primary.N`, and
  those brokers to them. As long as fewer than `min_limit` of these (default 1; 0: never) are available, those that match
  one of `secondary.N` take them too. Not available is a primary whose use is at least `usage_threshold` percent (default
  100). This is Pulsar's namespace isolation policy with `min_available`.
* `pin`: the bundles of `namespace`, or those that share a point with `range` (`0xLOW_0xHIGH`) of it, are kept to
  `brokers.N`. Pulsar has no such thing.

A pattern is a regular expression that must match the whole: the name of a namespace; of a broker the id, or its host alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.errors import InvalidPolicy
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import HASH_MAX, check_broker_id, check_namespace, parse_range
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, Document, Scalar
from equipoise.channel.core.view import View

ISOLATION: Final = "isolation"
PIN: Final = "pin"

MIN_LIMIT_DEFAULT: Final = 1
USAGE_THRESHOLD_DEFAULT: Final = 100
"""Percent. By default a primary is not available only when it is used to the full."""

_match_name: Final = re.compile(r"[-=:.\w]{1,255}", re.ASCII).fullmatch
_match_item: Final = re.compile(r"([a-z_]+)\.(0|[1-9][0-9]{0,5})").fullmatch
_match_repeat: Final = re.compile(r"[*+]|\{[0-9]*,\}").match
_PERCENT_MAX: Final = 100
_LIMIT_MAX: Final = 1_000_000  # More brokers than any cluster has.
_PATTERN_CHARACTERS_MAX: Final = 255  # Half of these can be open parentheses, which is as deep as Python compiles without fail.

Pattern = re.Pattern[str]


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
        """Whether it is about this namespace."""
        return _is_match(self.namespaces, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Keeps what lies between the points `low` and `high` of a namespace to the brokers of these ids."""

    name: str
    namespace: str
    low: int
    high: int
    brokers: tuple[str, ...]

    def covers(self, bundle: BundleEntry) -> bool:
        """Whether it is about this bundle: they share a point."""
        return bundle.namespace == self.namespace and self.low < bundle.high and bundle.low < self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A policy that cannot be read, and so lets nobody have anything of the namespaces that it is known to be about."""

    name: str
    namespaces: tuple[Pattern, ...]
    problem: str

    def covers(self, namespace: str) -> bool:
        """Whether it is known to be about this namespace."""
        return _is_match(self.namespaces, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPolicies:
    """All that the policies of a cluster say, each kind by name."""

    isolations: tuple[Isolation, ...] = ()
    pins: tuple[Pin, ...] = ()
    closed: tuple[Closed, ...] = ()


def is_named(patterns: Iterable[Pattern], broker: str, *, host_only: bool = False) -> bool:
    """Whether one of these patterns means a broker: by its id, or by its host; with `host_only` by that alone, as in Pulsar."""
    host = host_of(broker)
    return _is_match(patterns, host) or (not host_only and _is_match(patterns, broker))


def host_of(broker: str) -> str:
    """The id of a broker without the port, if it has one."""
    host, colon, port = broker.rpartition(":")
    return host if colon and port.isdecimal() else broker


def is_about_bundles(key: str) -> bool:
    """Whether a policy of this key is of a kind that is known here."""
    return key.partition("/")[0] in (ISOLATION, PIN)


def isolation_document(
    *,
    namespaces: Iterable[str],
    primary: Iterable[str],
    secondary: Iterable[str] = (),
    min_limit: int = MIN_LIMIT_DEFAULT,
    usage_threshold: int = USAGE_THRESHOLD_DEFAULT,
) -> Document:
    """The document of an isolation policy; whether it can be set, `parse_policy` says."""
    lists = _numbered("namespaces", namespaces) | _numbered("primary", primary) | _numbered("secondary", secondary)
    return lists | {"min_limit": min_limit, "usage_threshold": usage_threshold}


def pin_document(*, namespace: str, brokers: Iterable[str], range_: str | None = None) -> Document:
    """The document of a pin, of the whole namespace if no range is given; whether it can be set, `parse_policy` says."""
    return {"namespace": namespace} | ({} if range_ is None else {"range": range_}) | _numbered("brokers", brokers)


def items_of(document: Document, name: str) -> list[str]:
    """The texts of one of a document's lists, in the order of their numbers; what is no text is left out."""
    found = [(int(match[2]), value) for field, value in document.items() if (match := _match_item(field)) and match[1] == name]
    return [value for _, value in sorted(found, key=lambda item: item[0]) if isinstance(value, str)]


def parse_policy(key: str, document: Document) -> Isolation | Pin | None:
    """What the policy `key` says; None if it is of a kind that is not known here. Raises `InvalidPolicy`."""
    kind, _, name = key.partition("/")
    if not is_about_bundles(key):
        return None
    if _match_name(name) is None:
        raise InvalidPolicy(policy=key, problem="its name is to be 1 to 255 ASCII letters, digits, '_', '-', '=', ':' or '.'")
    if len(document) > DOCUMENT_ENTRIES_MAX:
        raise InvalidPolicy(policy=key, problem=f"it has {len(document)} entries, and may have {DOCUMENT_ENTRIES_MAX}")
    return _isolation(key, _Fields(key, document)) if kind == ISOLATION else _pin(key, _Fields(key, document))


def read_policies(view: View) -> ClusterPolicies:
    """All policies that a view holds. One that cannot be read closes what it is known to be about, and spoils no other."""
    return policies_in({name: entry.document for name, entry in view.policies.items()})


def policies_in(documents: Mapping[str, Document]) -> ClusterPolicies:
    """The same of documents by their keys."""
    isolations, pins, closed = [], [], []
    for key in sorted(documents):
        try:
            policy = parse_policy(key, documents[key])
        except InvalidPolicy as error:
            closed.append(Closed(name=key, namespaces=_known_to_be_about(documents[key]), problem=error.problem))
            continue
        if isinstance(policy, Isolation):
            isolations.append(policy)
        elif policy is not None:
            pins.append(policy)
    return ClusterPolicies(isolations=tuple(isolations), pins=tuple(pins), closed=tuple(closed))


def _is_match(patterns: Iterable[Pattern], text: str) -> bool:
    return any(pattern.fullmatch(text) is not None for pattern in patterns)


def _isolation(key: str, fields: _Fields) -> Isolation:
    policy = Isolation(
        name=key,
        namespaces=fields.patterns("namespaces"),
        primary=fields.patterns("primary"),
        secondary=fields.patterns("secondary", required=False),
        min_limit=fields.integer("min_limit", MIN_LIMIT_DEFAULT, most=_LIMIT_MAX),
        usage_threshold=fields.integer("usage_threshold", USAGE_THRESHOLD_DEFAULT, most=_PERCENT_MAX),
    )
    fields.check_no_others()
    return policy


def _pin(key: str, fields: _Fields) -> Pin:
    low, high = fields.range("range")
    pin = Pin(name=key, namespace=fields.namespace("namespace"), low=low, high=high, brokers=fields.broker_ids("brokers"))
    fields.check_no_others()
    return pin


def _numbered(name: str, items: Iterable[str]) -> dict[str, Scalar]:
    return {f"{name}.{number}": item for number, item in enumerate(items)}


def _known_to_be_about(document: Document) -> tuple[Pattern, ...]:
    """The namespaces of a policy that cannot be read, as far as they can be: what names none concerns none."""
    found = []
    for name in sorted(document):
        value = document[name]
        if not isinstance(value, str):
            continue
        if name == "namespace":
            found.append(re.compile(re.escape(value)))
        elif name.startswith("namespaces."):
            pattern, _ = _compiled(value)
            found += [] if pattern is None else [pattern]
    return tuple(found)


def _compiled(text: str) -> tuple[Pattern | None, str]:
    """A regular expression, or None and why it is none."""
    if len(text) > _PATTERN_CHARACTERS_MAX:
        return None, f"it has {len(text)} characters, and may have {_PATTERN_CHARACTERS_MAX}"
    if _repeats_a_repeat(text):
        return None, "it repeats without bound what holds such a repeat itself, and so may take for ever over one name"
    try:
        return re.compile(text), ""
    except (re.error, OverflowError, RecursionError) as error:  # The latter two come of absurd repeats and of absurd nesting.
        return None, str(error)


def _repeats_a_repeat(text: str) -> bool:
    """Whether a pattern has an unbounded repeat of a group that holds one, as in `([a-z]+-?)+`.

    A name of thirty letters that does not match keeps such a pattern busy for minutes, in every broker at once, for longer
    than any lease. Not every such pattern is as bad, and each can be written in another way.
    """
    holds = [False]  # Of each group that is open, and of the whole at the bottom: whether it holds an unbounded repeat.
    place = 0
    while place < len(text):
        sign = text[place]
        if sign == "\\":
            place += 1
        elif sign == "[":
            place = _end_of_class(text, place)
        elif sign == "(":
            holds.append(False)
        elif sign == ")" and len(holds) > 1:
            held = holds.pop()
            repeated = _match_repeat(text, place + 1) is not None
            if held and repeated:
                return True
            holds[-1] |= held or repeated
        elif _match_repeat(text, place) is not None:
            holds[-1] = True
        place += 1
    return False


def _end_of_class(text: str, start: int) -> int:
    """Where the class of characters that begins at `start` ends; the end of the text if it does not."""
    place = start + 1
    if text[place : place + 1] == "^":
        place += 1
    if text[place : place + 1] == "]":  # As the first of its class it is a member of it.
        place += 1
    while place < len(text) and text[place] != "]":
        place += 2 if text[place] == "\\" else 1
    return place


class _Fields:
    """The fields of one document; each reader takes what it reads, so that what is left at the end is what nobody knows."""

    def __init__(self, policy: str, document: Document) -> None:
        self._policy = policy
        self._left: dict[str, Scalar] = dict(document)

    def patterns(self, name: str, *, required: bool = True) -> tuple[Pattern, ...]:
        return tuple(self._pattern(field, text) for field, text in self._items(name, required=required))

    def broker_ids(self, name: str) -> tuple[str, ...]:
        ids = {text: field for field, text in self._items(name, required=True)}
        for broker, field in ids.items():
            try:
                check_broker_id(broker)
            except InvalidName as error:
                raise self._wrong(f"{field}: {error}") from None
        return tuple(sorted(ids))

    def integer(self, name: str, default: int, *, most: int) -> int:
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self._wrong(f"{name} is {value!r}, and is to be an integer from 0 to {most}")
        return value

    def namespace(self, name: str) -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str):
            raise self._wrong(f"{name} is to be the name of a namespace")
        try:
            return check_namespace(value)
        except InvalidName as error:
            raise self._wrong(str(error)) from None

    def range(self, name: str) -> tuple[int, int]:
        """The whole hash space if it is not given."""
        value = self._left.pop(name, None)
        if value is None:
            return 0, HASH_MAX
        if not isinstance(value, str):
            raise self._wrong(f"{name} is {value!r}, and is to be a range such as 0x00000000_0x80000000")
        try:
            return parse_range(value)
        except InvalidName as error:
            raise self._wrong(str(error)) from None

    def check_no_others(self) -> None:
        """Raise if something is left: a misspelled field must not pass for one that was not given."""
        if self._left:
            raise self._wrong(f"it has no field {min(self._left)!r}")

    def _items(self, name: str, *, required: bool) -> list[tuple[str, str]]:
        numbered = []
        for field in sorted(self._left):
            match = _match_item(field)
            if match is not None and match[1] == name:
                numbered.append((int(match[2]), field))
        items = [(field, self._left.pop(field)) for _, field in sorted(numbered)]
        if required and not items:
            raise self._wrong(f"it needs at least one of {name}, as {name}.0")
        return [(field, self._text(field, value)) for field, value in items]

    def _text(self, field: str, value: Scalar) -> str:
        if not isinstance(value, str) or not value or not value.isprintable():  # No record can spell a lone surrogate, either.
            raise self._wrong(f"{field} is {value!r}, and is to be a text of printable characters that is not empty")
        return value

    def _pattern(self, field: str, text: str) -> Pattern:
        pattern, problem = _compiled(text)
        if pattern is None:
            raise self._wrong(f"{field} is {text!r}, which is no regular expression that can be used: {problem}")
        return pattern

    def _wrong(self, problem: str) -> InvalidPolicy:
        return InvalidPolicy(policy=self._policy, problem=problem)
