"""Define `equipoise namespaces`: create and list namespaces; move, split and merge their bundles. The syntax follows `pulsar-admin`."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Final

import typer

from equipoise.brokers.agent.requested_moves import owner_of
from equipoise.brokers.balancing.namespace_policies import ANTI_AFFINITY_GROUP, ON_CHANNEL_LOSS, OnChannelLoss
from equipoise.brokers.balancing.namespace_size import NEW_BUNDLES_MAX, check_new_bundles
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.balancing.splitting.split_points import ALGORITHMS, RANGE_EQUALLY_DIVIDE, SPECIFIED_POSITIONS_DIVIDE
from equipoise.brokers.cli.options import TIMEOUT_S, AsOption, JsonOption, LogOption, TimeoutOption, WaitOption, reading, writing
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import counted, print_document, print_fact, print_json, print_line, print_rows
from equipoise.brokers.cli.rows import NAMESPACE_COLUMNS, namespace_row
from equipoise.brokers.operations import moving
from equipoise.brokers.operations.access import Access
from equipoise.brokers.operations.outcomes import Outcomes
from equipoise.channel.core.errors import InvalidBoundaries, InvalidName
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, check_cuts, check_namespace, even_boundaries, parse_range
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import CUTS_MAX, TEXT_CHARACTERS_MAX, BundleTransition

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
    with writing(log, admin, timeout) as access:
        if points is None:
            points = even_boundaries(settings_in(access.view, BalancingSettings()).balancing.namespace_bundles)
        policies = {} if on_channel_loss is None else {ON_CHANNEL_LOSS: on_channel_loss.value}
        accepted = moving.create_namespace(access, namespace, points, policies)
    count = len(points) - 1
    sentence = f"accepted at offset {accepted.offset}: {namespace} is created with {counted(count, 'bundle')}"
    print_fact(sentence, {"offset": accepted.offset, "namespace": namespace, "bundles": count}, as_json=as_json)


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
    with writing(log, admin, timeout) as access:
        accepted = moving.set_policy(access, access.namespace(namespace), policy, value)
    sentence = f"accepted at offset {accepted.offset}: {policy} of {namespace} is {'no longer set' if value is None else value}"
    print_fact(sentence, {"offset": accepted.offset, "namespace": namespace, policy: value}, as_json=as_json)


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
    with writing(log, admin, timeout) as access:
        accepted = moving.delete_namespace(access, access.namespace(namespace), progress=lambda text: None if as_json else print_line(text))
    print_fact(
        f"accepted at offset {accepted.offset}: {namespace} is deleted",
        {"offset": accepted.offset, "namespace": namespace},
        as_json=as_json,
    )


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
    with writing(log, admin, timeout) as access:
        access.namespace(namespace)
        if bundle is None:
            _unload_all(access, namespace, wait=wait, as_json=as_json)
        elif destination is None:
            _unload_one(access, _named(access, namespace, bundle), wait=wait, as_json=as_json)
        else:
            name = _named(access, namespace, bundle)
            outcomes = Outcomes(access.view, [access.view.bundles[name]])
            accepted = moving.transfer(access, name, destination, force=force)
            _follow_transfer(access, accepted, outcomes, destination, destination, wait=wait, as_json=as_json)


def _follow_transfer(
    access: Access, accepted: Folded, outcomes: Outcomes, destination: str, wanted: str | None, *, wait: bool, as_json: bool
) -> None:
    """Follow a transfer until the new owner keeps the bundle. `wanted` is the requested destination."""
    assert isinstance(accepted.record, BundleTransition), "a transfer begins with a transition"
    name = accepted.record.key
    if not wait:
        sentence = f"accepted at offset {accepted.offset}: {name} is on its way to {destination}"
        print_fact(sentence, {"offset": accepted.offset, "bundle": name, "destination": destination, "done": False}, as_json=as_json)
        return
    (bundle,) = moving.await_end(access, accepted)
    moving.await_settled(access, outcomes)
    outcome = outcomes.check(name, access.view, destination=wanted)
    sentence = f"accepted at offset {accepted.offset}, done at {bundle.last}: {outcome.sentence()}"
    document = {"offset": accepted.offset, "destination": destination, "done": True} | outcome.document()
    print_fact(sentence, document, as_json=as_json)


def _unload_one(access: Access, name: str, *, wait: bool, as_json: bool) -> None:
    source = owner_of(access.view, access.view.bundles[name])
    outcomes = Outcomes(access.view, [access.view.bundles[name]])
    accepted = moving.unload(access, name)
    destination = access.view.bundles[name].owner
    if destination is not None:
        _follow_transfer(access, accepted, outcomes, access.view.live[destination].broker, None, wait=wait, as_json=as_json)
        return
    document: dict[str, object] = {"offset": accepted.offset, "bundle": name, "source": source, "done": wait}
    sentence = f"{source} releases {name}"
    if wait:
        moving.await_released(access, {name: accepted.offset}, what=f"the release of {name}", outcomes=outcomes)
        moving.await_settled(access, outcomes)
        outcome = outcomes.of(name, access.view)
        document |= outcome.document()
        sentence = outcome.sentence()
    print_fact(f"accepted at offset {accepted.offset}: {sentence}", document, as_json=as_json)


def _unload_all(access: Access, namespace: str, *, wait: bool, as_json: bool) -> None:
    bundles = access.view.bundles_of(namespace)
    outcomes = Outcomes(access.view, [bundle for bundle in bundles if bundle.phase == "owned"])
    unloads = moving.unload_all(access, bundles, what=f"the unload of all bundles of {namespace}", wait=wait, outcomes=outcomes)
    skipped = len(bundles) - len(unloads)
    passed_over = f"{skipped} had no owner, or were on the move already"
    document: dict[str, object] = {"namespace": namespace, "offsets": unloads, "skipped": skipped, "done": wait}
    if not wait:
        print_fact(f"{counted(len(unloads), 'bundle')} of {namespace} are being unloaded; {passed_over}", document, as_json=as_json)
        return
    moving.await_settled(access, outcomes)
    all_outcomes = [outcomes.of(name, access.view) for name in unloads]
    stuck = [outcome for outcome in all_outcomes if outcome.owner in (None, outcome.source)]
    sentence = f"{counted(len(unloads) - len(stuck), 'bundle')} of {namespace} moved to another owner; {passed_over}"
    document["bundles"] = [outcome.document() for outcome in all_outcomes]
    print_fact(sentence, document, as_json=as_json)
    for outcome in () if as_json else stuck:
        print_line(outcome.sentence())
    if any(outcomes.is_refused(outcome.bundle) for outcome in stuck):
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
    with writing(log, admin, timeout) as access:
        bundles = access.view.bundles_of(access.namespace(namespace))
        moved = sum(bundle.phase not in ("owned", "free") for bundle in bundles)
        ended = moving.cancel_all(access, bundles)
    late = moved - len(ended)
    sentence = f"{counted(len(ended), 'move')} of {namespace} cancelled; {late} too far on, or over"
    print_fact(sentence, {"namespace": namespace, "offsets": ended, "late": late}, as_json=as_json)


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
    cuts = None if positions is None else tuple(sorted(parse_points(positions)))
    name = algorithm or (RANGE_EQUALLY_DIVIDE if cuts is None else SPECIFIED_POSITIONS_DIVIDE)
    _check_split(name, cuts, parse_range(bundle))
    with writing(log, admin, timeout) as access:
        parent = _named(access, namespace, bundle)
        accepted = moving.split(access, parent, name, cuts)
        children = [child.name for child in moving.await_end(access, accepted)] if wait else []
    document = {"offset": accepted.offset, "bundle": parent, "children": children, "done": wait}
    into = f"{parent} is split into {', '.join(children)}" if wait else f"{parent} is being split"
    print_fact(f"accepted at offset {accepted.offset}: {into}", document, as_json=as_json)


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
    with writing(log, admin, timeout) as access:
        left = _named(access, namespace, bundle)
        accepted = moving.merge(access, left)
        low, _ = parse_range(bundle)
        union = access.view.bundle_at(namespace, low)
    name = left if union is None else union.name
    document = {"offset": accepted.offset, "bundle": left, "union": name}
    print_fact(f"accepted at offset {accepted.offset}: {left} and its right neighbour are {name} now", document, as_json=as_json)


def parse_points(text: str) -> tuple[int, ...]:
    """Parse comma-separated points of the hash space, hexadecimal with `0x` or decimal. Raise `InvalidName`."""
    words = [word.strip() for word in text[:_POINTS_CHARACTERS_MAX].split(",")]
    points = tuple(int(word, 0 if word.startswith("0x") else 10) for word in words if _match_point(word))
    if len(points) != len(words) or len(text) > _POINTS_CHARACTERS_MAX or max(points) > HASH_MAX:
        expected = "points from 0 to 0xffffffff with commas between them, such as 0x40000000,0x80000000"
        raise InvalidName(what="list of points", name=text[:TEXT_CHARACTERS_MAX], expected=expected)
    return points


def parse_boundaries(namespace: str, text: str) -> tuple[int, ...]:
    """Parse all boundaries of a new namespace. Raise `InvalidName` or `InvalidBoundaries`."""
    points = parse_points(text)
    if points[0] != 0 or points[-1] != HASH_MAX:
        raise InvalidBoundaries(subject=namespace, problem=f"they go from 0x00000000 to 0x{HASH_MAX:08x}")
    check_new_bundles(namespace, len(points) - 1)
    check_cuts(0, HASH_MAX, points[1:-1])
    return points


def _check_split(algorithm: str, cuts: tuple[int, ...] | None, range_: tuple[int, int]) -> None:
    """Check a split before asking the owner. The owner's service checks the algorithm.

    Raises `InvalidName`, `InvalidBoundaries`, and typer's errors.
    """
    if not algorithm.isprintable() or len(algorithm) > TEXT_CHARACTERS_MAX:
        raise InvalidName(
            what="split algorithm", name=algorithm[:TEXT_CHARACTERS_MAX], expected=f"up to {TEXT_CHARACTERS_MAX} printable characters"
        )
    if algorithm == SPECIFIED_POSITIONS_DIVIDE and cuts is None:
        raise typer.BadParameter(f"{SPECIFIED_POSITIONS_DIVIDE} cuts where --positions says")
    if algorithm in ALGORITHMS and algorithm != SPECIFIED_POSITIONS_DIVIDE and cuts is not None:
        raise typer.BadParameter(f"{algorithm} finds its cuts itself, and --positions are for {SPECIFIED_POSITIONS_DIVIDE}")
    if cuts is not None and len(cuts) > CUTS_MAX:
        raise typer.BadParameter(f"one split makes at most {CUTS_MAX} cuts, not {len(cuts)}")
    check_cuts(*range_, cuts or ())


def _named(access: Access, namespace: str, range_text: str) -> str:
    """Return the name of the bundle with this range. Raise `InvalidName`, `UnknownNamespace` or `UnknownBundle`."""
    return access.bundle(bundle_name(access.namespace(namespace), *parse_range(range_text))).name
