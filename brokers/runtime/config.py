"""Define and check a worker's settings. Checks need nothing but the settings: no port or disk is touched here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from equipoise.brokers.agent.timing import Timing, timing_of
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import Value, value_of, with_values
from equipoise.brokers.errors import InvalidConfig, InvalidSetting, UnknownSetting
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import check_broker_id
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, INTEGER_MAX, TEXT_CHARACTERS_MAX
from equipoise.compaction.retention import RETAIN_BY_DEFAULT, parse_retention

_TIMING: Final = Timing()

# Defaults that depend on the kind of log. The fields' own defaults are those of the embedded log.
_BY_KIND_OF_LOG: Final = ("lease_ms", "renew_ms", "margin_ms", "round_trip_ms", "reconnect_ms", "failover_ms")

# A cluster with a lease of an hour would hardly heal; a deadline above a day is a mistake of the unit.
_PROMISE_MS_MAX: Final = 3_600_000
_DEADLINE_MS_MAX: Final = 86_400_000

ENDING_MS: Final = 25_000
"""Longest graceful stop beyond draining and the last close: last records 2 s, open bundles 2 s, services that swallow their cancellation 2
s, the log 2 s, evidence 2 s, observations 2 s, the data directory 2 s, answers in progress and their cancellation 4 s, Pulsar's clients 2
s, large handovers 2 s; the rest is for the end of the loop and the process."""

SETTLE_MS_MAX: Final = 1_000
"""Longest delay of a move. A broker that ends waits for it, so it is part of `ENDING_MS`."""

# Host, colon and port may be a broker's id: at most 255 characters.
_match_host_name: Final = re.compile(
    r"(?=.{1,240}\Z)(?!\d+(\.\d+){3}\Z)[A-Za-z0-9]([-A-Za-z0-9_]*)(\.[A-Za-z0-9][-A-Za-z0-9_]*)*\.?"
).fullmatch

FOLLOWING: Final[Mapping[str, Mapping[str, Callable[[int], Value]]]] = MappingProxyType(
    {
        "balance": {"balancing.enabled": bool},
        "balance_interval_ms": {
            "balancing.shed_interval_ms": int,
            "balancing.split_interval_ms": int,
            "balancing.rest_ms": lambda interval_ms: 12 * interval_ms,
            "reports.sample_interval_ms": lambda interval_ms: max(interval_ms // 2, 1),
            "reports.interval_min_ms": lambda interval_ms: max(interval_ms // 2, 1),
            "reports.interval_max_ms": int,
        },
    }
)
"""The settings of balancing that are derived from a broker's settings, and how."""

Promise = Annotated[int, Field(ge=1, le=_PROMISE_MS_MAX)]
DeadlineMs = Annotated[int, Field(ge=1, le=_DEADLINE_MS_MAX)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
Names = Annotated[tuple[Text, ...], BeforeValidator(lambda given: tuple(given.split(",")) if isinstance(given, str) else given)]


def _not_empty(path: object) -> object:
    if path == "":  # pathlib would use the working folder.
        raise PydanticCustomError("empty_path", "the name is empty")
    return path


NamedPath = Annotated[Path, BeforeValidator(_not_empty)]


class WorkerConfig(BaseModel):
    """How one broker runs. Durations are in milliseconds.

    Raise `InvalidConfig` with all problems, or `InvalidConfig` for durations that are unsafe together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    log_url: str = Field(
        min_length=1,
        description="The log that all brokers of a cluster share: `sqlite:PATH`, one file on this machine, "
        "`kafka://HOST:PORT[,HOST:PORT]/TOPIC`, or `memory:NAME`.",
    )
    data_dir: NamedPath = Field(
        description="The directory of this one broker: its lock, its nonces, its snapshot. On a disk of this machine, never copied, "
        "never shared. A broker that loses it comes back only after its former lease has run out.",
    )
    cluster: Text = Field(default="equipoise", description="The cluster's id. The log of another cluster is refused.")
    broker_id: str | None = Field(
        default=None, description="The broker's id, the same over restarts; HOST:PORT of its HTTP address if it is not given, as in Pulsar."
    )
    host: str = Field(
        default="127.0.0.1",
        description="The address that HTTP listens on. Anything but loopback needs `insecure`, for nobody is asked who they are.",
    )
    http_port: int = Field(default=8080, ge=0, le=65_535, description="The port that HTTP listens on; 0 takes any that is free.")
    insecure: bool = Field(default=False, description="Listen where other machines can reach it, although whoever reaches it may do all.")
    advertised_host: str | None = Field(
        default=None, description="The host that clients are told; `host` if it is not given. Needed where `host` stands for all addresses."
    )
    http_hosts: Names = Field(
        default=(),
        max_length=DOCUMENT_ENTRIES_MAX,
        description="More names, with commas between them, by which HTTP may ask for this broker (header Host), such as that of a proxy. "
        "Its own are always taken: loopback, `host`, those that it advertises, the address that a caller connected to.",
    )
    http_connections_max: int = Field(
        default=11_000,
        ge=1,
        le=1_000_000,
        description="Connections over HTTP: 10,000 that follow assignments, and others. One more is answered 503. An idle one costs "
        "20 KiB, and one of the files that the system lets a process open.",
    )
    http_idle_ms: DeadlineMs = Field(
        default=75_000,
        description="A connection over HTTP is closed that sends no whole head of a request for so long, or takes nothing of an answer.",
    )
    http_body_ms: DeadlineMs = Field(default=60_000, description="How long the body of a request may take; then it is answered 408.")

    capacity: int = Field(
        default=100, ge=1, le=INTEGER_MAX, description="A weight: a broker of 200 is to carry twice the load of one of 100."
    )
    cpu_cores: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="How many CPUs there are for this broker and its child processes; as many as the control group and the affinity of "
        "the process allow if it is not given. Its load report tells how much of them it uses.",
    )
    failure_domain: Text | None = Field(default=None, description="What may fail as a whole with this broker: a rack, a zone.")
    labels: dict[Text, Annotated[str, Field(max_length=TEXT_CHARACTERS_MAX)]] = Field(
        default_factory=dict, max_length=DOCUMENT_ENTRIES_MAX, description="Anything else that a policy may ask about this broker."
    )

    pulsar_port: int | None = Field(
        default=None, ge=0, le=65_535, description="The port for clients of Apache Pulsar, 0 for any that is free; none without it."
    )
    pulsar_connections_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Connections of Pulsar's clients. An idle one costs 4 KiB, and one of the files that the system lets a process open.",
    )
    pulsar_connections_per_address_max: int = Field(
        default=6_000, ge=1, le=1_000_000, description="The same from one address, so that one host cannot shut out the others."
    )
    pulsar_message_bytes_max: int = Field(
        default=5 * 1024 * 1024,
        ge=1_024,
        le=128 * 1024 * 1024,
        description="The largest message of Pulsar's clients, in bytes. Alike on all brokers: clients keep the last that they were told.",
    )
    pulsar_keep_alive_ms: DeadlineMs = Field(
        default=30_000,
        description="A client of Pulsar that is silent for so long is asked for a sign of life; after as long again it is given up.",
    )
    pulsar_settle_ms: int = Field(
        default=2,
        ge=0,
        le=SETTLE_MS_MAX,
        description="How long a program has, when a topic moves, to take out what its library holds for it and then throws away; in Java "
        "at least 25. As long as it takes to work off the longest burst loses nothing, and deliveries pause for as much longer.",
    )
    pulsar_stats_ms: DeadlineMs = Field(default=10_000, description="The window of the rates in the stats of Pulsar's topics.")

    lease_ms: Promise = Field(
        default=_TIMING.lease_ms,
        description="How long the broker may serve after it decided on its last accepted renewal. Shorter: a dead broker's bundles "
        "move sooner; longer: a slow log or a stall costs less often a living one its bundles. On Kafka 15,000, 3,000 and 1,000 are the "
        "defaults of this setting and the next two.",
    )
    renew_ms: Promise = Field(default=_TIMING.renew_ms, description="How often it renews. Each renewal is a record that all brokers read.")
    margin_ms: Promise = Field(
        default=_TIMING.margin_ms,
        description="How long others wait beyond the lease before they declare it dead: covers clocks of unequal rate, stalls, and sleeps "
        "that the clocks hide.",
    )
    round_trip_ms: Promise = Field(default=_TIMING.round_trip_ms, description="The longest time from append to read-back that is normal.")
    reconnect_ms: Promise = Field(default=_TIMING.reconnect_ms, description="The longest reconnect after an outage of the log.")
    failover_ms: int = Field(
        default=_TIMING.failover_ms,
        ge=0,
        le=_PROMISE_MS_MAX,
        description="How long the log is away while it replaces a node of its own that has died: on Kafka its session timeout "
        "(broker.session.timeout.ms) and an election. A lease that does not outlast it is refused.",
    )
    stall_ms: Promise = Field(default=_TIMING.stall_ms, description="The longest stall of the process that must not cost it its bundles.")
    clock_rate_error_ppm: int = Field(
        default=_TIMING.clock_rate_error_ppm,
        ge=0,
        le=100_000,
        description="How much faster or slower than true time a clock may run, in millionths.",
    )
    prepare_ms: DeadlineMs = Field(default=_TIMING.prepare_ms, description="The service's deadline to warm up for a bundle.")
    open_ms: DeadlineMs = Field(default=_TIMING.open_ms, description="The service's deadline to open a bundle; nobody serves it meanwhile.")
    close_ms: DeadlineMs = Field(
        default=_TIMING.close_ms,
        description="The service's deadline to close a bundle, which nobody serves meanwhile, or to discard what it prepared. A "
        "service that overruns it and cannot be stopped ends its process.",
    )
    log_wait_ms: int = Field(
        default=60_000,
        ge=0,
        le=_DEADLINE_MS_MAX,
        description="How long a start waits for a log that is away before it fails; meanwhile `/health` answers, and `/ready` says why it "
        "is not. What is wrong with the log is no reason to wait.",
    )
    drain_ms: DeadlineMs = Field(
        default=30_000,
        description="The deadline of a graceful stop: what has not been moved away by then is let go without a new owner.",
    )

    lookup_ms: DeadlineMs = Field(
        default=10_000, description="How long a lookup is held while its bundle has no owner that can be named; then it fails."
    )
    admin_ms: DeadlineMs = Field(
        default=60_000, description="How long an admin call waits for what it asked for to be done; the move itself goes on after it."
    )

    evidence: NamedPath | None = Field(
        default=None, description="A file to which each piece of finished work is added as a line, for an independent judge. For tests."
    )
    observations: bool = Field(
        default=True,
        description="Whether it puts down, beside the channel, from when until when it served each bundle, and on the embedded log its "
        "load reports: for audits and archives (`equipoise spark`). No broker reads them.",
    )
    balance: bool = Field(default=True, description="Whether this broker, when it leads, moves bundles to even out the load.")
    balance_interval_ms: DeadlineMs = Field(
        default=5_000, description="The time between two rounds of the balancer. Shorter follows load sooner, and moves more."
    )
    balancing: dict[str, Value] = Field(
        default_factory=dict,
        description="Settings of balancing, GROUP.FIELD, over those that follow from `balance` and `balance_interval_ms`; the channel's "
        "are over them. Any setting with a dot in its name is one of these.",
    )
    compact_records: int = Field(
        default=50_000,
        ge=0,
        le=INTEGER_MAX,
        description="The leader has the log compacted once so many records were added; 0 is never. Fewer: starts are quicker; each "
        "compaction reads all that was added, and writes what changed.",
    )
    compact_age_ms: DeadlineMs = Field(
        default=3_600_000,
        description="The same after so much time, if anything was added at all. Bounds how much an idle cluster's start reads.",
    )
    retain: str = Field(
        default=RETAIN_BY_DEFAULT,
        description="How much of what is compacted stays on the log for those who look back: a time (`7d`, `12h`), a size (`64MiB`) or "
        "`10000 offsets`; never less than the newest ten minutes.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _typed(cls, values: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Turn pydantic's errors into `InvalidConfig`; those of the checks below pass through."""
        try:
            config = handler(_with_timing(_with_balancing(values)))
        except ValidationError as error:
            raise InvalidConfig(problems=tuple(_told(detail["loc"], detail["type"], detail["msg"]) for detail in error.errors())) from None
        problems = [f"{setting}: {problem}" for setting, problem in _problems(config).items()]
        if problems:
            raise InvalidConfig(problems=tuple(problems))
        config.timing().check()
        return config

    def timing(self) -> Timing:
        """Return the durations for the agent."""
        return Timing(
            lease_ms=self.lease_ms,
            renew_ms=self.renew_ms,
            margin_ms=self.margin_ms,
            round_trip_ms=self.round_trip_ms,
            reconnect_ms=self.reconnect_ms,
            failover_ms=self.failover_ms,
            stall_ms=self.stall_ms,
            clock_rate_error_ppm=self.clock_rate_error_ppm,
            prepare_ms=self.prepare_ms,
            open_ms=self.open_ms,
            close_ms=self.close_ms,
        )

    @property
    def base_settings(self) -> BalancingSettings:
        """The settings of balancing that the channel does not override."""
        following = {name: follows(getattr(self, setting)) for setting, row in FOLLOWING.items() for name, follows in row.items()}
        return with_values(BalancingSettings(), following | self.balancing)

    @property
    def stop_ms(self) -> int:
        """The longest graceful stop in ms, from the first signal to the end of the process."""
        return self.drain_ms + self.close_ms + ENDING_MS

    @property
    def authority(self) -> str:
        """HOST:PORT for clients. Valid once `http_port` is bound."""
        host = self.advertised_host or self.host
        return f"[{host}]:{self.http_port}" if _is_ipv6(host) else f"{host}:{self.http_port}"

    @property
    def pulsar_url(self) -> str:
        """The URL for Pulsar clients. Valid once `pulsar_port` is bound."""
        host = self.advertised_host or self.host
        return f"pulsar://[{host}]:{self.pulsar_port}" if _is_ipv6(host) else f"pulsar://{host}:{self.pulsar_port}"

    @property
    def id(self) -> str:
        """The broker's id: `broker_id`, or else its `authority`."""
        return self.broker_id or self.authority

    @property
    def http_url(self) -> str:
        """The broker's HTTP URL for clients."""
        return f"http://{self.authority}"


def installed_version() -> str:
    """Return the installed version, which a broker publishes on joining; empty if not installed."""
    try:
        return version("equipoise")
    except PackageNotFoundError:
        return ""


def _with_timing(values: object) -> object:
    """Add the missing durations of the kind of log."""
    if not isinstance(values, Mapping) or not isinstance(values.get("log_url"), str):
        return values  # The model reports it.
    timing = timing_of(values["log_url"])
    return {**{setting: getattr(timing, setting) for setting in _BY_KIND_OF_LOG}, **values}


def _with_balancing(values: object) -> object:
    """Move settings with a dot in their name into `balancing`."""
    if not isinstance(values, Mapping) or not isinstance(values.get("balancing", {}), Mapping):
        return values  # The model reports it.
    dotted = {name: value for name, value in values.items() if isinstance(name, str) and "." in name}
    plain = {name: value for name, value in values.items() if name not in dotted}
    return {**plain, "balancing": {**values.get("balancing", {}), **dotted}} if dotted else plain


def _told(location: tuple[int | str, ...], kind: str, message: str) -> str:
    setting = ".".join(str(part) for part in location)
    problem = "there is no such setting" if kind == "extra_forbidden" else _in_our_words(message)
    return f"{setting}: {problem}" if setting else problem


def _in_our_words(message: str) -> str:
    """Turn pydantic's message into the rest of a sentence about a setting: "it must be ..."."""
    rest = message.removeprefix("Input should be ")
    return message if rest == message else f"it must be {rest}"


def _problems(config: WorkerConfig) -> Mapping[str, str]:
    """Return the problems by setting, where type and range are right."""
    problems = {}
    if config.broker_id is not None:
        try:
            check_broker_id(config.broker_id)
        except CallerError as error:
            problems["broker_id"] = str(error)
    try:
        parse_retention(config.retain)
    except CallerError as error:
        problems["retain"] = str(error)
    if not _is_host(config.host):
        problems["host"] = f"{config.host!r} is neither an address nor the name of a host"
    elif not config.insecure and not _is_loopback(config.host):
        problems["host"] = (
            f"{config.host} can be reached from other machines, and there is no authentication yet; "
            "listen on 127.0.0.1, or say `insecure` if the network itself keeps strangers out"
        )
    if config.advertised_host is None:
        if _is_any_address(config.host):
            problems["advertised_host"] = f"{config.host} stands for all addresses; say which of them clients are to use"
    elif not _is_host(config.advertised_host) or _is_any_address(config.advertised_host):
        problems["advertised_host"] = f"{config.advertised_host!r} is not a host that clients could reach"
    strange = next((name for name in config.http_hosts if not _is_host(name)), None)
    if strange is not None:
        problems["http_hosts"] = f"{strange!r} is neither an address nor the name of a host; a name has no port"
    problems |= _problems_of_balancing(config.balancing)
    for setting, path in (("log_url", Path(config.log_url)), ("data_dir", config.data_dir), ("evidence", config.evidence)):
        if path is not None and "\0" in str(path):
            problems[setting] = "a path cannot hold a null character"
    return problems


def _problems_of_balancing(settings: Mapping[str, Value]) -> Mapping[str, str]:
    problems = {}
    for setting, value in settings.items():
        try:
            value_of(setting, value)
        except UnknownSetting as error:
            problems[setting] = "there is no such setting" + (f"; there is {error.nearest}" if error.nearest else "")
        except InvalidSetting as error:
            problems[setting] = f"it must be {error.expected}"
    return problems


def _is_host(host: str) -> bool:
    return _is_address(host) or _match_host_name(host) is not None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # The zone of a link-local address means nothing on another machine.


def _is_ipv6(host: str) -> bool:
    return _is_address(host) and isinstance(ip_address(host), IPv6Address)


def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback if _is_address(host) else host.rstrip(".").lower() == "localhost"


def _is_any_address(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_unspecified
