"""Define `equipoise topics`: list Pulsar topics, show their stats, and manage partitioned topics.

Non-persistent topics are not on the log, so these commands ask a broker.
"""

from __future__ import annotations

import json
from typing import Annotated, Final
from urllib.parse import quote

import typer

from equipoise.brokers.cli.options import TIMEOUT_S, JsonOption, LogOption, TimeoutOption, reading
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import print_fact, print_json, print_line
from equipoise.brokers.operations.asking import ask_any, order_any
from equipoise.channel.core.ranges import TopicName, parse_topic

app = group("List topics, show their stats, manage partitioned topics.")

_DOMAIN: Final = "non-persistent"

NamespaceArgument = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", show_default=False)]
TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="non-persistent://TENANT/NAMESPACE/TOPIC", show_default=False
    ),
]
PartitionsOption = Annotated[
    int,
    typer.Option(
        "--partitions", "-p", metavar="N", min=1, help="Number of partitions.", show_default=False
    ),
]


@app.command("list")
def list_topics(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    bundle: Annotated[
        str | None,
        typer.Option(
            "--bundle",
            "-b",
            metavar="RANGE",
            help="List only this bundle, such as 0x00000000_0x40000000.",
        ),
    ] = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """List the topics that have a producer or a consumer now."""
    with reading(log, timeout) as access:
        path = f"/admin/v2/{_DOMAIN}/{access.namespace(namespace)}"
        names = ask_any(access, path if bundle is None else f"{path}/{quote(bundle, safe='')}")
    _print_names(names, as_json=as_json)


@app.command()
def stats(
    topic: TopicArgument,
    *,
    log: LogOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show the stats of a topic, in Pulsar's form."""
    with reading(log, timeout) as access:
        document = ask_any(access, f"{_path(parse_topic(topic))}/stats")
    _print_stats(document, as_json=as_json)


@app.command("partitioned-stats")
def partitioned_stats(
    topic: TopicArgument,
    *,
    log: LogOption,
    per_partition: Annotated[
        bool, typer.Option("--per-partition", help="Show each partition too.")
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show the stats of a partitioned topic, summed over its partitions."""
    with reading(log, timeout) as access:
        query = f"perPartition={'true' if per_partition else 'false'}"
        path = f"{_path(parse_topic(topic))}/partitioned-stats?{query}"
        document = ask_any(access, path)
    _print_stats(document, as_json=as_json)


@app.command("create-partitioned-topic")
def create_partitioned_topic(
    topic: TopicArgument,
    *,
    log: LogOption,
    partitions: PartitionsOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Create a partitioned topic."""
    _set_partitions("PUT", topic, partitions, log=log, timeout=timeout, as_json=as_json)


@app.command("update-partitioned-topic")
def update_partitioned_topic(
    topic: TopicArgument,
    *,
    log: LogOption,
    partitions: PartitionsOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Add partitions to a partitioned topic."""
    _set_partitions("POST", topic, partitions, log=log, timeout=timeout, as_json=as_json)


@app.command("delete-partitioned-topic")
def delete_partitioned_topic(
    topic: TopicArgument,
    *,
    log: LogOption,
    force: Annotated[
        bool,
        typer.Option(
            "--force", "-f", help="Delete it even if it has clients, and disconnect them."
        ),
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Delete a partitioned topic with its partitions. Refused while it has clients, unless
    forced.
    """
    name = parse_topic(topic)
    with reading(log, timeout) as access:
        order_any(
            access,
            "DELETE",
            f"{_path(name)}/partitions{'?force=true' if force else ''}",
            subject=name.full,
        )
    print_fact(
        f"{name.full} has no partitions any more",
        {"topic": name.full, "partitions": 0},
        as_json=as_json,
    )


@app.command("get-partitioned-topic-metadata")
def get_partitioned_topic_metadata(
    topic: TopicArgument,
    *,
    log: LogOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show the number of partitions of a topic; 0 if it is not partitioned."""
    with reading(log, timeout) as access:
        document = ask_any(access, f"{_path(parse_topic(topic))}/partitions")
    _print_stats(document, as_json=as_json)


@app.command("list-partitioned-topics")
def list_partitioned_topics(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """List the partitioned topics of a namespace, used or not."""
    with reading(log, timeout) as access:
        names = ask_any(access, f"/admin/v2/{_DOMAIN}/{access.namespace(namespace)}/partitioned")
    _print_names(names, as_json=as_json)


def _set_partitions(
    method: str, topic: str, partitions: int, *, log: str, timeout: int, as_json: bool
) -> None:
    name = parse_topic(topic)
    with reading(log, timeout) as access:
        order_any(access, method, f"{_path(name)}/partitions", subject=name.full, body=partitions)
    print_fact(
        f"{name.full} has {partitions} partitions",
        {"topic": name.full, "partitions": partitions},
        as_json=as_json,
    )


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"


def _print_names(names: object, *, as_json: bool) -> None:
    if as_json or not isinstance(names, list):
        print_json(names)
        return
    for name in names:
        print_line(str(name))
    if not names:
        print_line("there is no topic")


def _print_stats(document: object, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        typer.echo(json.dumps(document, indent=2))
