"""`equipoise namespaces`: what is proposed, what is waited for, and what is refused with which
reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.operations import moves, on_channel
from equipoise.brokers.operations.access import Access
from equipoise.channel.core import propose
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, AnyRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import Listener, read_on
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.deadline import Deadline
from tests.channels.compacting import reader_at_end
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in
from tests.load.loaded import uneven_channel
from tests.unit.cli.fabricated import (
    LEFT,
    LEFT_RANGE,
    RIGHT,
    RIGHT_RANGE,
    Actors,
    Play,
    author_of,
    owned_channel,
    run,
    view_of,
    write,
)


def unload(log: str, *arguments: str) -> tuple[str, str, int]:
    """What `namespaces unload` prints, and its exit code."""
    result = run("namespaces", "unload", NAMESPACE, *arguments, log=log)
    return result.stdout, result.stderr, result.exit_code


# --- create, list, bundles ---


def test_create_makes_equal_bundles(log: str) -> None:
    result = run("namespaces", "create", "shop/orders", "--as", "erin", log=log)
    assert ("accepted at offset 10: shop/orders is created with 4 bundles\n", "", 0) == (
        result.stdout,
        result.stderr,
        result.exit_code,
    )
    result = run("namespaces", "create", "shop/carts", "--bundles", "1", "--json", log=log)
    assert {"offset": 11, "namespace": "shop/carts", "bundles": 1} == json.loads(result.stdout)
    assert [
        (0, 0x40000000),
        (0x40000000, MIDDLE),
        (MIDDLE, 0xC0000000),
        (0xC0000000, 0xFFFFFFFF),
    ] == [(bundle.low, bundle.high) for bundle in view_of(log).bundles_of("shop/orders")]
    assert "admin:erin" in run("channel", "show", "10", log=log).stdout


def test_create_takes_boundaries(log: str) -> None:
    result = run(
        "namespaces", "create", "shop/orders", "--boundaries", "0x0, 16,0xffffffff", log=log
    )
    assert 0 == result.exit_code, result.stderr
    assert (
        "0x00000000_0x00000010\n0x00000010_0xffffffff\n"
        == run("namespaces", "bundles", "shop/orders", log=log).stdout
    )


@pytest.mark.parametrize(
    ("boundaries", "problem"),
    [
        ("0x0,0xfffffffe", "they go from 0x00000000 to 0xffffffff"),
        ("1,0xffffffff", "they go from 0x00000000 to 0xffffffff"),
        ("0,9,9,0xffffffff", "0x00000009 does not come after 0x00000009"),
        ("0,0xfffffffff", "is not a list of points"),
        ("0,4294967296", "is not a list of points"),
        ("0,,0xffffffff", "is not a list of points"),
        ("0,-1,0xffffffff", "is not a list of points"),
        ("0,0x,0xffffffff", "is not a list of points"),
        ("", "is not a list of points"),
        ("0," * 700_000, "is not a list of points"),
        (
            ",".join(str(point) for point in (*range(4_097), 0xFFFFFFFF)),
            "a namespace is created with 1 to 4096 bundles, not 4097",
        ),
    ],
    ids=lambda value: value[:24],
)
def test_invalid_boundaries_create_nothing(boundaries: str, problem: str, log: str) -> None:
    result = run("namespaces", "create", "shop/orders", "--boundaries", boundaries, log=log)
    assert (2, "") == (result.exit_code, result.stdout)
    assert problem in result.stderr
    assert 9 == view_of(log).offset


def test_a_namespace_has_1_to_4096_bundles(log: str) -> None:
    boundaries = ",".join(f"0x{point:08x}" for point in even_boundaries(4_096))
    assert (
        0
        == run("namespaces", "create", "shop/orders", "--boundaries", boundaries, log=log).exit_code
    )
    assert 0 == run("namespaces", "create", "shop/returns", "--bundles", "4096", log=log).exit_code
    assert [4_096, 4_096] == [
        len(view_of(log).bundles_of(name)) for name in ("shop/orders", "shop/returns")
    ]
    for count in ("4097", "65536", "0", "-1"):
        refused = run("namespaces", "create", "shop/stock", "--bundles", count, log=log)
        told = (
            "the boundaries of shop/stock cannot be used: a namespace is created with 1 to 4096"
            f" bundles, not {count}"
        )
        assert (2, True) == (refused.exit_code, told in refused.stderr), refused.stderr
    assert "shop/stock" not in view_of(log).namespaces


def test_a_namespace_is_created_once(log: str) -> None:
    result = run("namespaces", "create", NAMESPACE, log=log)
    problem = (
        "it already exists (created at offset 5); see its 2 bundles: equipoise namespaces bundles"
        f" {NAMESPACE}"
    )
    told = f"error: cannot create namespace {NAMESPACE}: {problem}\n"
    assert (1, True) == (result.exit_code, result.stderr.startswith(told))


def test_create_takes_a_number_or_boundaries(log: str) -> None:
    result = run(
        "namespaces",
        "create",
        "shop/orders",
        "--bundles",
        "2",
        "--boundaries",
        "0,0xffffffff",
        log=log,
    )
    assert (2, True) == (result.exit_code, "not both" in result.stderr)


def test_create_needs_a_log_that_has_begun(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/channel.db"
    open_log(url).close()
    result = run("namespaces", "create", "shop/orders", log=url)
    told = (
        f"error: the log {url} has not begun: no broker has started on it yet; start a broker on"
        " it, or check the URL\n"
    )
    assert (2, told) == (result.exit_code, result.stderr)
    assert -1 == view_of(url).offset


LIST = """\
namespace    status   bundles  owned  moving  free  on channel loss
shop/orders  created  4        0      0       4     fence
tenant/ns    created  2        1      1       0     fence
"""


def test_list_counts_bundles_by_state(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(propose.unload(channel.admin(), channel.bundle()))
    channel.create(even_boundaries(4), namespace="shop/orders")
    url = write(channel.entries, tmp_path)
    result = run("namespaces", "list", log=url)
    assert (LIST, 0) == (result.stdout, result.exit_code)
    lines = LIST.splitlines()
    assert [lines[0], lines[1]] == run("namespaces", "list", "shop", log=url).stdout.splitlines()
    assert "there is no namespace\n" == run("namespaces", "list", "sho", log=url).stdout
    (row,) = json.loads(run("namespaces", "list", "tenant", "--json", log=url).stdout)
    assert (NAMESPACE, 2, 1, 1, 0) == tuple(
        row[name] for name in ("namespace", "bundles", "owned", "moving", "free")
    )


def test_bundles_are_shown_in_pulsars_form(log: str) -> None:
    assert (
        f"{LEFT_RANGE}\n{RIGHT_RANGE}\n" == run("namespaces", "bundles", NAMESPACE, log=log).stdout
    )
    assert {
        "boundaries": ["0x00000000", "0x80000000", "0xffffffff"],
        "numBundles": 2,
    } == json.loads(run("namespaces", "bundles", NAMESPACE, "--json", log=log).stdout)


@pytest.mark.parametrize(
    "command",
    [
        ("bundles", "other/ns"),
        ("policies", "other/ns"),
        ("policies", "other/ns", "--on-channel-loss", "serve"),
        ("delete", "other/ns"),
        ("unload", "other/ns"),
        ("unload", "other/ns", "-b", LEFT_RANGE),
        ("split-bundle", "other/ns", "-b", LEFT_RANGE),
        ("merge-bundle", "other/ns", "-b", LEFT_RANGE),
    ],
    ids=" ".join,
)
def test_an_unknown_namespace_is_a_usage_error(command: tuple[str, ...], log: str) -> None:
    result = run("namespaces", *command, log=log)
    advice = (
        "list those that exist: equipoise namespaces list; or create it: equipoise namespaces"
        " create other/ns"
    )
    told = f"error: there is no namespace 'other/ns'; {advice}\n"
    assert ("", told, 2) == (result.stdout, result.stderr, result.exit_code)


# --- policies ---


def test_a_policy_is_set_at_creation_and_later(log: str) -> None:
    assert (
        0
        == run(
            "namespaces", "create", "shop/orders", "--on-channel-loss", "serve", log=log
        ).exit_code
    )
    assert {"on_channel_loss": "serve"} == view_of(log).namespaces["shop/orders"].policies
    result = run("namespaces", "policies", "shop/orders", "--on-channel-loss", "fence", log=log)
    assert "accepted at offset 11: on_channel_loss of shop/orders is fence\n" == result.stdout
    result = run(
        "namespaces", "policies", NAMESPACE, "--on-channel-loss", "serve", "--json", log=log
    )
    assert {"offset": 12, "namespace": NAMESPACE, "on_channel_loss": "serve"} == json.loads(
        result.stdout
    )
    shown = json.loads(run("namespaces", "policies", NAMESPACE, "--json", log=log).stdout)
    assert {
        "namespace": NAMESPACE,
        "on_channel_loss": "serve",
        "policies": {"on_channel_loss": "serve"},
    } == shown
    assert "on channel loss  fence" in run("namespaces", "policies", "shop/orders", log=log).stdout


def test_an_unknown_value_of_a_policy_is_a_usage_error(log: str) -> None:
    result = run("namespaces", "policies", NAMESPACE, "--on-channel-loss", "sometimes", log=log)
    assert (2, True) == (result.exit_code, "'fence', 'serve'" in result.stderr)
    assert 9 == view_of(log).offset


# --- unload ---


@pytest.mark.parametrize("option", ["--destinationBroker", "--destination-broker", "-d"])
def test_a_transfer_waits_until_the_destination_owns_the_bundle(option: str, log: str) -> None:
    with Actors(log):
        told = unload(log, "--bundle", LEFT_RANGE, option, "c")
    assert (f"accepted at offset 10, done at 12: {LEFT} is owned by c, token 12\n", "", 0) == told
    assert 4 == view_of(log).bundles[LEFT].owner


def test_no_wait_returns_once_the_transfer_is_accepted(log: str) -> None:
    out, _, code = unload(log, "--bundle", LEFT_RANGE, "-d", "c", "--no-wait", "--json")
    assert ({"offset": 10, "bundle": LEFT, "destination": "c", "done": False}, 0) == (
        json.loads(out),
        code,
    )
    assert "transferring" == view_of(log).bundles[LEFT].phase


def test_a_cancelled_transfer_is_refused_with_the_reason(log: str) -> None:
    script: dict[Phase, Play] = {
        "transferring": lambda author, bundle: propose.cancel(
            author, bundle, reason="the disk is full"
        )
    }
    with Actors(log, script):
        out, error, code = unload(log, "--bundle", LEFT_RANGE, "-d", "c")
    told = (
        f"error: the transfer of {LEFT} was cancelled: record 11: cancel {LEFT} transfer to c by c;"
        f" reason: the disk is full; {LEFT} is owned by a, token 7, last changed at offset 11; see"
        f" equipoise channel why {LEFT}\n"
    )
    assert ("", told, 1) == (out, error, code)


def refusals() -> dict[str, tuple[Callable[[Channel], object], str, str]]:
    """What happens to c before the transfer, the destination, and the refusal."""
    return {
        "dead": (
            lambda channel: channel.die("c"),
            "c",
            "{}: c is not alive (refused at offset 11)",
        ),
        "draining": (
            lambda channel: channel.accept(
                propose.draining(channel.author("c"), channel.broker("c"))
            ),
            "c",
            "{}: c is draining and takes no new bundles (refused at offset 11)",
        ),
        "unknown": (lambda channel: channel.die("c"), "d", "{}: no broker 'd' has ever joined"),
        "owner": (
            lambda channel: channel.die("c"),
            "a",
            "{}: a already owns it, so there is nothing to move",
        ),
    }


@pytest.mark.parametrize("case", refusals())
def test_a_transfer_to_an_unfit_broker_is_refused(case: str, tmp_path: Path) -> None:
    happens, destination, told = refusals()[case]
    channel = owned_channel()
    happens(channel)
    url = write(channel.entries, tmp_path)
    out, error, code = unload(url, "--bundle", LEFT_RANGE, "-d", destination)
    assert ("", 1) == (out, code)
    advice = (
        f"look at its present state before you try again: equipoise bundles show {LEFT}\n"
        if case == "owner"
        else "name a broker that is up: equipoise brokers list\n"
    )
    assert f"error: cannot move {told.format(LEFT)}; {advice}" in error
    is_on_record = "refused at" in told
    assert is_on_record == (
        f"transfer   {LEFT}  a -> " in run("channel", "why", LEFT, log=url).stdout
    )


def test_a_refusal_is_printed_as_json(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.die("c")
    out, error, code = unload(
        write(channel.entries, tmp_path), "--bundle", LEFT_RANGE, "-d", "c", "--json"
    )
    document = json.loads(error)
    assert ("", 1, "Rejected", "dead_target", "c is not alive", 11) == (
        out,
        code,
        *(document[name] for name in ("error", "reason", "problem", "offset")),
    )


def test_an_unload_moves_the_bundle_to_the_broker_with_fewest(log: str) -> None:
    with Actors(log):
        told = unload(log, "--bundle", LEFT_RANGE)
    assert (f"accepted at offset 10, done at 12: {LEFT} is owned by c, token 12\n", "", 0) == told
    assert view_of(log).brokers["c"].incarnation == view_of(log).bundles[LEFT].owner


def test_an_unload_of_a_namespace_spreads_its_bundles(tmp_path: Path) -> None:
    url = write(uneven_channel("a" * 8 + "b" * 8 + "c" * 8).entries, tmp_path)
    with Actors(url):
        told = run("namespaces", "unload", "tenant/ns", log=url)
    assert 0 == told.exit_code, told.stderr
    view = view_of(url)
    assert [8, 8, 8] == [view.held_count(broker.incarnation) for broker in view.live_brokers()]


def test_an_unload_without_another_broker_waits_for_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "PLACED_MS", 10)
    channel = owned_channel()
    for other in "bc":
        channel.die(other)
    url = write(channel.entries, tmp_path)
    with Actors(url):
        told = unload(url, "--bundle", LEFT_RANGE)
    assert (
        f"accepted at offset 12: a has released {LEFT}, and nobody owns it now: it is free\n",
        "",
        0,
    ) == told
    assert "free" == view_of(url).bundles[LEFT].phase
    *_, error, code = unload(url, "--bundle", LEFT_RANGE)
    look = f"look at its present state before you try again: equipoise bundles show {LEFT}"
    assert (f"error: cannot move {LEFT}: it is free, not owned; {look}\n", 1) == (error, code)


def test_an_unload_without_a_bundle_unloads_all(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.create(even_boundaries(8), namespace="shop/orders")
    for low in range(0, 1 << 32, 1 << 29):
        bundle = channel.bundle(low, namespace="shop/orders")
        if low:
            channel.accept(propose.assign(channel.admin(), bundle, owner=channel.incarnation("c")))
            channel.accept(
                propose.opened(channel.author("c"), channel.bundle(low, namespace="shop/orders"))
            )
    url = write(channel.entries, tmp_path)
    with Actors(url):
        result = run("namespaces", "unload", "shop/orders", log=url)
    told = (
        "7 bundles of shop/orders moved to another owner; 1 had no owner, or were on the move"
        " already\n"
    )
    assert (told, "", 0) == (result.stdout, result.stderr, result.exit_code)
    view = view_of(url)
    assert ["free", *["owned"] * 7] == [bundle.phase for bundle in view.bundles_of("shop/orders")]
    assert view.brokers["c"].incarnation not in {
        bundle.owner for bundle in view.bundles_of("shop/orders")
    }
    out, _, code = unload(url, "--no-wait", "--json")
    document = json.loads(out)
    assert ([LEFT, RIGHT], 0, False, 0) == (
        list(document["offsets"]),
        document["skipped"],
        document["done"],
        code,
    )


def test_a_destination_needs_a_bundle(log: str) -> None:
    """As in Pulsar."""
    out, error, code = unload(log, "-d", "c")
    assert ("", 2, True) == (
        out,
        code,
        "--destinationBroker moves one bundle; name it with --bundle" in error,
    )


def test_an_unknown_bundle_is_a_usage_error(log: str) -> None:
    _, error, code = unload(log, "--bundle", "0x00000000_0x40000000")
    assert (2, True) == (
        code,
        f"list those that exist: equipoise namespaces bundles {NAMESPACE}" in error,
    )
    _, error, code = unload(log, "--bundle", "0x0_0x40000000")
    assert (2, True) == (
        code,
        error.startswith("error: '0x0_0x40000000' is not a bundle range: expected"),
    )


def giving_up(view: View) -> AnyRecord | None:
    """B or c gives the left bundle up once it owns it, and then a assigns it to itself."""
    bundle, a = view.bundles[LEFT], view.brokers["a"]
    if bundle.phase == "owned" and bundle.owner is not None and bundle.owner != a.incarnation:
        return propose.give_up(author_of(view.live[bundle.owner]), bundle, problem="no disk")
    return (
        propose.assign(author_of(a), bundle, owner=a.incarnation)
        if bundle.phase == "free"
        else None
    )


def test_an_unload_of_all_names_the_bundles_that_came_back(log: str) -> None:
    with Actors(log, also=giving_up):
        out, _, code = unload(log)
    moved, came_back = out.splitlines()
    assert (
        "1 bundle of tenant/ns moved to another owner; 0 had no owner, or were on the move already",
        1,
    ) == (moved, code)
    assert came_back.startswith(f"{LEFT} came back to a, token ")


def test_a_refusal_is_noted_while_other_bundles_are_requested(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose_once = on_channel.submit

    def submit(
        channel: Access,
        make_record: Callable[[View, propose.Author], AnyRecord],
        *,
        intent: Intent,
        listener: Listener,
    ) -> Folded:
        accepted = propose_once(channel, make_record, intent=intent, listener=listener)
        deadline = Deadline.after(timeout_ms=10_000)
        reader = reader_at_end(channel.log)
        while (
            left := reader.view.bundles[LEFT]
        ).phase != "owned" or left.owner != reader.view.brokers["a"].incarnation:
            channel.log.wait(reader.position, timeout_ms=deadline.remaining_ms())
            read_on(channel.log, reader, deadline=deadline)
        return accepted

    monkeypatch.setattr(on_channel, "submit", submit)
    with Actors(log, also=giving_up):
        out, _, code = unload(log)
    assert out.endswith("b could not open it: no disk\n"), out
    assert code == 1


def test_an_unload_without_anybody_else_waits_for_the_next_owner(tmp_path: Path) -> None:
    channel = owned_channel()
    for other in "bc":
        channel.die(other)
    url = write(channel.entries, tmp_path)
    with Actors(url, also=giving_up):
        out, _, code = unload(url, "--bundle", LEFT_RANGE, "--json")
    document = json.loads(out)
    nobody = "no other broker may own it: no other broker accepts bundles"
    assert (12, "a", "a", nobody, 0) == (
        document["offset"],
        document["source"],
        document["owner"],
        document["problem"],
        code,
    )


# --- split and merge ---


@pytest.mark.parametrize(
    ("options", "children"),
    [
        ((), ["0x00000000_0x40000000", "0x40000000_0x80000000"]),
        (
            ("--positions", "0x20000000,0x10000000"),
            ["0x00000000_0x10000000", "0x10000000_0x20000000", "0x20000000_0x80000000"],
        ),
        (
            ("-san", "specified_positions_divide", "-sb", "16"),
            ["0x00000000_0x00000010", "0x00000010_0x80000000"],
        ),
    ],
    ids=["half", "positions", "pulsar"],
)
def test_a_split_waits_for_the_children(
    options: tuple[str, ...], children: list[str], log: str
) -> None:
    with Actors(log):
        result = run("namespaces", "split-bundle", NAMESPACE, "-b", LEFT_RANGE, *options, log=log)
    named = ", ".join(f"{NAMESPACE}/{child}" for child in children)
    assert (f"accepted at offset 10: {LEFT} is split into {named}\n", "", 0) == (
        result.stdout,
        result.stderr,
        result.exit_code,
    )


def test_no_wait_returns_once_the_split_is_accepted(log: str) -> None:
    result = run(
        "namespaces", "split-bundle", NAMESPACE, "-b", LEFT_RANGE, "--no-wait", "--json", log=log
    )
    assert {"offset": 10, "bundle": LEFT, "children": [], "done": False} == json.loads(
        result.stdout
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("-san", "specified_positions_divide"), "needs positions, and there are none"),
        (("-sb", ",".join(map(str, range(64)))), "at most 63 cuts, not 64"),
        (("-san", "a\x1bb"), "is not a name of up to 1024 printable"),
        (("-san", "a" * (TEXT_CHARACTERS_MAX + 1)), "is not a name of up to 1024 printable"),
        (("-sb", "middle"), "is not a list of points"),
        (("-sb", "16,0x10"), "0x00000010 does not come after 0x00000010"),
        (("-sb", "0x80000000"), "strictly inside"),
    ],
    ids=["no positions", "too many", "unprintable", "long", "no points", "doubled", "outside"],
)
def test_an_impossible_split_is_a_usage_error(
    options: tuple[str, ...], problem: str, log: str
) -> None:
    result = run("namespaces", "split-bundle", NAMESPACE, "-b", LEFT_RANGE, *options, log=log)
    assert (2, 9) == (result.exit_code, view_of(log).offset)
    assert problem in result.stderr


def test_merge_joins_neighbours_of_one_owner(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(
        propose.transfer(
            channel.admin(), channel.bundle(MIDDLE), destination=channel.incarnation("a")
        )
    )
    channel.accept(propose.prepared(channel.author("a"), channel.bundle(MIDDLE)))
    channel.accept(propose.hand_over(channel.author("b"), channel.bundle(MIDDLE)))
    url = write(channel.entries, tmp_path)
    result = run("namespaces", "merge-bundle", NAMESPACE, "--bundle", LEFT_RANGE, log=url)
    union = f"{NAMESPACE}/0x00000000_0xffffffff"
    assert (f"accepted at offset 13: {LEFT} and its right neighbour are {union} now\n", 0) == (
        result.stdout,
        result.exit_code,
    )
    assert [union] == list(view_of(url).bundles)


def test_merge_refuses_neighbours_of_two_owners(log: str) -> None:
    result = run("namespaces", "merge-bundle", NAMESPACE, "-b", LEFT_RANGE, log=log)
    problem = "they belong to a and b; transfer one of them first"
    told = f"error: cannot merge {LEFT} and {RIGHT}: {problem}\n"
    assert (1, True) == (result.exit_code, result.stderr.startswith(told))
    result = run("namespaces", "merge-bundle", NAMESPACE, "-b", RIGHT_RANGE, log=log)
    assert (1, True) == (
        result.exit_code,
        f"cannot merge {RIGHT}: it is the last bundle of its namespace" in result.stderr,
    )


# --- delete ---


def test_delete_unloads_all_bundles_first(log: str) -> None:
    with Actors(log):
        result = run("namespaces", "delete", NAMESPACE, log=log)
    told = (
        f"{NAMESPACE} is being deleted since offset 10; its bundles are unloaded\naccepted at"
        f" offset 15: {NAMESPACE} is deleted\n"
    )
    assert (told, "", 0) == (result.stdout, result.stderr, result.exit_code)
    assert {} == view_of(log).namespaces


@pytest.mark.parametrize(
    "phase",
    ["free", "assigning", "owned", "transferring", "handing_over", "unloading", "splitting"],
)
def test_delete_waits_for_moves(phase: Phase, tmp_path: Path) -> None:
    url = write(channel_in(phase).entries, tmp_path)
    with Actors(url):
        result = run("namespaces", "delete", NAMESPACE, "--json", log=url)
    assert 0 == result.exit_code, result.stderr
    assert {"offset": view_of(url).offset, "namespace": NAMESPACE} == json.loads(result.stdout)
    assert {} == view_of(url).namespaces


def test_a_second_delete_continues_the_first(log: str) -> None:
    first = run("namespaces", "delete", NAMESPACE, "--timeout", "1", log=log)
    assert (3, "deleting") == (first.exit_code, view_of(log).namespaces[NAMESPACE].status)
    with Actors(log):
        second = run("namespaces", "delete", NAMESPACE, log=log)
    assert (0, {}) == (second.exit_code, dict(view_of(log).namespaces))
    assert second.stdout.startswith("accepted at offset")
