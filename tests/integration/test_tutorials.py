"""The tutorial of a cluster works: a reader who types what it says gets what it says. That of a
service is followed in test_wheel_alone.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks
from tests.docs.reader import reader
from tests.house.house_rules import ROOT

pytestmark = pytest.mark.integration


def test_the_first_cluster(tmp_path: Path) -> None:
    """The client of the first tutorial misses no message, whatever its reader does to the cluster
    meanwhile.
    """
    with reader(tmp_path) as following:
        for block in blocks(ROOT / "docs/tutorial/first-cluster.md"):
            following.follow(block)
        received = [
            int(number)
            for number in re.findall(
                r"^order (\d+)$", following.output_of("python orders.py"), re.MULTILINE
            )
        ]
    assert list(range(len(received))) == received
    assert any("all is in order" in answer for answer in following.answers)
