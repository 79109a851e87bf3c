"""Start a JVM without its irrelevant messages.

`log4j2.properties` configures Spark's logging. No setting turns off these lines of Java, its start script and Spark's workers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STANDARD_ERROR: Final = 2

_NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in",
    b"WARNING: A terminally deprecated method",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers",
    b"Using Spark's default log4j profile",
    b"Picked up JAVA_TOOL_OPTIONS",
    # Messages of a stateful operator's Python worker in each batch, with an empty line after each.
    b"Starting Streaming TransformWithState",
    b"Streaming TransformWithState",
    b"\n",
)


@contextmanager
def quietly(*, on: bool = True) -> Iterator[None]:
    """Send the standard error of programs started in the block through a thread that drops noise, also after the block.

    The thread ends with the last of these programs. If `on` is false, change nothing.
    """
    if not on:
        yield
        return
    kept = os.dup(_STANDARD_ERROR)
    reading, writing = os.pipe()
    threading.Thread(target=_forward, args=(reading, os.dup(kept)), name="spark-stderr", daemon=True).start()
    os.dup2(writing, _STANDARD_ERROR)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)


def _forward(reading: int, target: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                try:
                    out.write(line)
                except OSError:  # Nobody reads the output any more, but a full pipe would block the JVM.
                    continue
