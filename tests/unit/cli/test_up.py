"""`equipoise up` before it starts a process, and when the cluster is ready."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from equipoise.brokers.cli.options import LOG_VARIABLE
from equipoise.brokers.local.local_cluster import LocalCluster
from tests.unit.cli.fabricated import run


@pytest.fixture(autouse=True)
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start is broken off at once, in an empty working folder."""

    def start(_: LocalCluster) -> None:
        raise CancelledError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalCluster, "start", start)


def test_up_reports_that_it_ignores_the_log_of_the_environment() -> None:
    told = run("up", "--data", "other", log="sqlite:cluster/channel.db").stdout.splitlines()
    said = (
        f"{LOG_VARIABLE} names sqlite:cluster/channel.db, which is not used: this cluster's log is"
        " sqlite:other/channel.db"
    )
    assert f"{said}; --log names another" == told[0]
    first = json.loads(
        run("up", "--data", "other", "--json", log="memory:x").stdout.splitlines()[0]
    )
    assert {
        "what": "environment_overridden",
        LOG_VARIABLE: "memory:x",
        "log": "sqlite:other/channel.db",
    } == first


@pytest.mark.parametrize(
    ("named", "options"),
    [
        (None, ()),
        ("sqlite:cluster/channel.db", ()),
        ("sqlite:{folder}/cluster/channel.db", ()),
        ("sqlite:cluster/channel.db", ("--log", "sqlite:mine.db")),
    ],
)
def test_up_reports_nothing_if_the_environment_names_its_log(
    named: str | None, options: tuple[str, ...], tmp_path: Path
) -> None:
    log = None if named is None else named.replace("{folder}", str(tmp_path))
    assert "no broker is left\n" == run("up", *options, log=log).stdout


def test_overlapping_ports_are_a_usage_error(tmp_path: Path) -> None:
    options = (
        "up",
        "--data",
        str(tmp_path / "cluster"),
        "--http-port",
        "8080",
        "--pulsar-port",
        "8081",
    )
    refused = run(*options, "--service", "pulsar")
    told = (
        "pulsar_port: the ports of 3 brokers from 8081 on overlap with those from http_port=8080 on"
    )
    assert (2, "", 1, True) == (
        refused.exit_code,
        refused.stdout,
        refused.stderr.count("\n"),
        told in refused.stderr,
    )
    assert not (tmp_path / "cluster").exists()
    unused = run(*options, "--service", "counter")
    told = "--pulsar-port: no service is for Pulsar's clients"
    assert (2, "", True) == (unused.exit_code, unused.stdout, told in unused.stderr)


@pytest.mark.parametrize(
    ("service", "url"), [("pulsar", "pulsar://127.0.0.1:7000,127.0.0.1:7001"), ("counter", None)]
)
def test_the_ready_line_has_all_urls(
    service: str, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "start", lambda _: None)
    ports = ("--http-port", "8000", *(("--pulsar-port", "7000") if url else ()))
    options = ("up", "--data", "cluster", "--brokers", "2", *ports, "--service", service)
    clients = "" if url is None else f"; Pulsar's clients connect to {url}"
    told = (
        f"ready: 2 brokers on sqlite:cluster/channel.db{clients}; try:"
        " EQUIPOISE_LOG=sqlite:cluster/channel.db equipoise brokers list"
    )
    assert told == run(*options).stdout.splitlines()[0]
    ready = json.loads(run(*options, "--json").stdout.splitlines()[0])
    addresses = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    assert {
        "what": "cluster_ready",
        "log": "sqlite:cluster/channel.db",
        "addresses": addresses,
        "pulsar": url,
    } == ready
