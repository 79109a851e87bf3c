"""`equipoise balancing`: what is put on the channel, what is shown of it, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import GROUPS, SETTINGS
from equipoise.brokers.cli.broker_conf import (
    FILE_BYTES_MAX,
    log_entries,
    read_broker_conf,
    settings_over,
)
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.config import WorkerConfig
from tests.unit.cli.fabricated import run

BROKER_CONF = """\
# As Pulsar ships it, by and large.
metadataStoreUrl=
clusterName=
managedLedgerDefaultEnsembleSize=2
loadBalancerEnabled=true
loadBalancerSheddingIntervalMinutes=1
loadBalancerReportUpdateMaxIntervalMinutes=15
loadManagerClassName=org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl
loadBalancerLoadSheddingStrategy=org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder
loadBalancerBrokerLoadTargetStd=0.25
loadBalancerSheddingExcludedNamespaces=public/default, public/functions
loadBalancerNamespaceBundleMaxSessions=-1
"""
MISTAKES = "loadBalancerEnabledd=true\nloadBalancerBrokerLoadTargetStd=much\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A `broker.conf` of which all is understood."""
    path = tmp_path / "broker.conf"
    path.write_text(BROKER_CONF, encoding="iso-8859-1")
    return path


def balancing(log: str, *arguments: str) -> str:
    """What a command of the group prints that must succeed."""
    result = run("balancing", *arguments, log=log)
    assert (0, "") == (result.exit_code, result.stderr)
    return result.stdout


def test_all_settings_are_shown_with_who_set_each(log: str) -> None:
    balancing(log, "set", "balanced.moves_max=7", "balanced.start_ratio=0.5", "--as", "erin")
    balancing(log, "unset", "balanced.start_ratio", "--as", "bob")
    balancing(log, "off", "--as", "bob")
    shown = json.loads(balancing(log, "show", "--all", "--json"))
    assert list(SETTINGS) == [row["setting"] for row in shown["settings"]]
    held = {
        row["setting"]: (row["value"], row["by"], row["offset"])
        for row in shown["settings"]
        if row["is_set"]
    }
    assert {
        "balancing.enabled": ("false", "admin:bob", 12),
        "balanced.moves_max": ("7", "admin:erin", 10),
    } == held
    assert ({"offset": 12, "by": "admin:bob"}, []) == (shown["changed"], shown["problems"])
    assert [] == [
        row
        for row in shown["settings"]
        if not row["is_set"] and (row["by"] or row["offset"] or row["value"] != row["default"])
    ]
    table = [line.split() for line in balancing(log, "show", "--all").splitlines()]
    assert len(GROUPS) + len(SETTINGS) + 1 == len(table)
    group = table.index(["balanced"])
    assert [
        "moves_max",
        "7",
        "default",
        "4;",
        "set",
        "by",
        "admin:erin",
        "at",
        "offset",
        "10",
    ] == table[group + 1]
    assert ["start_ratio", "0.1"] == table[group + 2]


# --- a broker.conf ---


@pytest.mark.parametrize(
    ("data", "code", "told"),
    [
        (b"x" * (FILE_BYTES_MAX + 1), 2, "has more than 1048576 bytes"),
        (b"a=\\uzzzz", 4, "the settings cannot be read: line 1"),
    ],
)
def test_an_invalid_broker_conf_is_refused(conf: Path, data: bytes, code: int, told: str) -> None:
    conf.write_bytes(data)
    result = run("balancing", "read", str(conf))
    assert (code, True) == (result.exit_code, told in result.stderr)


def test_set_overrides_a_broker_conf(log: str, conf: Path, tmp_path: Path) -> None:
    arguments = (
        "broker",
        "--data",
        str(tmp_path / "b"),
        "--broker-conf",
        str(conf),
        "--print-config",
    )
    plain = config_of(run(*arguments, log=log).stdout)
    assert ("ThresholdShedder", 60_000, 900_000, 60_000) == (
        plain.balancing.shedder,
        plain.balancing.shed_interval_ms,
        plain.reports.interval_max_ms,
        plain.balancing.rest_ms,
    )
    assert (frozenset({"public/default", "public/functions"}), None) == (
        plain.groups()["transfer"].excluded_namespaces,
        plain.limits.sessions_max,
    )
    given = (
        "--set",
        "balance_interval_ms=900",
        "--set",
        "balance=false",
        "--set",
        "balancing.shedder=AvgShedder",
    )
    settings = config_of(run(*arguments, *given, log=log).stdout)
    assert ("AvgShedder", 900, 900, False) == (
        settings.balancing.shedder,
        settings.balancing.shed_interval_ms,
        settings.reports.interval_max_ms,
        settings.balancing.enabled,
    )


def config_of(printed: str) -> BalancingSettings:
    """The settings that a broker's configuration comes to, as `--print-config` prints it."""
    document = json.loads(printed)
    del document["kafka"]
    return WorkerConfig.model_validate(document).base_settings


AUTHENTICATION = """\
authenticationEnabled=true
tokenSecretKey=data:;base64,hushhush
brokerClientAuthenticationParameters=token:hushhush
"""


@pytest.mark.parametrize(
    ("entry", "setting", "value"),
    [
        ("authenticationEnabled=yes", "authentication", "false"),
        ("authorizationEnabled=true", "authorization", "false"),
        ("tlsCertificateFilePath=/b.pem", "tls_certificate", ""),
        ("tlsRequireTrustedClientCertOnConnect=true", "tls_require_client_certificate", "false"),
    ],
)
def test_a_broker_conf_that_is_safer_than_the_settings_is_refused(
    conf: Path, entry: str, setting: str, value: str
) -> None:
    conf.write_text(f"{entry}\ntlsEnabled=false\nauthenticationProviders=\n", encoding="iso-8859-1")
    read = read_broker_conf(conf)
    with pytest.raises(InvalidConfig, match=f"{entry.partition('=')[0]}: .*--set {setting}=VALUE"):
        settings_over(read, {})
    assert {setting: value} == settings_over(read, {setting: value})
    assert f"set {setting}" in run("balancing", "read", str(conf)).stdout


def test_no_command_prints_a_secret_of_a_broker_conf(
    log: str, conf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf.write_text(AUTHENTICATION, encoding="iso-8859-1")
    data = ("--data", str(tmp_path / "b"), "--broker-conf", str(conf), "--print-config")
    results = [run("broker", *data, log=log), run("up", *data, "--service", "counter")]
    results += [run("balancing", "read", str(conf), *more) for more in ((), ("--json",))]
    assert [2, 2, 0, 0] == [result.exit_code for result in results]
    with caplog.at_level(logging.DEBUG):
        log_entries(read_broker_conf(conf))
    logged = [str(record.__dict__) for record in caplog.records]
    assert not [
        text
        for text in (*(result.output for result in results), *logged, repr(read_broker_conf(conf)))
        if "hush" in text
    ]


def test_up_passes_a_broker_conf_on_as_settings(conf: Path, tmp_path: Path) -> None:
    """So each broker restarts with the same."""
    arguments = (
        "up",
        "--data",
        str(tmp_path / "up"),
        "--service",
        "counter",
        "--broker-conf",
        str(conf),
        "--set",
        "lookup_ms=900",
    )
    shown = json.loads(run(*arguments, "--print-config").stdout)["settings"]
    assert ("900", "ThresholdShedder", "none") == (
        shown["lookup_ms"],
        shown["balancing.shedder"],
        shown["limits.sessions_max"],
    )


def test_a_broker_logs_each_entry_of_its_broker_conf(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf.write_text(BROKER_CONF + MISTAKES, encoding="iso-8859-1")
    with caplog.at_level(logging.DEBUG):
        log_entries(read_broker_conf(conf))
    told = [
        (record.levelname, record.msg, getattr(record, "key", None)) for record in caplog.records
    ]
    assert [("INFO", "a broker.conf was read", None)] == told[:1]
    assert (7, 2, 2, 2) == tuple(
        len([line for line in told[1:] if line[:2] == (level, message)])
        for level, message in (
            ("INFO", "taken from a broker.conf"),
            ("INFO", "without meaning here, in a broker.conf"),
            ("DEBUG", "without meaning here, in a broker.conf"),
            ("WARNING", "not understood, in a broker.conf"),
        )
    )
