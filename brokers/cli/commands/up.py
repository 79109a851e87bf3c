"""Define `equipoise up`: run a local cluster in the foreground.

This handles options, output and signals; `brokers.local.local_cluster` runs the cluster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from equipoise.brokers.cli import kafka_options
from equipoise.brokers.cli.broker_conf import document_of, print_entries
from equipoise.brokers.cli.commands.broker import PULSAR_PORT, Configured, ServiceOption
from equipoise.brokers.cli.options import LOG_VARIABLE, directory
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Output, Row, print_json, print_line
from equipoise.brokers.local.local_cluster import (
    LOOK_MS,
    ClusterEvent,
    ClusterSettings,
    LocalCluster,
)
from equipoise.brokers.runtime.config import SECRET_VARIABLES
from equipoise.brokers.runtime.services import default_service, service_classes, speaks_pulsar
from equipoise.channel.kafka.settings import MASK
from equipoise.channel.log.open_log import log_path
from equipoise.channel.system.stop_signals import STOP_SIGNALS

app = group("Run a cluster of brokers on this machine.")

BROKERS_MAX: Final = 100  # On one machine; each process takes about 50 MB.
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options about the cluster as a whole."""

    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            parser=directory,
            help="Parent directory. Broker i uses DIR/broker-i and logs to broker.log there.",
        ),
    ] = Path("cluster")
    brokers: Annotated[int, typer.Option(min=1, max=BROKERS_MAX, help="Number of brokers.")] = 3
    http_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=PORT_MAX,
            help="Broker i serves HTTP on this port + i, and has the id 127.0.0.1:PORT.",
        ),
    ] = 8080
    pulsar_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=PORT_MAX,
            help="Broker i accepts Pulsar clients on this port + i, if a service serves them.",
        ),
    ] = PULSAR_PORT
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            help=f"The cluster's log. Ignores {LOG_VARIABLE}.  [default: sqlite:DIR/channel.db]",
        ),
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Restart a broker that dies.")] = False


@app.command()
def up(
    *, options: UpOptions, service: ServiceOption = None, configured: Configured, results: Output
) -> None:
    """Run a cluster of brokers on this machine.

    A broker that dies is declared dead at once, so its bundles move without waiting for its lease.

    The first Ctrl-C or SIGTERM stops all brokers gracefully (exit code 0). The second one kills
    them (exit code 130). Exit code 4: no broker is left, or one could not be started.
    """
    log, pulsar_port = options.log, options.pulsar_port
    if max(options.http_port, pulsar_port) + options.brokers - 1 > PORT_MAX:
        raise typer.BadParameter(
            f"the last of {options.brokers} ports would be above {PORT_MAX}; choose a lower"
            " --http-port and --pulsar-port"
        )
    services = tuple(service or (default_service(),))
    # Check before any process starts: each would fail with the same message.
    takes_pulsar_clients = speaks_pulsar(service_classes(services).values())
    if not takes_pulsar_clients and pulsar_port != PULSAR_PORT:
        problem = (
            "--pulsar-port: no service is for Pulsar's clients; name `pulsar` as one (pip install"
            " 'equipoise[pulsar]')"
        )
        raise typer.BadParameter(problem)
    conf, chosen = configured.chosen()
    cluster = LocalCluster(
        ClusterSettings(
            directory=options.data,
            brokers=options.brokers,
            http_port=options.http_port,
            pulsar_port=pulsar_port if takes_pulsar_clients else None,
            log_url=log,
            services=services,
            settings=chosen,
            restart=options.restart,
        ),
        report=_print_json if results.as_json else _print_line,
    )
    if configured.print_config:
        _print_config(cluster)
        return
    if log is None:
        _warn_if_overridden(cluster, results)
    if conf is not None:
        with suppress(OSError):
            if results.as_json:
                print_json({"what": "broker_conf", **document_of(conf)})
            else:
                print_entries(conf)
    with _signals(cluster) as signals:
        _run(cluster, signals, results)
    if len(signals) > 1:
        raise KeyboardInterrupt  # The end was not graceful, so the exit code must not be 0.


def _print_config(cluster: LocalCluster) -> None:
    settings = {
        name: MASK if name in SECRET_VARIABLES else value
        for name, value in cluster.settings.settings.items()
    }
    kafka_options.print_config(
        {
            **asdict(cluster.settings),
            "settings": settings,
            "directory": str(cluster.settings.directory),
            "log_url": cluster.log_url,
        }
    )


def _run(cluster: LocalCluster, signals: Sequence[int], results: Output) -> None:
    try:
        with suppress(CancelledError):
            cluster.start()
            _report_ready(cluster, results)
        while not signals and not cluster.wait_until_all_ended(timeout_ms=LOOK_MS):
            pass
        is_over = not signals
        if not is_over:
            _report(results, "stopping all brokers; once more to kill them", {"what": "stopping"})
    finally:
        cluster.stop_all()
    if is_over:  # Print this last, after each broker's end and its reason.
        _report(results, "no broker is left", {"what": "over"})
        raise typer.Exit(ExitCode.OPERATOR)


@contextmanager
def _signals(cluster: LocalCluster) -> Iterator[Sequence[int]]:
    """Yield a growing list of received signals. The first one aborts a start, each later one kills
    all brokers.

    Handlers do not raise `KeyboardInterrupt`: Python loses it while a generator ends, and the
    command would not stop. The former handlers are restored at the end, for programs that call the
    command.
    """
    signals: list[int] = []

    def received(number: int, _: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:
            cluster.cancel_start()
        else:
            cluster.kill_all()

    before = [(number, signal.getsignal(number) or signal.SIG_DFL) for number in STOP_SIGNALS]
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, received)
        yield signals
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _warn_if_overridden(cluster: LocalCluster, results: Output) -> None:
    """Warn if the environment names another log. The user may expect this cluster on it."""
    named = os.environ.get(LOG_VARIABLE)
    if named and not _is_same_log(named, cluster.log_url):
        text = (
            f"{LOG_VARIABLE} names {named}, which is not used: this cluster's log is"
            f" {cluster.log_url}; --log names another"
        )
        _report(
            results,
            text,
            {"what": "environment_overridden", LOG_VARIABLE: named, "log": cluster.log_url},
        )


def _is_same_log(first: str, second: str) -> bool:
    one, other = log_path(first), log_path(second)
    return (
        one is not None and other is not None and os.path.realpath(one) == os.path.realpath(other)
    )


def _report_ready(cluster: LocalCluster, results: Output) -> None:
    example = f"EQUIPOISE_LOG={cluster.log_url} equipoise brokers list"
    url = None if cluster.settings.pulsar_port is None else cluster.pulsar_url
    ready = {
        "what": "cluster_ready",
        "log": cluster.log_url,
        "addresses": list(cluster.addresses),
        "pulsar": url,
    }
    clients = "" if url is None else f"; Pulsar's clients connect to {url}"
    _report(
        results,
        f"ready: {len(cluster.addresses)} brokers on {cluster.log_url}{clients}; try: {example}",
        ready,
    )


def _report(results: Output, text: str, document: Row) -> None:
    with suppress(OSError):
        results.print_fact(text, document)


def _print_line(event: ClusterEvent) -> None:
    with suppress(OSError):  # The cluster continues when its output is closed.
        print_line(event.text if event.broker is None else f"{event.broker}  {event.text}")


def _print_json(event: ClusterEvent) -> None:
    with suppress(OSError):
        print_json({"what": event.what, "broker": event.broker, **event.details})
