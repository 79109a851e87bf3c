"""One valid line for each command, with all of its options, for tests to run, garble, or compare
with the program.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from equipoise.brokers.cli.main import GROUPS, load
from tests.channels.folding import NAMESPACE
from tests.unit.cli.fabricated import LEFT, LEFT_RANGE
from tests.unit.security.signing import SECRET_URL, token

if TYPE_CHECKING:
    from typer._click import Command


_WHO: Final = "--client-conf {folder}/client.conf --token-file {folder}/token --ca-file {folder}/ca"
_PULSAR: Final = f"--source {{folder}}/pulsar.db --admin http://127.0.0.1:1 {_WHO}"

_LINES: Final[Mapping[str, str]] = {
    "broker": (
        "--log {log} --data {folder}/data --id b-1 --cluster test --host 127.0.0.1 --http-port 0"
        " --pulsar-port 0 --advertised-host localhost --insecure --service"
        " shop/*=equipoise.examples.counter:Counter --capacity 50 --failure-domain rack-1 --label"
        " zone=a --evidence {folder}/accepts --set lookup_ms=5000 --stop-on-eof --broker-conf"
        " {folder}/broker.conf --json"
    ),
    "up": (
        "--data {folder}/up --brokers 2 --http-port 18080 --pulsar-port 16650 --log {log} --restart"
        " --service shop/*=equipoise.examples.counter:Counter --service public/*=pulsar --set"
        " renew_ms=900 --broker-conf {folder}/broker.conf --json"
    ),
    "namespaces create": (
        "shop/orders --log {log} --boundaries 0,0xffffffff --on-channel-loss fence --as erin"
        " --timeout 5 --json"
    ),
    "namespaces list": "tenant --log {log} --timeout 5 --json",
    "namespaces policies": (
        "shop/gone --log {log} --on-channel-loss serve --as erin --timeout 5 --json"
    ),
    "namespaces bundles": "{namespace} --log {log} --timeout 5 --json",
    "namespaces delete": "shop/gone --force --log {log} --as erin --timeout 5 --json",
    "namespaces unload": (
        "{namespace} --log {log} --bundle {left_range} --destinationBroker a --force --no-wait --as"
        " erin --timeout 5 --json"
    ),
    "namespaces cancel-moves": "{namespace} --log {log} --as erin --timeout 5 --json",
    "namespaces freeze": (
        "{namespace} --for 2h --reason sale --log {log} --as erin --timeout 5 --json"
    ),
    "namespaces unfreeze": "{namespace} --log {log} --as erin --timeout 5 --json",
    "namespaces split-bundle": (
        "{namespace} --log {log} --bundle {left_range} --split-algorithm-name"
        " specified_positions_divide --positions 0x10,0x20 --no-wait --as erin --timeout 5 --json"
    ),
    "namespaces merge-bundle": (
        "{namespace} --log {log} --bundle {left_range} --as erin --timeout 5 --json"
    ),
    "namespaces grant-permission": (
        "{namespace} --log {log} --role ops --actions produce,consume --as erin --timeout 5 --json"
    ),
    "namespaces revoke-permission": (
        "{namespace} --log {log} --role ops --as erin --timeout 5 --json"
    ),
    "namespaces permissions": "{namespace} --log {log} --timeout 5 --json",
    "bundles list": "{namespace} --log {log} --timeout 5 --json",
    "bundles show": "{left} --log {log} --timeout 5 --json",
    "bundles owner": "{namespace} 'a key' --log {log} --timeout 5 --json",
    "bundles cancel": "{left} --log {log} --as erin --timeout 5 --json",
    "bundles quarantine list": "--log {log} --timeout 5 --json",
    "bundles quarantine release": "{left} --log {log} --as erin --timeout 5 --json",
    "policies list": "--log {log} --timeout 5 --json",
    "policies show": "isolation/x --log {log} --timeout 5 --json",
    "policies set-isolation": (
        "x --log {log} --namespaces shop/.* --primary a --secondary b --auto-failover-policy-type"
        " min_available --auto-failover-policy-params min_limit=1,usage_threshold=80 --as erin"
        " --timeout 5 --json"
    ),
    "policies pin": (
        "x --log {log} --namespace {namespace} --range {left_range} --brokers a --as erin --timeout"
        " 5 --json"
    ),
    "policies set-failure-domain": "x --log {log} --brokers a --as erin --timeout 5 --json",
    "policies delete": "pin/x --log {log} --as erin --timeout 5 --json",
    "policies explain": "{left} --log {log} --timeout 5 --json",
    "brokers list": "test --log {log} --all --timeout 5 --json",
    "brokers show": "c --log {log} --timeout 5 --json",
    "brokers leader-broker": "--log {log} --timeout 5 --json",
    "brokers status": "--log {log} --url http://127.0.0.1:9 --timeout 5 --json",
    "brokers drain": "c --log {log} --no-wait --timeout 5 --json",
    "brokers undrain": "c --log {log} --no-wait --timeout 5 --json",
    "brokers declare-dead": "--data {folder}/nobody --log {log} --as erin --timeout 5 --json",
    "brokers maintenance start": (
        "c --log {log} --reason new-disks --for 2h --no-wait --as erin --timeout 5 --json"
    ),
    "brokers maintenance end": "c --log {log} --as erin --timeout 5 --json",
    "brokers maintenance list": "--log {log} --timeout 5 --json",
    "plan": (
        "--log {log} --shedder TransferShedder --set transfer.hit_count_threshold=0 --broker-conf"
        " {folder}/broker.conf --output {folder}/plan.json --as erin --timeout 5 --json"
    ),
    "decisions": "--log {log} --limit 5 --json",
    "balancing on": "--log {log} --as erin --timeout 5 --json",
    "balancing off": "--log {log} --as erin --timeout 5 --json",
    "balancing pause": "--for 30m --reason upgrade --log {log} --as erin --timeout 5 --json",
    "balancing resume": "--log {log} --as erin --timeout 5 --json",
    "balancing set": (
        "balanced.moves_max=7 balanced.start_ratio=0.5 --log {log} --as erin --timeout 5 --json"
    ),
    "balancing unset": (
        "balanced.moves_max balanced.start_ratio --log {log} --as erin --timeout 5 --json"
    ),
    "balancing show": "--log {log} --all --timeout 5 --json",
    "balancing history": "--log {log} --timeout 5 --json",
    "balancing read": "{folder}/broker.conf --json",
    "lab run": (
        "steady --policy AvgShedder --set average.low_percent=20 --every 30 --seed 2 --brokers 2"
        " --bundles 8 --for 1m --json"
    ),
    "lab compare": (
        "steady --all --policy AvgShedder --set average.low_percent=20 --every 30 --seeds 1,2"
        " --brokers 2 --bundles 8 --for 1m --output {folder}/lab --json"
    ),
    "lab tune": (
        "steady --policy AvgShedder --trials 2 --load-moved-max 99 --set average.low_hits=3 --every"
        " 30 --seed 2 --brokers 2 --bundles 8 --for 1m --json"
    ),
    "lab record": "--log {log} --output {folder}/trace.csv --for 1s --every 1 --timeout 5 --json",
    "pulsar status": f"{_PULSAR} --timeout 5 --json",
    "pulsar bundles": f"public/default {_PULSAR} --timeout 5 --json",
    "pulsar why": f"public/default/0x00000000_0x40000000 {_PULSAR} --timeout 5 --json",
    "pulsar at": f"7 {_PULSAR} --timeout 5 --json",
    "pulsar diff": f"3 7 {_PULSAR} --timeout 5 --json",
    "pulsar tail": f"{_PULSAR} --lines 5 --timeout 5 --json",
    "pulsar verify": f"{_PULSAR} --timeout 5 --json",
    "pulsar record": (
        "{folder}/recorded.db --source pulsar://127.0.0.1:1 --admin http://127.0.0.1:1 --once"
        f" --for 1s {_WHO} --timeout 1 --json"
    ),
    "pulsar trace": "{folder}/trace.csv --source {folder}/pulsar.db --every 60 --json",
    "pulsar plan": (
        f"{_PULSAR} --shedder TransferShedder --set balanced.moves_max=3 --broker-conf"
        " {folder}/broker.conf --output {folder}/pulsar.plan --wait 0 --timeout 1 --json"
    ),
    "pulsar apply": (
        "{folder}/pulsar.plan --source pulsar://127.0.0.1:1 --admin http://127.0.0.1:1 --send"
        f" --resume --at-once 2 --audit {{folder}}/moves.jsonl {_WHO}"
        " --timeout 1 --json"
    ),
    "channel tail": "--log {log} --from 3 --lines 5 --renewals --timeout 5 --json",
    "channel show": "7 --log {log} --timeout 5 --json",
    "channel why": "{left} --log {log} --timeout 5 --json",
    "channel verify": "--log {log} --cluster test --timeout 5 --json",
    "channel at": "7 --log {log} --timeout 5 --json",
    "channel diff": "3 7 --log {log} --timeout 5 --json",
    "channel copy": (
        "{log} sqlite:{folder}/copy.db --leave-open --ahead 3 --as erin --timeout 1 --json"
    ),
    "channel compact": (
        "--log {log} --retain 7d --dry-run --cluster test --stop-on-eof --timeout 5 --json"
    ),
    "channel acls": "broker User:broker --log kafka://127.0.0.1:1/shop --apply --timeout 5 --json",
    "rights grant": "ops operate --log {log} --as erin --timeout 5 --json",
    "rights revoke": "ops --log {log} --as erin --timeout 5 --json",
    "rights list": "--log {log} --timeout 5 --json",
    "tokens create-secret-key": "--output {folder}/secret.key --json",
    "tokens create-key-pair": (
        "--output-private-key {folder}/private.key --output-public-key {folder}/public.key"
        " --signature-algorithm ES256 --json"
    ),
    "tokens create": (
        "--subject orders --secret-key {secret} --expiry-time 30d --audience shop --output"
        " {folder}/token --json"
    ),
    "tokens show": "{token} --json",
    "tokens validate": "{token} --secret-key {secret} --claim sub --audience shop --json",
    "audit": (
        "--log {log} --archive {folder}/archive --to-end --in-flight-max 30 --metrics-port 0"
        " --stop-on-eof --json"
    ),
    "report": ("--log {log} --from -2h --to 2030-01-31T12:34 --out {folder}/report.html --json"),
    "spark audit": (
        "--log {log} --archive {folder}/archive --to-end --in-flight-max 30 --master local[1]"
        " --metrics-port 0 --stop-on-eof --json"
    ),
    "archive": (
        "--log {log} --archive {folder}/archive --to-end --hold main --metrics-port 0"
        " --stop-on-eof --json"
    ),
    "spark archive": (
        "--log {log} --archive {folder}/archive --to-end --hold main --master local[1]"
        " --metrics-port 0 --stop-on-eof --json"
    ),
    "spark verify": (
        "--archive {folder}/archive --from -2h --to 2030-01-31T12:34 --master local[1] --json"
    ),
    "spark pulsar": "{folder}/pulsar.db --archive {folder}/archive --master local[1] --json",
    "spark lab": (
        "steady --output {folder}/lab --policy AvgShedder --set average.low_percent=10,20 --every"
        " 30 --seeds 2 --brokers 2 --bundles 8 --for 1m --master local[1] --json"
    ),
    "spark jars": "--json",
}
"""What follows the name of a command. `-f`, which has no end, is left out."""

_NAMES: Final = {
    "namespace": NAMESPACE,
    "left": LEFT,
    "left_range": LEFT_RANGE,
    "secret": SECRET_URL,
    "token": token(aud="shop"),
    "log": "{log}",
    "folder": "{folder}",
}

LINES: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(shlex.split(line.format(**_NAMES))) for name, line in _LINES.items()
}
"""The words after the name of a command. The caller fills in `{log}` and `{folder}`."""


def tree() -> Iterator[tuple[str, Command]]:
    """Every command of the program by its full name, without those that are only groups."""
    for name in GROUPS:
        yield from _below(name, load(name))


def _below(name: str, command: Command) -> Iterator[tuple[str, Command]]:
    below: Mapping[str, Command] = getattr(command, "commands", {})
    if not below:
        yield name, command
    for leaf, each in below.items():
        yield from _below(f"{name} {leaf}", each)
