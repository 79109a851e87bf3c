"""Define `equipoise policies` and `equipoise rights`: which brokers may own bundles, and what roles
may do.

The syntax follows `pulsar-admin ns-isolation-policy`. Rights to produce and consume are granted in
a namespace, as with `pulsar-admin`: `equipoise namespaces grant-permission`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.grants import permissions_in, rights_in
from equipoise.brokers.balancing.named import policy_named, tenant_named, tenants_in
from equipoise.brokers.balancing.policies import (
    FAILURE_DOMAIN,
    ISOLATION,
    MIN_LIMIT_DEFAULT,
    PIN,
    USAGE_THRESHOLD_DEFAULT,
    failure_domain_document,
    is_about_placement,
    isolation_document,
    pin_document,
)
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.cli.channel_options import Admin, Channel
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Row
from equipoise.brokers.cli.rows import (
    DESTINATION_COLUMNS,
    POLICY_COLUMNS,
    destination_rows,
    policy_row,
)
from equipoise.brokers.operations import verbs
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.security.rights import Right
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View

app = group("Define which brokers may own which bundles.")
rights = group("Grant roles rights in the cluster, and list who may do what.")

_LIMITS: Final = ("min_limit", "usage_threshold")
_LIMIT_DIGITS_MAX: Final = 9

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND/NAME",
        help="As `list` prints it: isolation/NAME, pin/NAME or failure-domain/NAME.",
        show_default=False,
    ),
]
RoleArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROLE", help="The role, as the tokens of its clients name it.", show_default=False
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


class FailOver(StrEnum):
    """Pulsar's modes for using secondary brokers. There is only one."""

    MIN_AVAILABLE = "min_available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The options that say when secondary brokers are used, as ours or in Pulsar's form."""

    min_limit: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help=(
                "Use secondaries below this number of available primaries.  [default:"
                f" {MIN_LIMIT_DEFAULT}]"
            ),
            show_default=False,
        ),
    ] = None
    usage_threshold: Annotated[
        int | None,
        typer.Option(
            metavar="PERCENT",
            help=(
                "A primary with this resource usage counts as not available.  [default:"
                f" {USAGE_THRESHOLD_DEFAULT}]"
            ),
            show_default=False,
        ),
    ] = None
    fail_over: Annotated[
        FailOver,
        typer.Option(
            "--auto-failover-policy-type", help="Accepted for scripts written for Pulsar."
        ),
    ] = FailOver.MIN_AVAILABLE
    parameters: Annotated[
        str | None,
        typer.Option(
            "--auto-failover-policy-params",
            metavar="PARAMETERS",
            help="Both limits in Pulsar's form: min_limit=1,usage_threshold=80.",
            show_default=False,
        ),
    ] = None

    def document(self) -> dict[str, int]:
        """Return the limits that are given. Raise typer's errors."""
        given = {"min_limit": self.min_limit, "usage_threshold": self.usage_threshold}
        found = {limit: number for limit, number in given.items() if number is not None}
        if self.parameters is None:
            return found
        if found:
            raise typer.BadParameter(
                "give the limits as single options or with --auto-failover-policy-params, not both"
            )
        return _parsed_limits(self.parameters)


@app.command("list")
def list_policies(*, channel: Channel) -> None:
    """List isolation policies, pins and failure domains."""
    with channel.reading() as access:
        rows = [
            policy_row(access.view, key)
            for key in sorted(access.view.policies)
            if is_about_placement(key)
        ]
    channel.print_rows(rows, columns=POLICY_COLUMNS, nothing="there is no policy")


@app.command()
def show(key: KeyArgument, *, channel: Channel) -> None:
    """Show an isolation policy, a pin or a failure domain."""
    with channel.reading() as access:
        policy_named(access.view, key)
        row = policy_row(access.view, key)
    channel.print_document(row)


@app.command("set-isolation")
def set_isolation(
    name: NameArgument,
    *,
    admin: Admin,
    namespaces: Annotated[
        list[str],
        typer.Option(metavar="REGEX", help="Namespaces that the policy applies to. Repeatable."),
    ],
    primary: Annotated[
        list[str], typer.Option(metavar="REGEX", help="Their brokers, by id or host. Repeatable.")
    ],
    secondary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGEX",
            help="Brokers to use while too few primaries are available. Repeatable.",
            show_default=False,
        ),
    ] = None,
    limits: Limits,
) -> None:
    """Reserve brokers for namespaces.

    The namespaces use only these brokers, and these brokers serve no other namespaces. A regular
    expression must match the whole name. The leader moves bundles that violate the policy, some at
    a time.
    """
    document = isolation_document(
        namespaces=namespaces, primary=primary, secondary=secondary or (), **limits.document()
    )
    _set(admin, f"{ISOLATION}/{name}", document)


@app.command()
def pin(
    name: NameArgument,
    *,
    admin: Admin,
    namespace: Annotated[
        str, typer.Option(metavar="TENANT/NAMESPACE", help="Namespace of the bundles.")
    ],
    brokers: Annotated[
        list[str],
        typer.Option(
            "--brokers", metavar="ID", help="Id of a broker that may own them. Repeatable."
        ),
    ],
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="RANGE",
            help="Pin only bundles that overlap this range, such as 0x00000000_0x40000000.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Pin the bundles of a namespace, or of a range of it, to brokers.

    The brokers may own other bundles too. Not in Pulsar.
    """
    document = pin_document(namespace=namespace, brokers=brokers, range_=range_)
    _set(admin, f"{PIN}/{name}", document)


@app.command("set-failure-domain")
def set_failure_domain(
    name: NameArgument,
    *,
    admin: Admin,
    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--brokers",
            metavar="ID",
            help="Id of a broker of the domain. Repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Set the brokers of a failure domain.

    The domain overrides the one that a broker declares. Namespaces of one anti-affinity group use
    different domains if possible. It applies as bundles are placed.
    """
    _set(admin, f"{FAILURE_DOMAIN}/{name}", failure_domain_document(brokers or ()))


@app.command()
def delete(key: KeyArgument, *, admin: Admin) -> None:
    """Delete a policy."""
    admin.carry_out(verbs.delete_cluster_policy, key)


@app.command()
def explain(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE", help="TENANT/NAMESPACE/0x00000000_0x40000000", show_default=False
        ),
    ],
    *,
    channel: Channel,
) -> None:
    """Show which brokers may own a bundle, and why the others may not.

    `no` is a rule, `rather not` a preference. Load is ignored: topics are not counted, and
    primaries that are up are available.
    """
    with channel.reading() as access:
        rules = settings_in(access.view, BalancingSettings()).placement
        rows = destination_rows(Destinations(access.view, rules=rules), access.bundle(bundle))
    channel.print_rows(rows, columns=DESTINATION_COLUMNS, nothing="no broker has ever joined")


def _set(admin: Admin, key: str, document: Document) -> None:
    with admin.acting() as access:
        answer = run(verbs.set_cluster_policy(ChannelPort(access), key, document))
        row = policy_row(access.view, key)
    admin.print_fact(answer.sentence, {**answer.document, **row})


def _parsed_limits(text: str) -> dict[str, int]:
    """Parse limits in Pulsar's syntax. Raise typer's errors. The policy check bounds their
    values.
    """
    found = {}
    for word in text.split(","):
        limit, _, number = word.strip().partition("=")
        if (
            limit not in _LIMITS
            or limit in found
            or not (number.isascii() and number.isdigit() and len(number) <= _LIMIT_DIGITS_MAX)
        ):
            raise typer.BadParameter(
                "write --auto-failover-policy-params as min_limit=1,usage_threshold=80"
            )
        found[limit] = int(number)
    return found


@rights.command()
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


@rights.command()
def revoke(role: RoleArgument, *, admin: Admin) -> None:
    """Take from a role its right in the cluster.

    It keeps what it may do in namespaces and tenants.
    """
    admin.carry_out(verbs.revoke_right, role)


@rights.command("list")
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
