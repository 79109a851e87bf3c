"""Define `equipoise broker`: run one broker in the foreground.

This sets up logs, services and the event loop; `brokers.server.main` runs the broker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.cli import kafka_options
from equipoise.brokers.cli.kafka_options import PrintConfigOption
from equipoise.brokers.cli.options import BrokerConfOption, ErrorsAsJsonOption, LogOption, directory, file
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.standard_input import StopOnEofOption, end_with_standard_input

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from equipoise.brokers.cli.broker_conf import BrokerConf
    from equipoise.brokers.runtime.config import WorkerConfig
    from equipoise.brokers.runtime.service import Service

app = group("Run one broker in the foreground.")

ServiceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--service",
        metavar="[PATTERN=]MODULE:CLASS",
        help="What serves the namespaces of a pattern, such as 'shop/*'; `pulsar` and `counter` come with the package; may be repeated. "
        " [default: pulsar, or counter without the extra `pulsar`]",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of a broker, such as lookup_ms=5000, or one of balancing, such as balanced.moves_max=8; may be repeated.",
        show_default=False,
    ),
]
EvidenceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", parser=file, help="Add a line there for each piece of finished work, for a judge.", show_default=False),
]

PULSAR_PORT: Final = 6650


@app.command()
def run(
    *,
    log: LogOption,
    data: Annotated[
        Path, typer.Option(metavar="DIR", parser=directory, help="The directory of this one broker, on a disk of this machine.")
    ],
    broker_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="[default: HOST:PORT]", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="The cluster's id.  [default: equipoise]", show_default=False)] = None,
    host: Annotated[str | None, typer.Option(help="The address that HTTP listens on.  [default: 127.0.0.1]", show_default=False)] = None,
    http_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="0 takes any that is free.  [default: 8080]", show_default=False)
    ] = None,
    pulsar_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="For Pulsar's clients, if a service takes them; 0 takes any that is free.  [default: 6650]",
            show_default=False,
        ),
    ] = None,
    advertised_host: Annotated[
        str | None, typer.Option(metavar="HOST", help="The host that clients are told.  [default: that of --host]", show_default=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where other machines can reach it, though nobody is asked who they are.")
    ] = False,
    service: ServiceOption = None,
    capacity: Annotated[int | None, typer.Option(help="A weight.  [default: 100]", show_default=False)] = None,
    failure_domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="What may fail as a whole with this broker.", show_default=False)
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For policies; may be repeated.", show_default=False)
    ] = None,
    evidence: EvidenceOption = None,
    settings: SetOption = None,
    broker_conf: BrokerConfOption = None,
    print_config: PrintConfigOption = False,
    stop_on_eof: StopOnEofOption = False,
    as_json: ErrorsAsJsonOption = False,
) -> None:
    """Run one broker in the foreground.

    SIGTERM or Ctrl-C make it move its bundles away and leave.
    """
    del as_json  # Its log is always JSON.
    from equipoise.brokers.cli.broker_conf import read_broker_conf, settings_over
    from equipoise.brokers.runtime.config import WorkerConfig
    from equipoise.brokers.server.services import default_service, load_services, speaks_pulsar

    named: dict[str, object] = {"broker_id": broker_id, "cluster": cluster, "host": host, "http_port": http_port}
    named |= {"pulsar_port": pulsar_port, "advertised_host": advertised_host, "insecure": insecure, "capacity": capacity}
    named |= {"failure_domain": failure_domain, "evidence": evidence, "labels": pairs("--label", label or ())}
    given = {name: value for name, value in named.items() if value is not None}
    services = load_services(service or (default_service(),))
    defaults = {"pulsar_port": PULSAR_PORT} if speaks_pulsar(map(type, services.values())) else {}
    conf = None if broker_conf is None else read_broker_conf(broker_conf)
    chosen = settings_over(conf, pairs("--set", settings or ()))
    config = WorkerConfig.model_validate({**defaults, **chosen, **given, "log_url": log, "data_dir": data})
    if print_config:
        kafka_options.print_config(config.model_dump(mode="json"))
    else:
        _serve(config, services, stop_on_eof=stop_on_eof, conf=conf)


def _serve(config: WorkerConfig, services: Mapping[str, Service], *, stop_on_eof: bool, conf: BrokerConf | None) -> None:
    """Set up the process and run the broker until it is stopped."""
    import asyncio

    from equipoise.brokers.cli.broker_conf import log_entries
    from equipoise.brokers.cli.structured_logs import configure
    from equipoise.brokers.server.main import run_broker

    configure(sys.stderr)
    if conf is not None:
        log_entries(conf)
    if stop_on_eof:
        end_with_standard_input()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run_broker(config, services))


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts. Raise a usage error that names `option`."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option} takes NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed, or None for the standard one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
