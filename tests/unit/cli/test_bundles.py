"""`equipoise bundles`: how bundles are, and who serves a key.

May live here: the commands of this group.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from channel import propose
from channel.ranges import key_hash
from tests.folding import MIDDLE, NAMESPACE
from tests.unit.cli.fabricated import LEFT, RIGHT, owned_channel, run, write

LOW_KEY, HIGH_KEY = "plum", "pear"  # Their points lie in `LEFT` and in `RIGHT`.


@pytest.fixture
def log(tmp_path: Path) -> str:
    """`LEFT` is on its way from a to c, `RIGHT` is let go of by b, and another namespace has one free bundle."""
    channel = owned_channel()
    channel.accept(propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c")))
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


def test_list_shows_how_bundles_are(log: str) -> None:
    """Bundles are listed by namespace and range, all or those of one namespace."""
    assert LIST == run("bundles", "list", log=log).stdout
    assert [LEFT, RIGHT] == [row["bundle"] for row in json.loads(run("bundles", "list", NAMESPACE, "--json", log=log).stdout)]
    assert 2 == run("bundles", "list", "other/ns", log=log).exit_code


SHOW = f"""\
bundle     {LEFT}
state      assigning
owner      c
source     a
serves     a
token      7
last       10
algorithm  -
positions  -
"""


def test_show_tells_who_serves(log: str) -> None:
    """While a bundle is transferred its source serves it, whatever its owner will be."""
    assert SHOW == run("bundles", "show", LEFT, log=log).stdout
    assert (2, 2) == (
        run("bundles", "show", f"{NAMESPACE}/0x00000000_0x40000000", log=log).exit_code,
        run("bundles", "show", "other/ns/0x00000000_0x40000000", log=log).exit_code,
    )


def test_a_split_under_way_shows_its_cuts(tmp_path: Path) -> None:
    """How the owner is to cut a bundle is part of what is known of it."""
    channel = owned_channel()
    channel.accept(propose.start_split(channel.admin(), channel.bundle(), algorithm="specified_positions_divide", positions=(16,)))
    row = json.loads(run("bundles", "show", LEFT, "--json", log=write(channel.entries, tmp_path)).stdout)
    assert ("splitting", "specified_positions_divide", ["0x00000010"]) == (row["state"], row["algorithm"], row["positions"])


def test_owner_says_who_serves_a_key(log: str) -> None:
    """A key is served by the server of the bundle that holds its point; where nobody serves it the exit code says so."""
    assert key_hash(LOW_KEY) < MIDDLE < key_hash(HIGH_KEY)
    served = run("bundles", "owner", NAMESPACE, LOW_KEY, log=log)
    assert (f"a at http://a, in {LEFT} with token 7\n", 0) == (served.stdout, served.exit_code)
    nobody = run("bundles", "owner", NAMESPACE, HIGH_KEY, log=log)
    assert (f"nobody at this moment: {RIGHT}, which holds it, is free\n", 3) == (nobody.stdout, nobody.exit_code)
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
