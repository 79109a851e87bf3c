"""The command line on files that are damaged, foreign, or no logs: one line names the damaged
record.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.fabricated import owned_channel, run, write

READERS = [
    ("tail",),
    ("show", "3"),
    ("why", "tenant/ns/0x00000000_0x80000000"),
    ("at", "9"),
]


def damaged_copy(folder: Path) -> str:
    """A log whose record at offset 7 has one byte changed."""
    channel = owned_channel()
    url = write(channel.entries, folder)
    path = Path(url.removeprefix("sqlite:"))
    data = path.read_bytes()
    (record,) = [record for offset, record in channel.entries if offset == 7]
    assert 1 == data.count(record)
    path.write_bytes(data.replace(record, record.replace(b'"owned"', b'"owneb"')))
    return url


def test_verify_names_the_damaged_record(tmp_path: Path) -> None:
    result = run("channel", "verify", log=(url := damaged_copy(tmp_path)))
    assert (1, "") == (result.exit_code, result.stderr)
    lines = result.stdout.splitlines()
    assert "6 records up to offset 6: 6 accepted; rejected: none" == lines[0]
    assert (True, "findings: 1") == (
        lines[2].startswith("offset 7: damaged: the entry at offset 7 does not match its checksum"),
        lines[3],
    )
    (finding,) = json.loads(run("channel", "verify", "--json", log=url).stdout)["findings"]
    assert ("damaged", 7, 7) == (finding["kind"], finding["first"], finding["last"])


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_other_commands_name_the_damaged_record(command: tuple[str, ...], tmp_path: Path) -> None:
    result = run("channel", *command, log=damaged_copy(tmp_path))
    assert (4, 1) == (result.exit_code, result.stderr.count("\n"))
    assert "the entry at offset 7 does not match its checksum" in result.stderr


@pytest.mark.parametrize(
    "content",
    [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5_000],
    ids=["text", "header"],
)
@pytest.mark.parametrize("command", [("tail",), ("verify",)], ids=" ".join)
def test_a_file_that_is_no_log_is_refused_unchanged(
    command: tuple[str, ...], content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "channel.db"
    path.write_bytes(content)
    result = run("channel", *command, log=f"sqlite:{path}")
    assert (4, 1, content) == (result.exit_code, result.stderr.count("\n"), path.read_bytes())
    assert result.stderr.startswith(f"error: the log sqlite:{path} cannot be used: ")
