"""Check the files for docker compose without Docker: everything that they name exists, and versions
and ports agree.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import orjson
import pytest
import yaml

from compose.dashboard import WRITTEN, text
from compose.local_kafka.jars import kafka_version
from compose.local_kafka.node import Ports, server_properties
from equipoise.brokers.cli.main import load
from equipoise.channel.kafka.settings import address_of

ROOT: Final = Path(__file__).resolve().parents[3]
COMPOSE: Final = ROOT / "compose"
FILES: Final = {"laptop.yaml": 1, "three-nodes.yaml": 3}
"""Each file, and the number of its Kafka nodes."""

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILE: Final = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")

Service = Mapping[str, object]


def loaded(name: str) -> dict[str, dict[str, dict[str, object]]]:
    """Read a file of `compose`."""
    return cast(
        "dict[str, dict[str, dict[str, object]]]",
        yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8")),
    )


def services(name: str) -> dict[str, Service]:
    """Return the services of a file. `extends` joins lists and merges mappings, as in docker
    compose.
    """
    found: dict[str, Service] = {}
    for service, own in loaded(name)["services"].items():
        extended = cast("dict[str, str]", own.pop("extends"))
        merged: dict[str, object] = dict(loaded(extended["file"])["services"][extended["service"]])
        for key, value in own.items():
            before = merged.get(key)
            if isinstance(before, dict) and isinstance(value, dict):
                merged[key] = {**before, **value}
            elif isinstance(before, list) and isinstance(value, list):
                merged[key] = [*before, *value]
            else:
                merged[key] = value
        found[service] = merged
    return found


def environment(service: Service) -> dict[str, str]:
    """Return the variables of a service. All must be strings, because compose refuses YAML's
    booleans.
    """
    found = cast("dict[str, object]", service.get("environment", {}))
    assert [] == [name for name, value in found.items() if not isinstance(value, str)]
    return cast("dict[str, str]", found)


def texts(service: Service, key: str) -> Sequence[str]:
    """Return a list of strings; empty if the key is missing."""
    return cast("Sequence[str]", service.get(key, ()))


def kind(name: str, file: str) -> dict[str, Service]:
    """Return the services of a kind: `kafka` or `broker`."""
    return {service: it for service, it in services(file).items() if service.startswith(f"{name}-")}


@pytest.mark.parametrize("file", FILES)
def test_every_image_has_one_version(file: str) -> None:
    """Every image has a full version: ours that of the project, and Kafka's that of the local
    Kafka.
    """
    images = {
        name.rstrip("-123"): cast("str", service["image"])
        for name, service in services(file).items()
    }
    assert {"kafka", "broker", "prometheus", "grafana"} == images.keys()
    assert [] == [
        image
        for image in images.values()
        if not re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(rc\d+)?", image)
    ]
    assert f"apache/kafka:{kafka_version()}" == images["kafka"]
    assert f"equipoise:{PROJECT['project']['version']}" == images["broker"]


@pytest.mark.parametrize("file", FILES)
def test_every_volume_exists_and_is_used(file: str) -> None:
    """A service mounts files of the project, or volumes that its file declares."""
    mounted = [
        mount.split(":")[0]
        for service in services(file).values()
        for mount in texts(service, "volumes")
    ]
    assert [] == [
        source for source in mounted if source.startswith(".") and not (COMPOSE / source).exists()
    ]
    named = [source for source in mounted if not source.startswith(".")]
    assert sorted(loaded(file)["volumes"]) == sorted(named)


@pytest.mark.parametrize("file", FILES)
def test_brokers_wait_for_every_kafka_node(file: str) -> None:
    """Each node has a health check."""
    kafkas = kind("kafka", file)
    assert FILES[file] == len(kafkas)
    assert 3 == len(kind("broker", file))
    for broker in kind("broker", file).values():
        assert {kafka: {"condition": "service_healthy"} for kafka in kafkas} == broker["depends_on"]
    assert [] == [name for name, service in kafkas.items() if "healthcheck" not in service]


@pytest.mark.parametrize("file", FILES)
def test_brokers_find_their_channel(file: str) -> None:
    """Their log URL names the listener for containers of each Kafka node."""
    (url,) = {environment(broker)["EQUIPOISE_LOG"] for broker in kind("broker", file).values()}
    address = address_of(url)
    listening = [
        re.findall(r"CLIENT://([^,]+)", environment(kafka)["KAFKA_ADVERTISED_LISTENERS"])
        for kafka in kind("kafka", file).values()
    ]
    assert address.servers.split(",") == [one for found in listening for one in found]
    assert (3 if FILES[file] == 3 else None) == address.replication


@pytest.mark.parametrize("file", FILES)
def test_nodes_of_kafka_know_one_another(file: str) -> None:
    """Each node has its own number, advertises its service's name, and knows all voters. There are
    as many replicas as nodes.
    """
    kafkas = kind("kafka", file)
    voters = ",".join(
        f"{environment(service)['KAFKA_NODE_ID']}@{name}:9094" for name, service in kafkas.items()
    )
    assert [str(number) for number in range(1, FILES[file] + 1)] == [
        environment(service)["KAFKA_NODE_ID"] for service in kafkas.values()
    ]
    for name, service in kafkas.items():
        known = environment(service)
        assert voters == known["KAFKA_CONTROLLER_QUORUM_VOTERS"]
        assert f"CLIENT://{name}:9092" == known["KAFKA_ADVERTISED_LISTENERS"].split(",")[0]
        assert {str(FILES[file])} == {
            value for key, value in known.items() if key.endswith("REPLICATION_FACTOR")
        }


@pytest.mark.parametrize("file", FILES)
def test_kafka_has_only_settings_of_the_local_kafka(file: str) -> None:
    """Tests run the local Kafka, so its settings are known to be valid."""
    ports = (Ports(client=1, controller=2, proxied=3),)
    known = server_properties(1, ports=ports, proxies=(), data=Path("data"), extra={})
    variables = {
        name
        for service in kind("kafka", file).values()
        for name in environment(service)
        if name.startswith("KAFKA_")
    }
    assert (
        set()
        == {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in variables}
        - known.keys()
    )


@pytest.mark.parametrize("file", FILES)
def test_ports_agree(file: str) -> None:
    """The port that a container listens on and advertises is published under the same number,
    once.
    """
    published: list[str] = [
        port for service in services(file).values() for port in texts(service, "ports")
    ]
    assert [] == [port for port in published if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)]
    assert len(published) == len(set(published))
    for name, broker in kind("broker", file).items():
        known = environment(broker)
        assert name == known["ADVERTISED_HOST"] == broker["hostname"]
        assert [
            f"127.0.0.1:{known[port]}:{known[port]}" for port in ("HTTP_PORT", "PULSAR_PORT")
        ] == texts(broker, "ports")
    for kafka in kind("kafka", file).values():
        (told,) = re.findall(
            r"HOST://localhost:(\d+)", environment(kafka)["KAFKA_ADVERTISED_LISTENERS"]
        )
        assert [f"127.0.0.1:{told}:{told}"] == texts(kafka, "ports")
        assert f"HOST://:{told}" in environment(kafka)["KAFKA_LISTENERS"].split(",")


@pytest.mark.parametrize("file", FILES)
def test_prometheus_scrapes_every_broker(file: str) -> None:
    """Its targets are the HTTP ports of the brokers."""
    (job,) = cast(
        "Sequence[dict[str, object]]", loaded("prometheus/prometheus.yaml")["scrape_configs"]
    )
    assert ("equipoise", "/metrics") == (job["job_name"], job["metrics_path"])
    (targets,) = cast("Sequence[dict[str, object]]", job["static_configs"])
    assert [
        f"{name}:{environment(it)['HTTP_PORT']}" for name, it in kind("broker", file).items()
    ] == targets["targets"]


def test_every_variable_is_read_and_set() -> None:
    """The product, or the script that starts it, reads each variable of the brokers. Each variable
    of the script has a default.
    """
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("brokers", "channel")
        for path in (ROOT / folder).rglob("*.py")
    )
    script = (COMPOSE / "broker.sh").read_text(encoding="utf-8")
    for file in FILES:
        for broker in kind("broker", file).values():
            for name in environment(broker):
                assert f'"{name}"' in source or re.search(rf"\$\{{?{name}\b", script), name
    defaults = "".join(re.findall(r"^ENV .*$", DOCKERFILE, re.MULTILINE))
    assert [] == [name for name in re.findall(r"\$([A-Z_]+)", script) if f"{name}=" not in defaults]


def test_the_script_starts_a_broker_as_the_command_line_has_it() -> None:
    """Each option of the script exists in `equipoise broker`."""
    options = {option for parameter in load("broker").params for option in parameter.opts}
    given = re.findall(
        r"(?<= )--[a-z-]+(?= )",
        (COMPOSE / "broker.sh").read_text(encoding="utf-8").split("exec ")[1],
    )
    assert "--advertised-host" in given
    assert [] == [option for option in given if option not in options]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("given", "is_insecure"),
    [
        ([], True),
        (["--set", "lookup_ms=5000"], True),
        (["--set", "tls_certificate=/run/tls.pem", "--set", "tls_key=/run/tls.key"], False),
        (["--set", "authentication=true", "--set", "token_public_key=/run/key"], False),
    ],
)
def test_the_script_passes_insecure_only_without_tls_and_says_so(
    tmp_path: Path, given: list[str], *, is_insecure: bool
) -> None:
    command = tmp_path / "equipoise"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment_ = {"PATH": f"{tmp_path}:{os.defpath}", "HTTP_PORT": "1", "PULSAR_PORT": "2"}
    script = ["sh", str(COMPOSE / "broker.sh"), *given]
    done = subprocess.run(script, env=environment_, capture_output=True, text=True, check=True)
    passed = done.stdout.splitlines()
    assert given == passed[len(passed) - len(given) :]
    assert is_insecure == ("--insecure" in passed) == ("no TLS is configured" in done.stderr)


def test_the_image_is_built_from_named_versions() -> None:
    """Its base has a digest, the version of uv is that of the Makefile, and the extras exist."""
    (base,) = re.findall(r"^ARG BASE=(\S+)", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"docker.io/library/debian:[a-z]+-slim@sha256:[0-9a-f]{64}", base)
    assert {"$BASE"} == set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))
    (makefile,) = re.findall(
        r"^UV_VERSION := (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [makefile] == re.findall(r"uv==(\S+)", DOCKERFILE)
    assert (
        set(re.findall(r"--extra (\S+)", DOCKERFILE))
        <= PROJECT["project"]["optional-dependencies"].keys()
    )


def test_grafana_finds_its_dashboard_and_prometheus() -> None:
    """The dashboards are mounted in the provider's folder, and the panels query the provisioned
    source.
    """
    mounts = dict(
        mount.split(":")[:2] for mount in texts(services("laptop.yaml")["grafana"], "volumes")
    )
    (provider,) = cast(
        "Sequence[dict[str, dict[str, str]]]",
        loaded("grafana/provisioning/dashboards/equipoise.yaml")["providers"],
    )
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    (source,) = cast(
        "Sequence[dict[str, str]]",
        loaded("grafana/provisioning/datasources/prometheus.yaml")["datasources"],
    )
    assert ("prometheus", "http://prometheus:9090") == (source["uid"], source["url"])
    panels = orjson.loads(WRITTEN.read_bytes())["panels"]
    assert {"prometheus"} == {
        target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())
    }
    assert environment(services("laptop.yaml")["grafana"])[
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ].endswith(f"/{WRITTEN.name}")


def test_the_json_of_the_dashboard_is_current() -> None:
    """`python -m compose.dashboard` writes it."""
    assert text() == WRITTEN.read_text(encoding="utf-8")
