"""Checkpoints that a power cut has torn: files of Spark that are empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.streams.streams import check_version


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint with two finished batches and one that has begun."""
    check_version("audit", tmp_path, 1)
    for name in ("offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1", "metadata"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("v1\n{}")
    return tmp_path


def test_a_batch_that_has_not_begun_is_dropped(checkpoint: Path) -> None:
    """Spark writes its offsets first, and makes them anew."""
    (checkpoint / "offsets" / "2").write_text("")
    (checkpoint / "offsets" / ".2.crc").write_text("")
    check_version("audit", checkpoint, 1)
    assert ["0", "1"] == sorted(path.name for path in (checkpoint / "offsets").iterdir())


@pytest.mark.parametrize("name", ["offsets/1", "commits/1", "metadata"])
def test_any_other_empty_file_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).write_text("")
    with pytest.raises(
        OperatorError,
        match=(
            rf"its file {name} is empty.*; remove the folder .*{checkpoint.name} and start the job"
            r" again"
        ),
    ):
        check_version("audit", checkpoint, 1)
    assert (checkpoint / "offsets" / "2").exists()
