"""The table of rights on Kafka, and the command that prints it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from equipoise.brokers.cli.main import app
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.side_topics import DECISIONS, SERVING
from equipoise.channel.kafka.rights import Resource, Role, rights_of
from equipoise.channel.kafka.settings import address_of
from equipoise.spark_jobs.audit.findings_out import FINDINGS
from equipoise.spark_jobs.sources.kafka_source import topics_of

LOG = "kafka://127.0.0.1:1/shop"
COMPACTED = {"shop-snapshot", "shop-history"}
WRITTEN = {each.beside("shop") for each in (DECISIONS, SERVING, LOADS)}
READ = {"shop", *COMPACTED, *topics_of(address_of(LOG)).values()}
"""What the commands and jobs read that only read."""

TOPICS = {
    Role.BROKER: {"shop", *COMPACTED, *WRITTEN},
    Role.OPERATOR: {"shop", *COMPACTED, "shop-decisions", "shop-loads"},
    Role.READER: READ,
    Role.AUDIT: {*READ, FINDINGS.beside("shop")},
}


def can(role: Role, operation: str, resource: Resource = Resource.TOPIC) -> set[str]:
    """The names of the resources on which a role may do this."""
    return {
        right.name
        for right in rights_of(role, "shop")
        if right.resource is resource and operation in right.operations
    }


@pytest.mark.parametrize("role", Role)
def test_a_role_has_rights_on_the_topics_that_it_uses(role: Role) -> None:
    assert TOPICS[role] == {
        right.name for right in rights_of(role, "shop") if right.resource is Resource.TOPIC
    }


def test_who_may_write_what() -> None:
    """Only brokers and operators write the channel and its snapshots, and only they make and
    truncate it.
    """
    writers = {role for role in Role if can(role, "Write") & {"shop", *COMPACTED}}
    assert {Role.BROKER, Role.OPERATOR} == writers
    assert (
        writers
        == {role for role in Role if can(role, "Delete")}
        == {role for role in Role if "shop" in can(role, "Create")}
    )
    assert (set(), {FINDINGS.beside("shop")}) == (
        can(Role.READER, "Write"),
        can(Role.AUDIT, "Write"),
    )
    for role in writers:
        assert COMPACTED == can(role, "Write", Resource.TRANSACTIONAL_ID)
    assert {"Describe"} == {
        operation
        for role in Role
        for right in rights_of(role, "shop")
        if right.resource is Resource.GROUP
        for operation in right.operations
    }


def test_the_command_prints_the_rights_of_a_role() -> None:
    """One row for each resource, without a connection to Kafka."""
    result = CliRunner().invoke(app, ["channel", "acls", "reader", "User:auditor", "--log", LOG])
    assert (0, "") == (result.exit_code, result.stderr)
    assert ["topic", "shop-snapshot", "Read,", "DescribeConfigs"] in [
        line.split() for line in result.stdout.splitlines()
    ]
    result = CliRunner().invoke(
        app, ["channel", "acls", "broker", "User:b", "--log", LOG, "--json"]
    )
    assert {
        "resource": "transactional id",
        "name": "shop-history",
        "operations": ["Write"],
    } in json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["king", "User:b", "--log", LOG], ExitCode.USAGE, "'king' is not one of"),
        (
            ["broker", "b", "--log", LOG],
            ExitCode.USAGE,
            "'b' is not a user of Kafka; write User:NAME",
        ),
        (
            ["broker", "User:", "--log", LOG],
            ExitCode.USAGE,
            "'User:' is not a user of Kafka; write User:NAME",
        ),
        (
            ["broker", "User:b", "--log", "sqlite:shop.db"],
            ExitCode.USAGE,
            "only a log on Kafka has access control entries",
        ),
        (
            ["broker", "User:b", "--log", LOG, "--apply", "--timeout", "1"],
            ExitCode.UNAVAILABLE,
            "127.0.0.1:1",
        ),
    ],
)
def test_what_the_command_refuses(arguments: list[str], code: int, problem: str) -> None:
    result = CliRunner().invoke(app, ["channel", "acls", *arguments])
    assert (code, "", True) == (result.exit_code, result.stdout, problem in result.stderr), (
        result.stderr
    )
