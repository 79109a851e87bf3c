"""Define `equipoise namespaces`: create and list namespaces; move, split and merge their bundles. The syntax follows `pulsar-admin`."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.namespace_policies import ANTI_AFFINITY_GROUP, ON_CHANNEL_LOSS, OnChannelLoss
from equipoise.brokers.balancing.namespace_size import NEW_BUNDLES_MAX, check_new_bundles
from equipoise.brokers.balancing.splitting.split_points import ALGORITHMS
from equipoise.brokers.cli.options import TIMEOUT_S, AsOption, JsonOption, LogOption, TimeoutOption, WaitOption, carry_out, reading
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import print_document, print_json, print_line, print_rows
from equipoise.brokers.cli.rows import NAMESPACE_COLUMNS, namespace_row
from equipoise.brokers.operations import verbs
from equipoise.channel.core.errors import InvalidName, invalid_boundaries
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, check_cuts, check_namespace, even_boundaries, parse_range
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX

app = group("Make namespaces; move, cut and join their bundles.")

# A namespace has one more boundary than bundles. A point takes 11 characters with its comma.
_POINTS_CHARACTERS_MAX: Final = 11 * (NEW_BUNDLES_MAX + 1)

_match_point: Final = re.compile(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,10}", re.ASCII).fullmatch

NamespaceArgument = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", show_default=False)]
OnChannelLossOption = Annotated[
    OnChannelLoss | None,
    typer.Option(help="What its owners do while they have lost the channel.  [default: fence]", show_default=False),
]
BundleOption = Annotated[str, typer.Option("--bundle", "-b", metavar="RANGE", help="The range of the bundle: 0x00000000_0x40000000.")]


@app.command()
def create(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    bundles: Annotated[
        int | None,
        typer.Option(
            "--bundles",
            "-b",
            metavar="NUMBER",
            help=f"How many of equal size, at most {NEW_BUNDLES_MAX}.  [default: balancing.namespace_bundles, 4]",
        ),
    ] = None,
    boundaries: Annotated[
        str | None, typer.Option(metavar="POINTS", help="Or else where they begin and end: 0x00000000,0x40000000,0xffffffff.")
    ] = None,
    on_channel_loss: OnChannelLossOption = None,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Create a namespace.

    Its bundles are free until the brokers assign them.
    """
    check_namespace(namespace)
    if bundles is not None and boundaries is not None:
        raise typer.BadParameter("give --bundles or --boundaries, not both")
    points = None if boundaries is None else parse_boundaries(namespace, boundaries)
    if bundles is not None:
        points = even_boundaries(check_new_bundles(namespace, bundles))
    policies = {} if on_channel_loss is None else {ON_CHANNEL_LOSS: on_channel_loss.value}
    carry_out(verbs.create_namespace(namespace, points, policies), log, admin, timeout, as_json=as_json)


@app.command("list")
def list_namespaces(
    tenant: Annotated[str | None, typer.Argument(metavar="TENANT", help="Only those of this tenant.", show_default=False)] = None,
    *,
    log: LogOption,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """List the namespaces, with how their bundles are."""
    with reading(log, timeout) as access:
        names = [name for name in sorted(access.view.namespaces) if tenant is None or name.split("/")[0] == tenant]
        rows = [namespace_row(access.view, name) for name in names]
    print_rows(rows, columns=NAMESPACE_COLUMNS, as_json=as_json, nothing="there is no namespace")


@app.command()
def policies(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    on_channel_loss: OnChannelLossOption = None,
    group_name: Annotated[
        str | None,
        typer.Option("--anti-affinity-group", metavar="GROUP", help="Keep it away from the others of this group.", show_default=False),
    ] = None,
    no_group: Annotated[bool, typer.Option("--no-anti-affinity-group", help="Take it out of its group.")] = False,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show the policies of a namespace, or set one.

    With --on-channel-loss it is set: `fence`, the default, has the owners of its bundles stop when their lease ends; with `serve`
    they serve on while they have lost the channel, and only fencing tokens, checked by your store, keep two of them apart. What
    is open goes by it as soon as its owner has read it.

    The namespaces of one --anti-affinity-group are spread over failure domains, and then over brokers, as they are placed.
    """
    changes: dict[str, str | None] = {} if on_channel_loss is None else {ON_CHANNEL_LOSS: on_channel_loss.value}
    if no_group or group_name is not None:
        changes[ANTI_AFFINITY_GROUP] = group_name
    if len(changes) > 1 or (no_group and group_name is not None):
        raise typer.BadParameter("one policy is set at a time")
    if not changes:
        with reading(log, timeout) as access:
            row = namespace_row(access.view, access.namespace(namespace))
        print_document({"namespace": namespace, ON_CHANNEL_LOSS: row[ON_CHANNEL_LOSS], "policies": row["policies"]}, as_json=as_json)
        return
    ((policy, value),) = changes.items()
    carry_out(verbs.set_namespace_policy(namespace, policy, value), log, admin, timeout, as_json=as_json)


@app.command("bundles")
def show_bundles(namespace: NamespaceArgument, *, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False) -> None:
    """Show where the bundles of a namespace begin and end."""
    with reading(log, timeout) as access:
        bundles = access.view.bundles_of(access.namespace(namespace))
    boundaries = [f"0x{point:08x}" for point in (*(bundle.low for bundle in bundles), HASH_MAX)]
    if as_json:
        print_json({"boundaries": boundaries, "numBundles": len(bundles)})  # Pulsar's field names.
    else:
        for low, high in pairwise(boundaries):
            print_line(f"{low}_{high}")


@app.command()
def delete(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Delete a namespace with all its bundles.

    They are unloaded first; that takes as long as their owners need. Called again, it goes on where it was.
    """
    progress = _quiet if as_json else print_line
    carry_out(verbs.delete_namespace(namespace, progress=progress), log, admin, timeout, as_json=as_json)


def _quiet(_text: str) -> None:
    """Print no progress."""


@app.command()
def unload(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    bundle: Annotated[
        str | None, typer.Option("--bundle", "-b", metavar="RANGE", help="Only this bundle: 0x00000000_0x40000000.", show_default=False)
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option(
            "--destinationBroker", "--destination-broker", "-d", metavar="ID", help="The broker to move the bundle to.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move it there even if policies forbid it; balancing will bring it back.")] = False,
    wait: WaitOption = True,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Move one bundle, or all, away from their owners.

    A bundle is transferred: its owner serves until the other broker is ready, and callers wait for one hop of the log. Without
    --destinationBroker that is the broker with the fewest bundles for its capacity; where no other may have it, the bundle is let
    go of, and placed anew. Of a whole namespace 64 go at a time, or with --no-wait all at once. A dead or draining broker is
    refused, and without --force one that isolation policies or pins keep from the bundle.
    """
    if force and destination is None:
        raise typer.BadParameter("--force is for a transfer to --destinationBroker")
    if destination is not None and bundle is None:
        raise typer.BadParameter("--destinationBroker moves one bundle; say which with --bundle")
    if bundle is None:
        operation = verbs.unload_all(namespace, wait=wait)
    elif destination is None:
        operation = verbs.unload(_named(namespace, bundle), wait=wait)
    else:
        operation = verbs.transfer(_named(namespace, bundle), destination, force=force, wait=wait)
    answer = carry_out(operation, log, admin, timeout, as_json=as_json)
    if bundle is None:
        for outcome in () if as_json else answer.stuck:
            print_line(outcome.sentence())
        if any(outcome.bundle in answer.refused for outcome in answer.stuck):
            raise typer.Exit(ExitCode.REFUSED)


@app.command("cancel-moves")
def cancel_moves(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Cancel all moves of a namespace that have not happened.

    Who serves a bundle goes on with it. What is being let go of already comes to its end. Not in Pulsar.
    """
    carry_out(verbs.cancel_all(namespace), log, admin, timeout, as_json=as_json)


@app.command("split-bundle")
def split_bundle(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    bundle: BundleOption,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--split-algorithm-name",
            "-san",
            metavar="NAME",
            help=f"{', '.join(ALGORITHMS)}, or another that the service knows.  [default: by --positions]",
            show_default=False,
        ),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            "--positions", "--split-boundaries", "-sb", metavar="POINTS", help="Where to cut: 0x20000000,0x30000000.", show_default=False
        ),
    ] = None,
    wait: WaitOption = True,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Have its owner cut a bundle.

    The parts stay with the owner, under the same fencing token, and sessions go on.
    """
    points = None if positions is None else parse_points(positions)
    carry_out(verbs.split(_named(namespace, bundle), algorithm, points, wait=wait), log, admin, timeout, as_json=as_json)


@app.command("merge-bundle")
def merge_bundle(
    namespace: NamespaceArgument,
    *,
    log: LogOption,
    bundle: BundleOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Make one bundle of two neighbours of one owner.

    --bundle names the left one. Not in Pulsar.
    """
    carry_out(verbs.merge(_named(namespace, bundle)), log, admin, timeout, as_json=as_json)


def parse_points(text: str) -> tuple[int, ...]:
    """Parse comma-separated points of the hash space, hexadecimal with `0x` or decimal. Raise `InvalidName`."""
    words = [word.strip() for word in text[:_POINTS_CHARACTERS_MAX].split(",")]
    points = tuple(int(word, 0 if word.startswith("0x") else 10) for word in words if _match_point(word))
    if len(points) != len(words) or len(text) > _POINTS_CHARACTERS_MAX or max(points) > HASH_MAX:
        expected = "points from 0 to 0xffffffff with commas between them, such as 0x40000000,0x80000000"
        raise InvalidName(what="list of points", name=text[:TEXT_CHARACTERS_MAX], expected=expected)
    return points


def parse_boundaries(namespace: str, text: str) -> tuple[int, ...]:
    """Parse all boundaries of a new namespace. Raise `InvalidName` or `CallerError`."""
    points = parse_points(text)
    if points[0] != 0 or points[-1] != HASH_MAX:
        raise invalid_boundaries(subject=namespace, problem=f"they go from 0x00000000 to 0x{HASH_MAX:08x}")
    check_new_bundles(namespace, len(points) - 1)
    check_cuts(0, HASH_MAX, points[1:-1])
    return points


def _named(namespace: str, range_text: str) -> str:
    """Return the name of the bundle of a namespace with this range. Raise `InvalidName`."""
    return bundle_name(check_namespace(namespace), *parse_range(range_text))
