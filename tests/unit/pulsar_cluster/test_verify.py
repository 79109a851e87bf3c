"""What an audit finds in the present of a channel: overlaps, leftovers, owners that are gone, and
splits that went wrong.
"""

from __future__ import annotations

import pytest

from equipoise.pulsar_cluster.table import Table, overlapping_pairs
from equipoise.pulsar_cluster.verify import Audit, Finding, Kind, Known
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, RIGHT, SECOND_MS, Written, a_life

NAMESPACE = BUNDLE.rpartition("/")[0]
CHILDREN = [f"{NAMESPACE}/{LEFT}", f"{NAMESPACE}/{RIGHT}"]
MINUTE_MS = 60 * SECOND_MS
NOTHING = Known()
UNLOAD = f"pulsar-admin namespaces unload --bundle {BUNDLE.rpartition('/')[2]} {NAMESPACE}"


def found(written: Written, *, after_ms: int = MINUTE_MS, known: Known = NOTHING) -> list[Finding]:
    table, audit = Table(), Audit()
    for offset, read in enumerate(written.reads):
        audit.see(table.fold(read.message(offset)))
    return list(audit.result(now_ms=written.now_ms + after_ms, known=known).findings)


@pytest.mark.parametrize("other", ["b:80", "a:80"])
def test_overlapping_bundles_are_found(other: str) -> None:
    """A namespace was deleted, and made again with fewer bundles, while its topics were looked
    up.
    """
    written = Written()
    written.assign(CHILDREN[0], "a:80")
    written.assign(BUNDLE, other)
    (finding,) = found(written)
    assert (Kind.OVERLAP, BUNDLE) == (finding.kind, finding.bundle)
    assert (
        f"a:80 owns {CHILDREN[0]} and {other} owns {BUNDLE}, which have topics in common"
        == finding.text
    )
    assert "equipoise pulsar verify --admin URL" in finding.advice
    assert [] == found(written, after_ms=SECOND_MS)


def test_a_split_under_way_is_no_overlap_and_one_that_does_not_end_is_stuck() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(
        BUNDLE,
        "a:80",
        "Splitting",
        source="a:80",
        splitServiceUnitToDestBroker=dict.fromkeys((LEFT, RIGHT)),
    )
    for child in CHILDREN:
        written.add(child, "a:80", "Owned", to="a:80")
    assert [] == found(written, after_ms=20 * SECOND_MS)
    (finding,) = found(written, after_ms=60 * MINUTE_MS)
    assert (Kind.STUCK, "it has been Splitting from a:80 for 3602 s") == (
        finding.kind,
        finding.text,
    )
    assert UNLOAD in finding.advice
    written.now_ms += 60 * MINUTE_MS
    written.add(BUNDLE, "a:80", "Deleted", source="a:80")
    assert [Kind.STUCK] == [finding.kind for finding in found(written)]


def test_a_child_that_is_owned_elsewhere_while_its_parent_splits_is_found() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(
        BUNDLE,
        "a:80",
        "Splitting",
        source="a:80",
        splitServiceUnitToDestBroker=dict.fromkeys((LEFT, RIGHT)),
    )
    written.add(CHILDREN[0], "a:80", "Owned", to="a:80")
    written.add(CHILDREN[1], "b:80", "Owned", to="b:80")
    (finding,) = found(written, after_ms=SECOND_MS)
    assert (Kind.SECOND_OWNER, CHILDREN[1], f"b:80 owns it, and a:80 still splits {BUNDLE}") == (
        finding.kind,
        finding.bundle,
        finding.text,
    )
    written.add(BUNDLE, "a:80", "Deleted", source="a:80")
    written.transfer(CHILDREN[0], "a:80", "b:80")
    assert [finding] == found(written)


def test_a_parent_that_is_deleted_before_a_child_was_owned_is_found() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(
        BUNDLE,
        "a:80",
        "Splitting",
        source="a:80",
        splitServiceUnitToDestBroker=dict.fromkeys((LEFT, RIGHT)),
    )
    written.add(CHILDREN[0], "a:80", "Owned", to="a:80")
    written.add(BUNDLE, "a:80", "Deleted", source="a:80")
    (finding,) = found(written)
    assert (
        Kind.LOST_CHILD,
        CHILDREN[1],
        f"{BUNDLE} was split into it, and no broker owned it",
    ) == (
        finding.kind,
        finding.bundle,
        finding.text,
    )
    assert f"pulsar-admin namespaces unload --bundle {RIGHT} {NAMESPACE}" in finding.advice


def test_an_owner_that_is_no_member_is_found() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    assert [] == found(written, known=Known(("a:80", "b:80")))
    (finding,) = found(written, known=Known(("b:80",)))
    assert (Kind.NO_MEMBER, "a:80 owns it, and is no broker of the cluster any more") == (
        finding.kind,
        finding.text,
    )
    assert "pulsar-admin --admin-url http://BROKER brokers shutdown" in finding.advice


@pytest.mark.parametrize(
    ("bundles", "told"),
    [
        (frozenset({BUNDLE}), "its namespace has other bundles"),
        (None, "there is no such namespace"),
    ],
)
def test_what_its_namespace_does_not_have_is_a_leftover(
    bundles: frozenset[str] | None, told: str
) -> None:
    """With the boundaries, the right one of two that overlap is named."""
    written = Written()
    written.assign(BUNDLE, "b:80")
    written.assign(CHILDREN[0], "a:80")
    leftovers = found(written, known=Known(None, {NAMESPACE: bundles}))
    assert {Kind.LEFTOVER} == {finding.kind for finding in leftovers}
    assert f"a:80 owns it, and {told}" == leftovers[-1].text
    assert (CHILDREN[0], 1 if bundles else 2) == (leftovers[-1].bundle, len(leftovers))
    split = (
        "--bundle 0x00000000_0x40000000 --split-algorithm-name specified_positions_divide"
        " --split-boundaries 536870912 public/default"
    )
    wanted = (
        f"pulsar-admin namespaces split-bundle {split}"
        if bundles
        else "pulsar-admin namespaces delete public/default"
    )
    assert leftovers[-1].advice.endswith(wanted)


def test_every_finding_names_a_command() -> None:
    for kind in Kind:
        advice = Finding(kind, 7, BUNDLE, "text").advice
        assert any(
            command in advice for command in ("pulsar-admin ", "equipoise pulsar ", "pip install ")
        ), advice
        assert "{" not in advice


def test_pairs_that_share_points_are_found() -> None:
    life = a_life()
    assert [(CHILDREN[0], BUNDLE), (BUNDLE, CHILDREN[1])] == overlapping_pairs(
        {read.key for read in life.reads}
    )
    assert [] == overlapping_pairs([*CHILDREN, f"public/other/{LEFT}", "no bundle"])
    assert [] == overlapping_pairs([])
