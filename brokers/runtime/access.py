"""Who may use a broker, how much each client may take, and how the broker proves itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from pydantic import SecretStr

from equipoise.brokers.agent.core import Profile
from equipoise.brokers.balancing.grants import held_in
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.load.process_use import allowed_cores
from equipoise.brokers.load.resource_use import default_capacity
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.listening import Handshakes
from equipoise.brokers.runtime.metrics import Metrics
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.security.audit import Audit
from equipoise.brokers.security.gate import Gate, Proofs
from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.limits import Bounds, IdentityLimits, Limit, of_role
from equipoise.brokers.security.own_token import OwnToken, stranger_to_broker
from equipoise.brokers.security.rights import Authorization
from equipoise.brokers.security.tls import Certificates
from equipoise.channel.core.view import View
from equipoise.channel.system.failures import RepeatedFailures

_logger: Final = logging.getLogger(__name__)

# The interval of log lines about clients that exceed a limit, for each port and limit: they could
# be thousands per second.
_LIMIT_LINES_MS: Final = 60_000


class Access:
    """The checks of one broker's clients, on all its ports.

    * `gate`: what clients must pass; None: everyone passes.
    * `authorization`: what their roles may do; None: everything.
    * `limits`: what each may take.
    * `own_token`, `certificates`: how this broker proves itself.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        addresses: Mapping[str, str],
        clock: Clock,
        metrics: Metrics,
        view: Callable[[], View],
    ) -> None:
        """`addresses` are this broker's own, by protocol. `view` returns what it knows now.

        Raise `InvalidConfig` for unusable certificates and keys.
        """
        self._broker = config.id
        self._clock = clock
        self._metrics = metrics
        # The log names the addresses of other brokers, so the token is not sent to just any.
        stranger = partial(
            stranger_to_broker, own=own_http(addresses), has_ca=config.tls_ca is not None
        )
        self.own_token = OwnToken(_revealed(config.broker_token), stranger)
        self.audit = Audit(broker=config.id, now_ms=lambda: clock.now().boot_ms)
        self.certificates = Certificates(
            config.tls_files, broker=config.id, host=config.advertised_host or config.host
        )
        self.gate = _gate(config, metrics) if config.authentication else None
        self.authorization = (
            Authorization(
                super_roles=config.super_roles,
                held=lambda role, place: held_in(view(), role, place),
                refused=self._right_refused,
            )
            if config.authorization
            else None
        )
        bounds = Bounds(
            connections=config.identity_connections_max,
            requests_per_second=config.identity_requests_per_second_max,
            bytes_per_second=config.identity_bytes_per_second_max,
        )
        self.limits = IdentityLimits(bounds, exceeded=self._exceeded)
        if self.gate is not None:
            role = _own_role(config, self.gate, self.own_token, self.certificates)
            self.limits.unlimited = frozenset({of_role(role)})
        self.handshakes = Handshakes(self.certificates, self.audit, broker=config.id)
        metrics.register(self.handshakes)
        self._limit_lines = {
            (at, limit): RepeatedFailures(interval_ms=_LIMIT_LINES_MS)
            for at in Surface
            for limit in Limit
        }

    def _right_refused(
        self, surface: Surface, *, what: str, why: str, client: str, role: str
    ) -> None:
        self._metrics.count("authorizations_refused_total", surface)
        self.audit.refused(surface, what=what, why=why, fault="forbidden", client=client, role=role)

    def _exceeded(self, surface: Surface, limit: Limit, identity: str) -> None:
        self._metrics.count("limits_exceeded_total", surface, limit)
        times = self._limit_lines[surface, limit].failed(self._clock.now().boot_ms)
        if times is not None:
            about = {
                "broker": self._broker,
                "port": surface.value,
                "limit": limit.value,
                "times": times,
            }
            _logger.warning(
                "a client exceeds a limit: %s", self.limits.problem(limit, identity), extra=about
            )


def installed_version() -> str:
    """Return the installed version, which a broker publishes on joining; empty if not installed."""
    try:
        return version("equipoise")
    except PackageNotFoundError:
        return ""


def profile_of(
    config: WorkerConfig, addresses: Mapping[str, str], namespaces: tuple[str, ...] | None
) -> Profile:
    """Return what the broker publishes on joining. `namespaces`: patterns of those that its
    services serve; None: all.
    """
    return Profile(
        addresses=dict(addresses),
        capacity=config.capacity or default_capacity(config.cpu_cores, allowed=allowed_cores()),
        failure_domain=config.failure_domain,
        labels=dict(config.labels),
        namespaces=namespaces,
        version=installed_version(),
    )


def _gate(config: WorkerConfig, metrics: Metrics) -> Gate:
    proofs = Proofs(
        token_secret_key=_revealed(config.token_secret_key),
        token_public_key=config.token_public_key,
        token_claim=config.token_claim,
        token_audience=config.token_audience,
        basic_passwords=_revealed(config.basic_passwords),
        certificate_roles=config.certificate_roles,
        proxy_roles=config.proxy_roles,
    )
    return Gate(
        proofs,
        broker=config.id,
        counted=partial(metrics.count, "authentications_refused_total"),
        reload_failed=partial(metrics.count, "authentication_reload_failures_total"),
    )


def _own_role(
    config: WorkerConfig, gate: Gate, own_token: OwnToken, certificates: Certificates
) -> str:
    """Return who the broker is to others. Raise `InvalidConfig` if they would refuse it, or what it
    asks of them.
    """
    role = gate.check_own(own_token, certificates.own).role
    if config.authorization and role not in config.super_roles:
        problem = (
            f"with authorization, the role of the broker itself ({role!r}) must be one of them, or"
            " other brokers refuse it"
        )
        raise InvalidConfig(problems=(f"super_roles: {problem}; add it on all brokers",))
    if role in config.proxy_roles:
        problem = (
            f"they name the role of the broker itself ({role!r}), which asks for nobody else; give"
            " proxies a role of their own"
        )
        raise InvalidConfig(problems=(f"proxy_roles: {problem}",))
    return role


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
