"""What an audit counts in a channel, and what it finds: in its messages, and at its end."""

from __future__ import annotations

import pytest

from equipoise.pulsar_cluster.table import Table, overlapping_pairs
from equipoise.pulsar_cluster.verify import Audit, Finding, Kind, Known, Result
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, RIGHT, SECOND_MS, Written, a_life

NAMESPACE = BUNDLE.rpartition("/")[0]
CHILDREN = [f"{NAMESPACE}/{LEFT}", f"{NAMESPACE}/{RIGHT}"]
OTHER = "public/other/0x00000000_0xffffffff"
MINUTE_MS = 60 * SECOND_MS
NOTHING = Known()
UNLOAD = f"pulsar-admin namespaces unload --bundle {BUNDLE.rpartition('/')[2]} {NAMESPACE}"
SPLIT = (
    "pulsar-admin namespaces split-bundle --bundle 0x00000000_0x40000000 --split-algorithm-name"
    " specified_positions_divide --split-boundaries 536870912 public/default"
)


def audited(written: Written, *, now_ms: int = 0, known: Known = NOTHING) -> Result:
    table, audit = Table(), Audit()
    for offset, read in enumerate(written.reads):
        audit.see(table.fold(read.message(offset)))
    return audit.result(now_ms=now_ms, known=known)


def owned(owner: str = "a:80") -> Written:
    return Written().assign(BUNDLE, owner)


def taken_over() -> Written:
    """The leader takes a bundle from a broker that is gone."""
    return owned().add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True)


def overlapping(other: str) -> Written:
    """A namespace was deleted, and made again with fewer bundles, while its topics were looked
    up.
    """
    return Written().assign(CHILDREN[0], "a:80").assign(BUNDLE, other)


def splitting(*owners: str) -> Written:
    """A split whose children have these owners, and that has not ended."""
    written = owned().splitting(BUNDLE, "a:80", LEFT, RIGHT)
    for child, owner in zip(CHILDREN, owners, strict=False):
        written.add(child, owner, "Owned", to=owner)
    return written


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # A race is lost within seconds. Later, the writer's table was far behind.
        (
            owned()
            .transfer(BUNDLE, "a:80", "c:80")
            .add(BUNDLE, "b:80", "Assigning", to="b:80", version=4),
            [],
        ),
        (
            owned()
            .transfer(BUNDLE, "a:80", "c:80")
            .add(BUNDLE, "b:80", "Assigning", 20_000, to="b:80", version=4),
            [(Kind.OLD_VERSION, "when the bundle had long had version 5")],
        ),
        (
            owned().add(BUNDLE, "a:80", "Releasing", source="a:80", version=7),
            [(Kind.GAP, "its version goes from 2 to 7")],
        ),
        # A gap of versions is taken without a check: so Pulsar's brokers accept it.
        (
            owned()
            .assign("public/default/0x40000000_0x80000000", "b:80")
            .add(BUNDLE, "b:80", "Owned", to="b:80", version=9),
            [(Kind.SECOND_OWNER, "b:80 owns it (Owned, version 9), and a:80 has not released it")],
        ),
        # A tombstone forgets the version, so that Pulsar's brokers accept whatever comes late.
        (
            a_life().add(BUNDLE, "b:80", "Owned", to="b:80", version=1),
            [(Kind.SECOND_OWNER, f"although its child public/default/{LEFT} is served")],
        ),
        # A namespace that is made again: Pulsar forgets free children up to an hour later.
        (
            a_life()
            .unload(CHILDREN[0], "a:80", force=True)
            .unload(CHILDREN[1], "a:80", force=True)
            .assign(BUNDLE, "b:80"),
            [],
        ),
        (taken_over(), []),
        # A broker had lost its bundles, and still wrote over its old connection.
        (
            taken_over().transfer(BUNDLE, "b:80", "c:80", by="a:80"),
            [(Kind.GONE_BROKER, "a:80 wrote it, whose bundles the leader took at offset 2")],
        ),
        (
            taken_over().add(BUNDLE, "nobody", "Owned", to="a:80", version=9),
            [
                (Kind.GONE_BROKER, "a:80 owns it, whose bundles the leader took at offset 2"),
                (Kind.SECOND_OWNER, ""),
            ],
        ),
        # A broker that lost its session may go on, and take others over its old connection.
        (
            taken_over()
            .assign(OTHER, "a:80", by="b:80")
            .transfer(BUNDLE, "b:80", "a:80")
            .transfer(BUNDLE, "a:80", "c:80"),
            [],
        ),
        # One that came back may take bundles.
        (
            taken_over()
            .add(BUNDLE, "leader:80", "Releasing", to="a:80", source="b:80")
            .add(BUNDLE, "b:80", "Assigning", to="a:80", source="b:80")
            .add(BUNDLE, "a again", "Owned", to="a:80", source="b:80"),
            [],
        ),
        (
            owned().transfer(BUNDLE, "a:80", "b:80", wait_ms=45_000),
            [(Kind.STUCK, "it was Releasing for 45 s")],
        ),
        # It has no next record: the end of the recording is the present.
        (
            owned()
            .add(BUNDLE, "leader:80", "Releasing", source="a:80", to="b:80")
            .later(MINUTE_MS)
            .assign(OTHER, "a:80"),
            [(Kind.STUCK, "it has been Releasing to b:80 from a:80 for 62 s")],
        ),
        (
            owned().add(BUNDLE, "a:80", "Warming", to="a:80").garble(BUNDLE),
            [(Kind.UNKNOWN_STATE, "the state Warming is unknown"), (Kind.UNREADABLE, "not JSON")],
        ),
        (
            splitting("a:80").add(BUNDLE, "a:80", "Deleted", source="a:80"),
            [(Kind.LOST_CHILD, f"{BUNDLE} was split into it, and no broker owned it")],
        ),
        (
            splitting("a:80", "b:80"),
            [(Kind.SECOND_OWNER, f"b:80 owns it, and a:80 still splits {BUNDLE}")],
        ),
        (
            splitting("a:80", "b:80")
            .add(BUNDLE, "a:80", "Deleted", source="a:80")
            .transfer(CHILDREN[0], "a:80", "b:80"),
            [(Kind.SECOND_OWNER, f"b:80 owns it, and a:80 still splits {BUNDLE}")],
        ),
        (
            splitting("a:80", "a:80")
            .later(60 * MINUTE_MS)
            .add(BUNDLE, "a:80", "Deleted", source="a:80"),
            [(Kind.STUCK, "it was Splitting for 3603 s")],
        ),
    ],
)
def test_what_should_not_have_happened_is_found(
    written: Written, expected: list[tuple[Kind, str]]
) -> None:
    found = audited(written).findings
    assert [kind for kind, _ in expected] == [finding.kind for finding in found]
    assert all(text in each.text for (_, text), each in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(
    ("written", "after_ms", "known", "expected"),
    [
        (overlapping("b:80"), SECOND_MS, NOTHING, []),
        *(
            (
                overlapping(other),
                MINUTE_MS,
                NOTHING,
                [
                    (
                        Kind.OVERLAP,
                        BUNDLE,
                        f"a:80 owns {CHILDREN[0]} and {other} owns {BUNDLE}, which have topics",
                        "equipoise pulsar verify --admin URL",
                    )
                ],
            )
            for other in ("a:80", "b:80")
        ),
        # A split under way is no overlap, and one that does not end is stuck.
        (splitting("a:80", "a:80"), 20 * SECOND_MS, NOTHING, []),
        (
            splitting("a:80", "a:80"),
            60 * MINUTE_MS,
            NOTHING,
            [(Kind.STUCK, BUNDLE, "it has been Splitting from a:80 for 3602 s", UNLOAD)],
        ),
        (owned().add(BUNDLE, "a:80", "Releasing", source="a:80", to="b:80"), 0, NOTHING, []),
        (owned(), MINUTE_MS, Known(("a:80", "b:80")), []),
        (
            owned(),
            MINUTE_MS,
            Known(("b:80",)),
            [
                (
                    Kind.NO_MEMBER,
                    BUNDLE,
                    "a:80 owns it, and is no broker of the cluster any more",
                    "pulsar-admin --admin-url http://BROKER brokers shutdown",
                )
            ],
        ),
        # With the boundaries, the right one of two that overlap is named.
        (
            overlapping("b:80"),
            MINUTE_MS,
            Known(None, {NAMESPACE: frozenset({BUNDLE})}),
            [
                (
                    Kind.LEFTOVER,
                    CHILDREN[0],
                    "a:80 owns it, and its namespace has other bundles",
                    SPLIT,
                )
            ],
        ),
        (
            overlapping("b:80"),
            MINUTE_MS,
            Known(None, {NAMESPACE: None}),
            [
                (Kind.LEFTOVER, bundle, f"{owner} owns it, and there is no such namespace", delete)
                for bundle, owner, delete in (
                    (CHILDREN[0], "a:80", "pulsar-admin namespaces delete public/default"),
                    (BUNDLE, "b:80", "pulsar-admin namespaces delete public/default"),
                )
            ],
        ),
    ],
)
def test_what_is_wrong_at_the_end_is_found_with_advice(
    written: Written, after_ms: int, known: Known, expected: list[tuple[Kind, str, str, str]]
) -> None:
    found = audited(written, now_ms=written.now_ms + after_ms, known=known).findings
    assert [each[:2] for each in expected] == [(each.kind, each.bundle) for each in found]
    for (*_, text, advice), finding in zip(expected, found, strict=True):
        assert text in finding.text
        assert advice in finding.advice


def test_a_healthy_channel_is_in_order() -> None:
    """Moves, an unload, a split and a lost race are normal, and each is counted."""
    written = a_life().add(CHILDREN[0], "c:80", "Assigning", to="c:80", version=1)
    result = audited(written)
    assert result.in_order
    assert (1, 1, {"old version": 1}) == (result.splits, result.lost_races, dict(result.rejected))
    assert (1, 2 * SECOND_MS) == (result.transfers.number, result.transfers.max)
    # When it was placed, in the transfer, and when it was placed again, each for a second. While it
    # was free, nobody waited.
    assert (3, SECOND_MS) == (result.without_owner.number, result.without_owner.max)
    states = {"Assigning", "Free", "Owned", "Releasing", "Splitting", "Deleted"}
    assert states <= result.in_state.keys()


def test_a_bundle_that_nobody_took_is_named() -> None:
    written = owned().unload(BUNDLE, "a:80")
    assert {} == audited(written).unowned
    written.add(BUNDLE, "b:80", "Assigning", to="c:80")
    assert {BUNDLE: written.now_ms} == audited(written).unowned


def test_bundles_of_a_broker_that_vanished_are_counted() -> None:
    result = audited(taken_over())
    assert ({"a:80": 1}, 1, True) == (dict(result.vanished), result.forced, result.in_order)


def test_moves_back_are_counted() -> None:
    """A bundle that was unloaded and comes back without having been elsewhere does not bounce."""
    written = owned().transfer(BUNDLE, "a:80", "b:80").transfer(BUNDLE, "b:80", "a:80")
    written.unload(BUNDLE, "a:80").assign(BUNDLE, "a:80")
    assert {BUNDLE: 1} == audited(written).bounced


def test_every_finding_names_a_command() -> None:
    for kind in Kind:
        advice = Finding(kind, 7, BUNDLE, "text").advice
        assert any(
            command in advice for command in ("pulsar-admin ", "equipoise pulsar ", "pip install ")
        ), advice
        assert "{" not in advice


def test_pairs_that_share_points_are_found() -> None:
    assert [(CHILDREN[0], BUNDLE), (BUNDLE, CHILDREN[1])] == overlapping_pairs(
        {read.key for read in a_life().reads}
    )
    assert [] == overlapping_pairs([*CHILDREN, f"public/other/{LEFT}", "no bundle"])
    assert [] == overlapping_pairs([])
