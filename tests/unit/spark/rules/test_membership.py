"""Tests of the audit's membership: its contexts, its state, and the verdicts that random walks
rarely reach.

`tests/property/test_second_rules.py` compares all verdicts with the fold on random walks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from equipoise.spark_jobs.rules.membership.members import (
    APPEND_TIME_ERROR_MS,
    INCARNATIONS_MAX,
    Incarnations,
)
from equipoise.spark_jobs.rules.membership.verdicts import ADMIN_WINDOW_OFFSETS
from equipoise.spark_jobs.rules.membership.view import Context, Membership
from equipoise.spark_jobs.sequence.sequence import known_in
from tests.channels.folding import channel_in
from tests.unit.spark.rules.membership_story import BUNDLE, NAMESPACE, RIGHT, Cluster, joined

POLICY: Final[dict[str, Any]] = {
    "kind": "policy",
    "key": "p",
    "status": "set",
    "publisher": "admin:a",
    "expected_offset": 1,
}
LEVEL: Final[dict[str, Any]] = {"kind": "level", "key": "level", "raises_to": 2}
MERGE: Final[dict[str, Any]] = {
    "kind": "merge",
    "key": BUNDLE,
    "right": RIGHT,
    "expected_offset_right": 1,
}
IN_SPACE: Final[dict[str, Any]] = {"kind": "namespace", "key": NAMESPACE, "verdict": "rejected"}


def cut(cluster: Cluster, **fields: object) -> dict[str, Any]:
    return cluster.broker("a", kind="split", key=BUNDLE, positions=[1], **fields)


def ended(cluster: Cluster, name: str, status: str = "down", by: str = "a") -> Context:
    """Let a broker end, as itself or another says."""
    last = cluster.incarnations[name]
    record = cluster.broker(by, kind="broker", status=status, key=name, expected_offset=last)
    return cluster.tell(record)


def after(
    *steps: Callable[[Cluster], object], ask: Callable[[Cluster], object]
) -> Callable[[Cluster], object]:
    """Return the question that is asked after these steps."""

    def asked(cluster: Cluster) -> object:
        for step in steps:
            step(cluster)
        return ask(cluster)

    return asked


def said(cluster: Cluster, record: dict[str, Any], verdict: str) -> tuple[object, object]:
    context = cluster.tell(record, verdict=verdict)
    return context["publisher"], context.get("expected")


def far_on(cluster: Cluster) -> None:
    cluster.offset = ADMIN_WINDOW_OFFSETS + 10


def all_left(cluster: Cluster) -> None:
    for name in ("a", "b"):
        ended(cluster, name, "left", by=name)


def b_died(cluster: Cluster) -> None:
    ended(cluster, "b")


def of_b(cluster: Cluster, status: str, verdict: str) -> str | None:
    """Return what is expected of a record about the dead broker `b`."""
    record = cluster.broker(
        "a", kind="broker", status=status, key="b", expected_offset=cluster.offset
    )
    return cluster.expected(record, verdict=verdict)


def b_joins(after: str, cluster: Cluster, *, verdict: str) -> str | None:
    """Return what is expected of `b` that joins after its first or its last record."""
    expected_offset = 1 if after == "first" else cluster.offset
    return cluster.expected(joined("b", expected_offset=expected_offset), verdict=verdict)


def deleting(cluster: Cluster) -> None:
    cluster.admin(
        kind="namespace", key=NAMESPACE, status="deleting", expected_offset=cluster.offset
    )


def assigned(cluster: Cluster, owner: int, **fields: int) -> Context:
    return cluster.bundle("assigning", owner=owner, **fields)


def renewal(cluster: Cluster, **fields: int) -> dict[str, Any]:
    return cluster.broker("a", kind="broker", status="renewed", key="a", digest=1, **fields)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (
            lambda cluster: dict(cluster.tell(None, verdict="malformed")),
            {"begun": 1, "checked_by": "log:", "publisher": "nobody", "expected": "malformed"},
        ),
        (lambda cluster: cluster.expected({"kind": "coup"}), "malformed"),
        (lambda _: Membership().context_of(1, 5, joined("a")).get("expected"), "no_genesis"),
        (lambda cluster: cluster.expected(joined("a b"), verdict="malformed"), "malformed"),
        # Who publishes.
        (lambda cluster: cluster.tell(cut(cluster), verdict="stale")["publisher"], "live"),
        (
            lambda cluster: said(cluster, cut(cluster, incarnation=99), "dead_publisher"),
            ("never", "dead_publisher"),
        ),
        (
            lambda cluster: said(
                cluster, cut(cluster, publisher="b", sequence=9), "dead_publisher"
            ),
            ("dead", "dead_publisher"),
        ),
        (
            lambda cluster: cluster.admin(**{**LEVEL, "raises_to": 1}, verdict="stale")[
                "publisher"
            ],
            "admin",
        ),
        (lambda cluster: cluster.tell(joined("c"), verdict="stale")["publisher"], "nobody"),
        # An admin's record is late, or from the future.
        *(
            (
                after(far_on, ask=partial(Cluster.expected, raw=POLICY | as_of)),
                verdict,
            )
            for as_of, verdict in (
                ({"as_of": 10}, "late"),
                ({"as_of": ADMIN_WINDOW_OFFSETS + 11}, "malformed"),
                ({"as_of": ADMIN_WINDOW_OFFSETS + 10}, "accepted"),
            )
        ),
        # The format version rises once no broker is there that does not know it.
        (lambda cluster: cluster.expected(cut(cluster, level=2), verdict="level"), "level"),
        (
            lambda cluster: cluster.expected(
                {**cut(cluster, level=2), "positions": None}, verdict="level"
            ),
            "level",
        ),
        (lambda cluster: cluster.admin(**LEVEL, verdict="level").get("expected"), "level"),
        (
            lambda cluster: cluster.admin(
                **{**LEVEL, "raises_to": 1}, verdict="illegal_transition"
            ).get("expected"),
            "illegal_transition",
        ),
        (
            lambda cluster: cluster.admin(**LEVEL | {"expected_offset": 2}, verdict="stale").get(
                "expected"
            ),
            "stale",
        ),
        (after(all_left, ask=lambda cluster: cluster.admin(**LEVEL).get("expected")), "accepted"),
        *(
            (
                after(
                    all_left,
                    lambda cluster: cluster.admin(**LEVEL),
                    ask=partial(Cluster.expected, raw=joined("c", **fields), verdict="level"),
                ),
                "level",
            )
            for fields in ({}, {"supported_level": 3, "level": 3})
        ),
        # A dead broker may be removed. A late duplicate of its `joined` record does not bring it
        # back.
        (
            after(b_died, ask=lambda cluster: of_b(cluster, "down", "illegal_transition")),
            "illegal_transition",
        ),
        (after(b_died, ask=lambda cluster: of_b(cluster, "removed", "accepted")), "accepted"),
        *(
            (
                after(
                    b_died,
                    lambda cluster: of_b(cluster, "removed", "accepted"),
                    ask=partial(b_joins, back, verdict=verdict),
                ),
                verdict,
            )
            for back, verdict in (("first", "stale"), ("last", "accepted"))
        ),
        # The state of the bundles decides about a deletion, once the namespace is `deleting`.
        (
            lambda cluster: cluster.admin(**IN_SPACE | {"key": "t/m"}, status="policies").get(
                "expected"
            ),
            "unknown_namespace",
        ),
        (
            lambda cluster: cluster.admin(
                **IN_SPACE, status="deleted", expected_offset=cluster.offset
            ).get("expected"),
            "illegal_transition",
        ),
        (
            after(
                deleting,
                ask=lambda cluster: cluster.bundle("assigning", owner=cluster.incarnations["a"])[
                    "deleting"
                ],
            ),
            True,
        ),
        (
            after(
                deleting,
                ask=lambda cluster: cluster.admin(
                    **IN_SPACE, status="deleted", expected_offset=cluster.offset
                ).get("expected"),
            ),
            None,
        ),
        # The status of a target.
        (lambda cluster: assigned(cluster, 3)["target"], "up"),
        (
            after(
                lambda cluster: ended(cluster, "b", "draining", by="b"),
                ask=lambda cluster: assigned(cluster, 3)["target"],
            ),
            "draining",
        ),
        (
            after(b_died, ask=lambda cluster: assigned(cluster, 3)["target"]),
            "dead",
        ),
        (lambda cluster: assigned(cluster, 99)["target"], "never"),
        # Bundles that do not exist.
        (lambda cluster: cluster.admin(verdict="stale", **MERGE).get("unknown"), None),
        (
            lambda cluster: cluster.admin(
                verdict="unknown_bundle", **MERGE | {"right": f"{NAMESPACE}/none"}
            ).get("unknown"),
            [f"{NAMESPACE}/none"],
        ),
        (
            lambda cluster: cluster.admin(
                verdict="unknown_bundle", kind="split", key=RIGHT + "0", positions=[5]
            ).get("unknown"),
            [RIGHT + "0"],
        ),
        # The names of incarnations.
        (lambda cluster: assigned(cluster, 99).get("names"), None),
        (lambda cluster: assigned(cluster, 3)["names"], {"3": "b"}),
        (lambda cluster: assigned(cluster, 3, source=2)["names"], {"2": "a", "3": "b"}),
        # The fold's verdict is adopted, so that one difference is one finding.
        (
            lambda cluster: [
                cluster.expected(renewal(cluster, expected_offset=offset), verdict="accepted")
                for offset in (77, cluster.offset + 1)
            ],
            ["stale", "accepted"],
        ),
    ],
)
def test_what_the_membership_says_of_a_record(
    ask: Callable[[Cluster], object], expected: object
) -> None:
    assert expected == ask(Cluster())


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


def test_existence_of_forgotten_incarnations_is_unknown() -> None:
    known = Incarnations()
    for offset in range(10, 10 * INCARNATIONS_MAX + 20, 10):
        known.add(offset)
    assert (False, False, True, False) == tuple(
        known.never_was(offset) for offset in (5, 10, 21, 20)
    )
