"""Define and check a worker's settings. Checks need nothing but the settings: no port or disk is
touched here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from equipoise.brokers.agent.timing import DURATIONS_BY_LOG, Timing, timing_of
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import Value, problems_of, with_values
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.load.resource_use import Capacities
from equipoise.brokers.runtime.hosts import is_any_address, is_host, is_ipv6, is_loopback
from equipoise.brokers.security.tls import TlsFiles
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import check_broker_id, check_cluster
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, INTEGER_MAX, TEXT_CHARACTERS_MAX
from equipoise.compaction.retention import RETAIN_BY_DEFAULT, parse_retention

_TIMING: Final = Timing()

# A cluster with a lease of an hour would hardly heal; a deadline above a day is a mistake of the
# unit.
_PROMISE_MS_MAX: Final = 3_600_000
_DEADLINE_MS_MAX: Final = 86_400_000

ENDING_MS: Final = 25_000
"""Longest graceful stop beyond draining and the last close: last records 2 s, open bundles 2 s,
services that swallow their cancellation 2 s, the log 2 s, evidence 2 s, observations 2 s, the data
directory 2 s, answers in progress and their cancellation 4 s, consumers of Pulsar's last bundles 2
s, its clients 2 s, large handovers 2 s; the rest is for the end of the loop and the process."""

SETTLE_MS_MAX: Final = 1_000
"""Longest delay of a move. A broker that ends waits for it, so it is part of `ENDING_MS`."""

# The settings that say how clients prove who they are.
_PROOFS: Final = ("token_secret_key", "token_public_key", "basic_passwords", "certificate_roles")

DERIVED: Final[Mapping[str, Mapping[str, Callable[[int], Value]]]] = MappingProxyType(
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
Names = Annotated[
    tuple[Text, ...],
    BeforeValidator(lambda given: tuple(given.split(",")) if isinstance(given, str) else given),
]


def _not_empty(path: object) -> object:
    if path == "":  # pathlib would use the working folder.
        raise PydanticCustomError("empty_path", "the name is empty")
    return path


NamedPath = Annotated[Path, BeforeValidator(_not_empty)]


class WorkerConfig(BaseModel):
    """How one broker runs. Durations are in milliseconds.

    Raise `InvalidConfig` with all problems, or with the first of durations that are unsafe
    together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    log_url: str = Field(
        min_length=1,
        description=(
            "The log that all brokers of a cluster share: `sqlite:PATH` (one file on this machine),"
            " `kafka://HOST:PORT[,HOST:PORT]/TOPIC`, or `memory:NAME`."
        ),
    )
    data_dir: NamedPath = Field(
        description=(
            "The broker's own directory, for its lock, instance ids and snapshot. Use a local disk,"
            " and never copy or share the directory. Without it, the broker can rejoin only after"
            " its former lease has expired."
        ),
    )
    cluster: Text = Field(
        default="equipoise",
        description="The cluster's id. A broker refuses the log of another cluster.",
    )
    broker_id: str | None = Field(
        default=None,
        description=(
            "The broker's id, which must stay the same over restarts. Default: HOST:PORT of its"
            " HTTP address, as in Pulsar."
        ),
    )
    host: str = Field(
        default="127.0.0.1",
        description=(
            "The address on which HTTP listens. Any address other than loopback needs"
            " `tls_certificate`, and `authentication` or `tls_require_client_certificate`."
            " Otherwise it needs `insecure`."
        ),
    )
    http_port: int = Field(
        default=8080, ge=0, le=65_535, description="The HTTP port. 0 means any free port."
    )
    insecure: bool = Field(
        default=False,
        description=(
            "Allow a `host` that other machines can reach, without TLS or without authentication. A"
            " mounted broker without authentication also needs it to answer requests from other"
            " machines."
        ),
    )
    advertised_host: str | None = Field(
        default=None,
        description=(
            "The host that clients use. Default: `host`. Required if `host` stands for all"
            " addresses."
        ),
    )
    check_address: bool = Field(
        default=True,
        description=(
            "Whether the broker joins only after it has answered at the address that it"
            " advertises. Turn it off in a network where a host cannot call itself at the address"
            " that others use."
        ),
    )
    http_hosts: Names = Field(
        default=(),
        max_length=DOCUMENT_ENTRIES_MAX,
        description=(
            "Further names that HTTP accepts in the header Host, separated by commas, for example a"
            " proxy's. Always accepted: loopback, `host`, the advertised names, and the address"
            " that the client connected to."
        ),
    )
    http_connections_max: int = Field(
        default=11_000,
        ge=1,
        le=1_000_000,
        description=(
            "The maximum of HTTP connections. Further ones get 503. An idle connection costs 20"
            " KiB and one open file."
        ),
    )
    http_idle_ms: DeadlineMs = Field(
        default=75_000,
        description=(
            "The broker closes an HTTP connection that sends no complete request head, or takes"
            " nothing of an answer, for this long."
        ),
    )
    http_body_ms: DeadlineMs = Field(
        default=60_000,
        description="How long the body of a request may take. After that, the answer is 408.",
    )

    identity_connections_max: int = Field(
        default=6_000,
        ge=1,
        le=1_000_000,
        description=(
            "The maximum of connections of one identity at each port. An identity is the role of a"
            " client, or its address. No limit per identity applies to the cluster's brokers."
        ),
    )
    identity_requests_per_second_max: int = Field(
        default=5_000,
        ge=1,
        le=1_000_000,
        description=(
            "How many requests per second of one identity the broker answers. Twice as many may"
            " come at once. HTTP answers 429 beyond that. On the Pulsar port, they wait."
        ),
    )
    identity_bytes_per_second_max: int | None = Field(
        default=None,
        ge=1_024,
        le=INTEGER_MAX,
        description=(
            "How many bytes per second the broker accepts from one identity: all on the Pulsar"
            " port, and bodies of HTTP requests. Twice as many may come at once. Beyond that, the"
            " Pulsar port reads later, and HTTP answers 429. Default: no limit."
        ),
    )

    authentication: bool = Field(
        default=False,
        description=(
            "Whether clients must prove who they are, over HTTP and on the Pulsar port: by a token,"
            " a password, or a certificate. Needs one or more of `token_secret_key` or"
            " `token_public_key`, `basic_passwords`, and `certificate_roles`. Tokens and passwords"
            " need the extra `auth`."
        ),
    )
    token_secret_key: SecretStr | None = Field(
        default=None,
        description=(
            "The secret key of tokens (HS256, HS384, HS512), at least 32 bytes: `file:///PATH`,"
            " `data:;base64,TEXT`, a path, or base64 without a slash. A folder holds up to 8 keys,"
            " and a token may be signed with any of them."
        ),
    )
    token_public_key: Text | None = Field(
        default=None,
        description=(
            "The public key of tokens, in DER or PEM, given in the same forms: RSA (RS256, RS384,"
            " RS512), or P-256 (ES256), P-384 (ES384), P-521 (ES512)."
        ),
    )
    token_claim: Text = Field(
        default="sub", description="The claim of a token that names the role of its bearer."
    )
    token_audience: Text | None = Field(
        default=None,
        description=(
            "The audience that tokens must name in their claim `aud`. Default: it is not checked."
        ),
    )
    basic_passwords: SecretStr | None = Field(
        default=None,
        description=(
            "The users and the hashes of their passwords, for basic authentication: a file of"
            " `htpasswd -B` or `-m`, given in the same forms. The user is the role."
        ),
    )
    certificate_roles: bool = Field(
        default=False,
        description=(
            "Whether a client may prove who it is with a certificate that `tls_ca` signs. Its"
            " common name (CN) is the role. Also brokers may, to each other."
        ),
    )
    broker_token: SecretStr | None = Field(
        default=None,
        description=(
            "How this broker proves itself to other brokers: a token, `basic:USER:PASSWORD`, or the"
            " `file:///PATH` of either. The file is read for each request, so it may be replaced at"
            " any time. Default: its certificate, with `certificate_roles`."
        ),
    )
    authorization: bool = Field(
        default=False,
        description=(
            "Whether roles need rights for what they do: see `equipoise rights` and `equipoise"
            " namespaces grant-permission`. Needs `authentication` and `super_roles`."
        ),
    )
    super_roles: Names = Field(
        default=(),
        max_length=DOCUMENT_ENTRIES_MAX,
        description=(
            "The roles that may do everything, separated by commas. Those of the brokers themselves"
            " must be among them."
        ),
    )
    proxy_roles: Names = Field(
        default=(),
        max_length=DOCUMENT_ENTRIES_MAX,
        description=(
            "The roles of Pulsar proxies, separated by commas. They must name the role of their"
            " client, and both roles need the rights. No other role may name a client."
        ),
    )
    tls_certificate: NamedPath | None = Field(
        default=None,
        description=(
            "The broker's certificate and the chain to its CA (PEM). With it, all ports accept TLS"
            " only, and the advertised addresses are `https://` and `pulsar+ssl://`. It must hold"
            " the host that clients use."
        ),
    )
    tls_key: NamedPath | None = Field(
        default=None, description="The unencrypted key of `tls_certificate` (PEM)."
    )
    tls_ca: NamedPath | None = Field(
        default=None,
        description=(
            "The CAs (PEM) that sign the certificates of the other brokers, and of clients if they"
            " must present one. Default: the CAs of the system, for brokers only."
        ),
    )
    tls_crl: NamedPath | None = Field(
        default=None,
        description=(
            "The certificate revocation lists (PEM) of the CAs in `tls_ca`. With it, a broker"
            " refuses revoked certificates of clients and brokers, and all certificates of a CA"
            " without a current list."
        ),
    )
    tls_require_client_certificate: bool = Field(
        default=False,
        description=(
            "Mutual TLS: accept only clients and brokers whose certificate is signed by `tls_ca`."
            " Without `authentication`, each of them has full access."
        ),
    )

    capacity: int | None = Field(
        default=None,
        ge=1,
        le=INTEGER_MAX,
        description="The load that it can take, in percent of a core. Default: by its cores.",
    )
    cpu_cores: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description=(
            "The CPUs of this broker and its child processes. Load reports give CPU use as a share"
            " of it. Default: what the control group and the CPU affinity allow."
        ),
    )
    capacities: Capacities = Field(
        default_factory=dict,
        description="Limits of declared costs, by unit: `tokens/s=2000`. No move exceeds them.",
    )
    failure_domain: Text | None = Field(
        default=None,
        description="What can fail as a whole together with this broker: a rack, a zone.",
    )
    labels: dict[Text, Annotated[str, Field(max_length=TEXT_CHARACTERS_MAX)]] = Field(
        default_factory=dict,
        max_length=DOCUMENT_ENTRIES_MAX,
        description="Further properties of this broker, for policies.",
    )

    pulsar_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description=(
            "The port for Apache Pulsar's clients. 0 means any free port. Default: no port."
        ),
    )
    pulsar_connections_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description=(
            "The maximum of connections of Pulsar clients. An idle connection costs 4 KiB and one"
            " open file."
        ),
    )
    pulsar_message_bytes_max: int = Field(
        default=5 * 1024 * 1024,
        ge=1_024,
        le=128 * 1024 * 1024,
        description=(
            "The largest message of Pulsar clients, in bytes. Set the same value on all brokers."
        ),
    )
    pulsar_keep_alive_ms: DeadlineMs = Field(
        default=30_000,
        description=(
            "The broker pings a Pulsar client that is silent for this long. It disconnects the"
            " client after the same time again."
        ),
    )
    pulsar_settle_ms: int = Field(
        default=2,
        ge=0,
        le=SETTLE_MS_MAX,
        description=(
            "How long a client has, when its topic moves, to process the messages in its library's"
            " queue, which the library then discards. Java clients need at least 25. To lose"
            " nothing, set the time that the longest burst takes."
        ),
    )
    pulsar_stats_ms: DeadlineMs = Field(
        default=10_000, description="The time window of the rates in the stats of Pulsar topics."
    )

    lease_ms: Promise = Field(
        default=_TIMING.lease_ms,
        description=(
            "How long the broker may serve after it decided on its last accepted renewal. Defaults"
            " on Kafka: lease 3,000, renewal 500, grace period 500."
        ),
    )
    renew_ms: Promise = Field(
        default=_TIMING.renew_ms,
        description="The interval of renewals. Each renewal is a record that all brokers read.",
    )
    grace_ms: Promise = Field(
        default=_TIMING.grace_ms,
        description=(
            "The grace period: how long other brokers wait beyond the lease before they declare"
            " this broker dead."
        ),
    )
    prove_deaths: bool = Field(
        default=True,
        description=(
            "Whether this broker and others of its machine see at once when the process of one of"
            " them ends, instead of after its lease."
        ),
    )
    extend_ms: int = Field(
        default=_TIMING.extend_ms,
        ge=0,
        le=_PROMISE_MS_MAX,
        description=(
            "How long the broker may serve after its last renewal while all brokers assure each"
            " other over HTTP that the log is away; 0: until its lease ends. On Kafka 30,000, and"
            " without HTTP 0; with 0: lease 15,000, renewal 3,000, grace period 1,000."
        ),
    )
    round_trip_ms: Promise = Field(
        default=_TIMING.round_trip_ms,
        description="The longest normal time from an append to its read-back.",
    )
    reconnect_ms: Promise = Field(
        default=_TIMING.reconnect_ms,
        description="The longest reconnect after an outage of the log.",
    )
    failover_ms: int = Field(
        default=_TIMING.failover_ms,
        ge=0,
        le=_PROMISE_MS_MAX,
        description=(
            "How long the log is unavailable while it replaces one of its own nodes. On Kafka: its"
            " session timeout (broker.session.timeout.ms) and an election. The extension, or else"
            " the lease, must outlast it."
        ),
    )
    stall_ms: Promise = Field(
        default=_TIMING.stall_ms,
        description="The longest stall of the process after which it must still have its bundles.",
    )
    clock_rate_error_ppm: int = Field(
        default=_TIMING.clock_rate_error_ppm,
        ge=0,
        le=100_000,
        description="How much faster or slower than true time a clock may run, in millionths.",
    )
    prepare_ms: DeadlineMs = Field(
        default=_TIMING.prepare_ms, description="The service's deadline to warm up for a bundle."
    )
    open_ms: DeadlineMs = Field(
        default=_TIMING.open_ms,
        description=(
            "The service's deadline to open a bundle, which no broker serves meanwhile. It begins"
            " again while state streams from the former owner."
        ),
    )
    close_ms: DeadlineMs = Field(
        default=_TIMING.close_ms,
        description=(
            "The service's deadline to close a bundle, which no broker serves meanwhile, or to"
            " discard what it prepared. If a service overruns it and cannot be stopped, its process"
            " ends."
        ),
    )
    log_wait_ms: int = Field(
        default=60_000,
        ge=0,
        le=_DEADLINE_MS_MAX,
        description=(
            "How long a start waits for an unavailable log. Any other problem of the log ends the"
            " start at once."
        ),
    )
    drain_ms: DeadlineMs = Field(
        default=30_000,
        description=(
            "The deadline of a graceful stop. Bundles that have not moved by then are released"
            " without a new owner."
        ),
    )

    lookup_ms: DeadlineMs = Field(
        default=10_000,
        description="How long a lookup waits for an owner of its bundle before it fails.",
    )
    admin_ms: DeadlineMs = Field(
        default=60_000,
        description=(
            "How long an admin call waits for its result. The operation itself continues after"
            " that."
        ),
    )

    evidence: NamedPath | None = Field(
        default=None,
        description=(
            "A file for evidence: one line for each finished piece of work, for an independent"
            " checker. For tests."
        ),
    )
    observations: bool = Field(
        default=True,
        description=(
            "Record beside the channel when this broker served each bundle. Audits and archives"
            " read it."
        ),
    )
    measure_cpu: bool = Field(
        default=True,
        description=(
            "Measure the CPU time that the work on each bundle uses, which takes a few"
            " microseconds for each call."
        ),
    )
    balance: bool = Field(
        default=True,
        description="Whether this broker, when it leads, moves bundles to balance the load.",
    )
    balance_interval_ms: DeadlineMs = Field(
        default=5_000,
        description=("The interval of the balancer's rounds."),
    )
    balancing: dict[str, Value] = Field(
        default_factory=dict,
        description=(
            "Settings of balancing (GROUP.FIELD). They override what follows from `balance` and"
            " `balance_interval_ms`; settings on the channel override them."
        ),
    )
    compact_records: int = Field(
        default=50_000,
        ge=0,
        le=INTEGER_MAX,
        description=("The leader compacts the log after this many new records; 0 means never."),
    )
    compact_age_ms: DeadlineMs = Field(
        default=3_600_000,
        description=("The leader compacts the log after this time, if there are new records."),
    )
    retain: str = Field(
        default=RETAIN_BY_DEFAULT,
        description=(
            "How much compacted history stays on the log: a time (`7d`, `12h`), a size (`64MiB`) or"
            " a number (`10000 offsets`). At least the newest ten minutes stay."
        ),
    )

    @model_validator(mode="wrap")
    @classmethod
    def _typed(cls, values: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Turn pydantic's errors into `InvalidConfig`; those of the checks below pass through."""
        try:
            config = handler(_with_timing(_with_balancing(values)))
        except ValidationError as error:
            raise InvalidConfig(problems=tuple(map(_described, error.errors()))) from None
        problems = [f"{setting}: {problem}" for setting, problem in _problems(config).items()]
        if problems:
            raise InvalidConfig(problems=tuple(problems))
        config.timing().check()
        return config

    def timing(self) -> Timing:
        """Return the durations for the agent: the settings of the same names."""
        return Timing(**self.model_dump(include={duration.name for duration in fields(Timing)}))

    @property
    def base_settings(self) -> BalancingSettings:
        """The settings of balancing that the channel does not override."""
        following = {
            name: follows(getattr(self, setting))
            for setting, row in DERIVED.items()
            for name, follows in row.items()
        }
        return with_values(BalancingSettings(), following | self.balancing)

    @property
    def is_secure(self) -> bool:
        """Whether connections are encrypted, and clients prove who they are."""
        return self.tls_certificate is not None and (
            self.authentication or self.tls_require_client_certificate
        )

    @property
    def stop_ms(self) -> int:
        """The longest graceful stop in ms, from the first signal to the end of the process."""
        return self.drain_ms + self.close_ms + ENDING_MS

    @property
    def authority(self) -> str:
        """HOST:PORT for clients. Valid once `http_port` is bound."""
        return self._at(self.http_port)

    @property
    def pulsar_url(self) -> str:
        """The URL for Pulsar clients. Valid once `pulsar_port` is bound."""
        scheme = "pulsar" if self.tls_certificate is None else "pulsar+ssl"
        return f"{scheme}://{self._at(self.pulsar_port)}"

    def _at(self, port: int | None) -> str:
        host = self.advertised_host or self.host
        return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"

    @property
    def id(self) -> str:
        """The broker's id: `broker_id`, or else its `authority`."""
        return self.broker_id or self.authority

    @property
    def http_url(self) -> str:
        """The broker's HTTP URL for clients."""
        return f"{'http' if self.tls_certificate is None else 'https'}://{self.authority}"

    @property
    def tls_files(self) -> TlsFiles:
        """The files for TLS, on its ports and to other brokers."""
        return TlsFiles(
            certificate=self.tls_certificate,
            key=self.tls_key,
            ca=self.tls_ca,
            crl=self.tls_crl,
            requires_client_certificate=self.tls_require_client_certificate,
            asks_client_certificate=self.certificate_roles,
        )


def _with_timing(values: object) -> object:
    """Add the missing durations of the kind of log."""
    if not isinstance(values, Mapping) or not isinstance(values.get("log_url"), str):
        return values  # The model reports it.
    timing = timing_of(values["log_url"], extends=str(values.get("extend_ms")) != "0")
    return {**{setting: getattr(timing, setting) for setting in DURATIONS_BY_LOG}, **values}


def _with_balancing(values: object) -> object:
    """Move settings with a dot in their name into `balancing`."""
    if not isinstance(values, Mapping) or not isinstance(values.get("balancing", {}), Mapping):
        return values  # The model reports it.
    dotted = {
        name: value for name, value in values.items() if isinstance(name, str) and "." in name
    }
    plain = {name: value for name, value in values.items() if name not in dotted}
    return {**plain, "balancing": {**values.get("balancing", {}), **dotted}} if dotted else plain


def _described(error: ErrorDetails) -> str:
    """Turn a problem of pydantic into a sentence about a setting: "NAME: it must be ..."."""
    setting, message = ".".join(map(str, error["loc"])), error["msg"]
    requirement = message.removeprefix("Input should be ")
    problem = message if requirement == message else f"it must be {requirement}"
    if error["type"] == "string_too_short":
        problem = "it must not be empty"
    if error["type"] == "extra_forbidden":
        close = get_close_matches(setting, WorkerConfig.model_fields, n=1)
        problem = "there is no such setting" + "".join(f"; did you mean {name}?" for name in close)
    return f"{setting}: {problem}" if setting else problem


def _problems(config: WorkerConfig) -> Mapping[str, str]:
    """Return the problems by setting, where type and range are right."""
    problems = {}
    checks = {"broker_id": check_broker_id, "cluster": check_cluster, "retain": parse_retention}
    for setting, check in checks.items():
        try:
            if getattr(config, setting) is not None:
                check(getattr(config, setting))
        except CallerError as error:
            problems[setting] = str(error)
    if not is_host(config.host):
        problems["host"] = f"{config.host!r} is neither an address nor a host name"
    elif not config.insecure and not config.is_secure and not is_loopback(config.host):
        problems["host"] = (
            f"{config.host} can be reached from other machines; set `tls_certificate`, and"
            " `authentication` or `tls_require_client_certificate`; or listen on 127.0.0.1; or set"
            " `insecure` if the network itself keeps others out"
        )
    if config.advertised_host is None:
        if is_any_address(config.host):
            problems["advertised_host"] = (
                f"{config.host} stands for all addresses; set the one that clients use"
            )
    elif not is_host(config.advertised_host) or is_any_address(config.advertised_host):
        problems["advertised_host"] = (
            f"{config.advertised_host!r} is not a host that clients can reach"
        )
    invalid = next((name for name in config.http_hosts if not is_host(name)), None)
    if invalid is not None:
        problems["http_hosts"] = f"{invalid!r} is no address or host name; a name has no port"
    problems |= _problems_of_authentication(config)
    problems |= _problems_of_authorization(config)
    problems |= problems_of(config.balancing)
    problems |= config.tls_files.missing()
    paths = {
        "log_url": Path(config.log_url),
        "data_dir": config.data_dir,
        "evidence": config.evidence,
        **config.tls_files.paths(),
    }
    for setting, path in paths.items():
        if path is not None and "\0" in str(path):
            problems[setting] = "a path cannot hold a null character"
    return problems


def _problems_of_authentication(config: WorkerConfig) -> Mapping[str, str]:
    given = [setting for setting in _PROOFS if getattr(config, setting)]
    if not config.authentication:
        return dict.fromkeys(
            given, "it has no effect without authentication; set authentication=true, too"
        )
    if not given:
        return {
            "authentication": (
                "it needs what clients prove themselves with; set one or more of"
                f" {', '.join(_PROOFS)}"
            )
        }
    if config.token_secret_key is not None and config.token_public_key is not None:
        return {
            "token_public_key": (
                "token_secret_key is set, too; set only the key of your tokens, or a folder of keys"
                " of one kind"
            )
        }
    if config.broker_token is None and not config.certificate_roles:
        return {
            "broker_token": (
                "with authentication, other brokers ask this one for it; set a token,"
                " basic:USER:PASSWORD, or a file:///PATH"
            )
        }
    return {}


def _problems_of_authorization(config: WorkerConfig) -> Mapping[str, str]:
    if not config.authorization:
        return {}  # Roles without effect do no harm, and Pulsar's own `broker.conf` may name some.
    if not config.authentication:
        return {
            "authorization": (
                "without authentication a broker does not know the role of a client; set"
                " authentication=true, too"
            )
        }
    if not config.super_roles:
        return {
            "super_roles": (
                "with authorization, name at least the roles of all brokers: each must let the"
                " others do everything"
            )
        }
    return {}


SECRET_VARIABLES: Final[Mapping[str, str]] = {
    name: f"EQUIPOISE_{name.upper()}"
    for name, field in WorkerConfig.model_fields.items()
    if SecretStr in get_args(field.annotation)
}
"""The environment variable of each setting whose value is never printed. Others on the machine can
read the arguments of a command, but not its environment.
"""
