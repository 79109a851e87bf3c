"""`equipoise pulsar` on an archive: each command, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from equipoise.pulsar_cluster.archive import open_archive
from tests.unit.cli.fabricated import run
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, Written, a_life

CHILD = f"public/default/{LEFT}"


@pytest.fixture(name="archive")
def archive_of_a_life(tmp_path: Path) -> Path:
    return archived(tmp_path, a_life())


def archived(folder: Path, written: Written) -> Path:
    path = folder / "pulsar.db"
    with open_archive(path, create_for="pulsar://127.0.0.1:6650") as archive:
        archive.append(written.reads)
    return path


def pulsar(archive: Path, *words: str) -> Result:
    return run("pulsar", *words, "--source", str(archive))


def document(archive: Path, *words: str) -> object:
    return json.loads(pulsar(archive, *words, "--json").stdout)


def test_status_shows_who_has_how_much(archive: Path) -> None:
    told = pulsar(archive, "status").stdout
    assert "a:80    2        0" in told
    assert "public/default  2        2      0       0" in told
    found = document(archive, "status")
    assert isinstance(found, dict)
    assert (14, 2) == (found["messages"], found["bundles"])


def test_bundles_lists_those_of_a_namespace(archive: Path) -> None:
    assert 1 + 2 == len(pulsar(archive, "bundles", "public/default").stdout.splitlines())
    assert "no bundles\n" == pulsar(archive, "bundles", "public/other").stdout


def test_why_tells_the_story_through_splits(archive: Path) -> None:
    *told, ending = pulsar(archive, "why", CHILD).stdout.splitlines()
    assert told[1].endswith(f"assign     {BUNDLE}  to a:80")
    assert f"now {CHILD} is Owned by a:80, version 1, last changed at offset 10" == ending
    # The parent is gone.
    assert 1 == sum(line.startswith("now ") for line in [*told, ending])


def test_why_of_a_topic_is_that_of_its_bundle(archive: Path) -> None:
    assert "2 bundles" != pulsar(archive, "why", "persistent://public/default/orders").stdout
    lines = pulsar(archive, "why", BUNDLE, "--json").stdout.splitlines()
    assert ["assign", "forget"] == [
        json.loads(line)["text"][0].split()[0] for line in (lines[0], lines[-2])
    ]
    assert 2 == len(json.loads(lines[-1])["ending"])


def test_why_takes_a_topic_as_pulsars_tools_do(archive: Path) -> None:
    short, full = (
        pulsar(archive, "why", topic)
        for topic in ("public/default/t10", "persistent://public/default/t10")
    )
    assert (0, full.stdout) == (short.exit_code, short.stdout)
    assert CHILD in short.stdout


def test_why_of_an_unknown_bundle_is_refused(archive: Path) -> None:
    result = pulsar(archive, "why", "public/other/0x00000000_0xffffffff")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "list those that have one: equipoise pulsar bundles public/other" in result.stderr


def test_at_and_diff_show_the_past(archive: Path) -> None:
    assert "b:80    1        0" in pulsar(archive, "at", "4").stdout
    lines = pulsar(archive, "diff", "4", "13").stdout.splitlines()
    assert "offset: 4 -> 13" == lines[0]
    assert f"+ bundle {CHILD}: state Owned, owner a:80, source -, version 1" in lines
    assert "nothing changed" == pulsar(archive, "diff", "13", "now").stdout.splitlines()[-1]
    assert "4 is before 13" in pulsar(archive, "diff", "13", "4").stderr
    found = document(archive, "diff", "4", "13")
    assert isinstance(found, dict)
    assert [BUNDLE] == [row["bundle"] for row in found["bundles"]["removed"]]


def test_a_time_before_the_first_record_is_not_known(archive: Path) -> None:
    told = "; nothing is known before it"
    assert told in pulsar(archive, "at", "2020-01-01T00:00").stdout
    assert told in pulsar(archive, "diff", "2020-01-01T00:00", "now").stdout
    assert told not in pulsar(archive, "at", "4").stdout
    assert told not in pulsar(archive, "diff", "4", "now").stdout


def test_tail_prints_the_newest(archive: Path) -> None:
    assert ["forget"] == [
        line.split()[2] for line in pulsar(archive, "tail", "-n", "1").stdout.splitlines()[1:]
    ]


def test_verify_finds_nothing_in_a_healthy_channel(archive: Path) -> None:
    result = pulsar(archive, "verify")
    assert (0, "all is in order") == (result.exit_code, result.stdout.splitlines()[-1])
    assert (
        "transfers, from Releasing to Owned: 1 (p50 2000 ms, p95 2000 ms, max 2000 ms)"
        in result.stdout
    )
    assert "\nbundles without an owner now: 0\n" in result.stdout


def test_verify_names_findings_with_advice(tmp_path: Path) -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "b:80", "Owned", to="b:80", version=9)
    archive = archived(tmp_path, written)
    result = pulsar(archive, "verify")
    assert (1, "findings: 1") == (result.exit_code, result.stdout.splitlines()[-1])
    assert "offset 2: second owner: " in result.stdout
    found = document(archive, "verify")
    assert isinstance(found, dict)
    assert "two brokers may have served it" in found["findings"][0]["advice"]


def test_another_url_is_no_name_of_an_archive() -> None:
    result = run("pulsar", "status", "--source", "http://broker:8080")
    assert 2 == result.exit_code
    assert (
        "'http://broker:8080' is not the service URL of a Pulsar cluster: write pulsar://HOST:PORT"
        in result.stderr
    )


def test_a_source_that_is_no_archive_is_told(tmp_path: Path) -> None:
    result = pulsar(tmp_path / "none.db", "status")
    assert result.exit_code == 2
    assert "there is no archive" in result.stderr
