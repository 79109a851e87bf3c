"""Define `equipoise rights`: the rights of roles in the cluster, and a list of all rights.

Rights to produce and consume are granted in a namespace, as with `pulsar-admin`: `equipoise
namespaces grant-permission`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from equipoise.brokers.balancing.grants import permissions_in, rights_in
from equipoise.brokers.balancing.named import tenant_named, tenants_in
from equipoise.brokers.cli.options import (
    TIMEOUT_S,
    AsOption,
    JsonOption,
    LogOption,
    TimeoutOption,
    carry_out,
    reading,
)
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Row, print_rows
from equipoise.brokers.operations import verbs
from equipoise.brokers.security.rights import Right
from equipoise.channel.core.view import View

app = group("Grant roles rights in the cluster, and list who may do what.")

RoleArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROLE", help="The role, as the tokens of its clients name it.", show_default=False
    ),
]


@app.command()
def grant(
    role: RoleArgument,
    right: Annotated[
        Right,
        typer.Argument(
            metavar="RIGHT",
            help="read, operate or admin. Each includes those before it.",
            show_default=False,
        ),
    ],
    *,
    log: LogOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Give a role a right in the whole cluster, in place of the one that it has.

    Brokers check rights if they run with authorization.
    """
    carry_out(
        lambda port: verbs.grant_right(port, role, right), log, admin, timeout, as_json=as_json
    )


@app.command()
def revoke(
    role: RoleArgument,
    *,
    log: LogOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Take from a role its right in the cluster.

    It keeps what it may do in namespaces and tenants.
    """
    carry_out(lambda port: verbs.revoke_right(port, role), log, admin, timeout, as_json=as_json)


@app.command("list")
def list_rights(
    *, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False
) -> None:
    """List which roles have rights in the cluster, administer tenants, and may produce or consume
    in namespaces.

    The super roles of brokers are not listed: each broker has them in its settings.
    """
    with reading(log, timeout) as access:
        rows = list(_rows(access.view))
    print_rows(
        rows, columns=("role", "may", "where"), as_json=as_json, nothing="no role has a right"
    )


def _rows(view: View) -> Iterator[Row]:
    for role, right in rights_in(view).items():
        yield {"role": role, "may": right.value, "where": "the cluster"}
    for tenant in tenants_in(view):
        for role in tenant_named(view, tenant).admin_roles:
            yield {"role": role, "may": "administer", "where": f"tenant {tenant}"}
    for name in sorted(view.namespaces):
        for role, actions in permissions_in(view.namespaces[name].policies).items():
            yield {"role": role, "may": ",".join(actions), "where": f"namespace {name}"}
