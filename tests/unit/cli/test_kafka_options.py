"""The settings of Kafka's client on the command line: who gets them, and what is shown of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.brokers.cli.main import app
from equipoise.channel.kafka.settings import CONFIG_FILE_VARIABLE, CONFIG_VARIABLE
from tests.unit.cli.command_lines import tree


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these command lines put into the environment goes with the test."""
    for variable in (CONFIG_VARIABLE, CONFIG_FILE_VARIABLE):
        monkeypatch.setenv(variable, "")


def shown(*arguments: str) -> dict[str, object]:
    """What a command prints of the settings of Kafka's client."""
    result = CliRunner().invoke(app, arguments)
    assert 0 == result.exit_code, result.output
    kafka = json.loads(result.stdout)["kafka"]
    assert isinstance(kafka, dict)
    return kafka


def broker(folder: Path) -> tuple[str, ...]:
    """A command line that shows the settings of a broker which it would start."""
    return (
        "broker",
        "--log",
        "kafka://localhost:9092/channel",
        "--data",
        str(folder),
        "--service",
        "counter",
        "--print-config",
    )


def test_settings_come_from_file_environment_and_options_and_secrets_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("client.id=file\nsasl.password=of the file\nssl.ca.location=ca.pem\n")
    monkeypatch.setenv(CONFIG_VARIABLE, "client.id=variable;sasl.username=variable")
    expected = {
        "client.id": "option",
        "sasl.password": "***",
        "sasl.username": "variable",
        "ssl.ca.location": "ca.pem",
    }
    options = (
        "--kafka-config-file",
        str(file),
        "--kafka-config",
        "client.id=option",
        "--kafka-config",
        "sasl.password=a;b",
    )
    assert expected == shown(*broker(tmp_path), *options)
    assert expected == shown(
        "up", "--data", str(tmp_path), "--service", "counter", "--print-config", *options
    )


def test_a_forbidden_setting_ends_the_command_without_its_value(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, [*broker(tmp_path), "--kafka-config", "enable.idempotence=false"]
    )
    assert (2, True) == (result.exit_code, "'enable.idempotence' cannot be used" in result.stderr)
    result = CliRunner().invoke(app, [*broker(tmp_path), "--kafka-config", "a password"])
    assert (2, True, False) == (
        result.exit_code,
        "it is not key=value" in result.stderr,
        "a password" in result.stderr,
    )


def test_every_command_that_opens_a_log_has_the_options() -> None:
    takers = {
        name
        for name, command in tree()
        if {"log", "to"} & {parameter.name for parameter in command.params}
    }
    assert {"broker", "up", "brokers list", "channel tail", "channel copy"} <= takers
    options = {
        name: {parameter.opts[0] for parameter in command.params} for name, command in tree()
    }
    assert takers == {
        name
        for name, known in options.items()
        if {"--kafka-config", "--kafka-config-file"} <= known
    }


def test_the_library_logs_nothing_to_standard_error() -> None:
    script = (
        "import logging, sys\n"
        "from equipoise.brokers.cli.main import app\n"
        "from equipoise.channel.kafka.lines import LIBRARY_LOGGER\n"
        "try:\n    app(['channel', 'at', 'now', '--log', 'memory:x'])\nexcept SystemExit: pass\n"
        "logging.getLogger(LIBRARY_LOGGER).error('FAIL')\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stderr.startswith("error: ")
    assert "FAIL" not in told.stderr


def test_an_address_where_nobody_listens_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr("equipoise.channel.kafka.log.OPEN_MS_MAX", 1_000)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = CliRunner().invoke(app, ["channel", "at", "now", "--log", f"kafka://{address}/x"])
    assert (3, 1) == (result.exit_code, result.stderr.count("\n")), result.stderr
    assert f"no Kafka answered at {address}" in result.stderr
    assert "Connection refused" in result.stderr
    assert "check the address" in result.stderr
