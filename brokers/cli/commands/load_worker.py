"""Define `equipoise load-worker`: run one load worker in the foreground.

This sets up the process; `brokers.load.worker` does the work.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from equipoise.brokers.cli import kafka_options
from equipoise.brokers.cli.kafka_options import PrintConfigOption
from equipoise.brokers.cli.options import LOG_VARIABLE, TIMEOUT_S, TIMEOUT_S_MAX
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.standard_input import StopOnEofOption, end_with_standard_input
from equipoise.channel.core.errors import invalid_log_url, missing_extra

app = group("Average the load of a cluster on Kafka.")


@app.command()
def load_worker(
    *,
    log: Annotated[
        str,
        typer.Option(
            "--log",
            metavar="URL",
            envvar=LOG_VARIABLE,
            help="The cluster's log: kafka://HOST:PORT/TOPIC.",
        ),
    ],
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            max=TIMEOUT_S_MAX,
            help="How long to wait for Kafka at the start.",
        ),
    ] = TIMEOUT_S,
    print_config: PrintConfigOption = False,
    stop_on_eof: StopOnEofOption = False,
) -> None:
    """Average the load of a cluster on Kafka.

    Brokers on Kafka publish samples of their load. Load workers average them for the leader. Any
    number may run, on any machine, and share the work. While none runs, brokers serve, but nothing
    is balanced. A cluster on SQLite needs no load worker.

    SIGTERM or Ctrl-C end it with exit code 0. Its state is on Kafka: if it is killed, another load
    worker continues.
    """
    from equipoise.brokers.cli.structured_logs import configure
    from equipoise.channel.kafka.settings import address_of
    from equipoise.channel.log.open_log import kafka_settings

    if not log.startswith("kafka:"):
        problem = (
            "only a cluster on Kafka has load workers; on any other log brokers keep the averages"
            " themselves"
        )
        raise invalid_log_url(url=log, problem=problem)
    address, settings = address_of(log), kafka_settings()
    if print_config:
        kafka_options.print_config({"log_url": log})
        return
    try:
        from equipoise.brokers.load.worker.running import run_load_worker
    except ModuleNotFoundError as error:
        if error.name not in {"aiokafka", "confluent_kafka", "faust"}:
            raise
        raise missing_extra(what="a load worker", extra="load") from error
    configure(sys.stderr)
    if stop_on_eof:
        end_with_standard_input()
    run_load_worker(address, log_url=log, settings=settings, timeout_ms=timeout * 1_000)
