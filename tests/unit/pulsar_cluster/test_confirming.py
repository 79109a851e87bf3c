"""A topic that a cluster's brokers do not go by is refused: they name other owners than it has."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import pack, unpack
from threading import Thread

import pytest

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    ServerError,
)
from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.core.ranges import bundle_contains, parse_bundle, parse_topic, topic_hash
from equipoise.pulsar_cluster import confirming
from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.confirming import asking, check_store, confirm
from equipoise.pulsar_cluster.credentials import Credentials, NotSent
from equipoise.pulsar_cluster.reading import Address
from equipoise.pulsar_cluster.records import Message
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
SYSTEM = {"a:8080": names(1, "pulsar/system")}
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


def confirmed(
    bundles: dict[str, Message],
    asked: PulsarAdmin | None,
    moved: Callable[[], set[str]] = set,
    url: str = "pulsar://127.0.0.1:1",
) -> None:
    with asking(Address(service_url=url), asked) as ask:
        confirm(bundles, ask, moved)


def test_brokers_that_own_what_the_topic_says_confirm_it() -> None:
    confirmed(bundles_at(HELD), admin(HELD))


def test_a_bundle_in_transition_and_a_broker_that_is_gone_contradict_nothing() -> None:
    bundles = bundles_at(HELD) | bundles_at({"gone:8080": names(1, "t/n")})
    bundles[BUNDLES[0]] = owned(BUNDLES[0], "b:8080", source="a:8080", state="Releasing")
    confirmed(bundles, admin(HELD | {"a:8080": HELD["a:8080"][1:]}))


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
        confirmed(bundles_at(HELD), admin(there))


def test_what_moves_meanwhile_contradicts_nothing() -> None:
    """Also what was split: its children are new on the topic."""
    there = HELD | {"a:8080": HELD["a:8080"][1:]}
    confirmed(bundles_at(HELD), admin(there), lambda: {"public/default/0x00000000_0x00000010"})


def test_a_broker_that_reads_the_topic_late_is_asked_again() -> None:
    answers: Iterator[dict[str, str]] = iter([{BUNDLES[0]: "late"}, {}])
    confirm(bundles_at(HELD), lambda _: next(answers), set)


# --- by lookups ---


@contextmanager
def broker_that_answers(
    server_of: Callable[[str], str | None], *, method: str = ""
) -> Iterator[str]:
    """A broker of Pulsar's protocol that only knows lookups. Answers None as a refusal."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            while head := connection.recv(8):
                command = BaseCommand.FromString(connection.recv(unpack(">II", head)[1]))
                answer = BaseCommand(type=BaseCommand.CONNECTED)
                if command.type == BaseCommand.LOOKUP:
                    server = server_of(command.lookup.topic)
                    kinds = CommandLookupTopicResponse.LookupType
                    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
                    answer.lookup_response.request_id = command.lookup.request_id
                    answer.lookup_response.response = (
                        kinds.Failed if server is None else kinds.Connect
                    )
                    answer.lookup_response.brokerServiceUrl = server or ""
                elif method != command.connect.auth_method_name:
                    answer = BaseCommand(type=BaseCommand.ERROR)
                    answer.error.request_id, answer.error.error, answer.error.message = (
                        0,
                        ServerError.AuthenticationError,
                        "who are you?",
                    )
                else:
                    answer.connected.server_version = "4.0.8"
                content = answer.SerializeToString()
                connection.sendall(pack(">II", 4 + len(content), len(content)) + content)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=serve)
        thread.start()
        yield f"pulsar://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def served_at(there: dict[str, list[str]]) -> Callable[[str], str | None]:
    """Brokers answer with their address for clients, which the topic does not have."""

    def server_of(topic: str) -> str | None:
        for broker, bundles in there.items():
            for low, high in [
                each[1:]
                for each in map(parse_bundle, bundles)
                if each.namespace == parse_topic(topic).namespace
            ]:
                if bundle_contains(low, high, topic_hash(topic)):
                    return f"pulsar://{broker[0]}:6650"
        return None

    return server_of


@pytest.mark.parametrize("there", [HELD | SYSTEM, {}])
def test_lookups_that_fit_or_are_refused_contradict_nothing(there: dict[str, list[str]]) -> None:
    bundles = bundles_at(
        {
            "a:8080": [*HELD["a:8080"], *SYSTEM["a:8080"]],
            "b:8080": HELD["b:8080"],
            "c:8080": HELD["c:8080"],
        }
    )
    with broker_that_answers(served_at(there)) as url:
        confirmed(bundles, None, url=url)


@pytest.mark.parametrize(
    ("held", "there", "told"),
    [
        (
            HELD,
            dict(zip(BROKERS, (BUNDLES[:4], BUNDLES[4:8], BUNDLES[8:]), strict=True)),
            "c:6650 serves .* owned by a:8080 on the topic",
        ),
        # Behind names that the topic does not have, too.
        (
            {"x:8080": BUNDLES[:2]},
            {"a": BUNDLES[:1], "b": BUNDLES[1:2]},
            "a:6650 .*, which are both owned by x:8080 on the topic",
        ),
        (
            {"x:8080": BUNDLES[:1], "y:8080": BUNDLES[1:2]},
            {"a": BUNDLES[:2]},
            "which are owned by y:8080 and x:8080 on the topic",
        ),
    ],
)
def test_lookups_that_do_not_fit_contradict_the_topic(
    held: dict[str, list[str]], there: dict[str, list[str]], told: str
) -> None:
    with (
        broker_that_answers(served_at(there)) as url,
        pytest.raises(OperatorError, match=f"do not go by its topic: pulsar://.*{told}"),
    ):
        confirmed(bundles_at(held), None, url=url)


def test_an_empty_topic_is_contradicted_by_a_bundle_of_pulsars_own() -> None:
    """A cluster that stopped cleanly left no owners on the topic that it does not use any more."""
    with (
        broker_that_answers(served_at(SYSTEM)) as url,
        pytest.raises(
            OperatorError,
            match=r"pulsar://a:6650 serves .*, whose bundle has no owner on the topic",
        ),
    ):
        confirmed({}, None, url=url)
    with broker_that_answers(served_at(SYSTEM)) as url:
        confirmed({}, None, lambda: set(SYSTEM["a:8080"]), url=url)


def test_who_asks_is_told_to_the_broker() -> None:
    who = Credentials(password=("me", "secret"))
    with (
        broker_that_answers(served_at(HELD), method="basic") as url,
        asking(Address(service_url=url, credentials=who), None) as ask,
    ):
        assert {} == ask(bundles_at(HELD))
    with (
        broker_that_answers(served_at(HELD), method="basic") as url,
        pytest.raises(PeerError, match="did not say who serves topics: who are you"),
        asking(Address(service_url=url), None),
    ):
        pass


def test_brokers_that_a_proxy_hides_are_asked_by_lookups() -> None:
    with broker_that_answers(served_at(HELD)) as url:
        confirmed(bundles_at(HELD), admin(HELD, silent=BROKERS), url=url)
