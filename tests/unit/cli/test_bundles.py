"""`equipoise bundles`: the state of bundles, the owner of a key, and cancelled moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.brokers.balancing.policies import quarantine_document, quarantine_key
from equipoise.channel.core import propose
from equipoise.channel.core.ranges import key_hash
from tests.channels.folding import MIDDLE, NAMESPACE, channel_with
from tests.unit.cli.fabricated import LEFT, RIGHT, owned_channel, run, view_of, write

LOW_KEY, HIGH_KEY = "plum", "pear"  # Their points lie in `LEFT` and in `RIGHT`.


@pytest.fixture
def log(tmp_path: Path) -> str:
    """`LEFT` moves from a to c, b has released `RIGHT`, and another namespace has one free
    bundle.
    """
    channel = owned_channel()
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c"))
    )
    channel.accept(propose.unload(channel.admin(), channel.bundle(MIDDLE)))
    channel.accept(propose.released(channel.author("b"), channel.bundle(MIDDLE)))
    channel.create(namespace="shop/orders")
    return write(channel.entries, tmp_path)


LIST = f"""\
bundle                             state      owner  source  token  last
shop/orders/0x00000000_0xffffffff  free       -      -       13     13
{LEFT}    assigning  c      a       7      10
{RIGHT}    free       -      -       9      12
"""


def test_list_shows_the_state_of_bundles(log: str) -> None:
    assert LIST == run("bundles", "list", log=log).stdout
    assert [LEFT, RIGHT] == [
        row["bundle"]
        for row in json.loads(run("bundles", "list", NAMESPACE, "--json", log=log).stdout)
    ]
    assert 2 == run("bundles", "list", "other/ns", log=log).exit_code


SHOW = f"""\
bundle      {LEFT}
state       assigning
owner       c
source      a
serves      a
token       7
last        10
algorithm   -
quarantine  -
positions   -
frozen      -
"""


def test_show_names_the_source_of_a_transfer_as_serving(log: str) -> None:
    assert SHOW == run("bundles", "show", LEFT, log=log).stdout
    assert (2, 2) == (
        run("bundles", "show", f"{NAMESPACE}/0x00000000_0x40000000", log=log).exit_code,
        run("bundles", "show", "other/ns/0x00000000_0x40000000", log=log).exit_code,
    )


def test_a_running_split_shows_its_positions(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(
        propose.start_split(
            channel.admin(),
            channel.bundle(),
            algorithm="specified_positions_divide",
            positions=(16,),
        )
    )
    row = json.loads(
        run("bundles", "show", LEFT, "--json", log=write(channel.entries, tmp_path)).stdout
    )
    assert ("splitting", "specified_positions_divide", ["0x00000010"]) == (
        row["state"],
        row["algorithm"],
        row["positions"],
    )


def test_owner_shows_who_serves_a_key(log: str) -> None:
    assert key_hash(LOW_KEY) < MIDDLE < key_hash(HIGH_KEY)
    served = run("bundles", "owner", NAMESPACE, LOW_KEY, log=log)
    assert (f"a at http://a, in {LEFT} with token 7\n", 0) == (served.stdout, served.exit_code)
    nobody = run("bundles", "owner", NAMESPACE, HIGH_KEY, log=log)
    assert (f"no broker serves it now: its bundle {RIGHT} is free\n", 3) == (
        nobody.stdout,
        nobody.exit_code,
    )
    document = json.loads(run("bundles", "owner", NAMESPACE, LOW_KEY, "--json", log=log).stdout)
    assert {
        "key": LOW_KEY,
        "point": f"0x{key_hash(LOW_KEY):08x}",
        "bundle": LEFT,
        "state": "assigning",
        "token": 7,
        "broker": "a",
        "addresses": {"http": "http://a"},
    } == document


# --- cancel ---


def test_cancel_ends_a_transfer(log: str) -> None:
    result = run("bundles", "cancel", LEFT, "--as", "erin", log=log)
    told = f"accepted at offset 14: the transfer of {LEFT} is cancelled; a owns it, token 7\n"
    assert (told, "", 0) == (result.stdout, result.stderr, result.exit_code)
    assert "    reason: cancelled by an admin\n" in run("channel", "why", LEFT, log=log).stdout
    assert "owned" == view_of(log).bundles[LEFT].phase


def test_cancel_ends_a_split(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(
        propose.start_split(channel.admin(), channel.bundle(), algorithm="range_equally_divide")
    )
    document = json.loads(
        run("bundles", "cancel", LEFT, "--json", log=write(channel.entries, tmp_path)).stdout
    )
    assert {"offset": 11, "bundle": LEFT, "move": "split", "owner": "a", "token": 7} == document


def test_cancel_refuses_a_bundle_that_does_not_move(log: str) -> None:
    assert 0 == run("bundles", "cancel", LEFT, log=log).exit_code
    for bundle, how in ((LEFT, "it is owned and does not move"), (RIGHT, "it is free already")):
        result = run("bundles", "cancel", bundle, log=log)
        assert (1, True) == (
            result.exit_code,
            f"cannot cancel the move of {bundle}: there is nothing to cancel: {how}"
            in result.stderr,
        )
    assert 2 == run("bundles", "cancel", "tenant/ns/0x00000000_0x00000001", log=log).exit_code
    assert 14 == view_of(log).offset


def test_cancel_is_too_late_once_the_source_releases(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c"))
    )
    channel.accept(propose.prepared(channel.author("c"), channel.bundle()))
    url = write(channel.entries, tmp_path)
    result = run("bundles", "cancel", LEFT, log=url)
    assert (1, True) == (
        result.exit_code,
        f"cannot cancel the move of {LEFT}: there is nothing to cancel: it is releasing already"
        in result.stderr,
    )
    result = run("namespaces", "cancel-moves", NAMESPACE, log=url)
    assert (f"0 moves of {NAMESPACE} cancelled; 1 too far on, or over\n", 0) == (
        result.stdout,
        result.exit_code,
    )


def test_cancel_moves_counts_what_was_too_late(tmp_path: Path) -> None:
    channel = channel_with("a", "b", bundles=4)
    for bundle in channel.view.bundles_of(NAMESPACE):
        channel.own("a", bundle.low)
    first, second, third, fourth = channel.view.bundles_of(NAMESPACE)
    channel.accept(propose.transfer(channel.admin(), first, destination=channel.incarnation("b")))
    channel.accept(propose.start_split(channel.admin(), second, algorithm="range_equally_divide"))
    channel.accept(propose.unload(channel.admin(), third))
    before = channel.view.offset
    url = write(channel.entries, tmp_path)
    document = json.loads(run("namespaces", "cancel-moves", NAMESPACE, "--json", log=url).stdout)
    ended = {first.name: before + 1, second.name: before + 2}
    assert {"namespace": NAMESPACE, "offsets": ended, "late": 1} == document
    assert ["owned", "owned", "unloading", "owned"] == [
        bundle.phase for bundle in view_of(url).bundles_of(NAMESPACE)
    ]
    assert fourth == view_of(url).bundles[fourth.name]
    assert 2 == run("namespaces", "cancel-moves", "other/ns", log=url).exit_code


def test_a_bundle_in_quarantine_is_shown_until_it_is_released(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(propose.unload(channel.admin(), channel.bundle(MIDDLE)))
    channel.accept(propose.released(channel.author("b"), channel.bundle(MIDDLE)))
    document = quarantine_document(
        "2 owners in a row died", hold_ms=60_000, until_ms=1_800_000_000_000, evidence=(3, 7)
    )
    channel.accept(
        propose.set_policy(
            channel.admin(), channel.view, name=quarantine_key(RIGHT), document=document
        )
    )
    log = write(channel.entries, tmp_path)
    (row,) = json.loads(run("bundles", "quarantine", "list", "--json", log=log).stdout)
    assert (RIGHT, "2 owners in a row died", [3, 7], "free") == (
        row["bundle"],
        row["reason"],
        row["evidence"],
        row["state"],
    )
    assert "quarantine" in run("bundles", "list", log=log).stdout
    assert (
        "in quarantine: 2 owners in a row died"
        in run("bundles", "owner", NAMESPACE, HIGH_KEY, log=log).stdout
    )
    assert f"set {quarantine_key(RIGHT)}" in " ".join(
        run("channel", "why", RIGHT, log=log).stdout.split()
    )
    assert quarantine_key(RIGHT) not in run("channel", "why", LEFT, log=log).stdout
    assert 0 == run("bundles", "quarantine", "release", RIGHT, log=log).exit_code
    assert "no bundle is in quarantine" in run("bundles", "quarantine", "list", log=log).stdout
    again = run("bundles", "quarantine", "release", RIGHT, log=log)
    assert (2, True) == (again.exit_code, "is not in quarantine" in again.output)
