"""A topic that a cluster's brokers do not go by is refused: they name other owners than it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.pulsar_cluster import confirming
from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.confirming import check_store, confirm
from equipoise.pulsar_cluster.credentials import NotSent
from tests.unit.pulsar_cluster.made_clusters import (
    BROKERS,
    admin_of,
    answers,
    bundles_at,
    names,
    owned,
    path_of,
)

BUNDLES = names(12)
HELD = {broker: BUNDLES[number::3] for number, broker in enumerate(BROKERS)}
ALL = "0x00000000_0xffffffff"
TABLE_VIEW = "loadManagerServiceUnitStateTableViewClassName"
SYNCER = "loadBalancerServiceUnitTableViewSyncer"
CHANNEL = "org.apache.pulsar.broker.loadbalance.extensions.channel"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "_PAUSE_S", 0.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {TABLE_VIEW: f"{CHANNEL}.ServiceUnitStateTableViewImpl", SYNCER: "None"},
        {
            TABLE_VIEW: f"{CHANNEL}.ServiceUnitStateMetadataStoreTableViewImpl",
            SYNCER: "MetadataStoreToSystemTopicSyncer",
        },
    ],
)
def test_a_cluster_that_goes_by_its_topic_or_copies_into_it_is_read(
    settings: dict[str, str],
) -> None:
    check_store(settings)


def test_a_cluster_with_its_states_in_the_metadata_store_is_refused() -> None:
    with pytest.raises(
        OperatorError,
        match=(
            r"in the metadata store .*, which no client can read, .*`pulsar-admin brokers"
            r" namespaces"
        ),
    ):
        check_store(
            {TABLE_VIEW: f"{CHANNEL}.ServiceUnitStateMetadataStoreTableViewImpl", SYNCER: "None"}
        )


# --- with the admin API ---


def admin(owners: dict[str, list[str]], *, silent: tuple[str, ...] = ()) -> PulsarAdmin:
    return admin_of(
        answers(
            path_of,
            {"/brokers": list(BROKERS), "/brokers/configuration/runtime": {"clusterName": "c"}}
            | {
                f"/brokers/c/{broker}/ownedNamespaces": NotSent("filtered")
                if broker in silent
                else {
                    bundle: {"is_active": True}
                    for bundle in [f"pulsar/c/{broker}/{ALL}", *owners.get(broker, [])]
                }
                for broker in BROKERS
            },
        )
    )


def test_brokers_that_own_what_the_topic_says_confirm_it() -> None:
    confirm(bundles_at(HELD), admin(HELD), set)


def test_a_bundle_in_transition_and_a_broker_that_is_gone_contradict_nothing() -> None:
    bundles = bundles_at(HELD) | bundles_at({"gone:8080": names(1, "t/n")})
    bundles[BUNDLES[0]] = owned(BUNDLES[0], "b:8080", source="a:8080", state="Releasing")
    confirm(bundles, admin(HELD | {"a:8080": HELD["a:8080"][1:]}), set)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (
            HELD | {"a:8080": HELD["b:8080"], "b:8080": HELD["a:8080"]},
            "a:8080 owns .*, which is Owned by b:8080 on the topic",
        ),
        (HELD | {"c:8080": []}, "c:8080 does not own .*, which it owns on the topic"),
        (
            HELD | {"c:8080": [*HELD["c:8080"], *names(1, "t/n")]},
            "c:8080 owns t/n/0x00000000_0xffffffff, which has no record on the topic",
        ),
    ],
)
def test_brokers_with_other_bundles_contradict_the_topic(
    there: dict[str, list[str]], told: str
) -> None:
    with pytest.raises(
        OperatorError,
        match=f"brokers do not go by its topic: {told}.*restart the brokers that differ",
    ):
        confirm(bundles_at(HELD), admin(there), set)


def test_what_moves_meanwhile_contradicts_nothing() -> None:
    """Also what was split: its children are new on the topic."""
    there = HELD | {"a:8080": HELD["a:8080"][1:]}
    confirm(bundles_at(HELD), admin(there), lambda: {"public/default/0x00000000_0x00000010"})


def test_a_broker_that_reads_the_topic_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[dict[str, str]] = iter([{BUNDLES[0]: "late"}, {}])
    monkeypatch.setattr(confirming, "_contradicted", lambda *_: next(answers))
    confirm(bundles_at(HELD), admin(HELD), set)


def test_brokers_that_a_proxy_hides_are_not_compared() -> None:
    confirm(bundles_at(HELD), admin({}, silent=BROKERS), set)
