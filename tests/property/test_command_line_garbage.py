"""Whatever a command line holds, the answer is a line and an exit code, and never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.policies import (
    isolation_document,
    pin_document,
    quarantine_document,
)
from equipoise.brokers.cli.commands import channel_commands
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core import propose
from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.core.records import Document
from equipoise.lab.results import Result
from equipoise.lab.traces import Recording, Trace
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.records import Report
from equipoise.shedder.snapshot import Snapshot, WeighedBroker, WeighedBundle
from tests.channels.ruled import set_policy
from tests.unit.cli.command_lines import LINES, tree
from tests.unit.cli.fabricated import owned_channel, run, write
from tests.unit.pulsar_cluster.test_moving import plan_of
from tests.unit.pulsar_cluster.written import a_life

PLACES = [(name, place) for name, line in LINES.items() for place in range(len(line))]

SPARK_JOBS = {
    "audit.job": "run_audit",
    "audit.pulsar": "run_pulsar",
    "archive.job": "run_archive",
    "verifying.job": "run_verify",
    "report.job": "run_report",
    "plain.archive": "run_archive",
    "laboratory": "run_lab",
}

# Of one command alone, what the line's other options exclude.
EXCLUDED = {
    "archive": {"--release"},
    "spark archive": {"--release"},
    "report": {"--archive"},
    "tokens create": {"--private-key"},
    "tokens validate": {"--public-key"},
}

# What a shell can pass: anything but a null character, bytes that are no UTF-8 included (as lone
# surrogates).
WORDS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=40),
    st.from_regex(r"[-+0-9a-fx_/:=,.*]{0,40}", fullmatch=True),
    st.sampled_from(
        [
            "",
            "-",
            "--",
            "-1",
            "1e9",
            "nan",
            "9" * 30,
            "sqlite:",
            "sqlite:/",
            "memory:x",
            "\x1b[2J",
            "\udc80",
            "[red]",
            "a" * 5_000,
        ]
    ),
)

POLICIES: dict[str, Document] = {
    "isolation/x": isolation_document(namespaces=["shop/.*"], primary=["a"]),
    "pin/x": pin_document(namespace="shop/gone", brokers=["a"]),
    "quarantine/tenant/ns/0x00000000_0x80000000": quarantine_document(
        "opens failed", hold_ms=30_000, until_ms=30_000, evidence=[1]
    ),
}


def no_run(trace: Trace, *_: object, **__: object) -> Result:
    """As `run` of the laboratory, at once."""
    steps = len(trace.loads)
    return Result(trace=trace, unevenness=np.zeros(steps), excess=np.ones(steps), moves=())


def short_recording(*_: object, **__: object) -> Recording:
    """One step of a cluster with one bundle."""
    recording = Recording(step_s=1.0)
    broker = WeighedBroker(broker="a", capacity=100, bundles=(WeighedBundle(name="b", cost=20.0),))
    recording.note(Snapshot(brokers=(broker,)), {})
    return recording


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, with a log. Commands that run until they are stopped are only
    prepared.
    """
    folder = tmp_path_factory.mktemp("garbage")
    channel = owned_channel()
    channel.create(namespace="shop/gone")
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c"))
    )
    for key, document in POLICIES.items():
        set_policy(channel, key, document)
    write(channel.entries, folder)
    (folder / "broker.conf").write_text("loadBalancerEnabled=true\n", encoding="iso-8859-1")
    (folder / "client.conf").write_text("webServiceUrl=http://127.0.0.1:1\n", encoding="iso-8859-1")
    for name in ("token", "ca"):
        (folder / name).write_text("x", encoding="ascii")
    with open_archive(folder / "pulsar.db", create_for="pulsar://127.0.0.1:1") as archive:
        archive.append(a_life().reads)
        archive.add_reports(
            [
                Report(at_ms, "loadbalancer-broker-load-data", "a:80", None)
                for at_ms in (1_795_445_190_000, 1_795_445_260_000)
            ]
        )
    (folder / "pulsar.plan").write_text(plan_of().text(), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # The example that `broker` is given needs it.
        patch.setenv("EQUIPOISE_COUNTER_STORE", "counter.db")
        # A client of Pulsar has threads of its own, and seconds of patience.
        patch.setattr("equipoise.pulsar_cluster.sources.connected", nobody_answers)
        patch.setattr("equipoise.pulsar_cluster.sources.connected", nobody_answers)
        patch.setattr(channel_commands, "follow", lambda *_, **__: iter(()))
        patch.setattr(LocalCluster, "start", refuse_to_start)
        patch.setattr("equipoise.brokers.runtime.broker.run_broker", end_at_once)
        # What a job does is tested with Spark, which takes seconds to start.
        for job, run_job in SPARK_JOBS.items():
            patch.setitem(
                sys.modules,
                f"equipoise.spark_jobs.{job}",
                SimpleNamespace(**{run_job: lambda *_: 0}),
            )
        patch.setattr("equipoise.spark_jobs.streams.connector.connector_jars", lambda **_: ())
        patch.setattr(
            "equipoise.brokers.cli.commands.history_commands.end_with_standard_input", lambda: None
        )
        # Runs of the laboratory take seconds, and other processes.
        patch.setattr("equipoise.lab.bound.cuts_of", lambda *_, **__: ())
        patch.setattr("equipoise.lab.comparing.compare", lambda *_, **__: [])
        patch.setattr("equipoise.lab.running.run", no_run)
        patch.setattr("equipoise.brokers.cli.lab_commands._recorded", short_recording)
        patch.setattr("equipoise.channel.system.log_lines.configure", lambda _: None)
        patch.setattr("equipoise.brokers.cli.commands.broker.end_with_standard_input", lambda: None)
        patch.setattr(
            "equipoise.brokers.cli.commands.log_commands.end_with_standard_input", lambda: None
        )
        yield folder


async def end_at_once(*_: object) -> None:
    """As `run_broker`, for a broker that is stopped as soon as it is there."""


def nobody_answers(_: object) -> AbstractContextManager[object]:
    """As `connected`, for a cluster that is away."""
    raise PeerError("nobody answers")


def refuse_to_start(_: LocalCluster) -> None:
    """As `LocalCluster.start`, where no port is free."""
    raise OperatorError("there is no room")


def filled(name: str, folder: Path) -> list[str]:
    """The valid line of a command."""
    words = (
        word.replace("{log}", f"sqlite:{folder}/channel.db").replace("{folder}", str(folder))
        for word in LINES[name]
    )
    return [*name.split(), *words]


def test_every_option_of_every_command_is_garbled() -> None:
    known = {
        name: {option for parameter in command.params for option in parameter.opts[:1]}
        for name, command in tree()
    }
    assert sorted(known) == sorted(LINES)
    # Options of Kafka's client change the environment of this process, and with `--print-config`
    # nothing else would be reached.
    left_out = {
        "--follow",
        "--help",
        "--wait",
        "--kafka-config",
        "--kafka-config-file",
        "--print-config",
        "--environment",  # It goes to the workers of a cluster.
    }
    # Each excludes another that the line has.
    left_out |= {
        "--again",
        "--other-is-lost",
        "--bundles",
        "--anti-affinity-group",
        "--no-anti-affinity-group",
        "--min-limit",
        "--usage-threshold",
        "--domain",
        "--apply",
        "--undo",
    }
    assert {} == {
        name: missing
        for name, options in known.items()
        if (
            missing := {option for option in options if option.startswith("--")}
            - set(LINES[name])
            - left_out
            - EXCLUDED.get(name, set())
        )
    }


def test_the_lines_are_valid(folder: Path) -> None:
    """So what is garbled in them is the only error."""
    usage_errors = {
        name: result.stderr
        for name in LINES
        if (result := run(*filled(name, folder))).exit_code == 2
    }
    assert {} == usage_errors


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None
)
@given(place=st.sampled_from(PLACES), word=WORDS)
@example(place=("brokers drain", 0), word="a")
def test_any_word_ends_with_a_documented_exit_code_and_no_traceback(
    folder: Path, place: tuple[str, int], word: str
) -> None:
    name, index = place
    line = filled(name, folder)
    line[len(name.split()) + index] = word
    result = run(*line)
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        line,
        result.exception,
    )
    assert result.exit_code in {0, 1, 2, 3, 4}, line
    assert "Traceback" not in result.stderr
    if result.exit_code in {1, 4} and not result.stdout:
        assert 1 == result.stderr.count("\n"), line
