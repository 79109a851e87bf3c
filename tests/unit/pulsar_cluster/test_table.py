"""The records of Pulsar's channel are parsed, and folded as its brokers fold them."""

from __future__ import annotations

import json

import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.pulsar_cluster.records import (
    STATES,
    Message,
    StateRecord,
    message_of,
    parse_record,
)
from equipoise.pulsar_cluster.table import (
    TRANSITIONS,
    Rejection,
    Storage,
    Table,
    is_of_system,
    rejection_of,
    server_of,
)

BUNDLE = "public/default/0x00000000_0x40000000"


def value(**fields: object) -> bytes:
    return json.dumps(
        {"state": "Owned", "dstBroker": "a:80", "force": False, "timestamp": 5, "versionId": 2}
        | fields
    ).encode()


def message(offset: int, published_ms: int, value: bytes | None) -> Message:
    return message_of((offset, f"1:{offset}", BUNDLE, published_ms, value, "cluster-0-1"))


def test_a_record_of_pulsar_4_0_8_is_read() -> None:
    """The fields are those that a real cluster wrote."""
    assert StateRecord(
        "Owned", "127.0.0.1:27681", None, force=False, version=2, timestamp_ms=1795445173677
    ) == parse_record(
        b'{"state":"Owned","dstBroker":"127.0.0.1:27681","force":false,"timestamp":1795445173677,"versionId":2}'
    )


def test_a_split_names_its_children_in_order() -> None:
    """Pulsar's writer gives each child an empty destination."""
    record = parse_record(
        value(state="Splitting", splitServiceUnitToDestBroker={"0x0_0x1": None, "0x1_0x2": None})
    )
    assert ("0x0_0x1", "0x1_0x2") == record.children


def test_unknown_fields_and_states_are_met() -> None:
    """A newer Pulsar may write both: the table shows the state, and no rule is guessed."""
    record = parse_record(value(state="Warming", heat=3))
    assert "Warming" == record.state
    assert rejection_of(StateRecord("Owned", "a:80", None, force=False, version=1), record) is None
    assert rejection_of(record, StateRecord("Owned", "a:80", None, force=False, version=3)) is None


def test_a_blank_broker_is_none() -> None:
    """Pulsar's rules ask whether a name is blank."""
    assert parse_record(value(sourceBroker=" ")).source is None


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"\xff", "it is not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "its state is missing"),
        (value(versionId=None), "its versionId is not a 64-bit integer: None"),
        (value(versionId=True), "its versionId is not a 64-bit integer: True"),
        (value(timestamp="now"), "its timestamp is not an integer"),
        (value(dstBroker=7), "its dstBroker is not a text: 7"),
        (
            value(splitServiceUnitToDestBroker=[1]),
            "its splitServiceUnitToDestBroker is not an object",
        ),
    ],
)
def test_what_is_not_a_record_is_told(bad: bytes, told: str) -> None:
    with pytest.raises(CallerError, match=r"^it"):
        parse_record(bad)
    assert told in message(0, 0, bad).problem


def test_the_first_of_two_that_assign_at_once_wins() -> None:
    """Two brokers looked the bundle up at the same time. The topic's order decides."""
    table = Table()
    first = message(0, 10, value(state="Assigning", dstBroker="a:80", versionId=1))
    second = message(1, 11, value(state="Assigning", dstBroker="b:80", versionId=1))
    assert table.fold(first).rejection is None
    assert Rejection.OLD_VERSION is table.fold(second).rejection
    assert {BUNDLE: first} == table.bundles


def test_a_tombstone_removes_the_bundle_whatever_its_version() -> None:
    table = Table()
    table.fold(message(0, 10, value()))
    tombstone = message(1, 11, None)
    assert tombstone.is_tombstone
    assert table.fold(tombstone).rejection is None
    assert {} == table.bundles


def test_an_unreadable_message_changes_nothing() -> None:
    table = Table()
    owned = message(0, 10, value())
    table.fold(owned)
    assert Rejection.UNREADABLE is table.fold(message(1, 11, b"?")).rejection
    assert {BUNDLE: owned} == table.bundles


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("Owned", "d:1"),
        ("Releasing", "s:1"),
        ("Splitting", "s:1"),
        ("Assigning", None),
        ("Free", None),
    ],
)
def test_who_serves_a_bundle(state: str, expected: str | None) -> None:
    """A broker serves until it has closed the topics, and again from owned on."""
    assert expected == server_of(StateRecord(state, "d:1", "s:1", force=False, version=1))
    assert server_of(None) is None


def test_the_states_of_both_storages_are_known() -> None:
    """Each table of transitions names all states, and no other."""
    for storage in Storage:
        assert set(STATES) == TRANSITIONS[storage].keys()
        assert set(STATES) >= {state for row in TRANSITIONS[storage].values() for state in row}


def test_the_metadata_store_accepts_no_gap() -> None:
    """Each of its bundles has one value, so a gap shows a lost update."""
    owned = StateRecord("Owned", "a:80", None, force=False, version=9)
    assert Rejection.VERSION_GAP is rejection_of(
        owned, owned._replace(version=11), Storage.METADATA_STORE
    )
    assert Rejection.VERSION_GAP is rejection_of(None, owned, Storage.METADATA_STORE)
    assert rejection_of(owned, owned._replace(version=11)) is None


def test_the_bundles_of_pulsar_itself_are_told_apart() -> None:
    assert is_of_system("pulsar/system/0x00000000_0x10000000")
    assert not is_of_system(BUNDLE)
