"""How a broker's process keeps the memory of freed messages."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# Page faults while messages of 1 MiB come and go, four at a time.
PROGRAM = """
import resource
from equipoise.brokers.cli.commands.broker import keep_freed_memory
{call}
for turn in range(60):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    messages = [b"x" * 1024 * 1024 for _ in range(4)]
    del messages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(call: str) -> int:
    """Run the program, and return what it counted."""
    return int(
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(call=call)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc returns freed memory so eagerly"
)
def test_the_memory_of_freed_messages_is_used_again() -> None:
    assert page_faults("keep_freed_memory()") < page_faults("") / 10
