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
    result = run("load-worker", "--log", log)
    assert ExitCode.USAGE == result.exit_code
    assert "brokers keep the averages themselves" in result.stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faust", None)
    monkeypatch.delitem(sys.modules, "equipoise.brokers.load.worker.running", raising=False)
    monkeypatch.delitem(sys.modules, "equipoise.brokers.load.worker.streams", raising=False)
    result = run("load-worker", "--log", LOG)
    assert ExitCode.USAGE == result.exit_code
    assert "pip install 'equipoise[load]'" in result.stderr


def test_print_config_masks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_KAFKA_CONFIG", "sasl.username=worker;sasl.password=hidden")
    result = run("load-worker", "--log", LOG, "--print-config")
    assert ExitCode.OK == result.exit_code
    assert '"sasl.username": "worker"' in result.stdout
    assert "hidden" not in result.stdout


def test_an_unsupported_sasl_mechanism_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "equipoise.brokers.cli", "load-worker", "--log", LOG],
        env={
            **os.environ,
            "EQUIPOISE_KAFKA_CONFIG": "security.protocol=sasl_ssl;sasl.mechanism=GSSAPI",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ExitCode.USAGE == ended.returncode
    assert ended.stderr.startswith("error: the Kafka setting 'sasl.mechanism'")
    assert "a load worker can do PLAIN" in ended.stderr
    assert 1 == len(ended.stderr.splitlines())
