"""`equipoise load-worker` as far as it goes without Kafka."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from equipoise.brokers.cli.outcome import ExitCode
from tests.unit.cli.fabricated import run

LOG = "kafka://localhost:9092/channel"


@pytest.mark.parametrize("log", ["sqlite:channel.db", "memory:x"])
def test_only_a_cluster_on_kafka_has_load_workers(log: str) -> None:
    """Any other log is the caller's mistake, and is told why nobody needs a load worker there."""
    result = run("load-worker", "--log", log)
    assert ExitCode.USAGE == result.exit_code
    assert "brokers keep the averages themselves" in result.stderr


def test_its_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of the extra the command says how they are installed."""
    monkeypatch.setitem(sys.modules, "faust", None)
    monkeypatch.delitem(sys.modules, "equipoise.brokers.load.worker.running", raising=False)
    monkeypatch.delitem(sys.modules, "equipoise.brokers.load.worker.streams", raising=False)
    result = run("load-worker", "--log", LOG)
    assert ExitCode.USAGE == result.exit_code
    assert "pip install 'equipoise[load]'" in result.stderr


def test_it_shows_its_settings_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--print-config` starts nothing, and masks what nobody may see."""
    monkeypatch.setenv("EQUIPOISE_KAFKA_CONFIG", "sasl.username=worker;sasl.password=hidden")
    result = run("load-worker", "--log", LOG, "--print-config")
    assert ExitCode.OK == result.exit_code
    assert '"sasl.username": "worker"' in result.stdout
    assert "hidden" not in result.stdout


def test_what_its_client_cannot_do_is_refused_before_it_connects() -> None:
    """Kerberos is refused by the setting's name, in one line."""
    ended = subprocess.run(
        [sys.executable, "-m", "equipoise.brokers.cli", "load-worker", "--log", LOG],
        env={**os.environ, "EQUIPOISE_KAFKA_CONFIG": "security.protocol=sasl_ssl;sasl.mechanism=GSSAPI"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ExitCode.USAGE == ended.returncode
    assert ended.stderr.startswith("error: the Kafka setting 'sasl.mechanism'")
    assert "a load worker can do PLAIN" in ended.stderr
    assert 1 == len(ended.stderr.splitlines())
