"""Golden logs of real Pulsar: they hold what they are kept for, and nothing about the machine."""

from __future__ import annotations

import re
from pathlib import Path

import orjson

FOLDER = Path(__file__).resolve().parent / "pulsar"


def read(name: str) -> list[dict[str, object]]:
    """Return the lines of a golden log."""
    return [orjson.loads(line) for line in (FOLDER / f"{name}.jsonl").read_bytes().splitlines()]


def values(name: str) -> list[dict[str, object]]:
    """Return the values of a log that are no tombstones."""
    return [value for line in read(name) if isinstance(value := line["value"], dict)]


def test_the_channel_holds_every_kind_of_record() -> None:
    channel = values("channel")
    assert {"Assigning", "Owned", "Releasing", "Free", "Splitting", "Deleted"} == {
        value["state"] for value in channel
    }
    assert {True, False} == {value["force"] for value in channel}
    assert len(read("channel")) > len(channel) > 400
    fields = {field for value in channel for field in value}
    always = {field for field in fields if all(field in value for value in channel)}
    assert {"force", "state", "timestamp", "versionId"} == always
    assert {"dstBroker", "sourceBroker", "splitServiceUnitToDestBroker"} == fields - always


def test_the_channel_has_races_for_one_version() -> None:
    pairs = [(line["key"], line["value"]) for line in read("channel")]
    assigning = [
        (key, value["versionId"])
        for key, value in pairs
        if isinstance(value, dict) and value["state"] == "Assigning"
    ]
    assert len(assigning) > len(set(assigning))


def test_the_compacted_channel_has_the_last_record_of_each_key() -> None:
    """Keys that end with a tombstone are absent, or come with it."""
    last = {line["key"]: line for line in read("channel")}
    compacted = {line["key"]: line for line in read("channel_compacted")}
    assert {key: line for key, line in last.items() if key in compacted} == compacted
    assert {None} == {last[key]["value"] for key in last.keys() - compacted.keys()}


def test_nothing_names_a_machine_or_a_path() -> None:
    """Addresses are those of the loopback interface."""
    for path in FOLDER.glob("*.jsonl"):
        text = path.read_text()
        assert {"127.0.0.1"} == set(re.findall(r"\d+\.\d+\.\d+\.\d+", text))
        assert not re.search(r"/(?:home|tmp|root|work|var|usr)\b|\.local\b|localhost", text)
