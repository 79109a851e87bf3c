"""Define `equipoise channel acls`: print or grant the rights on Kafka that a program needs."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.brokers.cli.options import TIMEOUT_S, JsonOption, LogOption, TimeoutOption
from equipoise.brokers.cli.output import print_rows
from equipoise.channel.core.errors import invalid_log_url, missing_extra
from equipoise.channel.kafka.answers import KafkaFailed
from equipoise.channel.kafka.rights import Right, Role, rights_of
from equipoise.channel.kafka.settings import KafkaAddress, address_of
from equipoise.channel.log.open_log import kafka_settings

_COLUMNS = ("resource", "name", "operations")


def acls(
    role: Annotated[Role, typer.Argument(metavar="ROLE", help="broker, operator, reader, audit or load-worker.", show_default=False)],
    principal: Annotated[str, typer.Argument(metavar="User:NAME", help="Kafka's user that gets the rights.", show_default=False)],
    *,
    log: LogOption,
    apply: Annotated[bool, typer.Option("--apply", help="Grant the rights, as a user of Kafka with Alter on the cluster.")] = False,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Print the rights that a program needs on Kafka, and with --apply grant them.

    Each row is one access control entry for each of its operations: allow, from any host, for the resource with exactly this name.
    Other rights of the user are not touched.
    """
    if not log.startswith("kafka:"):
        problem = "only a log on Kafka has access control entries; the files of any other log have modes"
        raise invalid_log_url(url=log, problem=problem)
    if not principal.removeprefix("User:") or not principal.startswith("User:"):
        raise typer.BadParameter(f"{principal!r} is not a user of Kafka; write User:NAME")
    address = address_of(log)
    rights = rights_of(role, address.topic)
    if apply:
        _grant(address, rights, principal, log=log, timeout_ms=timeout * 1_000)
    rows = [{"resource": right.resource.value, "name": right.name, "operations": list(right.operations)} for right in rights]
    print_rows(rows, columns=_COLUMNS, as_json=as_json, nothing="no rights")


def _grant(address: KafkaAddress, rights: list[Right], principal: str, *, log: str, timeout_ms: int) -> None:
    try:
        from equipoise.channel.kafka.client import Clients
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"to grant rights on {log}", extra="kafka") from error
    try:
        with Clients(servers=address.servers, settings=kafka_settings()).administrator() as administrator:
            administrator.grant(rights, principal=principal, timeout_ms=timeout_ms)
    except KafkaFailed as failed:
        raise failed.as_error(log=log, in_doubt=True) from failed
