"""Define `equipoise broker`: run one in the foreground.

This sets up logs, services and the event loop. `brokers.runtime.broker` runs the broker.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.cli import kafka_options
from equipoise.brokers.cli.kafka_options import PrintConfigOption
from equipoise.brokers.cli.options import (
    BrokerConfOption,
    LogOption,
    StopOnEofOption,
    directory,
    end_with_standard_input,
    file,
    pairs,
)
from equipoise.brokers.cli.outcome import group

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
        help=(
            "Service for the namespaces of a pattern, such as 'shop/*'. `pulsar` and `counter` are"
            " built in. Repeatable.  [default: pulsar; without its extra, `up` runs counter]"
        ),
        show_default=False,
    ),
]
PULSAR_PORT: Final = 6650

# The parameters of glibc's `mallopt`, and what they are set to: a message has at most 5 MiB.
_TRIM_THRESHOLD, _TRIM_BYTES = -1, 16 * 1024 * 1024
_MMAP_THRESHOLD, _MMAP_BYTES = -3, 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The options that name settings of a broker, and its services."""

    broker_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="The broker's id.  [default: HOST:PORT]", show_default=False
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The cluster's id.  [default: equipoise]", show_default=False
        ),
    ] = None
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on.  [default: 127.0.0.1]", show_default=False),
    ] = None
    http_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="HTTP port; 0 chooses a free one.  [default: 8080]",
            show_default=False,
        ),
    ] = None
    pulsar_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help=(
                "Port for Pulsar clients, if a service accepts them; 0 chooses a free one. "
                " [default: 6650]"
            ),
            show_default=False,
        ),
    ] = None
    advertised_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Host that clients connect to.  [default: that of --host]",
            show_default=False,
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help=(
                "Allow a --host that other machines can reach, without TLS or without"
                " authentication."
            ),
        ),
    ] = False
    service: ServiceOption = None
    capacity: Annotated[
        int | None,
        typer.Option(
            help=(
                "How much load this broker can take, in percent of a core.  [default: by its cores]"
            ),
            show_default=False,
        ),
    ] = None
    failure_domain: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Failure domain, such as a rack or a zone.", show_default=False
        ),
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Label for policies. Repeatable.", show_default=False
        ),
    ] = None
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help=(
                "Append evidence of each finished operation to this file, for the checker of real"
                " runs."
            ),
            show_default=False,
        ),
    ] = None

    def given(self) -> dict[str, object]:
        """Return the settings that are given, by name."""
        named: dict[str, object] = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("service", "label")
        }
        named["labels"] = pairs("--label", self.label or ())
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The options for all other settings of brokers."""

    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help=(
                "Set any setting of a broker (lookup_ms=5000) or of the balancer"
                " (balanced.moves_max=8). Repeatable."
            ),
            show_default=False,
        ),
    ] = None
    broker_conf: BrokerConfOption = None
    print_config: PrintConfigOption = False

    def chosen(self) -> tuple[BrokerConf | None, dict[str, str]]:
        """Return what `--broker-conf` says, and the settings of it and of `--set`."""
        from equipoise.brokers.cli.broker_conf import read_broker_conf, settings_over

        conf = None if self.broker_conf is None else read_broker_conf(self.broker_conf)
        return conf, settings_over(conf, pairs("--set", self.settings or ()))


@app.command()
def run(
    *,
    log: LogOption,
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR", parser=directory, help="Directory of this broker, on a local disk."
        ),
    ],
    options: BrokerOptions,
    configured: Configured,
    stop_on_eof: StopOnEofOption = False,
) -> None:
    """Run one broker in the foreground.

    On SIGTERM or Ctrl-C it moves its bundles away and leaves.
    """
    from equipoise.brokers.runtime.config import SECRET_VARIABLES, WorkerConfig
    from equipoise.brokers.runtime.services import (
        PULSAR,
        load_services,
        service_classes,
        speaks_pulsar,
    )

    given = options.given()
    services = options.service or (PULSAR,)  # Never the example, which nobody asked for.
    defaults = (
        {"pulsar_port": PULSAR_PORT} if speaks_pulsar(service_classes(services).values()) else {}
    )
    conf, chosen = configured.chosen()
    secrets = {
        name: value
        for name, variable in SECRET_VARIABLES.items()
        if (value := os.environ.get(variable))
    }
    config = WorkerConfig.model_validate(
        {**defaults, **secrets, **chosen, **given, "log_url": log, "data_dir": data}
    )
    if configured.print_config:
        kafka_options.print_config(config.model_dump(mode="json"))
    else:
        _serve(config, load_services(services), stop_on_eof=stop_on_eof, conf=conf)


def _serve(
    config: WorkerConfig,
    services: Mapping[str, Service],
    *,
    stop_on_eof: bool,
    conf: BrokerConf | None,
) -> None:
    """Set up the process and run the broker until it is stopped."""
    import asyncio

    from equipoise.brokers.cli.broker_conf import log_entries
    from equipoise.brokers.runtime.broker import run_broker
    from equipoise.channel.system.log_lines import configure

    configure(sys.stderr)
    keep_freed_memory()
    if conf is not None:
        log_entries(conf)
    if stop_on_eof:
        end_with_standard_input()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run_broker(config, services))


def keep_freed_memory() -> None:
    """Keep up to 16 MiB of freed memory in this process. No-op without glibc.

    By default, glibc returns the memory of a large message to the system, and takes it back page by
    page for the next message. That cost a third of a core at 300 MB/s.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed (the extra `pulsar` brings it), or None for the
    standard one.
    """
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
