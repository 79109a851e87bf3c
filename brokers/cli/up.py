"""`equipoise up`: a local cluster in the foreground.

May live here: its options, what it prints, and its way with signals. The cluster itself is `brokers.local_cluster`'s.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from brokers.cli.broker import ServiceOption, SetOption, pairs
from brokers.cli.options import LOG_VARIABLE, JsonOption
from brokers.cli.outcome import ExitCode, group
from brokers.cli.output import Row, print_fact, print_json, print_line
from brokers.local_cluster import ClusterSettings, Happening, LocalCluster

app = group("Run a cluster of brokers on this machine.")

BROKERS_MAX: Final = 100  # Of one machine: each is a process of some 50 MB.
PORT_MAX: Final = 65_535
_WAIT_MS: Final = 3_600_000  # The wait is ended by a signal, or by the end of the last broker.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_COUNTER_STORE: Final = "EQUIPOISE_COUNTER_STORE"


@app.command()
def up(
    *,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Broker i has the directory DIR/broker-i, and its log there in broker.log.")],
    brokers: Annotated[int, typer.Option(min=1, max=BROKERS_MAX, help="How many.")] = 3,
    http_port: Annotated[
        int, typer.Option(min=1, max=PORT_MAX, help="Broker i has the id 127.0.0.1:(this + i), and serves HTTP there.")
    ] = 8080,
    pulsar_port: Annotated[
        int, typer.Option(min=1, max=PORT_MAX, help="Kept free for Pulsar's protocol, this + i; it is not served yet.")
    ] = 6650,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="URL", envvar=LOG_VARIABLE, help="The log.  [default: sqlite:DIR/channel.db]", show_default=False),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a broker again that dies.")] = False,
    service: ServiceOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a cluster of brokers on this machine.

    A broker that dies is declared dead at once, so that its bundles move without waiting for its lease. SIGTERM or Ctrl-C
    stop all gracefully; the second time, at once.
    """
    if max(http_port, pulsar_port) + brokers - 1 > PORT_MAX:
        raise typer.BadParameter(f"there are not {brokers} ports from there on")
    cluster = LocalCluster(
        ClusterSettings(
            directory=data,
            brokers=brokers,
            http_port=http_port,
            log_url=log,
            services=tuple(service or ()),
            settings=pairs("--set", settings or ()),
            environment={} if _COUNTER_STORE in os.environ else {_COUNTER_STORE: str(data.absolute() / "counter.db")},
            restart=restart,
        ),
        tell=_print_json if as_json else _print_line,
    )
    with _own_signals():
        _run(cluster, as_json=as_json)


def _run(cluster: LocalCluster, *, as_json: bool) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM is a Ctrl-C.
        cluster.start()
        _say_ready(cluster, as_json=as_json)
        while not cluster.wait_until_all_ended(timeout_ms=_WAIT_MS):
            pass
    except KeyboardInterrupt:
        _kill_next_time(cluster)
        _say("stopping all brokers; once more to kill them", {"what": "stopping"}, as_json=as_json)
    else:
        _say("no broker is left", {"what": "over"}, as_json=as_json)
        raise typer.Exit(ExitCode.OPERATOR)
    finally:
        _kill_next_time(cluster)
        cluster.stop_all()


def _kill_next_time(cluster: LocalCluster) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda *_: cluster.kill_all())


@contextmanager
def _own_signals() -> Iterator[None]:
    """Afterwards signals do what they did before, for whoever called the command from a program."""
    before = [(number, signal.getsignal(number) or signal.SIG_DFL) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _say_ready(cluster: LocalCluster, *, as_json: bool) -> None:
    example = f"EQUIPOISE_LOG={cluster.log_url} equipoise brokers list"
    ready = {"what": "cluster_ready", "log": cluster.log_url, "addresses": list(cluster.addresses)}
    _say(f"ready: {len(cluster.addresses)} brokers on {cluster.log_url}; try: {example}", ready, as_json=as_json)


def _say(text: str, document: Row, *, as_json: bool) -> None:
    with suppress(OSError):
        print_fact(text, document, as_json=as_json)


def _print_line(happening: Happening) -> None:
    with suppress(OSError):  # The cluster goes on when nobody reads what is said of it.
        print_line(f"{happening.broker}  {happening.text}")


def _print_json(happening: Happening) -> None:
    with suppress(OSError):
        print_json({"what": happening.what, "broker": happening.broker, **happening.details})
