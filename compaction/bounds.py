"""Bound the duration of a compaction, for the command line and for the leader.

Apart from the compactor, so that a command line need not load it.
"""

from __future__ import annotations

from typing import Final

COMPACT_S_MAX: Final = 600
"""The default time limit of one compaction. A million records take 15 s on a full core. The limit also covers a tenth of a core,
or the ten million records of a log that was never compacted."""

WAIT_MS_MAX: Final = 10_000
"""How long each write waits for other writers: the brokers, whose batches take milliseconds."""
