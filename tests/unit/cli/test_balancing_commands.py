"""`equipoise balancing`: what is put on the channel, what is shown of it, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import GROUPS, SETTINGS
from equipoise.brokers.balancing.settings.settings_records import (
    CHANGED_BY,
    KEY,
    document_of,
    settings_in,
)
from equipoise.brokers.cli.broker_conf import (
    FILE_BYTES_MAX,
    log_entries,
    read_broker_conf,
    settings_over,
)
from equipoise.brokers.cli.moments import local_time
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.channel.core import propose
from equipoise.channel.core.records import Document
from tests.channels.folding import NAMESPACE
from tests.unit.cli.fabricated import owned_channel, run, view_of, write

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


# --- changes ---


def test_balancing_is_turned_off_and_on(log: str) -> None:
    assert [
        "accepted at offset 10: 1 setting changed",
        "balancing.enabled: true (default) -> false",
    ] == balancing(log, "off").splitlines()
    assert False is settings_in(view_of(log), BalancingSettings()).balancing.enabled
    assert [
        "accepted at offset 11: 1 setting changed",
        "balancing.enabled: false -> true",
    ] == balancing(log, "on").splitlines()
    assert "accepted at offset 12: nothing changed, the channel had this already\n" == balancing(
        log, "on"
    )
    assert True is settings_in(view_of(log), BalancingSettings()).balancing.enabled


def test_balancing_on_says_what_stays_off(log: str) -> None:
    """What the channel has as false, and the pause and the freezes that count now."""
    balancing(log, "set", "balancing.shedding=false", "balancing.enabled=false")
    run("namespaces", "freeze", NAMESPACE, "--reason", "a sale", log=log)
    balancing(log, "pause", "--reason", "upgrade", "--for", "30m")
    _, made, shedding, paused, frozen = balancing(log, "on").splitlines()
    assert "balancing.enabled: false -> true" == made
    assert (
        "balancing.shedding stays off: the channel has balancing.shedding=false; "
        "turn it on: equipoise balancing set balancing.shedding=true" == shedding
    )
    assert (True, f"still {NAMESPACE} is frozen: a sale") == (
        paused.startswith("still balancing is paused until "),
        frozen,
    )
    document = json.loads(balancing(log, "on", "--json"))
    assert (["balancing.shedding"], 2) == (document["still_off"], len(document["controls"]))


def test_settings_are_set_and_removed_together(log: str) -> None:
    told = balancing(
        log,
        "set",
        "transfer.target_deviation=0.1",
        "balancing.shedder=TransferShedder",
        "--as",
        "erin",
        "--json",
    )
    changes = {
        "balancing.shedder": {"before": None, "after": "TransferShedder"},
        "transfer.target_deviation": {"before": None, "after": "0.1"},
    }
    assert {"offset": 10, "changes": changes} == json.loads(told)
    assert {
        "balancing.shedder": "TransferShedder",
        "transfer.target_deviation": "0.1",
        CHANGED_BY: "admin:erin",
    } == document_of(view_of(log))
    told = balancing(log, "unset", "balancing.shedder", "transfer.sources_max")
    assert [
        "accepted at offset 11: 1 setting changed",
        "balancing.shedder: TransferShedder -> BalancedShedder (default)",
    ] == told.splitlines()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("set", "balanced.moves_max=0"),
            (
                "error: balanced.moves_max cannot be '0': it must be an integer, at least 1; the"
                " old setting stays"
            ),
        ),
        (
            ("set", "balancing.shedder=Mine", "balanced.moves_max=9"),
            "balancing.shedder cannot be 'Mine': it must be one of BalancedShedder, ",
        ),
        (
            ("set", "balanced.move_max=9"),
            (
                "error: there is no setting 'balanced.move_max' of balancing; did you mean"
                " balanced.moves_max?"
            ),
        ),
        (
            ("unset", "nonsense"),
            (
                "error: there is no setting 'nonsense' of balancing; see which there are: equipoise"
                " balancing show --all"
            ),
        ),
        (("set", "balanced.moves_max"), "balancing set takes NAME=VALUE, not 'balanced.moves_max'"),
    ],
)
def test_an_invalid_setting_is_refused_and_nothing_changes(
    log: str, arguments: tuple[str, ...], told: str
) -> None:
    result = run("balancing", *arguments, log=log)
    assert (2, "") == (result.exit_code, result.stdout)
    assert told in " ".join(result.stderr.split())
    assert {} == document_of(view_of(log))


# --- looking ---


def test_the_settings_of_the_channel_are_shown(log: str) -> None:
    assert balancing(log, "show").startswith("the channel has no settings")
    balancing(
        log, "set", "balanced.moves_max=4", "transfer.excluded_namespaces=b/b,a/a", "--as", "erin"
    )
    assert [
        ["setting", "value", "default"],
        ["balanced.moves_max", "4", "4"],
        ["transfer.excluded_namespaces", "a/a,b/b", "none"],
        ["last", "changed", "at", "offset", "10", "by", "admin:erin"],
    ] == [line.split() for line in balancing(log, "show").splitlines()]


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
    assert ["start_ratio", "0.083"] == table[group + 2]


def test_the_history_lists_every_change(log: str) -> None:
    assert "no setting was ever changed\n" == balancing(log, "history")
    balancing(log, "set", "balanced.moves_max=7", "--as", "erin")
    run("namespaces", "create", "shop/new", log=log)
    balancing(log, "set", "balanced.moves_max=8", "balanced.start_ratio=0.5", "--as", "bob")
    expected = [
        (10, "admin:erin", "balanced.moves_max", None, "7"),
        (12, "admin:bob", "balanced.moves_max", "7", "8"),
        (12, "admin:bob", "balanced.start_ratio", None, "0.5"),
    ]
    rows = json.loads(balancing(log, "history", "--json"))
    assert expected == [
        (row["offset"], row["by"], row["setting"], row["before"], row["after"]) for row in rows
    ]
    assert [["10", "admin:erin", "balanced.moves_max", "-", "7"]] == [
        [line.split()[0], *line.split()[3:]]
        for line in balancing(log, "history").splitlines()
        if " 7" in line and "admin:erin" in line
    ]


def test_an_unreadable_setting_is_shown_and_can_be_removed(tmp_path: Path) -> None:
    channel = owned_channel()
    document: Document = {"balanced.moves_max": 0, "later.thing": 1, "balanced.start_ratio": "0.5"}
    channel.accept(propose.set_policy(channel.admin(), channel.view, name=KEY, document=document))
    log = write(channel.entries, tmp_path)
    lines = balancing(log, "show").splitlines()
    assert 2 == len([line for line in lines if line.startswith("cannot be read: ")])
    assert ["balanced.start_ratio", "0.5", "0.083"] in [line.split() for line in lines]
    assert (
        "later.thing: 1 -> not set"
        in balancing(log, "unset", "later.thing", "balanced.moves_max").splitlines()
    )
    assert [] == [
        line for line in balancing(log, "show").splitlines() if line.startswith("cannot be read: ")
    ]


# --- a broker.conf ---


def test_read_lists_the_entries_of_a_broker_conf(conf: Path) -> None:
    result = run("balancing", "read", str(conf))
    assert (0, "") == (result.exit_code, result.stderr)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert f"{conf}: 8 taken, 3 without meaning here, 0 not understood" == lines[0]
    assert "6 loadBalancerSheddingIntervalMinutes=1: balancing.shed_interval_ms=60000" in lines
    namespaces = (
        "public/default, public/functions:"
        " transfer.excluded_namespaces=public/default,public/functions"
    )
    assert f"11 loadBalancerSheddingExcludedNamespaces={namespaces}" in lines
    assert (
        "3 clusterName=: it is a setting of the broker's own, not of balancing: --cluster" in lines
    )
    assert "not about balancing: metadataStoreUrl, managedLedgerDefaultEnsembleSize" in lines


def test_read_fails_if_an_entry_is_not_understood(conf: Path) -> None:
    conf.write_text(BROKER_CONF + MISTAKES, encoding="iso-8859-1")
    result = run("balancing", "read", str(conf))
    assert 1 == result.exit_code
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert (
        "13 loadBalancerEnabledd=true: Pulsar has no such key; it has loadBalancerEnabled" in lines
    )
    document = json.loads(run("balancing", "read", str(conf), "--json").stdout)
    assert [13, 14] == [entry["line"] for entry in document["not_understood"]]
    assert (7, 4) == (len(document["taken"]), len(document["without_meaning"]))


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
tokenAuthClaim=role
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:hushhush
bookkeeperClientAuthenticationParameters=hushhush
"""


def test_a_broker_takes_authentication_from_a_broker_conf(
    log: str, conf: Path, tmp_path: Path
) -> None:
    conf.write_text(AUTHENTICATION, encoding="iso-8859-1")
    expected = {
        "authentication": "true",
        "token_secret_key": "data:;base64,hushhush",
        "token_claim": "role",
        "broker_token": "token:hushhush",
    }
    assert expected == settings_over(read_broker_conf(conf), {})
    assert "broker_token" not in settings_over(
        read_broker_conf(_without(conf, "AuthenticationToken")), {}
    )
    assert {} == settings_over(read_broker_conf(_without(conf, "authenticationEnabled")), {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "authorizationEnabled=true\nsuperUserRoles=admin, root ,\n",
            {"authorization": "true", "super_roles": "admin,root"},
        ),
        ("authorizationEnabled=false\nsuperUserRoles=\n", {"authorization": "false"}),
    ],
)
def test_a_broker_takes_authorization_from_a_broker_conf(
    conf: Path, text: str, expected: dict[str, str]
) -> None:
    conf.write_text(AUTHENTICATION + text, encoding="iso-8859-1")
    taken = settings_over(read_broker_conf(conf), {})
    assert expected == {
        name: value for name, value in taken.items() if name in {"authorization", "super_roles"}
    }


def test_a_broker_conf_with_authorization_but_no_authentication_is_refused(
    log: str, conf: Path, tmp_path: Path
) -> None:
    """Otherwise its broker would let everyone do everything."""
    conf.write_text("authorizationEnabled=true\nsuperUserRoles=admin\n", encoding="iso-8859-1")
    result = run(
        "broker",
        "--data",
        str(tmp_path / "b"),
        "--broker-conf",
        str(conf),
        "--print-config",
        log=log,
    )
    assert (2, True) == (result.exit_code, "set authentication=true, too" in result.stderr)


def _without(conf: Path, word: str) -> Path:
    """The same file without the lines that have a word."""
    lines = [line for line in AUTHENTICATION.splitlines() if word not in line]
    conf.write_text("\n".join(lines), encoding="iso-8859-1")
    return conf


def test_a_broker_conf_with_authentication_but_no_key_is_refused(
    log: str, conf: Path, tmp_path: Path
) -> None:
    """Otherwise its broker would let everyone in."""
    conf.write_text("authenticationEnabled=true\n", encoding="iso-8859-1")
    result = run(
        "broker",
        "--data",
        str(tmp_path / "b"),
        "--broker-conf",
        str(conf),
        "--print-config",
        log=log,
    )
    assert (2, True) == (result.exit_code, "token_secret_key" in result.stderr)


def test_no_command_prints_a_secret_of_a_broker_conf(
    log: str, conf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf.write_text(AUTHENTICATION, encoding="iso-8859-1")
    data = ("--data", str(tmp_path / "b"), "--broker-conf", str(conf), "--print-config")
    results = [run("broker", *data, log=log), run("up", *data, "--service", "counter")]
    results += [run("balancing", "read", str(conf), *more) for more in ((), ("--json",))]
    assert [0] * 4 == [result.exit_code for result in results]
    with caplog.at_level(logging.DEBUG):
        log_entries(read_broker_conf(conf))
    logged = [str(record.__dict__) for record in caplog.records]
    assert not [
        text
        for text in (*(result.output for result in results), *logged, repr(read_broker_conf(conf)))
        if "hush" in text
    ]
    assert "tokenSecretKey=***: token_secret_key=***" in results[2].stdout


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


# --- pauses and freezes ---


def test_balancing_is_paused_shown_and_resumed(log: str) -> None:
    assert "balancing is paused" in balancing(log, "pause", "--reason", "upgrade", "--for", "30m")
    (shown,) = json.loads(balancing(log, "show", "--json"))["controls"]
    assert ("pause/balancing", "upgrade") == (shown["name"], shown["reason"])
    assert f"balancing is paused until {local_time(shown['until_ms'])}: upgrade\n" in balancing(
        log, "show"
    )
    assert "balancing is not paused any more" in balancing(log, "resume")
    assert [] == json.loads(balancing(log, "show", "--json"))["controls"]


def test_a_namespace_is_frozen_shown_and_unfrozen(log: str) -> None:
    assert 0 == run("namespaces", "freeze", NAMESPACE, "--reason", "a sale", log=log).exit_code
    assert f"{NAMESPACE} is frozen: a sale\n" in balancing(log, "show")
    assert 0 == run("namespaces", "unfreeze", NAMESPACE, log=log).exit_code
    assert [] == json.loads(balancing(log, "show", "--json"))["controls"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "problem"),
    [
        (("balancing", "resume"), 2, "balancing is not paused"),
        (
            ("balancing", "pause", "--reason", "", "--for", "30m"),
            2,
            "reason is '', and must be a text",
        ),
        (
            ("balancing", "pause", "--reason", "upgrade", "--for", "soon"),
            2,
            "'soon' is no duration above 0",
        ),
        (("namespaces", "freeze", "no/where", "--reason", "a sale"), 2, "no/where"),
        (("namespaces", "unfreeze", "no/where"), 2, "namespace 'no/where' is not frozen"),
    ],
)
def test_a_control_of_nothing_or_without_a_reason_is_refused(
    arguments: tuple[str, ...], exit_code: int, problem: str, log: str
) -> None:
    result = run(*arguments, log=log)
    assert (exit_code, True) == (result.exit_code, problem in result.stderr)
