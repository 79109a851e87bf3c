"""Check the chart for Kubernetes, and the manifests that are rendered from it, without a cluster:
against the schemas of Kubernetes, and against the product that they run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kubernetes_validate.utils import all_versions, validate

from equipoise.brokers.runtime.config import WorkerConfig
from tests.docs.test_code_blocks import problem_of
from tests.pulsar.programs import is_required
from tests.unit.compose.test_compose_files import COMPOSE, DOCKERFILE, PROJECT, ROOT

CHART: Final = COMPOSE / "chart"
SETS: Final = {"kafka": "values.yaml", "one-node": "one-node.yaml", "secured": "secured.yaml"}
"""The file of values for each file of manifests. The chart's own values apply to what it leaves
out."""

# The oldest version that has the access mode ReadWriteOncePod. Helm as Go builds it knows none.
KUBERNETES: Final = "1.29"

# Parsed YAML of the manifests, whose shape their schemas check.
Manifest = dict[str, Any]


def minor(version: str) -> int:
    return int(version.split(".")[1])


VERSIONS: Final = [each for each in all_versions() if minor(each) >= minor(KUBERNETES)]


def written(name: str) -> Path:
    """Return the file of the manifests of a set."""
    return COMPOSE / "kubernetes" / f"{name}.yaml"


def helm(verb: str, name: str, *options: str) -> str:
    """Have Helm render (`template`) the chart with a set of values, or check it (`lint`). Return
    its output.
    """
    release = ["equipoise"] if verb == "template" else []
    values, version = f"--values={CHART / SETS[name]}", f"--kube-version={KUBERNETES}"
    done = subprocess.run(
        ["helm", verb, *release, str(CHART), values, version, *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, as Kubernetes does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT002
        keys = [self.construct_object(key) for key, _ in node.value]
        assert sorted(set(keys)) == sorted(keys), f"a key stands twice{node.start_mark}"
        return super().construct_mapping(node, deep)


class Rendered:
    """The manifests of one set of values."""

    def __init__(self, name: str) -> None:
        self.name = name
        content = written(name).read_text(encoding="utf-8")
        self.all: list[Manifest] = list(yaml.load_all(content, Strict))
        self.brokers = self.of_kind("StatefulSet")["equipoise"]
        self.pod: Manifest = self.brokers["spec"]["template"]
        (self.broker,) = self.pod["spec"]["containers"]

    def of_kind(self, kind: str) -> Mapping[str, Manifest]:
        """Return the manifests of a kind by name."""
        return {each["metadata"]["name"]: each for each in self.all if each["kind"] == kind}

    def environment(self) -> dict[str, str | None]:
        """Return the variables of a broker."""
        return {each["name"]: each.get("value") for each in self.broker["env"]}

    def settings(self) -> dict[str, str]:
        """Return the settings that a broker is given."""
        found = zip(self.broker["args"], self.broker["args"][1:], strict=False)
        return dict(value.split("=", 1) for option, value in found if option == "--set")


@pytest.fixture(params=SETS)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return Rendered(request.param)


# --- the chart ---

NEEDS_HELM: Final = pytest.mark.skipif(
    shutil.which("helm") is None and not is_required(),
    reason="helm is not installed: .ci/run has the version and the command",
)


@NEEDS_HELM
@pytest.mark.parametrize("name", SETS)
def test_the_manifests_are_the_rendering_of_the_chart(name: str) -> None:
    """`EQUIPOISE_TEST_REWRITE=1` writes them anew."""
    source = f"# Rendered by Helm from compose/chart/{SETS[name]}; do not edit.\n"
    text = source + helm("template", name)
    if "EQUIPOISE_TEST_REWRITE" in os.environ:
        written(name).write_text(text, encoding="utf-8")
    assert text == written(name).read_text(encoding="utf-8")


@NEEDS_HELM
@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_wrong(name: str) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", name, "--strict")


@NEEDS_HELM
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("replica=5", "replica"),
        ("log=redis://kafka/equipoise", "log"),
        ("log=sqlite:channel.db", "log"),
        ("settings.balancing.enabled=false", "settings"),
        ("replicas=0", "replicas"),
    ],
)
def test_a_wrong_value_is_refused(value: str, problem: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm("template", "kafka", "--set", value)
    assert problem in refused.value.stderr


@NEEDS_HELM
def test_settings_reach_the_broker_as_they_stand() -> None:
    """Helm reads numbers as floating point, and prints those from a million on with an exponent."""
    options = helm(
        "template",
        "kafka",
        "--set",
        "settings.pulsar_message_bytes_max=11000000,settings.balance=false,settings.retain=12h",
    )
    assert {"pulsar_message_bytes_max=11000000", "balance=false", "retain=12h"} <= set(
        re.findall(r'- "(\w+=\S+)"', options)
    )


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    version = PROJECT["project"]["version"]
    # Helm wants the form of Semantic Versioning.
    assert [version.replace("rc", "-rc."), version] == [chart["version"], chart["appVersion"]]
    assert f">={KUBERNETES}.0-0" == chart["kubeVersion"]


# --- what it renders ---

SERVICE_MONITOR: Final = {
    "jobLabel",
    "selector.matchLabels",
    "endpoints.port",
    "endpoints.path",
    "endpoints.interval",
    "endpoints.scheme",
    "endpoints.tlsConfig.ca.secret.name",
    "endpoints.tlsConfig.ca.secret.key",
    "endpoints.tlsConfig.serverName",
    "endpoints.authorization.credentials.name",
    "endpoints.authorization.credentials.key",
}
"""The fields that we use. They are in the schema of the Prometheus Operator (0.95)."""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(version: str, rendered: Rendered) -> None:
    """Strict: a field that Kubernetes does not know is an error."""
    for manifest in rendered.all:
        if manifest["kind"] != "ServiceMonitor":
            validate(manifest, version, strict=True)


def test_everything_selects_the_brokers(rendered: Rendered) -> None:
    labels = rendered.pod["metadata"]["labels"]
    selectors = [service["spec"]["selector"] for service in rendered.of_kind("Service").values()]
    selectors += [
        each["spec"]["selector"]["matchLabels"]
        for each in rendered.of_kind("PodDisruptionBudget").values()
    ]
    selectors += [
        rendered.of_kind("NetworkPolicy")["equipoise"]["spec"]["podSelector"]["matchLabels"]
    ]
    selectors += [rendered.brokers["spec"]["selector"]["matchLabels"]]
    selectors += [
        each["labelSelector"]["matchLabels"]
        for each in rendered.pod["spec"].get("topologySpreadConstraints", [])
        + rendered.pod["spec"]
        .get("affinity", {"podAffinity": {}})["podAffinity"]
        .get("requiredDuringSchedulingIgnoredDuringExecution", [])
    ]
    assert [labels] * (5 if rendered.name == "one-node" else 6) == selectors


def test_ports_are_those_of_the_image(rendered: Rendered) -> None:
    defaults = dict(re.findall(r"(\w+_PORT)=(\d+)", DOCKERFILE))
    ports = {port["name"]: port["containerPort"] for port in rendered.broker["ports"]}
    assert {"http": int(defaults["HTTP_PORT"]), "pulsar": int(defaults["PULSAR_PORT"])} == ports
    for service in rendered.of_kind("Service").values():
        assert ports == {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}
    (ingress,) = rendered.of_kind("NetworkPolicy")["equipoise"]["spec"]["ingress"]
    assert {"http", "pulsar"} == {port["port"] for port in ingress["ports"]}


def test_prometheus_finds_each_broker_once(rendered: Rendered) -> None:
    """By annotations, or by a service monitor of the service that has all brokers."""
    monitors = rendered.of_kind("ServiceMonitor")
    annotations = rendered.pod["metadata"].get("annotations", {})
    if not monitors:
        assert "8080" == annotations["prometheus.io/port"]
        return
    assert {} == annotations
    spec = monitors["equipoise"]["spec"]
    selected = [
        service
        for service in rendered.of_kind("Service").values()
        if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert ["equipoise-brokers"] == [service["metadata"]["name"] for service in selected]
    assert "equipoise" == selected[0]["metadata"]["labels"][spec["jobLabel"]]
    assert spec["endpoints"][0]["port"] in {port["name"] for port in selected[0]["spec"]["ports"]}
    assert SERVICE_MONITOR == set(fields(spec))


def fields(part: Manifest) -> Iterator[str]:
    """Yield the path of each field of a spec. Labels count as one."""
    for name, value in part.items():
        if name == "matchLabels" or not isinstance(value, dict | list):
            yield name
            continue
        for each in [value] if isinstance(value, dict) else value:
            yield from (f"{name}.{field}" for field in fields(each))


def test_the_image_is_ours_with_its_user_and_its_folder(rendered: Rendered) -> None:
    (user,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    (home,) = re.findall(r"^VOLUME (\S+)", DOCKERFILE, re.MULTILINE)
    assert f"equipoise:{PROJECT['project']['version']}" == rendered.broker["image"]
    assert int(user) == rendered.pod["spec"]["securityContext"]["runAsUser"]
    mounts = {mount["name"]: mount["mountPath"] for mount in rendered.broker["volumeMounts"]}
    assert home == mounts["data"]


def test_every_mounted_volume_exists(rendered: Rendered) -> None:
    claims = {
        claim["metadata"]["name"]
        for claim in rendered.brokers["spec"].get("volumeClaimTemplates", [])
    }
    volumes = {volume["name"] for volume in rendered.pod["spec"].get("volumes", [])}
    mounted = {mount["name"] for mount in rendered.broker["volumeMounts"]}
    assert mounted == volumes | claims


def test_a_broker_advertises_its_own_name(rendered: Rendered) -> None:
    """The headless service gives each pod a name."""
    environment = rendered.environment()
    service = rendered.of_kind("Service")[rendered.brokers["spec"]["serviceName"]]
    assert "None" == service["spec"]["clusterIP"]
    assert (
        f"$(POD_NAME).{service['metadata']['name']}.$(POD_NAMESPACE).svc.cluster.local"
        == environment["ADVERTISED_HOST"]
    )
    # Kubernetes expands a variable only if it is defined above.
    names = list(environment)
    assert names.index("POD_NAME") < names.index("ADVERTISED_HOST") > names.index("POD_NAMESPACE")


def test_commands_and_options_exist(rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_LOG", "sqlite:channel.db")
    assert problem_of(["broker", "--data", "broker", *rendered.broker["args"]]) is None


def test_brokers_take_their_settings(rendered: Rendered) -> None:
    """A broker refuses a request for a host that it does not know."""
    settings = {
        name: value.replace("$(POD_NAMESPACE)", "shop")
        for name, value in rendered.settings().items()
    }
    config = WorkerConfig.model_validate({"log_url": "sqlite:x.db", "data_dir": "x", **settings})
    (service,) = rendered.of_kind("Service").keys() - {rendered.brokers["spec"]["serviceName"]}
    suffixes = ("", ".shop", ".shop.svc", ".shop.svc.cluster.local")
    assert [f"{service}{suffix}" for suffix in suffixes] == list(config.http_hosts)


def test_brokers_of_one_node_share_a_disk() -> None:
    """The file of the log, and a data directory for each, are on the same volume."""
    one_node = Rendered("one-node")
    (claim,) = one_node.of_kind("PersistentVolumeClaim")
    assert [claim] == [
        volume["persistentVolumeClaim"]["claimName"] for volume in one_node.pod["spec"]["volumes"]
    ]
    (mount,) = one_node.broker["volumeMounts"]
    assert f"sqlite:{mount['mountPath']}/channel.db" == one_node.environment()["EQUIPOISE_LOG"]
    args = one_node.broker["args"]
    assert f"{mount['mountPath']}/$(POD_NAME)" == args[args.index("--data") + 1]
    assert "volumeClaimTemplates" not in one_node.brokers["spec"]


def test_the_stop_has_time_for_the_hook_and_for_the_broker(rendered: Rendered) -> None:
    """Otherwise Kubernetes kills the broker while it moves its bundles."""
    *_, script = rendered.broker["lifecycle"]["preStop"]["exec"]["command"]
    drain, wait = script.split("; ")
    program, *words, seconds = shlex.split(drain)
    assert ["brokers", "drain", "$POD_NAME", "--timeout"] == words
    assert ("equipoise", None) == (program, problem_of([*words, seconds, "--log", "sqlite:x.db"]))
    config = WorkerConfig.model_validate({"log_url": "sqlite:x.db", "data_dir": Path("x")})
    hook_s = int(seconds) + int(wait.removeprefix("sleep "))
    grace_s = rendered.pod["spec"]["terminationGracePeriodSeconds"]
    assert hook_s * 1_000 + config.stop_ms < grace_s * 1_000


def test_probes_ask_what_a_broker_answers(rendered: Rendered) -> None:
    reference = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    has_tls = "tls_certificate" in rendered.settings()
    for probe in ("readinessProbe", "livenessProbe"):
        asked = rendered.broker[probe]["httpGet"]
        assert f"`GET {asked['path']}`" in reference
        assert "http" == asked["port"]
        assert has_tls == (asked.get("scheme") == "HTTPS")


def test_secrets_come_by_reference(rendered: Rendered) -> None:
    """The chart has none. Each file that settings and variables name is in a mounted secret."""
    assert {} == rendered.of_kind("Secret")
    places = {
        mount["name"]: mount["mountPath"]
        for mount in rendered.broker["volumeMounts"]
        if mount["name"] != "data"
    }
    secrets = {
        places[volume["name"]]: volume["secret"]
        for volume in rendered.pod["spec"].get("volumes", [])
        if "secret" in volume
    }
    assert set(places.values()) == secrets.keys()
    assert len(secrets) == (3 if rendered.name == "secured" else 0)
    named = [*rendered.settings().values(), *filter(None, rendered.environment().values())]
    files = [Path(each.removeprefix("file://")) for each in named if "/etc/equipoise/" in each]
    assert {str(file.parent) for file in files} == secrets.keys()
    for file in files:
        keys = {item["key"] for item in secrets[str(file.parent)].get("items", [])}
        assert not keys or file.name in keys
