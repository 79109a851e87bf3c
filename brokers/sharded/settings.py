"""The settings of a program by name and type, for type checkers. `WorkerConfig` checks values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict


class Settings(TypedDict, total=False):
    """Any setting of a broker: see the reference of settings. Durations are in milliseconds."""

    data_dir: Path | str
    broker_id: str | None
    host: str
    http_port: int
    insecure: bool
    advertised_host: str | None
    check_address: bool
    http_hosts: Sequence[str]
    http_connections_max: int
    http_idle_ms: int
    http_body_ms: int
    identity_connections_max: int
    identity_requests_per_second_max: int
    identity_bytes_per_second_max: int | None
    authentication: bool
    token_secret_key: str | None
    token_public_key: str | None
    token_claim: str
    token_audience: str | None
    basic_passwords: str | None
    certificate_roles: bool
    broker_token: str | None
    authorization: bool
    super_roles: Sequence[str]
    proxy_roles: Sequence[str]
    tls_certificate: Path | str | None
    tls_key: Path | str | None
    tls_ca: Path | str | None
    tls_crl: Path | str | None
    tls_require_client_certificate: bool
    capacity: int
    cpu_cores: float | None
    failure_domain: str | None
    labels: Mapping[str, str]
    pulsar_port: int | None
    pulsar_connections_max: int
    pulsar_message_bytes_max: int
    pulsar_keep_alive_ms: int
    pulsar_settle_ms: int
    pulsar_stats_ms: int
    lease_ms: int
    renew_ms: int
    grace_ms: int
    round_trip_ms: int
    reconnect_ms: int
    failover_ms: int
    stall_ms: int
    clock_rate_error_ppm: int
    prepare_ms: int
    open_ms: int
    close_ms: int
    log_wait_ms: int
    drain_ms: int
    lookup_ms: int
    admin_ms: int
    evidence: Path | str | None
    observations: bool
    balance: bool
    balance_interval_ms: int
    balancing: Mapping[str, object]
    compact_records: int
    compact_age_ms: int
    retain: str
