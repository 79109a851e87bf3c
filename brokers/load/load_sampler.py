"""Sample what the bundles of a broker use: what was measured, and what its services report.

Of calls, CPU time and time in progress the larger figure counts, because a service may count what
is measured, too. A service may count from one call of `load` to the next, so all callers share one
sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic_ns
from typing import Final, Protocol

from equipoise.brokers.load.metering import Account
from equipoise.channel.core.ranges import namespace_in
from equipoise.channel.inspect.story import one_line
from equipoise.shedder.fit import Fit
from equipoise.shedder.loads import DECLARED_MAX, FIGURE_MAX, BundleLoad, Messaging, Resources

_logger: Final = logging.getLogger(__name__)

PROBLEM_CHARACTERS_MAX: Final = 200


class Loaded(Protocol):
    """A service that reports what its bundles cost."""

    def load(self) -> Mapping[str, BundleLoad]:
        """Return the load of each open bundle, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoads:
    """The loads of bundles at `at_ms` of boot time, by name. A bundle without one is idle.
    `problem`: why what a service reports is missing; None: all of it is here.
    """

    at_ms: int
    loads: Mapping[str, BundleLoad] = field(default_factory=dict)
    problem: str | None = None


class LoadSampler:
    """Samples the services of one broker, at most once per `fresh_ms`."""

    def __init__(
        self,
        services: Sequence[Loaded],
        *,
        accounts: Callable[[], Mapping[str, Account]] = dict,
        broker: str,
        now_ms: Callable[[], int],
        fresh_ms: int,
    ) -> None:
        """`accounts` returns those of the open bundles, by name, and `now_ms` boot time. `fresh_ms`
        is how long all callers may use one sample.
        """
        self.resources = Resources()  # Of the broker, as last measured; zeros before.
        self.fit = Fit()  # Of the CPU use of all brokers, as last read.
        self._services = services
        self._accounts = accounts
        self._broker = broker
        self._now_ms = now_ms
        self._fresh_ms = fresh_ms
        self._sample: ServiceLoads | None = None
        self._taken_ns = 0  # When accounts were asked last.
        self._logged: Mapping[int, str] = {}

    def latest(self) -> ServiceLoads:
        """Return the last sample if fresh, else a new one. Invalid reports are logged and left
        out.
        """
        now_ms = self._now_ms()
        if self._sample is None or now_ms - self._sample.at_ms >= self._fresh_ms:
            loads, problem = self._take()
            self._sample = ServiceLoads(at_ms=now_ms, loads=loads, problem=problem)
        return self._sample

    def _take(self) -> tuple[Mapping[str, BundleLoad], str | None]:
        loads: dict[str, BundleLoad] = {}
        problems: dict[int, str] = {}
        units: dict[str, str] = {}
        for number, service in enumerate(self._services):
            try:
                loads_of_service: object = service.load()
            except Exception as error:  # noqa: BLE001 - a service may raise anything
                problems[number] = f"it raises {type(error).__name__}: {error}"
                continue
            if not isinstance(loads_of_service, Mapping):
                problems[number] = (
                    f"it returns {type(loads_of_service).__name__}, not a mapping from names of"
                    " bundles to loads"
                )
                continue
            for name, load in loads_of_service.items():
                # The fast path: a broker may have thousands of bundles, sampled every few seconds.
                checked = (
                    load
                    if type(load) is BundleLoad and type(name) is str and _is_plain(load)
                    else _checked(name, load)
                )
                if isinstance(checked, BundleLoad) and checked.unit:
                    checked = _declared(name, checked, units)
                if isinstance(checked, BundleLoad):
                    loads[name] = checked
                else:
                    problems[number] = checked
        self._log(problems)
        since_ns, self._taken_ns = self._taken_ns, monotonic_ns()
        for name, account in self._accounts().items():
            measured = account.take(since_ns)
            if measured is not None:
                reported = loads.get(name)
                loads[name] = measured if reported is None else _merged(measured, reported)
        named = (
            f"load() of {type(self._services[number]).__name__}: {problem}"
            for number, problem in problems.items()
        )
        return loads, next((one_line(each)[:PROBLEM_CHARACTERS_MAX] for each in named), None)

    def _log(self, problems: Mapping[int, str]) -> None:
        """Log each problem once, when it appears."""
        for number, problem in problems.items():
            if self._logged.get(number) != problem:
                service = type(self._services[number]).__name__
                _logger.error(
                    "load of a service failed: %s",
                    problem,
                    extra={"broker": self._broker, "service": service},
                )
        self._logged = problems


def _merged(measured: BundleLoad, reported: BundleLoad) -> BundleLoad:
    return replace(
        reported,
        calls_per_second=max(measured.calls_per_second, reported.calls_per_second),
        bytes_per_second=min(measured.bytes_per_second + reported.bytes_per_second, FIGURE_MAX),
        cpu_seconds_per_second=max(
            measured.cpu_seconds_per_second, reported.cpu_seconds_per_second
        ),
        wall_seconds_per_second=max(
            measured.wall_seconds_per_second, reported.wall_seconds_per_second
        ),
    )


def _declared(name: str, load: BundleLoad, units: dict[str, str]) -> BundleLoad | str:
    """Return a load with a cost of its own; or the problem with it. `units`: of each namespace."""
    namespace = namespace_in(name)
    unit = units.setdefault(namespace, load.unit)
    if unit != load.unit:
        return f"it declares costs of {namespace} in {unit} and in {load.unit}: use one unit"
    if len(units) > DECLARED_MAX:
        return f"it declares costs of more than {DECLARED_MAX} namespaces: leave some out"
    return load


def _checked(name: object, load: object) -> BundleLoad | str:
    """Return a load in plain numbers, which any report can hold; or the problem with it."""
    if not isinstance(name, str) or not isinstance(load, BundleLoad):
        return f"it reports {load!r:.100} of {name!r:.100}, which is not a BundleLoad of a bundle"
    try:
        return BundleLoad(
            calls_per_second=float(load.calls_per_second),
            bytes_per_second=float(load.bytes_per_second),
            cpu_seconds_per_second=float(load.cpu_seconds_per_second),
            wall_seconds_per_second=float(load.wall_seconds_per_second),
            sessions=int(load.sessions),
            memory_bytes=int(load.memory_bytes),
            cost=float(load.cost),
            unit=str(load.unit),
            messaging=(
                _plain_messaging(load.messaging) if isinstance(load.messaging, Messaging) else None
            ),
        )
    except Exception as error:  # noqa: BLE001 - a number of a kind of its own may raise anything
        return f"the load of {name} is not a number: {type(error).__name__}: {error}"


def _is_plain(load: BundleLoad) -> bool:
    messaging = load.messaging
    return (
        type(load.calls_per_second) is float
        and type(load.bytes_per_second) is float
        and type(load.cpu_seconds_per_second) is float
        and type(load.wall_seconds_per_second) is float
        and type(load.sessions) is int
        and type(load.memory_bytes) is int
        and type(load.cost) is float
        and type(load.unit) is str
        and (
            messaging is None
            or (
                type(messaging) is Messaging
                and type(messaging.messages_in_per_second) is float
                and type(messaging.bytes_in_per_second) is float
                and type(messaging.messages_out_per_second) is float
                and type(messaging.bytes_out_per_second) is float
                and type(messaging.producers) is int
                and type(messaging.consumers) is int
                and type(messaging.topics) is int
            )
        )
    )


def _plain_messaging(messaging: Messaging) -> Messaging:
    return Messaging(
        messages_in_per_second=float(messaging.messages_in_per_second),
        bytes_in_per_second=float(messaging.bytes_in_per_second),
        messages_out_per_second=float(messaging.messages_out_per_second),
        bytes_out_per_second=float(messaging.bytes_out_per_second),
        producers=int(messaging.producers),
        consumers=int(messaging.consumers),
        topics=int(messaging.topics),
    )
