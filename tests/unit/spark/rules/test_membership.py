"""Tests of the audit's membership: its contexts, its state, and the verdicts that random walks
rarely reach.

`tests/property/test_second_rules.py` compares all verdicts with the fold on random walks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from equipoise.spark_jobs.rules.membership.members import (
    APPEND_TIME_ERROR_MS,
    INCARNATIONS_MAX,
    Incarnations,
)
from equipoise.spark_jobs.rules.membership.verdicts import ADMIN_WINDOW_OFFSETS
from equipoise.spark_jobs.rules.membership.view import Membership
from equipoise.spark_jobs.sequence.sequence import known_in
from tests.channels.folding import channel_in
from tests.unit.spark.rules.membership_story import BUNDLE, NAMESPACE, RIGHT, Cluster, joined

UNION: Final = "t/n/0x00000000_0xffffffff"


def test_garbage_and_what_is_no_record() -> None:
    cluster = Cluster()
    assert {
        "begun": 1,
        "checked_by": "log:",
        "publisher": "nobody",
        "expected": "malformed",
    } == cluster.tell(None, verdict="malformed")
    assert "malformed" == cluster.expected({"kind": "coup"})


def test_nothing_is_accepted_before_the_genesis() -> None:
    assert "no_genesis" == Membership().context_of(1, 5, joined("a")).get("expected")


def test_who_publishes() -> None:
    cluster = Cluster()
    record = cluster.broker("a", kind="split", key=BUNDLE, positions=[1])
    assert "live" == cluster.tell(record, verdict="stale")["publisher"]
    never = cluster.tell({**record, "incarnation": 99}, verdict="dead_publisher")
    assert ("never", "dead_publisher") == (never["publisher"], never["expected"])
    impostor = cluster.tell({**record, "publisher": "b", "sequence": 9}, verdict="dead_publisher")
    assert ("dead", "dead_publisher") == (impostor["publisher"], impostor["expected"])
    assert (
        "admin"
        == cluster.admin(kind="level", key="level", raises_to=1, verdict="stale")["publisher"]
    )
    assert "nobody" == cluster.tell(joined("c"), verdict="stale")["publisher"]


def test_an_admins_record_is_late_or_from_the_future() -> None:
    cluster = Cluster()
    record = {
        "kind": "policy",
        "key": "p",
        "status": "set",
        "publisher": "admin:a",
        "expected_offset": 1,
    }
    cluster.offset = ADMIN_WINDOW_OFFSETS + 10
    assert "late" == cluster.expected({**record, "as_of": 10})
    assert "malformed" == cluster.expected({**record, "as_of": cluster.offset + 1})
    assert "accepted" == cluster.expected({**record, "as_of": cluster.offset})


def test_raising_the_format_version() -> None:
    cluster = Cluster()
    above = cluster.broker("a", kind="split", key=BUNDLE, positions=[1], level=2)
    for record in (above, {**above, "sequence": 9, "positions": None}):
        assert "level" == cluster.expected(record, verdict="level")
    record = {"kind": "level", "key": "level", "raises_to": 2}
    assert "level" == cluster.admin(**record, verdict="level").get("expected")
    assert "illegal_transition" == cluster.admin(
        **{**record, "raises_to": 1}, verdict="illegal_transition"
    ).get("expected")
    assert "stale" == cluster.admin(**{**record, "expected_offset": 2}, verdict="stale").get(
        "expected"
    )
    for name in ("a", "b"):
        cluster.tell(
            cluster.broker(
                name,
                kind="broker",
                status="left",
                key=name,
                expected_offset=cluster.incarnations[name],
            )
        )
    assert "accepted" == cluster.admin(**record).get("expected")
    for fields in ({}, {"supported_level": 3, "level": 3}):
        assert "level" == cluster.expected(joined("c", **fields), verdict="level")


def test_a_dead_broker_may_be_removed() -> None:
    """A late duplicate of its `joined` record does not bring it back."""
    cluster = Cluster()
    down = {
        "kind": "broker",
        "status": "down",
        "key": "b",
        "expected_offset": cluster.incarnations["b"],
    }
    cluster.tell(cluster.broker("a", **down))
    died_at = cluster.offset
    assert "illegal_transition" == cluster.expected(
        cluster.broker("a", **{**down, "expected_offset": died_at}), verdict="illegal_transition"
    )
    assert "accepted" == cluster.tell(
        cluster.broker("a", kind="broker", status="removed", key="b", expected_offset=died_at)
    ).get("expected")
    assert "stale" == cluster.expected(joined("b", expected_offset=1), verdict="stale")
    assert "accepted" == cluster.expected(
        joined("b", expected_offset=cluster.offset - 1), verdict="accepted"
    )


def test_an_invalid_broker_id() -> None:
    assert "malformed" == Cluster().expected(joined("a b"), verdict="malformed")


def test_namespaces() -> None:
    """The state of the bundles decides about a deletion, but only once the namespace was set to
    deleting.
    """
    cluster = Cluster()
    record: dict[str, Any] = {"kind": "namespace", "key": NAMESPACE, "verdict": "rejected"}
    assert "unknown_namespace" == cluster.admin(**{**record, "key": "t/m"}, status="policies").get(
        "expected"
    )
    made_at = cluster.offset - 1
    assert "illegal_transition" == cluster.admin(
        **record, status="deleted", expected_offset=made_at
    ).get("expected")
    cluster.admin(kind="namespace", key=NAMESPACE, status="deleting", expected_offset=made_at)
    assert cluster.bundle("assigning", owner=cluster.incarnations["a"])["deleting"]
    assert "expected" not in cluster.admin(
        **record, status="deleted", expected_offset=cluster.offset - 1
    )


def test_the_genesis_of_a_copied_channel() -> None:
    """It is accepted once, above the end of the former log."""
    channel = channel_in("owned")
    channel.view.go_on_above(500, level=channel.view.level, level_last=channel.view.level_last)
    membership = Membership()
    membership.begin(*known_in(channel.view))
    genesis = {
        "kind": "genesis",
        "key": "genesis",
        "expected_offset": 0,
        "publisher": "admin:a",
        "cluster": "test",
        "base": 500,
    }
    assert "stale" == membership.context_of(501, 5, {**genesis, "base": 400}).get("expected")
    assert "accepted" == membership.context_of(502, 5, genesis).get("expected")
    membership.follow(502, genesis, "accepted")
    assert "stale" == membership.context_of(503, 5, genesis).get("expected")


def test_status_of_a_target() -> None:
    cluster = Cluster()
    assert "up" == cluster.bundle("assigning", owner=cluster.incarnations["b"])["target"]
    cluster.tell(
        cluster.broker(
            "b",
            kind="broker",
            status="draining",
            key="b",
            expected_offset=cluster.incarnations["b"],
        )
    )
    assert "draining" == cluster.bundle("assigning", owner=cluster.incarnations["b"])["target"]
    cluster.tell(
        cluster.broker(
            "a", kind="broker", status="down", key="b", expected_offset=cluster.offset - 1
        )
    )
    assert "dead" == cluster.bundle("assigning", owner=cluster.incarnations["b"])["target"]
    assert "never" == cluster.bundle("assigning", owner=cluster.offset)["target"]


def test_bundles_that_do_not_exist() -> None:
    cluster = Cluster()
    merge = {"kind": "merge", "key": BUNDLE, "right": RIGHT, "expected_offset_right": 1}
    assert "unknown" not in cluster.admin(verdict="stale", **merge)
    assert [f"{NAMESPACE}/none"] == cluster.admin(
        verdict="unknown_bundle", **{**merge, "right": f"{NAMESPACE}/none"}
    ).get("unknown")
    assert [RIGHT + "0"] == cluster.admin(
        verdict="unknown_bundle", kind="split", key=RIGHT + "0", positions=[5]
    ).get("unknown")


def test_names_of_incarnations() -> None:
    cluster = Cluster()
    a, b = cluster.incarnations["a"], cluster.incarnations["b"]
    assert "names" not in cluster.bundle("assigning", owner=99)
    assert {str(a): "a"} == cluster.bundle("owned", owner=a)["names"]
    assert {str(a): "a", str(b): "b"} == cluster.bundle("assigning", owner=b, source=a)["names"]


def test_it_adopts_the_folds_verdict() -> None:
    """So one difference is one finding."""
    cluster = Cluster()
    record = cluster.broker(
        "a", kind="broker", status="renewed", key="a", digest=1, expected_offset=77
    )
    assert "stale" == cluster.expected(record, verdict="accepted")
    again = cluster.broker(
        "a", kind="broker", status="renewed", key="a", digest=1, expected_offset=cluster.offset
    )
    assert "accepted" == cluster.expected(again, verdict="accepted")


def test_a_death_concerns_all_bundles_that_name_it() -> None:
    cluster = Cluster()
    a, b = cluster.incarnations["a"], cluster.incarnations["b"]
    cluster.tell(cluster.broker("a", kind="bundle", key=RIGHT, state="owned", owner=b))
    cluster.bundle("assigning", owner=a, source=b)
    context = cluster.tell(
        cluster.broker("a", kind="broker", status="down", key="b", expected_offset=b)
    )
    assert (b, [BUNDLE, RIGHT]) == (context["dead"], cluster.concerned)
    cluster.tell(cluster.broker("a", kind="broker", status="left", key="a", expected_offset=a))
    assert [BUNDLE] == cluster.concerned


@dataclass(frozen=True, kw_only=True)
class StepBack:
    """What a log whose clock was set back while `b` was silent shows, and what the context of its
    death says of that.
    """

    behind_ms: int = 0
    renewals_of: str = "c"
    intervals_ms: tuple[int, ...] = ()
    said: dict[str, int | bool]


STEPS_BACK = {
    "no step": StepBack(intervals_ms=(1_000, 1_000 - APPEND_TIME_ERROR_MS), said={}),
    "an older entry": StepBack(behind_ms=APPEND_TIME_ERROR_MS + 1, said={"timeless": True}),
    "two writers": StepBack(behind_ms=APPEND_TIME_ERROR_MS, said={}),
    "a renewal too soon": StepBack(intervals_ms=(700, 1_000), said={"unseen_ms": 300}),
    "two too soon, in which time stood": StepBack(intervals_ms=(700, 800), said={"unseen_ms": 500}),
    "a fast clock": StepBack(intervals_ms=(700, 700, 700), said={}),
    "the accuser's own renewals": StepBack(
        renewals_of="a", intervals_ms=(700, 1_000), said={"unseen_ms": 300}
    ),
    "the accuser's fast clock": StepBack(renewals_of="a", intervals_ms=(700, 700, 700), said={}),
    "two renewals at once": StepBack(
        intervals_ms=(0,), said={"timeless": True, "unseen_ms": 1_000}
    ),
}


@pytest.mark.parametrize("name", STEPS_BACK)
def test_a_clock_that_was_set_back(name: str) -> None:
    """The context of a death tells whether the log's time stood still, and how much time others'
    renewals show.
    """
    step = STEPS_BACK[name]
    cluster = Cluster()
    cluster.incarnations["c"] = cluster.join("c")

    def renew(broker: str, wait_ms: int) -> None:
        record = cluster.broker(broker, kind="broker", status="renewed", key=broker, digest=1)
        cluster.tell(record, wait_ms=wait_ms)

    renew(step.renewals_of, 1_000)
    if name != "two renewals at once":
        renew("b", 0)
    for interval_ms in step.intervals_ms:
        renew(step.renewals_of, interval_ms)
    cluster.tell(None, verdict="malformed", behind_ms=step.behind_ms)
    down = cluster.broker("a", kind="broker", status="down", key="b")
    context = cluster.tell(down, wait_ms=1_000, verdict="rejected")
    assert step.said == {
        field: context[field] for field in ("timeless", "unseen_ms") if field in context
    }


def test_after_a_step_back_new_records_have_a_valid_time() -> None:
    cluster = Cluster()
    cluster.tell(None, verdict="malformed", behind_ms=APPEND_TIME_ERROR_MS + 1)
    cluster.tell(cluster.broker("b", kind="broker", status="renewed", key="b", digest=1), wait_ms=1)
    assert "timeless" not in cluster.tell(
        cluster.broker("a", kind="broker", status="down", key="b"), verdict="rejected"
    )


def test_the_accusers_lease_counts_from_its_last_gap() -> None:
    cluster = Cluster()
    joined_ms = cluster.at_ms - 20
    down, verdict = (
        {
            "kind": "broker",
            "status": "down",
            "key": "b",
            "expected_offset": cluster.incarnations["b"],
        },
        "stale",
    )
    assert (
        joined_ms == cluster.tell(cluster.broker("a", **down), verdict=verdict)["accuser_back_ms"]
    )
    last = cluster.incarnations["a"]
    for wait_ms, expected_ms in ((2_900, joined_ms), (3_200, cluster.at_ms + 2_900 + 10 + 3_200)):
        cluster.tell(
            cluster.broker(
                "a", kind="broker", status="renewed", key="a", digest=1, expected_offset=last
            ),
            wait_ms=wait_ms,
        )
        last = cluster.offset
        assert (
            expected_ms
            == cluster.tell(cluster.broker("a", **down), verdict=verdict)["accuser_back_ms"]
        )


def test_existence_of_forgotten_incarnations_is_unknown() -> None:
    known = Incarnations()
    for offset in range(10, 10 * INCARNATIONS_MAX + 20, 10):
        known.add(offset)
    assert (False, False, True, False) == tuple(
        known.never_was(offset) for offset in (5, 10, 21, 20)
    )


def test_a_rejected_death_concerns_no_bundle() -> None:
    cluster = Cluster()
    b = cluster.incarnations["b"]
    cluster.bundle("owned", owner=b)
    cluster.tell(
        cluster.broker("a", kind="broker", status="down", key="b", expected_offset=1),
        verdict="stale",
    )
    assert [] == cluster.concerned


def test_owners_after_splits_and_merges() -> None:
    cluster = Cluster()
    a = cluster.incarnations["a"]
    for name in (BUNDLE, RIGHT):
        cluster.tell(cluster.broker("a", kind="bundle", key=name, state="owned", owner=a))
    context = cluster.admin(kind="merge", key=BUNDLE, right=RIGHT, expected_offset_right=1)
    assert a == context["owner"]
    cluster.tell(cluster.broker("a", kind="split", key=UNION, positions=[0x40000000]))
    cluster.tell(cluster.broker("b", kind="broker", status="down", key="a", expected_offset=a))
    assert ["t/n/0x00000000_0x40000000", "t/n/0x40000000_0xffffffff"] == cluster.concerned


def test_a_restored_membership_has_the_same_contexts() -> None:
    cluster = Cluster()
    cluster.bundle("assigning", owner=cluster.incarnations["b"], source=cluster.incarnations["a"])
    cluster.admin(kind="policy", key="p", status="set")
    rows = {key: value for key, value in cluster.membership.changed_rows() if value is not None}
    restored = Membership()
    restored.restore(rows)
    again = Cluster()
    again.membership, again.offset, again.at_ms, again.sequences = (
        restored,
        cluster.offset,
        cluster.at_ms,
        dict(cluster.sequences),
    )
    for each in (cluster, again):
        each.tell(
            each.broker(
                "a", kind="broker", status="down", key="b", expected_offset=each.incarnations["b"]
            )
        )
    assert [BUNDLE] == cluster.concerned == again.concerned
    told = [
        [each.tell(None, verdict="malformed", wait_ms=1_000) for _ in range(70)]
        for each in (cluster, again)
    ]
    assert told[0] == told[1]
    assert cluster.membership.changed_rows() == restored.changed_rows()


def test_removed_rows_have_no_value() -> None:
    cluster = Cluster()
    cluster.bundle("owned", owner=cluster.incarnations["b"])
    cluster.membership.changed_rows()
    cluster.tell(
        cluster.broker(
            "a", kind="broker", status="down", key="b", expected_offset=cluster.incarnations["b"]
        )
    )
    died_at = cluster.offset
    cluster.tell(
        cluster.broker("a", kind="broker", status="removed", key="b", expected_offset=died_at)
    )
    rows = dict(cluster.membership.changed_rows())
    assert {
        "member:whole",
        "member:broker:a",
        "member:broker:b",
        f"member:held:{BUNDLE}",
    } == rows.keys()
    assert rows["member:broker:b"] is None


def test_it_begins_from_a_view() -> None:
    channel = channel_in("transferring")
    membership = Membership()
    membership.begin(*known_in(channel.view))
    source, offset = channel.incarnation("source"), channel.view.offset
    author = {
        "publisher": "owner",
        "incarnation": channel.incarnation("owner"),
        "sequence": channel.broker("owner").sequence + 1,
    }
    down = {
        "kind": "broker",
        "status": "down",
        "key": "source",
        "expected_offset": channel.broker("source").last,
        **author,
    }
    context = membership.context_of(offset + 1, 5, down)
    assert (offset, "accepted", source) == (context["begun"], context["expected"], context["dead"])
    assert [channel.bundle().name] == membership.follow(offset + 1, down, "accepted")
