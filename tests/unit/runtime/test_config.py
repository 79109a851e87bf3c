"""A worker's settings: defaults, bounds, and error messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.agent.timing import Timing, timing_of
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.http import app
from equipoise.brokers.pulsar import connections
from equipoise.brokers.pulsar.settings import Settings as PulsarSettings
from equipoise.brokers.runtime import service_runner, worker
from equipoise.brokers.runtime.access import profile_of
from equipoise.brokers.runtime.config import (
    ENDING_MS,
    SECRET_VARIABLES,
    SETTLE_MS_MAX,
    WorkerConfig,
)
from equipoise.brokers.runtime.observations import writer
from equipoise.channel.core.errors import EquipoiseError


def config(**settings: object) -> WorkerConfig:
    """Return settings with these and the required ones."""
    return WorkerConfig.model_validate(
        {"log_url": "sqlite:channel.db", "data_dir": "broker-0", **settings}
    )


def problem(**settings: object) -> str:
    """Return the error of these settings."""
    with pytest.raises(InvalidConfig) as caught:
        config(**settings)
    return str(caught.value)


def test_defaults_are_safe_and_local() -> None:
    plain = WorkerConfig(log_url="memory:test", data_dir=Path("broker-0"))
    assert ("127.0.0.1", 8080, False) == (plain.host, plain.http_port, plain.insecure)
    assert Timing() == plain.timing()


def test_a_broker_joins_with_the_capacity_that_is_set_or_that_of_its_cores() -> None:
    given: list[dict[str, object]] = [{"cpu_cores": 4}, {"cpu_cores": 4, "capacity": 7}]
    assert [400, 7] == [profile_of(config(**each), {}, None).capacity for each in given]


def test_durations_reach_the_timing() -> None:
    durations = {
        "lease_ms": 15_000,
        "renew_ms": 3_000,
        "grace_ms": 1_000,
        "round_trip_ms": 300,
        "reconnect_ms": 900,
        "stall_ms": 500,
    }
    deadlines = {"prepare_ms": 1, "open_ms": 2, "close_ms": 3, "clock_rate_error_ppm": 4}
    assert Timing(**durations, **deadlines) == config(**durations, **deadlines).timing()


def test_durations_depend_on_the_kind_of_log() -> None:
    kafka = "kafka://one:9092,two:9092/channel"
    assert timing_of(kafka) == config(log_url=kafka).timing()
    assert (
        replace(timing_of(kafka), lease_ms=5_000) == config(log_url=kafka, lease_ms=5_000).timing()
    )
    for never in (0, "0"):
        plain = timing_of(kafka, extends=False)
        assert plain == config(log_url=kafka, extend_ms=never).timing()
    extended = replace(timing_of(kafka), extend_ms=20_000)
    assert extended == config(log_url=kafka, extend_ms=20_000).timing()


def test_a_lease_shorter_than_kafkas_failover_is_refused() -> None:
    """Without an extension, and unless `failover_ms` is set shorter."""
    kafka = "kafka://localhost:9092/channel"
    with pytest.raises(
        InvalidConfig, match=r"lease_ms is 9000 ms, .* at least 14750 \(renewal \+ failover_ms"
    ):
        config(log_url=kafka, lease_ms=9_000, extend_ms=0)
    shorter = {"lease_ms": 9_000, "failover_ms": 4_000, "reconnect_ms": 2_500}
    assert 9_000 == config(log_url=kafka, extend_ms=0, **shorter).lease_ms


def test_settings_of_balancing_derive_from_the_brokers_until_they_are_set() -> None:
    """In `balancing`, or by their dotted names. Texts are converted."""
    plain = config(balance=False, balance_interval_ms=900).base_settings
    assert (False, 900, 10_800, 450) == (
        plain.balancing.enabled,
        plain.balancing.shed_interval_ms,
        plain.balancing.rest_ms,
        plain.reports.sample_interval_ms,
    )
    assert config().base_settings == BalancingSettings()
    given = {
        "balancing": {"balancing.rest_ms": 5, "limits.sessions_max": None},
        "balancing.enabled": "true",
        "transfer.transfer": False,
    }
    settings = config(balance=False, balance_interval_ms=900, **given).base_settings
    assert (True, 900, 5) == (
        settings.balancing.enabled,
        settings.balancing.shed_interval_ms,
        settings.balancing.rest_ms,
    )
    assert (None, False) == (settings.limits.sessions_max, settings.groups()["transfer"].transfer)


def test_all_invalid_settings_of_balancing_are_reported() -> None:
    """Each with the expected value, or the nearest name."""
    text = problem(
        **{
            "balanced.moves_max": "0",
            "balanced.move_max": "1",
            "balancing.shedder": "Mine",
            "x.y": 1,
        }
    )
    assert "balanced.moves_max: it must be an integer, at least 1" in text
    assert "no setting 'balanced.move_max' of balancing; did you mean balanced.moves_max?" in text
    assert "balancing.shedder: it must be one of BalancedShedder" in text
    assert "x.y: there is no setting 'x.y' of balancing; see which there are" in text
    assert "balancing: it must be a valid dictionary" in problem(
        **{"balancing": "on", "balanced.moves_max": 1}
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LocalHost."])
def test_loopback_needs_no_permission(host: str) -> None:
    assert host == config(host=host).host


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "2001:db8::1", "broker.example", "localhost.example"]
)
def test_other_addresses_need_insecure(host: str) -> None:
    assert "can be reached" in problem(host=host)
    encrypted = {"tls_certificate": "b.pem", "tls_key": "b.key"}
    assert "can be reached" in problem(host=host, **encrypted)
    assert (
        config(host=host, **encrypted, tls_ca="ca.pem", tls_require_client_certificate=True).host
        == host
    )
    assert host == config(host=host, insecure=True).host


ENCRYPTED = {"pulsar_port": 6650, "tls_certificate": "b.pem", "tls_key": "b.key"}


@pytest.mark.parametrize(
    ("settings", "name", "expected"),
    [
        ({"pulsar_port": 6650}, "http_url", "http://127.0.0.1:8080"),
        ({"pulsar_port": 6650}, "pulsar_url", "pulsar://127.0.0.1:6650"),
        (ENCRYPTED, "http_url", "https://127.0.0.1:8080"),
        (ENCRYPTED, "pulsar_url", "pulsar+ssl://127.0.0.1:6650"),
        ({"host": "::1", **ENCRYPTED}, "pulsar_url", "pulsar+ssl://[::1]:6650"),
        ({"host": "::1", "http_port": 8081}, "http_url", "http://[::1]:8081"),
        ({"host": "::1", "http_port": 8081}, "id", "[::1]:8081"),
        ({"http_port": 8081}, "id", "127.0.0.1:8081"),
        ({"broker_id": "blue"}, "id", "blue"),
    ],
)
def test_addresses_follow_from_the_settings_and_the_id_from_the_address(
    settings: dict[str, object], name: str, expected: str
) -> None:
    assert expected == getattr(config(**settings), name)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - refused is what it is
def test_all_addresses_need_an_advertised_host(host: str) -> None:
    assert "advertised_host: " in problem(host=host, insecure=True)
    assert "advertised_host: " in problem(host=host, insecure=True, advertised_host=host)
    assert (
        "broker.example:80"
        == config(
            host=host, insecure=True, advertised_host="broker.example", http_port=80
        ).authority
    )


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "a b",
        "http://broker",
        "broker:8080",
        "300.1.2.3",
        "fe80::1%eth0",
        "-a",
        "a..b",
        "ü.example",
    ],
)
def test_an_invalid_host_is_refused(host: str) -> None:
    assert "host: " in problem(host=host, insecure=True)
    assert "advertised_host: " in problem(advertised_host=host)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("log_url", ""),
        ("log_url", "sqlite:a\0b"),
        ("data_dir", "a\0b"),
        ("data_dir", ""),
        ("evidence", ""),
        ("data_dir", 7),
        ("evidence", "a\0b"),
        ("cluster", ""),
        ("cluster", "a b"),
        ("cluster", "a\nb"),
        ("cluster", "a\n"),
        ("cluster", "a\x1b[2Jb"),
        ("cluster", "é"),
        ("cluster", "a" * 256),
        ("broker_id", "admin:me"),
        ("broker_id", "a/b"),
        ("http_port", 65_536),
        ("http_port", -1),
        ("http_port", "eighty"),
        ("capacity", 0),
        ("capacity", 2**63),
        ("capacities", {"seats": 0}),
        ("capacities", {"seats": float("nan")}),
        ("capacities", {"": 1}),
        ("capacities", "seats"),
        ("capacities", {str(number): 1 for number in range(9)}),
        ("labels", {"": "x"}),
        ("labels", {str(number): "" for number in range(257)}),
        ("lease_ms", 0),
        ("lookup_ms", 86_400_001),
        ("unheard_of", 1),
    ],
)
def test_an_invalid_value_is_refused_with_its_setting(setting: str, value: object) -> None:
    assert f"{setting}" in problem(**{setting: value})


@pytest.mark.parametrize("given", [{"tokens/s": 2_000, "seats": 3}, "tokens/s=2000,seats=3"])
def test_capacities_are_by_unit(given: object) -> None:
    assert {"tokens/s": 2_000.0, "seats": 3.0} == config(capacities=given).capacities


KEY, OWN = {"token_secret_key": "hush"}, {"broker_token": "hush"}
MUTUAL = {"tls_require_client_certificate": True}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tls_certificate": "b.pem"}, "tls_key: it is missing, but tls_certificate is set"),
        ({"tls_key": "b.key"}, "tls_certificate: it is missing, but tls_key is set"),
        ({"tls_certificate": "", "tls_key": "b.key"}, "tls_certificate: the name is empty"),
        (MUTUAL, "tls_certificate: it is missing, but clients must present a certificate"),
        (MUTUAL, "tls_ca: it is missing, but clients must present a certificate"),
        (
            {"authentication": True, **OWN},
            (
                "authentication: it needs what clients prove themselves with; set one or more of"
                " token_secret"
            ),
        ),
        (
            {"authentication": True, **KEY, **OWN, "token_public_key": "x"},
            "token_public_key: token_secret_key is set, too",
        ),
        ({"authentication": True, **KEY}, "broker_token: with authentication"),
        ({"authentication": True, "basic_passwords": "hush"}, "broker_token: with authentication"),
        ({"basic_passwords": "hush"}, "basic_passwords: it has no effect without authentication"),
        ({"certificate_roles": True}, "certificate_roles: it has no effect without authentication"),
        ({"tls_crl": "crl.pem"}, "tls_ca: it is missing, but tls_crl is set; set the CAs"),
        (
            {"authentication": True, "certificate_roles": True},
            "tls_ca: it is missing, but clients may present a certificate",
        ),
        (KEY, "token_secret_key: it has no effect without authentication"),
        ({"token_public_key": "x"}, "token_public_key: it has no effect without authentication"),
        (
            {"authorization": True, "super_roles": "root"},
            "authorization: without authentication a broker does not know the role",
        ),
        (
            {"authentication": True, **KEY, **OWN, "authorization": True},
            "super_roles: with authorization, name at least the roles of",
        ),
    ],
)
def test_settings_that_need_others_are_refused_without_them(
    settings: dict[str, object], expected: str
) -> None:
    found = problem(**settings)
    assert (True, False) == (expected in found, "hush" in found)


def test_what_a_broker_sends_needs_no_other_setting() -> None:
    """So authentication can be switched on in a running cluster."""
    assert not config(**OWN).authentication
    assert config(tls_ca="ca.pem").tls_files.ca == Path("ca.pem")


def test_secrets_are_never_printed() -> None:
    made = config(authentication=True, **KEY, **OWN)
    assert "hush" not in repr(made) + str(made) + str(made.model_dump()) + made.model_dump_json()
    assert {"token_secret_key", "basic_passwords", "broker_token"} == set(SECRET_VARIABLES)


@pytest.mark.parametrize(
    "settings", [{"http_port": -1, "capacity": 0}, {"broker_id": "a/b", "host": "192.0.2.1"}]
)
def test_all_problems_are_reported_at_once(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        config(**settings)
    assert 2 == len(caught.value.problems)


@given(
    st.dictionaries(
        st.sampled_from(sorted(WorkerConfig.model_fields)) | st.text(),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary()
        | st.lists(st.text())
        | st.dictionaries(st.text(), st.text()),
    )
)
def test_any_settings_are_valid_or_a_typed_error(settings: dict[str, object]) -> None:
    try:
        made = config(**settings)
    except EquipoiseError:
        return
    assert made.id


def test_the_steps_of_a_stop_fit_into_its_bound() -> None:
    """Their own bounds, and 4 s for the process, are at most `ENDING_MS`."""
    pulsar = PulsarSettings()
    steps_ms = [
        # As below, nothing else has them.
        *(
            worker._LAST_RECORDS_MS,  # noqa: SLF001
            worker._LAST_CLOSE_MS,  # noqa: SLF001
            service_runner._ABANDON_MS,  # noqa: SLF001
        ),
        *(
            worker._LAST_RECORDS_MS,  # noqa: SLF001
            2 * writer.CLOSE_S * 1_000,
            worker._LAST_RECORDS_MS,  # noqa: SLF001
        ),
        *(2 * app.SHUTDOWN_S * 1_000, connections._CLOSE_S * 1_000),  # noqa: SLF001
        *(pulsar.drain_wait_ms, max(pulsar.drain_wait_ms, SETTLE_MS_MAX, pulsar.settle_java_ms)),
    ]
    assert sum(steps_ms) + 4_000 <= ENDING_MS
    assert 70_000 + 6_000 + ENDING_MS == config(drain_ms=70_000, close_ms=6_000).stop_ms
