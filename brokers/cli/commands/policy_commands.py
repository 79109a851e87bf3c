"""Define `equipoise policies`: isolation policies, pins, failure domains, and which brokers they
allow.

The syntax follows `pulsar-admin ns-isolation-policy`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.named import policy_named
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
from equipoise.brokers.cli.options import (
    TIMEOUT_S,
    AsOption,
    JsonOption,
    LogOption,
    TimeoutOption,
    carry_out,
    reading,
    writing,
)
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import print_document, print_fact, print_rows
from equipoise.brokers.cli.rows import (
    DESTINATION_COLUMNS,
    POLICY_COLUMNS,
    destination_rows,
    policy_row,
)
from equipoise.brokers.operations import verbs
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.core.records import Document

app = group("Define which brokers may own which bundles.")

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
NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


class FailOver(StrEnum):
    """Pulsar's modes for using secondary brokers. There is only one."""

    MIN_AVAILABLE = "min_available"


@app.command("list")
def list_policies(
    *, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False
) -> None:
    """List isolation policies, pins and failure domains."""
    with reading(log, timeout) as access:
        rows = [
            policy_row(access.view, key)
            for key in sorted(access.view.policies)
            if is_about_placement(key)
        ]
    print_rows(rows, columns=POLICY_COLUMNS, as_json=as_json, nothing="there is no policy")


@app.command()
def show(
    key: KeyArgument,
    *,
    log: LogOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show an isolation policy, a pin or a failure domain."""
    with reading(log, timeout) as access:
        policy_named(access.view, key)
        row = policy_row(access.view, key)
    print_document(row, as_json=as_json)


@app.command("set-isolation")
def set_isolation(
    name: NameArgument,
    *,
    log: LogOption,
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
    ] = None,
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
    ] = None,
    fail_over: Annotated[
        FailOver,
        typer.Option(
            "--auto-failover-policy-type", help="Accepted for scripts written for Pulsar."
        ),
    ] = FailOver.MIN_AVAILABLE,
    limits: Annotated[
        str | None,
        typer.Option(
            "--auto-failover-policy-params",
            metavar="PARAMETERS",
            help="Both limits in Pulsar's form: min_limit=1,usage_threshold=80.",
            show_default=False,
        ),
    ] = None,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Reserve brokers for namespaces.

    The namespaces use only these brokers, and these brokers serve no other namespaces. A regular
    expression must match the whole name. The leader moves bundles that violate the policy, some at
    a time.
    """
    del fail_over  # There is only one mode, the default.
    given = {"min_limit": min_limit, "usage_threshold": usage_threshold}
    found = {limit: number for limit, number in given.items() if number is not None}
    if limits is not None:
        if found:
            raise typer.BadParameter(
                "give the limits as single options or with --auto-failover-policy-params, not both"
            )
        found = _parsed_limits(limits)
    document = isolation_document(
        namespaces=namespaces, primary=primary, secondary=secondary or (), **found
    )
    _set(log, admin, timeout, f"{ISOLATION}/{name}", document, as_json=as_json)


@app.command()
def pin(
    name: NameArgument,
    *,
    log: LogOption,
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
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Pin the bundles of a namespace, or of a range of it, to brokers.

    The brokers may own other bundles too. Not in Pulsar.
    """
    document = pin_document(namespace=namespace, brokers=brokers, range_=range_)
    _set(log, admin, timeout, f"{PIN}/{name}", document, as_json=as_json)


@app.command("set-failure-domain")
def set_failure_domain(
    name: NameArgument,
    *,
    log: LogOption,
    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--brokers",
            metavar="ID",
            help="Id of a broker of the domain. Repeatable.",
            show_default=False,
        ),
    ] = None,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Set the brokers of a failure domain.

    The domain overrides the one that a broker declares. Namespaces of one anti-affinity group use
    different domains if possible. It applies as bundles are placed.
    """
    _set(
        log,
        admin,
        timeout,
        f"{FAILURE_DOMAIN}/{name}",
        failure_domain_document(brokers or ()),
        as_json=as_json,
    )


@app.command()
def delete(
    key: KeyArgument,
    *,
    log: LogOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Delete a policy."""
    carry_out(
        lambda port: verbs.delete_cluster_policy(port, key), log, admin, timeout, as_json=as_json
    )


@app.command()
def explain(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE", help="TENANT/NAMESPACE/0x00000000_0x40000000", show_default=False
        ),
    ],
    *,
    log: LogOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show which brokers may own a bundle, and why the others may not.

    `no` is a rule, `rather not` a preference. Load is ignored: topics are not counted, and
    primaries that are up are available.
    """
    with reading(log, timeout) as access:
        rules = settings_in(access.view, BalancingSettings()).placement
        rows = destination_rows(Destinations(access.view, rules=rules), access.bundle(bundle))
    print_rows(
        rows, columns=DESTINATION_COLUMNS, as_json=as_json, nothing="no broker has ever joined"
    )


def _set(
    log: str, admin: str | None, timeout: int, key: str, document: Document, *, as_json: bool
) -> None:
    with writing(log, admin, timeout) as access:
        answer = run(verbs.set_cluster_policy(ChannelPort(access), key, document))
        row = policy_row(access.view, key)
    print_fact(answer.sentence, {**answer.document, **row}, as_json=as_json)


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
