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
from equipoise.brokers.cli.options import Admin, Channel
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Row
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
    admin: Admin,
) -> None:
    """Give a role a right in the whole cluster, in place of the one that it has.

    Brokers check rights if they run with authorization.
    """
    admin.carry_out(verbs.grant_right, role, right)


@app.command()
def revoke(role: RoleArgument, *, admin: Admin) -> None:
    """Take from a role its right in the cluster.

    It keeps what it may do in namespaces and tenants.
    """
    admin.carry_out(verbs.revoke_right, role)


@app.command("list")
def list_rights(*, channel: Channel) -> None:
    """List which roles have rights in the cluster, administer tenants, and may produce or consume
    in namespaces.

    The super roles of brokers are not listed: each broker has them in its settings.
    """
    with channel.reading() as access:
        rows = list(_rows(access.view))
    channel.print_rows(rows, columns=("role", "may", "where"), nothing="no role has a right")


def _rows(view: View) -> Iterator[Row]:
    for role, right in rights_in(view).items():
        yield {"role": role, "may": right.value, "where": "the cluster"}
    for tenant in tenants_in(view):
        for role in tenant_named(view, tenant).admin_roles:
            yield {"role": role, "may": "administer", "where": f"tenant {tenant}"}
    for name in sorted(view.namespaces):
        for role, actions in permissions_in(view.namespaces[name].policies).items():
            yield {"role": role, "may": ",".join(actions), "where": f"namespace {name}"}
