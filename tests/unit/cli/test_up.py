"""Which log `equipoise up` takes, and what it says when the environment names another one.

May live here: what is settled before any process is started. Running clusters are in tests/integration/test_up.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokers.cli.options import LOG_VARIABLE
from brokers.local_cluster import LocalCluster, StartBrokenOff
from tests.unit.cli.fabricated import run


@pytest.fixture(autouse=True)
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start is broken off at once, in an empty working folder."""

    def start(_: LocalCluster) -> None:
        raise StartBrokenOff

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalCluster, "start", start)


def test_the_log_of_up_lies_in_its_directory() -> None:
    """Whatever log the environment names for the other commands, the one in `--data` is taken, and that is said."""
    told = run("up", "--data", "other", log="sqlite:cluster/channel.db").stdout.splitlines()
    said = f"{LOG_VARIABLE} names sqlite:cluster/channel.db, which is not used: this cluster's log is sqlite:other/channel.db"
    assert f"{said}; --log names another" == told[0]
    first = json.loads(run("up", "--data", "other", "--json", log="memory:x").stdout.splitlines()[0])
    assert {"what": "environment_overridden", LOG_VARIABLE: "memory:x", "log": "sqlite:other/channel.db"} == first


@pytest.mark.parametrize(
    ("named", "options"),
    [
        (None, ()),
        ("sqlite:cluster/channel.db", ()),
        ("sqlite:{folder}/cluster/channel.db", ()),
        ("sqlite:cluster/channel.db", ("--log", "sqlite:mine.db")),
    ],
)
def test_nothing_is_said_where_nothing_is_overridden(named: str | None, options: tuple[str, ...], tmp_path: Path) -> None:
    """An environment that names the same file, or a log that is named on the command line, is nothing to speak of."""
    log = None if named is None else named.replace("{folder}", str(tmp_path))
    assert "no broker is left\n" == run("up", "--data", "cluster", *options, log=log).stdout
