"""Define `equipoise topics`: list Pulsar topics, show their stats, and manage partitioned topics.

Non-persistent topics are not on the log, so these commands ask a broker.
"""

from __future__ import annotations

import json
from typing import Annotated, Final
from urllib.parse import quote

import typer

from equipoise.brokers.cli.channel_options import Channel
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import print_json, print_line
from equipoise.brokers.operations.asking import ask_any, order_any
from equipoise.brokers.operations.on_channel import run
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
    channel: Channel,
    bundle: Annotated[
        str | None,
        typer.Option(
            "--bundle",
            "-b",
            metavar="RANGE",
            help="List only this bundle, such as 0x00000000_0x40000000.",
        ),
    ] = None,
) -> None:
    """List the topics that have a producer or a consumer now."""
    _print_names(channel, namespace, "" if bundle is None else f"/{quote(bundle, safe='')}")


@app.command()
def stats(topic: TopicArgument, *, channel: Channel) -> None:
    """Show the stats of a topic, in Pulsar's form."""
    _print_answer(channel, topic, "stats")


@app.command("partitioned-stats")
def partitioned_stats(
    topic: TopicArgument,
    *,
    channel: Channel,
    per_partition: Annotated[
        bool, typer.Option("--per-partition", help="Show each partition too.")
    ] = False,
) -> None:
    """Show the stats of a partitioned topic, summed over its partitions."""
    query = f"perPartition={'true' if per_partition else 'false'}"
    _print_answer(channel, topic, f"partitioned-stats?{query}")


@app.command("create-partitioned-topic")
def create_partitioned_topic(
    topic: TopicArgument, *, channel: Channel, partitions: PartitionsOption
) -> None:
    """Create a partitioned topic."""
    _set_partitions(channel, "PUT", topic, partitions)


@app.command("update-partitioned-topic")
def update_partitioned_topic(
    topic: TopicArgument, *, channel: Channel, partitions: PartitionsOption
) -> None:
    """Add partitions to a partitioned topic."""
    _set_partitions(channel, "POST", topic, partitions)


@app.command("delete-partitioned-topic")
def delete_partitioned_topic(
    topic: TopicArgument,
    *,
    channel: Channel,
    force: Annotated[
        bool,
        typer.Option(
            "--force", "-f", help="Delete it even if it has clients, and disconnect them."
        ),
    ] = False,
) -> None:
    """Delete a partitioned topic with its partitions. Refused while it has clients, unless
    forced.
    """
    name = parse_topic(topic)
    with channel.reading() as access:
        path = f"{_path(name)}/partitions{'?force=true' if force else ''}"
        run(order_any(access, "DELETE", path, subject=name.full))
    channel.print_fact(
        f"{name.full} has no partitions any more", {"topic": name.full, "partitions": 0}
    )


@app.command("get-partitioned-topic-metadata")
def get_partitioned_topic_metadata(topic: TopicArgument, *, channel: Channel) -> None:
    """Show the number of partitions of a topic; 0 if it is not partitioned."""
    _print_answer(channel, topic, "partitions")


@app.command("list-partitioned-topics")
def list_partitioned_topics(namespace: NamespaceArgument, *, channel: Channel) -> None:
    """List the partitioned topics of a namespace, used or not."""
    _print_names(channel, namespace, "/partitioned")


def _set_partitions(channel: Channel, method: str, topic: str, partitions: int) -> None:
    name = parse_topic(topic)
    with channel.reading() as access:
        path = f"{_path(name)}/partitions"
        run(order_any(access, method, path, subject=name.full, body=partitions))
    channel.print_fact(
        f"{name.full} has {partitions} partitions", {"topic": name.full, "partitions": partitions}
    )


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"


def _print_names(channel: Channel, namespace: str, which: str) -> None:
    with channel.reading() as access:
        names = run(ask_any(access, f"/admin/v2/{_DOMAIN}/{access.namespace(namespace)}{which}"))
    if channel.as_json or not isinstance(names, list):
        print_json(names)
        return
    for name in names:
        print_line(str(name))
    if not names:
        print_line("there is no topic")


def _print_answer(channel: Channel, topic: str, what: str) -> None:
    with channel.reading() as access:
        document = run(ask_any(access, f"{_path(parse_topic(topic))}/{what}"))
    if channel.as_json:
        print_json(document)
    else:
        typer.echo(json.dumps(document, indent=2))
