"""Golden logs: histories of every level, folded again by today's code, record by record."""

from __future__ import annotations

import gzip
from base64 import b64decode
from pathlib import Path

import orjson
import pytest

from equipoise.channel.core.codec import decode
from equipoise.channel.core.records import Reason, Unreadable
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View, apply

LOGS = sorted(Path(__file__).resolve().parent.glob("level_*/*.jsonl.gz"))

Line = dict[str, object]


def read(path: Path) -> list[Line]:
    """The lines of a golden log."""
    return [orjson.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def data_of(line: Line) -> bytes:
    """The bytes of an entry."""
    return str(line["text"]).encode() if "text" in line else b64decode(str(line["base64"]))


@pytest.mark.parametrize(
    "path", LOGS, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}"
)
def test_every_verdict_and_digest_is_what_it_was(path: Path) -> None:
    """No later code reaches another verdict on a record, or another digest, than the code that
    wrote the log.
    """
    view = View()
    for line in read(path):
        offset = line["offset"]
        assert isinstance(offset, int)
        reason = apply(view, offset, decode(data_of(line))).reason
        assert line["verdict"] == ("accepted" if reason is None else reason), line
        if "digest" in line:
            assert line["digest"] == view.digest(), line
            view = from_bytes(to_bytes(view))
    assert "digest" in line


def test_the_logs_of_level_1_hold_every_reason_and_every_kind() -> None:
    """What no golden log holds could change without being seen."""
    found = [line for path in LOGS if path.parent.name == "level_1" for line in read(path)]
    assert {"accepted", *Reason} == {line["verdict"] for line in found}
    records = [decode(data_of(line)) for line in found if line["verdict"] == "accepted"]
    kinds = {type(record).__name__ for record in records}
    assert (
        set()
        == {
            "Genesis",
            "BundleTransition",
            "Split",
            "Merge",
            "NamespaceRecord",
            "Joined",
            "Renewed",
            "BrokerRecord",
            "PolicyRecord",
        }
        - kinds
    )
    assert not any(isinstance(record, Unreadable) for record in records)
