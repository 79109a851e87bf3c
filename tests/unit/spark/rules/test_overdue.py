"""Tests of what the membership finds overdue: bundles, silences, deletions."""

from __future__ import annotations

from typing import Final

from equipoise.spark_jobs.rules.membership.view import (
    IN_FLIGHT_MAX_MS,
    UNSERVED_IN_FLIGHTS,
    Membership,
)
from tests.unit.spark.rules.membership_story import BUNDLE, NAMESPACE, RIGHT, Cluster

UNSERVED_SECONDS: Final = UNSERVED_IN_FLIGHTS * IN_FLIGHT_MAX_MS // 1_000


def test_an_overdue_bundle_is_reported_once() -> None:
    cluster = Cluster()
    cluster.bundle("assigning", owner=cluster.incarnations["a"])
    since, told = cluster.offset, cluster.overdue(seconds=2 * IN_FLIGHT_MAX_MS // 1_000)
    assert [{BUNDLE: since}] == [names for names in told if names]
    assert IN_FLIGHT_MAX_MS // 1_000 == told.index({BUNDLE: since})


def test_each_silence_is_reported_once() -> None:
    cluster = Cluster()
    silent, told = cluster.incarnations["b"], []
    last = {"a": cluster.incarnations["a"], "b": silent}
    for second in range(200):
        name = "b" if second == 120 else "a"
        renewal = cluster.broker(
            name, kind="broker", status="renewed", key=name, digest=1, expected_offset=last[name]
        )
        told.append(cluster.tell(renewal, wait_ms=1_000).get("silent"))
        last[name] = cluster.offset
    seconds = [second for second, names in enumerate(told) if names]
    assert [59, 181] == seconds
    assert [[("b", silent, 1_000_030)], [("b", last["b"], 1_000_040 + 121_000)]] == [
        told[second] for second in seconds
    ]


def test_the_limit_of_a_move_can_be_set() -> None:
    cluster = Cluster()
    rows = {key: value for key, value in cluster.membership.changed_rows() if value is not None}
    cluster.membership = Membership(in_flight_max_ms=5_000)
    cluster.membership.restore(rows)
    cluster.bundle("assigning", owner=cluster.incarnations["a"])
    since = cluster.offset
    assert [None] * 5 + [{BUNDLE: since}] == cluster.overdue(seconds=6)


def test_bundles_of_a_namespace_in_deletion_may_stay_free() -> None:
    cluster = Cluster()
    cluster.admin(kind="namespace", key=NAMESPACE, status="deleting", expected_offset=4)
    assert {None} == {names and 1 for names in cluster.overdue(seconds=UNSERVED_SECONDS + 2)}
    cluster.membership.changed_rows()
    cluster.admin(kind="namespace", key=NAMESPACE, status="deleted", expected_offset=cluster.offset)
    gone = {f"member:namespace:{NAMESPACE}", *(f"member:held:{name}" for name in (BUNDLE, RIGHT))}
    assert gone == {key for key, data in cluster.membership.changed_rows() if data is None}


def test_a_stopped_deletion_is_reported_once() -> None:
    """Also by a membership that was restored."""
    cluster = Cluster()
    cluster.admin(kind="namespace", key=NAMESPACE, status="deleting", expected_offset=4)
    since, told = cluster.offset, []
    for second in range(UNSERVED_SECONDS + 10):
        if second % 100 == 0:
            rows = {
                key: value for key, value in cluster.membership.changed_rows() if value is not None
            }
            cluster.rows |= rows
            cluster.membership = Membership()
            cluster.membership.restore(cluster.rows)
        renewal = cluster.broker(
            "a", kind="broker", status="renewed", key="a", digest=1, expected_offset=1
        )
        told.append(cluster.tell(renewal, wait_ms=1_000).get("deleting_since"))
    assert [[(NAMESPACE, since)]] == [names for names in told if names]
    assert UNSERVED_SECONDS == told.index([(NAMESPACE, since)])


def test_a_namespace_that_no_program_serves_has_no_overdue_bundle() -> None:
    """Its clock begins when one joins."""
    cluster = Cluster()
    for name in "ab":
        last = cluster.incarnations[name]
        cluster.incarnations[name] = cluster.join(
            name, expected_offset=last, namespaces=["t/other", "*/x", "t[/n", "t?n"]
        )
    assert {None} == {names and 1 for names in cluster.overdue(seconds=2 * UNSERVED_SECONDS)}
    cluster.join("c", namespaces=["t/*"])
    told = cluster.overdue(seconds=2 * UNSERVED_SECONDS)
    found = [(second, set(names)) for second, names in enumerate(told) if names]
    assert [{BUNDLE, RIGHT}] == [names for _, names in found]
    assert found[0][0] >= UNSERVED_SECONDS - 1
