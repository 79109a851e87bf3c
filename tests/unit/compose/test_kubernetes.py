"""Check the manifests for Kubernetes without a cluster: against its own schemas, and against the
product that they run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kubernetes_validate.utils import all_versions, validate

from equipoise.brokers.cli.main import GROUPS, load
from equipoise.brokers.runtime.config import WorkerConfig
from tests.unit.compose.test_compose_files import COMPOSE, DOCKERFILE, PROJECT, ROOT

# Parsed YAML of the manifests, whose shape their schemas check.
Manifest = dict[str, Any]

MANIFESTS: Final[list[Manifest]] = list(
    yaml.safe_load_all((COMPOSE / "kubernetes.yaml").read_text(encoding="utf-8"))
)
# Older versions have no access mode ReadWriteOncePod (stable since 1.29).
VERSIONS: Final = [version for version in all_versions() if int(version.split(".")[1]) >= 29]


def of_kind(kind: str) -> Mapping[str, Manifest]:
    """Return the manifests of a kind by name."""
    return {
        manifest["metadata"]["name"]: manifest for manifest in MANIFESTS if manifest["kind"] == kind
    }


BROKERS: Final[Manifest] = of_kind("StatefulSet")["equipoise"]
POD: Final[Manifest] = BROKERS["spec"]["template"]
BROKER: Final[Manifest] = POD["spec"]["containers"][0]
WORKERS: Final[Manifest] = of_kind("Deployment")["equipoise-load-worker"]
WORKER: Final[Manifest] = WORKERS["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(version: str) -> None:
    """Strict: a field that Kubernetes does not know is an error."""
    for manifest in MANIFESTS:
        validate(manifest, version, strict=True)


def test_everything_selects_the_brokers() -> None:
    labels = POD["metadata"]["labels"]
    selectors = [service["spec"]["selector"] for service in of_kind("Service").values()]
    selectors += [of_kind("PodDisruptionBudget")["equipoise"]["spec"]["selector"]["matchLabels"]]
    selectors += [of_kind("NetworkPolicy")["equipoise"]["spec"]["podSelector"]["matchLabels"]]
    selectors += [BROKERS["spec"]["selector"]["matchLabels"]]
    selectors += [
        each["labelSelector"]["matchLabels"] for each in POD["spec"]["topologySpreadConstraints"]
    ]
    assert [labels] * 6 == selectors
    assert (
        WORKERS["spec"]["template"]["metadata"]["labels"]
        == WORKERS["spec"]["selector"]["matchLabels"]
        != labels
    )


def test_ports_are_those_of_the_image() -> None:
    defaults = dict(re.findall(r"(\w+_PORT)=(\d+)", DOCKERFILE))
    ports = {port["name"]: port["containerPort"] for port in BROKER["ports"]}
    assert {"http": int(defaults["HTTP_PORT"]), "pulsar": int(defaults["PULSAR_PORT"])} == ports
    for service in of_kind("Service").values():
        assert ports == {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}
    assert {"http", "pulsar"} == {
        port["port"]
        for port in of_kind("NetworkPolicy")["equipoise"]["spec"]["ingress"][0]["ports"]
    }
    assert str(ports["http"]) == POD["metadata"]["annotations"]["prometheus.io/port"]


def test_the_image_is_ours_with_its_user_and_its_folder() -> None:
    image = f"equipoise:{PROJECT['project']['version']}"
    assert [image, image] == [BROKER["image"], WORKER["image"]]
    (user,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    (home,) = re.findall(r"^VOLUME (\S+)", DOCKERFILE, re.MULTILINE)
    for manifest in (BROKERS, WORKERS):
        assert int(user) == manifest["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    mounts = {mount["name"]: mount["mountPath"] for mount in BROKER["volumeMounts"]}
    assert {claim["metadata"]["name"] for claim in BROKERS["spec"]["volumeClaimTemplates"]} == {
        "data"
    }
    assert home == mounts["data"]


def test_a_broker_advertises_its_own_name() -> None:
    """The headless service gives each pod a name."""
    environment = {each["name"]: each.get("value") for each in BROKER["env"]}
    service = of_kind("Service")[BROKERS["spec"]["serviceName"]]
    assert "None" == service["spec"]["clusterIP"]
    assert (
        f"$(POD_NAME).{service['metadata']['name']}.$(POD_NAMESPACE).svc.cluster.local"
        == environment["ADVERTISED_HOST"]
    )
    assert environment["EQUIPOISE_LOG"] == WORKER["env"][0]["value"]
    # Kubernetes expands a variable only if it is defined above.
    names = list(environment)
    assert names.index("POD_NAME") < names.index("ADVERTISED_HOST") > names.index("POD_NAMESPACE")


def test_commands_and_options_exist() -> None:
    options = {option for parameter in load("broker").params for option in parameter.opts}
    assert {"--id", "--set"} <= options
    assert ["--id", "$(POD_NAME)", "--set"] == BROKER["args"][:3]
    assert ["equipoise", "load-worker"] == WORKER["command"]
    assert "load-worker" in GROUPS


def test_brokers_know_the_names_of_the_service_for_clients() -> None:
    """A broker refuses a request for a host that it does not know."""
    setting, _, names = BROKER["args"][3].partition("=")
    config = WorkerConfig.model_validate(
        {
            "log_url": "sqlite:x.db",
            "data_dir": "x",
            setting: names.replace("$(POD_NAMESPACE)", "shop"),
        }
    )
    (service,) = of_kind("Service").keys() - {BROKERS["spec"]["serviceName"]}
    suffixes = ("", ".shop", ".shop.svc", ".shop.svc.cluster.local")
    assert [f"{service}{suffix}" for suffix in suffixes] == list(config.http_hosts)


def test_the_stop_has_time_for_the_hook_and_for_the_broker() -> None:
    """Otherwise Kubernetes kills the broker while it moves its bundles."""
    *_, script = BROKER["lifecycle"]["preStop"]["exec"]["command"]
    drain, wait = script.split("; ")
    program, group, verb, pod, option, seconds = shlex.split(drain)
    assert ("equipoise", "brokers", "drain", "$POD_NAME", "--timeout") == (
        program,
        group,
        verb,
        pod,
        option,
    )
    config = WorkerConfig.model_validate({"log_url": "sqlite:x.db", "data_dir": Path("x")})
    hook_s = int(seconds) + int(wait.removeprefix("sleep "))
    assert hook_s * 1_000 + config.stop_ms < POD["spec"]["terminationGracePeriodSeconds"] * 1_000


def test_probes_ask_what_a_broker_answers() -> None:
    reference = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    for probe in ("readinessProbe", "livenessProbe"):
        assert f"`GET {BROKER[probe]['httpGet']['path']}`" in reference
        assert "http" == BROKER[probe]["httpGet"]["port"]
