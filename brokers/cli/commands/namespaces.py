"""Define `equipoise namespaces`: create and list namespaces; move, split and merge their bundles.
The syntax follows `pulsar-admin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.grants import parse_actions, permissions_in
from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.balancing.namespace_policies import (
    ANTI_AFFINITY_GROUP,
    NEW_BUNDLES_MAX,
    ON_CHANNEL_LOSS,
    OnChannelLoss,
    check_new_bundles,
)
from equipoise.brokers.balancing.splitting.split_points import ALGORITHMS
from equipoise.brokers.cli.channel_options import Admin, Channel
from equipoise.brokers.cli.moments import end_ms
from equipoise.brokers.cli.options import ForOption, ReasonOption, WaitOption
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Row, print_json, print_line
from equipoise.brokers.cli.rows import NAMESPACE_COLUMNS, namespace_row
from equipoise.brokers.operations import moves, verbs
from equipoise.brokers.operations.asking import topics_in_use
from equipoise.brokers.operations.checks import check_unused
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.core.errors import InvalidName, invalid_boundaries
from equipoise.channel.core.ranges import (
    HASH_MAX,
    bundle_name,
    check_cuts,
    check_namespace,
    even_boundaries,
    parse_range,
)
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX

app = group("Create and delete namespaces; move, split and merge their bundles.")

# A namespace has one more boundary than bundles. A point takes 11 characters with its comma.
_POINTS_CHARACTERS_MAX: Final = 11 * (NEW_BUNDLES_MAX + 1)

_match_point: Final = re.compile(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,10}", re.ASCII).fullmatch

NamespaceArgument = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", show_default=False)]
OnChannelLossOption = Annotated[
    OnChannelLoss | None,
    typer.Option(
        help=(
            "What owners do when they lose the channel: stop (fence), or serve on (serve). "
            " [default: fence]"
        ),
        show_default=False,
    ),
]
RoleOption = Annotated[
    str, typer.Option(metavar="ROLE", help="The role, as the tokens of its clients name it.")
]
BundleOption = Annotated[
    str,
    typer.Option(
        "--bundle",
        "-b",
        metavar="RANGE",
        help="The hash range of the bundle, such as 0x00000000_0x40000000.",
    ),
]


@app.command()
def create(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    bundles: Annotated[
        int | None,
        typer.Option(
            "--bundles",
            "-b",
            metavar="NUMBER",
            help=(
                f"Number of bundles of equal size, at most {NEW_BUNDLES_MAX}.  [default:"
                " balancing.namespace_bundles, 4]"
            ),
        ),
    ] = None,
    boundaries: Annotated[
        str | None,
        typer.Option(
            metavar="POINTS",
            help="Instead of --bundles: all boundaries, such as 0x00000000,0x40000000,0xffffffff.",
        ),
    ] = None,
    on_channel_loss: OnChannelLossOption = None,
) -> None:
    """Create a namespace.

    The leader then assigns its bundles to brokers.
    """
    check_namespace(namespace)
    if bundles is not None and boundaries is not None:
        raise typer.BadParameter("give --bundles or --boundaries, not both")
    points = None if boundaries is None else parse_boundaries(namespace, boundaries)
    if bundles is not None:
        points = even_boundaries(check_new_bundles(namespace, bundles))
    policies = {} if on_channel_loss is None else {ON_CHANNEL_LOSS: on_channel_loss.value}
    admin.carry_out(verbs.create_namespace, namespace, points, policies)


@app.command("list")
def list_namespaces(
    tenant: Annotated[
        str | None,
        typer.Argument(metavar="TENANT", help="List only this tenant.", show_default=False),
    ] = None,
    *,
    channel: Channel,
) -> None:
    """List namespaces, with the number and state of their bundles."""
    with channel.reading() as access:
        names = [
            name
            for name in sorted(access.view.namespaces)
            if tenant is None or name.split("/")[0] == tenant
        ]
        rows = [namespace_row(access.view, name) for name in names]
    channel.print_rows(
        rows,
        columns=NAMESPACE_COLUMNS,
        sometimes=("frozen", "unserved"),
        nothing="there is no namespace",
    )


@app.command()
def policies(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    on_channel_loss: OnChannelLossOption = None,
    group_name: Annotated[
        str | None,
        typer.Option(
            "--anti-affinity-group",
            metavar="GROUP",
            help="Put the namespace into this anti-affinity group.",
            show_default=False,
        ),
    ] = None,
    no_group: Annotated[
        bool, typer.Option("--no-anti-affinity-group", help="Remove the namespace from its group.")
    ] = False,
) -> None:
    """Show the policies of a namespace, or set one.

    --on-channel-loss fence: an owner that loses the channel stops serving when its lease ends.
    --on-channel-loss serve: it serves on. Two brokers may then serve a bundle, and only fencing
    tokens that your store checks keep them apart. The policy applies to open bundles as soon as
    their owner has read it.

    Namespaces of one --anti-affinity-group are spread over failure domains, then over brokers, when
    their bundles are placed.
    """
    changes: dict[str, str | None] = (
        {} if on_channel_loss is None else {ON_CHANNEL_LOSS: on_channel_loss.value}
    )
    if no_group or group_name is not None:
        changes[ANTI_AFFINITY_GROUP] = group_name
    if len(changes) > 1 or (no_group and group_name is not None):
        raise typer.BadParameter("set one policy at a time")
    if not changes:
        with admin.reading() as access:
            row = namespace_row(access.view, access.namespace(namespace))
        admin.print_document(
            {
                "namespace": namespace,
                ON_CHANNEL_LOSS: row[ON_CHANNEL_LOSS],
                "policies": row["policies"],
            }
        )
        return
    ((policy, value),) = changes.items()
    admin.carry_out(verbs.set_namespace_policy, namespace, policy, value)


@app.command("bundles")
def show_bundles(namespace: NamespaceArgument, *, channel: Channel) -> None:
    """Show the hash ranges of the bundles of a namespace."""
    with channel.reading() as access:
        bundles = access.view.bundles_of(access.namespace(namespace))
    boundaries = [f"0x{point:08x}" for point in (*(bundle.low for bundle in bundles), HASH_MAX)]
    if channel.as_json:
        print_json({"boundaries": boundaries, "numBundles": len(bundles)})  # Pulsar's field names.
    else:
        for low, high in pairwise(boundaries):
            print_line(f"{low}_{high}")


@app.command()
def delete(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    force: Annotated[
        bool,
        typer.Option(
            "--force", "-f", help="Delete it even if it has clients, and disconnect them."
        ),
    ] = False,
) -> None:
    """Delete a namespace with all its bundles. Refused while Pulsar's clients use its topics,
    unless forced.

    The bundles are unloaded first, which takes as long as their owners need. If the command times
    out, run it again to continue.
    """
    progress: Callable[[str], None] = (lambda _: None) if admin.as_json else print_line
    with admin.acting() as access:
        if not force and namespace_named(access.view, namespace).status != "deleting":
            check_unused(namespace, run(topics_in_use(access, namespace)))
        answer = run(verbs.delete_namespace(ChannelPort(access), namespace, progress=progress))
    admin.print_fact(answer.sentence, answer.document)


@app.command()
def unload(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    bundle: Annotated[
        str | None,
        typer.Option(
            "--bundle",
            "-b",
            metavar="RANGE",
            help="Move only this bundle, such as 0x00000000_0x40000000.",
            show_default=False,
        ),
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option(
            "--destinationBroker",
            "--destination-broker",
            "-d",
            metavar="ID",
            help="Id of the broker to move the bundle to.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Move it even if policies forbid the destination. The balancer will move it back.",
        ),
    ] = False,
    wait: WaitOption = True,
) -> None:
    """Move one bundle, or all bundles, away from their owners.

    The owner serves until the new broker is ready. By default the new broker is the one with the
    fewest bundles for its capacity. If no other broker may own the bundle, it is released and
    placed again.

    The bundles of a namespace move 64 at a time, or all at once with --no-wait. The command refuses
    a destination that is dead, drains or does not serve the namespace, and, without --force, one
    that isolation policies or pins exclude.
    """
    if force and destination is None:
        raise typer.BadParameter("--force is for a transfer to --destinationBroker")
    if destination is not None and bundle is None:
        raise typer.BadParameter("--destinationBroker moves one bundle; name it with --bundle")
    if bundle is None:
        answer = admin.carry_out(moves.unload_all, namespace, wait=wait)
        for outcome in () if admin.as_json else answer.stuck:
            print_line(outcome.sentence())
        if answer.failed:
            raise typer.Exit(ExitCode.REFUSED)
    elif destination is None:
        admin.carry_out(moves.unload, _named(namespace, bundle), wait=wait)
    else:
        name = _named(namespace, bundle)
        admin.carry_out(moves.transfer, name, destination, force=force, wait=wait)


@app.command("cancel-moves")
def cancel_moves(namespace: NamespaceArgument, *, admin: Admin) -> None:
    """Cancel all moves of a namespace that are not complete.

    The present owners keep their bundles. A bundle that its owner is already releasing still moves.
    Not in Pulsar.
    """
    admin.carry_out(moves.cancel_all, namespace)


@app.command()
def freeze(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    reason: ReasonOption,
    duration_ms: ForOption = None,
) -> None:
    """Have the balancer leave the bundles of a namespace alone.

    It neither moves them for load, nor splits or merges them. Freeze again to change the end or the
    reason.
    """
    admin.carry_out(verbs.freeze_namespace, namespace, reason=reason, until_ms=end_ms(duration_ms))


@app.command()
def unfreeze(namespace: NamespaceArgument, *, admin: Admin) -> None:
    """End the freeze of a namespace."""
    admin.carry_out(verbs.unfreeze_namespace, namespace)


@app.command("split-bundle")
def split_bundle(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    bundle: BundleOption,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--split-algorithm-name",
            "-san",
            metavar="NAME",
            help=(
                f"{', '.join(ALGORITHMS)}, or an algorithm of the service.  [default: by"
                " --positions]"
            ),
            show_default=False,
        ),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            "--positions",
            "--split-boundaries",
            "-sb",
            metavar="POINTS",
            help="Where to split, such as 0x20000000,0x30000000.",
            show_default=False,
        ),
    ] = None,
    wait: WaitOption = True,
) -> None:
    """Split a bundle.

    The owner keeps the parts, under the same fencing token, and sessions continue.
    """
    points = None if positions is None else parse_points(positions)
    admin.carry_out(moves.split, _named(namespace, bundle), algorithm, points, wait=wait)


@app.command("merge-bundle")
def merge_bundle(namespace: NamespaceArgument, *, admin: Admin, bundle: BundleOption) -> None:
    """Merge a bundle with its right neighbour.

    Both must have the same owner. --bundle names the left one. Not in Pulsar.
    """
    admin.carry_out(moves.merge, _named(namespace, bundle))


def parse_points(text: str) -> tuple[int, ...]:
    """Parse comma-separated points of the hash space, hexadecimal with `0x` or decimal. Raise
    `InvalidName`.
    """
    words = [word.strip() for word in text[:_POINTS_CHARACTERS_MAX].split(",")]
    points = tuple(
        int(word, 0 if word.startswith("0x") else 10) for word in words if _match_point(word)
    )
    if len(points) != len(words) or len(text) > _POINTS_CHARACTERS_MAX or max(points) > HASH_MAX:
        expected = (
            "points from 0 to 0xffffffff with commas between them, such as 0x40000000,0x80000000"
        )
        raise InvalidName(what="list of points", name=text[:TEXT_CHARACTERS_MAX], expected=expected)
    return points


def parse_boundaries(namespace: str, text: str) -> tuple[int, ...]:
    """Parse all boundaries of a new namespace. Raise `InvalidName` or `CallerError`."""
    points = parse_points(text)
    if points[0] != 0 or points[-1] != HASH_MAX:
        raise invalid_boundaries(
            subject=namespace, problem=f"they go from 0x00000000 to 0x{HASH_MAX:08x}"
        )
    check_new_bundles(namespace, len(points) - 1)
    check_cuts(0, HASH_MAX, points[1:-1])
    return points


def _named(namespace: str, range_text: str) -> str:
    """Return the name of the bundle of a namespace with this range. Raise `InvalidName`."""
    return bundle_name(check_namespace(namespace), *parse_range(range_text))


@app.command("grant-permission")
def grant_permission(
    namespace: NamespaceArgument,
    *,
    admin: Admin,
    role: RoleOption,
    actions: Annotated[
        str,
        typer.Option(
            metavar="ACTIONS", help="What the role may do: produce, consume, or produce,consume."
        ),
    ],
) -> None:
    """Allow a role to produce or consume in a namespace, in place of what it may do there now.

    Brokers check this if they run with authorization.
    """
    admin.carry_out(verbs.grant_permission, namespace, role, parse_actions(actions.split(",")))


@app.command("revoke-permission")
def revoke_permission(namespace: NamespaceArgument, *, admin: Admin, role: RoleOption) -> None:
    """Forbid a role to produce and consume in a namespace.

    Brokers with authorization disconnect its clients from the topics.
    """
    admin.carry_out(verbs.grant_permission, namespace, role, ())


@app.command()
def permissions(namespace: NamespaceArgument, *, channel: Channel) -> None:
    """List which roles may produce or consume in a namespace."""
    with channel.reading() as access:
        found = permissions_in(namespace_named(access.view, namespace).policies)
    rows: list[Row] = [
        {"role": role, "actions": ",".join(actions)} for role, actions in found.items()
    ]
    channel.print_rows(
        rows, columns=("role", "actions"), nothing=f"no role may produce or consume in {namespace}"
    )
